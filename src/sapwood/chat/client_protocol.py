"""What clients of a chat say, and how they are answered: the npm clients' protocol, and HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import msgspec

from sapwood.capabilities.connections import HearsFiles
from sapwood.chat.models.turn_overrides import TurnOverrides
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.chat.store.user_messages import check_attached, has_files
from sapwood.chat.turn.conversation import Conversation
from sapwood.chat.turn.intake import Intake
from sapwood.chat.turn.message_uploads import MessageUploads, UploadCancelled
from sapwood.chat.turn.replay import Replay
from sapwood.chat.turn.tool_answers import Answers, answers_in
from sapwood.errors import InvalidArguments, OverLimit, Refused, Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.sockets import WATCH_ONLY, Socket
from sapwood.kernel.aio import to_the_end
from sapwood.randomness import new_id
from sapwood.runs.execution.access_gates import refused_to_watch
from sapwood.runs.execution.contract import bounded_reason
from sapwood.runs.questions.permission import Permission
from sapwood.runs.questions.questions import NOT_OPEN, answer_of, digest_of
from sapwood.runs.tables.question import author_of_client, id_of
from sapwood.wire import chat as wire
from sapwood.wire import frames
from sapwood.wire import runs as run_wire
from sapwood.wire.inline_files import FrameText, take_files

REGENERATE = "regenerate-message"
"""The `trigger` of a request that asks the last question again."""
NO_MESSAGES = 'The body has no `messages`. Send {"messages":[{"role":"user","parts":[{"type":"text","text":"…"}]}]}.'


class Init(msgspec.Struct):
    """What a client would send to a server that answers by HTTP."""

    method: str = ""
    body: str = ""


class ClientProtocol(HearsFiles):
    """Hears the clients of one chat agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._conversation = actor.of(Conversation)
        self._record = actor.of(ConversationRecord)
        self._answers = actor.of(Answers)
        self._resuming = actor.of(Replay)
        self._uploads = actor.of(MessageUploads)

    def greet(self, socket: Socket) -> None:
        """Tell a new client what streams, or how the conversation stands."""
        record = self._record
        self._resuming.resume(socket, asked=False)
        if record.stream.active is None and record.turns.running() is None:
            record.stream.tell_one(socket, wire.messages(record.page(), connect=True))
            record.stream.knows(socket)

    def hear(self, socket: Socket, data: str) -> Any:
        """Return a function that deals with what a client said; None if it is not about the chat."""
        frame = wire.read(data)
        if frame is None or (frame.path is not None and frame.type in (wire.TOOL_RESULT, wire.TOOL_APPROVAL)):
            return None
        return lambda: self._heard(socket, frame, {})

    def hear_files(self, socket: Socket, data: FrameText) -> Any:
        """Return a function that deals with a message and its files; None if it starts no turn."""
        frame = wire.read(str(data))  # JSON is only read from plain strings
        return (lambda: self._heard(socket, frame, data.files)) if frame and frame.type == wire.REQUEST else None

    async def _heard(self, socket: Socket, frame: wire.ChatFrame, attached: Mapping[str, bytes]) -> None:
        if socket.is_watch_only and frame.type not in (wire.RESUME, wire.RESUME_ACK):
            self._refuse(socket, frame, WATCH_ONLY)
        elif frame.type == wire.REQUEST:
            await self._asked(socket, frame, attached)
        elif frame.type == wire.RESUME:
            self._resuming.resume(socket, frame.probe)
        elif frame.type == wire.RESUME_ACK:
            self._resuming.take(socket, str(frame.id))
        elif frame.type == wire.CANCEL:
            reason = bounded_reason(frame.reason)
            if not self._uploads.cancel(str(frame.id)) and not self._conversation.cancel(str(frame.id), reason):
                self._resuming.tell_ended(socket, str(frame.id))
        elif frame.type == wire.CLEAR:
            self._uploads.cancel()
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
            stream.tell_one(socket, wire.messages(self._record.page()))

    async def _asked(self, socket: Socket, frame: wire.ChatFrame, attached: Mapping[str, bytes]) -> None:
        if not isinstance(frame.id, str):
            return  # no answer could name it
        told_again = False
        try:
            init = msgspec.convert(frame.init, Init)
            if init.method != "POST":
                return
            body = _read(init.body)
            # A client that asks again shows the answer no more. If it is refused, it receives the conversation.
            told_again = body.get("trigger") == REGENERATE
            await self.accept(body, frame.id, socket, socket.user, attached)
        except UploadCancelled:
            self._record.stream.tell_one(socket, wire.done(frame.id, "cancelled"))
        except msgspec.ValidationError as error:
            told = f"The request is invalid: {error}"
            self._record.stream.tell_one(socket, wire.done(frame.id, "failed", body=told, error=True))
        except (Refused, OverLimit, Unavailable) as error:
            if self._actor.dropped is not None:
                raise
            if told_again:
                self._record.stream.tell_one(socket, wire.messages(self._record.page()))
            self._record.stream.tell_one(socket, wire.done(frame.id, "failed", body=str(error), error=True))

    async def accept(
        self,
        body: dict[str, Any],
        id: str | None,
        sender: Socket | None,
        user: Any,
        attached: Mapping[str, bytes],
        replay_seconds: float | None = None,
        overrides: TurnOverrides | None = None,
        after: str | None = None,
    ) -> TurnRow:
        """Have something answered that came as the AI SDK sends it."""
        said: Any = body.pop("messages", None)
        regenerate = body.pop("trigger", "") == REGENERATE
        client_tools = body.pop("clientTools", None)
        if said is None or said == []:
            if not regenerate:
                raise InvalidArguments(NO_MESSAGES)
            said = []
        if not isinstance(said, list):
            raise InvalidArguments("`messages` must be an array.")
        if not _are_tools(client_tools):
            raise InvalidArguments(
                "`clientTools` must be an array of objects with `name`, `description` and `parameters`."
            )
        messages = cast("list[Any]", said)
        is_inline = has_files(messages)
        if attached:
            check_attached(messages, body, attached, self._record.transcript.known)
        if is_inline or self._uploads.is_busy:
            messages = await self._uploads.store(messages, attached, id)
        row = self._actor.of(Intake).ask(
            messages,
            id=id,
            body=body,
            client_tools=client_tools,
            regenerate=regenerate,
            sender=sender,
            user=id_of(user),
            replay_seconds=replay_seconds,
            overrides=overrides,
            after=after,
        )
        if is_inline and sender is not None:  # it would send the bytes again with its next message
            self._record.stream.tell_one(sender, wire.messages(self._record.page()))
        return row

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
            asked = request.query_params
            page = self._record.page_before(asked.get("before"), asked.get("limit"))
            return Response(page, media_type="application/json")
        if request.method == "POST" and last == "chat":
            return await self._answer(request)
        return None

    async def _answer(self, request: Any) -> Any:
        """Answer what was posted with the AI SDK's stream of server-sent events, for clients without a socket."""
        from starlette.responses import StreamingResponse

        text, attached = await request.body(), dict[str, bytes]()
        if len(text) > self._actor.host.settings.frame_bytes:
            token = new_id(self._actor.host.random)
            frame = await to_the_end(lambda: take_files(text.decode(errors="replace"), token))
            text, attached = frame.encode(), frame.files
        body = _read(text)
        request._body = b""  # the stream may last for hours, and needs it no more
        said: Any = body.get("messages")
        row = None
        if _ends_with_answer(said):
            row = self._answers.turn_answered_by(said)
            if row is not None:
                await self._take_answers(request.scope.get("user"), said[-1])
                row = self._record.row(row.number)
        row = row or await self.accept(body, None, None, request.scope.get("user"), attached)
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
    is_named = isinstance(name, str) and isinstance(description, str | None)
    return is_named and isinstance(parameters, dict | None) and isinstance(tool.get("strict"), bool | None)
