"""What clients of a chat say, and how they are answered: the npm clients' protocol, and HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec

from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.chat.turn.conversation import Conversation
from sapwood.chat.turn.intake import Intake
from sapwood.chat.turn.replay import Replay
from sapwood.chat.turn.tool_answers import Answers, answers_in
from sapwood.errors import InvalidArguments, Refused
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.sockets import WATCH_ONLY, Socket
from sapwood.runs.execution.access_gates import refused_to_watch
from sapwood.runs.execution.contract import bounded_reason
from sapwood.runs.questions.permission import Permission
from sapwood.runs.questions.questions import NOT_OPEN, answer_of, digest_of
from sapwood.runs.tables.question import author_of_client, id_of
from sapwood.wire import chat as wire
from sapwood.wire import frames
from sapwood.wire import runs as run_wire


class Init(msgspec.Struct):
    """What a client would send to a server that answers by HTTP."""

    method: str = ""
    body: str = ""


class ClientProtocol:
    """Hears the clients of one chat agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._conversation = actor.of(Conversation)
        self._record = actor.of(ConversationRecord)
        self._answers = actor.of(Answers)
        self._resuming = actor.of(Replay)

    def greet(self, socket: Socket) -> None:
        """Tell a new client what streams, or how the conversation stands."""
        record = self._record
        self._resuming.resume(socket, asked=False)
        if record.stream.active is None and record.turns.running() is None:
            record.stream.tell_one(socket, wire.messages(record.text(), connect=True))
            record.stream.knows(socket)

    def hear(self, socket: Socket, data: str) -> Any:
        """Return a function that deals with what a client said; None if it is not about the chat."""
        frame = wire.read(data)
        if frame is None or (frame.path is not None and frame.type in (wire.TOOL_RESULT, wire.TOOL_APPROVAL)):
            return None
        return lambda: self._heard(socket, frame)

    async def _heard(self, socket: Socket, frame: wire.ChatFrame) -> None:
        if socket.is_watch_only and frame.type not in (wire.RESUME, wire.RESUME_ACK):
            self._refuse(socket, frame, WATCH_ONLY)
        elif frame.type == wire.REQUEST:
            self._asked(socket, frame)
        elif frame.type == wire.RESUME:
            self._resuming.resume(socket, frame.probe)
        elif frame.type == wire.RESUME_ACK:
            self._resuming.take(socket, str(frame.id))
        elif frame.type == wire.CANCEL:
            if not self._conversation.cancel(str(frame.id), bounded_reason(frame.reason)):
                self._resuming.tell_ended(socket, str(frame.id))
        elif frame.type == wire.CLEAR:
            self._conversation.clear(socket)
        elif frame.type == wire.TOOL_RESULT or frame.type == wire.TOOL_APPROVAL:
            await self._answered(socket, frame)

    async def _answered(self, socket: Socket, frame: wire.ChatFrame) -> None:
        """Take the answer of a client of this agent to one of its questions, if it may give it."""
        id, answer = str(frame.call), answer_of(frame)
        try:
            question = await self._actor.of(Permission).check(socket.user, id, answer, digest_of(frame))
        except Refused as refused:
            self._refuse(socket, frame, str(refused))
            return
        if question is None:
            if frame.type == wire.TOOL_APPROVAL:
                self._refuse(socket, frame, NOT_OPEN)
            return
        tools = frame.client_tools if frame.type == wire.TOOL_RESULT and _are_tools(frame.client_tools) else None
        self._answers.answer(
            id,
            answer,
            author_of_client(socket.user, self._actor.host.authentication, "socket"),
            go_on=frame.go_on is True and answer.kind != "failed",
            owner=socket,
            client_tools=tools,
        )

    def _refuse(self, socket: Socket, frame: wire.ChatFrame, why: str) -> None:
        """Tell a client that it may not do this, and how the conversation stands."""
        stream = self._record.stream
        if frame.type == wire.REQUEST:
            stream.tell_one(socket, wire.done(str(frame.id), "failed", body=why, error=True))
        else:
            stream.tell_one(socket, run_wire.questions((), self._answers.questions(), refused=(str(frame.call), why)))
            stream.tell_one(socket, wire.messages(self._record.text()))

    def _asked(self, socket: Socket, frame: wire.ChatFrame) -> None:
        if not isinstance(frame.id, str):
            return  # no answer could name it
        try:
            init = msgspec.convert(frame.init, Init)
            if init.method != "POST":
                return
            self._accept(_read(init.body), frame.id, socket, socket.user)
        except msgspec.ValidationError as error:
            told = f"The request is invalid: {error}"
            self._record.stream.tell_one(socket, wire.done(frame.id, "failed", body=told, error=True))
        except Refused as error:
            self._record.stream.tell_one(socket, wire.done(frame.id, "failed", body=str(error), error=True))

    def _accept(self, body: dict[str, Any], id: str | None, sender: Socket | None, user: Any) -> TurnRow:
        """Have something answered that came as the AI SDK sends it."""
        said: Any = body.pop("messages", None) or []
        regenerate = body.pop("trigger", "") == "regenerate-message"
        client_tools = body.pop("clientTools", None)
        if not isinstance(said, list):
            raise InvalidArguments("`messages` must be an array.")
        if not _are_tools(client_tools):
            raise InvalidArguments(
                "`clientTools` must be an array of objects with `name`, `description` and `parameters`."
            )
        return self._actor.of(Intake).ask(
            cast("list[Any]", said),
            id=id,
            body=body,
            client_tools=client_tools,
            regenerate=regenerate,
            sender=sender,
            user=id_of(user),
        )

    def closed(self, socket: Socket) -> None:
        """A client has left."""
        self._record.stream.gone(socket)

    async def request(self, request: Any) -> Any:
        """Answer an HTTP request about the chat; None if it is about something else."""
        path: str = request.scope["path"].rstrip("/")
        last = path.rpartition("/")[2]
        if path.startswith("/sub/"):
            return None  # it was for a sub-agent of an unknown class
        if request.method == "GET" and last == "get-messages":
            from starlette.responses import Response

            if (refused := await refused_to_watch(self._actor, request)) is not None:
                return refused
            return Response(self._record.text(), media_type="application/json")
        if request.method == "POST" and last == "chat":
            return await self._answer(request)
        return None

    async def _answer(self, request: Any) -> Any:
        """Answer what was posted with the AI SDK's stream of server-sent events, for clients without a socket."""
        from starlette.responses import StreamingResponse

        body = _read(await request.body())
        request._body = b""  # the stream may last for hours, and needs it no more
        said: Any = body.get("messages")
        row = None
        if _ends_with_answer(said):
            row = self._answers.turn_answered_by(said)
            if row is not None:
                await self._take_answers(request.scope.get("user"), said[-1])
                row = self._record.row(row.number)
        row = row or self._accept(body, None, None, request.scope.get("user"))
        return StreamingResponse(
            _events(self._conversation.listen(row)),
            media_type="text/event-stream",
            headers={"x-vercel-ai-ui-message-stream": "v1", "cache-control": "no-cache", "x-accel-buffering": "no"},
        )

    async def _take_answers(self, user: Any, message: dict[str, Any]) -> None:
        """Take the answers in a message, or none of them if the client may not give one."""
        permission, answers = self._actor.of(Permission), dict(answers_in(message))
        asked = [(id, answer) for id, answer in answers.items() if self._answers.question(id) is not None]
        allowed = [(await permission.check(user, id, answer), answer) for id, answer in asked]
        author = author_of_client(user, self._actor.host.authentication, "http")
        for question, answer in allowed:
            if question is not None and permission.is_open(question):
                self._answers.answer(question.id, answer, author)


def _read(body: bytes | str) -> dict[str, Any]:
    """Return the body of a request."""
    try:
        return frames.read_json(body, dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidArguments(f"The body must be a JSON object: {error}.") from None


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        yield b"data: " + chunk + b"\n\n"
    yield b"data: [DONE]\n\n"


def _ends_with_answer(said: Any) -> bool:
    last = cast("list[Any]", said)[-1] if isinstance(said, list) and said else None
    return isinstance(last, dict) and cast("dict[str, Any]", last).get("role") == "assistant"


def _are_tools(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(_is_tool, cast("list[Any]", value))))


def _is_tool(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    tool = cast("dict[str, Any]", value)
    name, description, parameters = tool.get("name"), tool.get("description"), tool.get("parameters")
    return isinstance(name, str) and isinstance(description, str | None) and isinstance(parameters, dict | None)
