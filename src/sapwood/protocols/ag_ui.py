"""AG-UI 1.0: pages such as those of CopilotKit talk to every chat agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sapwood.address import kebab
from sapwood.errors import InvalidArguments, OverLimit, Refused
from sapwood.protocols.adapter import Adapter, Place
from sapwood.protocols.ag_ui_input import RunInput, answer_of, check_id, read_cancel, read_input
from sapwood.protocols.ag_ui_stream import RunStream, interrupt_id
from sapwood.protocols.exchange import Exchange
from sapwood.runs.tables.question import Answer, Question
from sapwood.wire.events import SSE
from sapwood.wire.frames import read_json
from sapwood.wire.routing import relative

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from sapwood.agent import Agent
    from sapwood.chat.store.transcript import UIMessage

RUN, CONNECT, CANCEL = "/ag-ui", "/ag-ui/connect", "/ag-ui/cancel"
NOT_OPEN = "The interrupt {!r} is not open: it was answered, or its turn has ended. Connect again to see what is open."


class NotOpen(Exception):
    """An answer to something that is not asked any more."""


class AgUi(Adapter):
    """AG-UI 1.0 for `App(protocols=[AgUi()])`, at `POST …/ag-ui` below every chat agent.

    The thread is the agent, and a run is a turn, or the part of a turn between two answers of the user. A run with
    a known `runId` is continued, not started again.
    """

    paths = (RUN, CONNECT, CANCEL)
    roots = (RUN,)

    async def locate(self, request: Request, agents: Sequence[type[Agent[Any]]]) -> Place | Response:
        """Return the root that is named by the class in the URL and the `threadId` in the body."""
        path = relative(request.scope["path"], request.scope.get("root_path", ""))
        name, _, rest = path.removeprefix(f"{RUN}/").partition("/")
        cls = next((one for one in agents if kebab(one.__name__) == name), None)
        if cls is None or rest not in ("", "connect", "cancel"):
            return _refusal("There is no such agent. The path is /ag-ui/, and the class of a root agent.", 404)
        try:
            given = read_json(await request.body(), dict[str, Any])
            thread = given.get("threadId")
            if not isinstance(thread, str):
                raise InvalidArguments("The body must have a `threadId`: the name of the agent.")
            check_id("threadId", thread)
        except (msgspec.DecodeError, InvalidArguments) as error:
            return _refusal(f"The body must be a JSON object with a `threadId`: {error}", 400)
        return Place(cls, thread, f"{RUN}/{rest}" if rest else RUN)

    async def answer(self, request: Request, exchange: Exchange) -> Response | None:
        """Answer a request to one of the paths."""
        if not exchange.has_conversation:
            return None
        if request.method != "POST":
            return _refusal("Send a POST request.", 405, allow="POST")
        if (refused := await exchange.refused()) is not None:
            return refused
        try:
            return await self._answer(request, exchange)
        except InvalidArguments as error:
            return _refusal(str(error), 400)
        except Refused as error:
            return _refusal(str(error), 403)
        except NotOpen as error:
            return _refusal(str(error), 409)
        except OverLimit as error:
            return _refusal(str(error), 429)

    async def _answer(self, request: Request, exchange: Exchange) -> Response:
        from starlette.responses import StreamingResponse

        body = await request.body()
        path: str = request.scope["path"]
        if path == CANCEL:
            return self._cancel(body, exchange)
        accept = request.headers.get("accept", "*/*")
        if not any(kind in accept for kind in (SSE, "*/*", "text/*")):
            return _refusal(f"The answer is {SSE}. Send it in `Accept`.", 406)
        given = read_input(body)
        _check_thread(given.thread_id, exchange)
        stream = RunStream(exchange, given)
        if path == CONNECT:
            current = exchange.current()
            lines = stream.nothing() if current is None else stream.frames(current.id, None, None)
        else:
            lines = await self._run(given, exchange, stream, request.headers.get("last-event-id"))
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(lines, media_type=SSE, headers=headers)

    async def _run(
        self, given: RunInput, exchange: Exchange, stream: RunStream, last: str | None
    ) -> AsyncGenerator[bytes, None]:
        """Return what a client is told that runs the agent: of a new turn, or of one that exists."""
        name = exchange.named(given.run_id)
        if last is not None:
            exchange.check_cursor(last)
        if name is not None:
            await self._take(exchange, self._answers(given, await exchange.questions(), is_strict=False))
            return stream.frames(name.turn, name.after or None, last)
        if exchange.turn(given.run_id) is not None:
            return stream.frames(given.run_id, None, last)
        if last is not None:
            raise InvalidArguments("`Last-Event-ID` continues a run, but the `runId` is unknown.")
        answers = self._answers(given, await exchange.questions(), is_strict=True)
        current, said = exchange.current(), given.said()
        if not answers or self._is_new(said, exchange):
            await self._take(exchange, answers)
            return await self._begin(given, exchange, stream, said)
        if current is None:
            await self._take(exchange, answers)
            return stream.nothing()
        _, position = await exchange.stored(current.id)
        exchange.name_turn(given.run_id, current.id, position)
        await exchange.settle()  # before the answers, in other agents: to send them again must not begin a turn
        try:
            await self._take(exchange, answers)
        except (InvalidArguments, Refused):  # after any other error, an answer may have been taken
            exchange.forget_name(given.run_id)
            raise
        return stream.frames(current.id, position, None)

    def _is_new(self, said: Sequence[UIMessage], exchange: Exchange) -> bool:
        """Return whether one of these messages is not stored as it is, in any branch."""
        stored = {one.message["id"]: one.message["parts"] for one in exchange.placed_messages()} if said else {}
        return any(stored.get(one["id"]) != one["parts"] for one in said)

    async def _begin(
        self, given: RunInput, exchange: Exchange, stream: RunStream, said: Sequence[UIMessage]
    ) -> AsyncGenerator[bytes, None]:
        if not said:
            raise InvalidArguments("The last of the `messages` must be one with the role `user`.")
        is_new, current = self._is_new(said, exchange), exchange.current()
        if not is_new and current is not None:
            exchange.name_turn(given.run_id, current.id, "")  # nothing new was said: what runs is not run twice
            await exchange.settle()
            return stream.frames(current.id, None, None)
        tools = [one.told() for one in given.tools]
        turn = await exchange.begin(given.run_id, said, client_tools=tools, body=given.body(), regenerate=not is_new)
        return stream.frames(turn.id, None, None)

    def _answers(
        self, given: RunInput, questions: Sequence[Question], *, is_strict: bool
    ) -> list[tuple[Question, Answer]]:
        """Return the answers of a client to what is open. `is_strict`: refuse those to what is not."""
        interrupts = {interrupt_id(one): one for one in questions if one.kind != "client"}
        calls = {one.id: one for one in questions if one.kind == "client"}
        found: list[tuple[Question, Answer]] = []
        for entry in given.resume or ():
            question = interrupts.get(entry.interrupt_id)
            if question is not None:
                found.append((question, answer_of(entry, question)))
            elif is_strict:
                raise NotOpen(NOT_OPEN.format(entry.interrupt_id))
        results = given.results() if calls else {}
        return found + [(calls[id], answer) for id, answer in results.items() if id in calls]

    async def _take(self, exchange: Exchange, answers: Sequence[tuple[Question, Answer]]) -> None:
        for question, answer in answers:
            digest = None if question.kind == "client" else question.digest
            await exchange.answer(question.full_id, answer, digest)

    def _cancel(self, body: bytes, exchange: Exchange) -> Response:
        given = read_cancel(body)
        _check_thread(given.thread_id, exchange)
        name = exchange.named(given.run_id)
        return _json({"cancelled": exchange.cancel(given.run_id if name is None else name.turn)})


def _check_thread(thread: str, exchange: Exchange) -> None:
    if thread != (name := exchange.address.name):
        raise InvalidArguments(
            f"`threadId` must be {name!r}, the name of the agent in the URL. Create the client with this `threadId`, "
            "or use the URL /ag-ui/ and the class of the agent, where `threadId` names the agent."
        )


def _refusal(why: str, status: int, **headers: str) -> Response:
    return _json({"error": why}, status, **headers)


def _json(body: object, status: int = 200, **headers: str) -> Response:
    from starlette.responses import Response

    return Response(msgspec.json.encode(body), status, headers=headers, media_type="application/json")
