"""What clients of a chat say, and how they are answered: the npm clients' protocol, and HTTP."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from sapwood.chat.conversation import Conversation
from sapwood.errors import Refused
from sapwood.kernel.actor import Actor
from sapwood.kernel.sockets import Socket
from sapwood.wire import chat as wire


class Talk:
    """Hears the clients of one chat agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._conversation = actor.of(Conversation)

    def greet(self, socket: Socket) -> None:
        """Tell a new client what streams, or how the conversation stands."""
        conversation = self._conversation
        conversation.resume(socket, asked=False)
        if conversation.stream.active is None and conversation.turns.running() is None:
            conversation.stream.tell_one(socket, wire.messages(conversation.transcript.text(), connect=True))

    def hear(self, socket: Socket, data: str) -> Any:
        """Return a function that deals with what a client said; None if it is not about the chat."""
        frame = wire.read(data)
        if frame is None:
            return None
        return lambda: self._heard(socket, frame)

    async def _heard(self, socket: Socket, frame: wire.Incoming) -> None:
        conversation = self._conversation
        if frame.type == wire.REQUEST:
            self._asked(socket, frame)
        elif frame.type == wire.RESUME:
            conversation.resume(socket, frame.probe)
        elif frame.type == wire.RESUME_ACK:
            conversation.take(socket, str(frame.id))
        elif frame.type == wire.CANCEL:
            conversation.cancel(str(frame.id))
        elif frame.type == wire.CLEAR:
            conversation.clear(socket)
        elif frame.type == wire.TOOL_RESULT:
            failed = frame.state == "output-error"
            conversation.answer(
                str(frame.call),
                "failed" if failed else "done",
                str(frame.error or "Tool execution denied by user") if failed else frame.output,
                go_on=frame.go_on is True and not failed,
                owner=socket,
                client_tools=frame.client_tools,
            )
        elif frame.type == wire.TOOL_APPROVAL:
            conversation.answer(
                str(frame.call),
                "approved" if frame.approved is True else "denied",
                go_on=frame.go_on is True,
                owner=socket,
            )

    def _asked(self, socket: Socket, frame: wire.Incoming) -> None:
        init: dict[str, Any] = frame.init if type(frame.init) is dict else {}
        body = init.get("body")
        if init.get("method") != "POST" or not isinstance(body, str) or not body:
            return
        try:
            said = msgspec.json.decode(body)
        except msgspec.DecodeError:
            return
        if not isinstance(said, dict) or not isinstance(frame.id, str):
            return
        said = cast("dict[str, Any]", said)
        messages: list[Any] = said.pop("messages", None) or []
        trigger = said.pop("trigger", "submit-message")
        client_tools = said.pop("clientTools", None)
        try:
            self._conversation.ask(
                messages,
                id=frame.id,
                body=said,
                client_tools=client_tools,
                regenerate=trigger == "regenerate-message",
                sender=socket,
            )
        except Refused as error:
            self._conversation.stream.tell_one(socket, wire.done(frame.id, "error", body=str(error), error=True))

    def closed(self, socket: Socket) -> None:
        """A client has left."""
        self._conversation.stream.gone(socket)

    async def request(self, request: Any) -> Any:
        """Answer an HTTP request about the chat; None if it is about something else."""
        last = request.url.path.rstrip("/").rpartition("/")[2]
        if request.method == "GET" and last == "get-messages":
            from starlette.responses import Response

            return Response(self._conversation.transcript.text(), media_type="application/json")
        return None
