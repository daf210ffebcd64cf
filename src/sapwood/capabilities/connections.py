"""The clients of one agent: their connections, their calls, and the frames they receive.

Frames leave through the outbox, so a client never sees a write that is not committed. A call
or message of a client is an ordinary call into the agent: it runs in a task of its own, can
be aborted, and blocks no other client.
"""

from __future__ import annotations

import functools
import logging
from abc import ABC, abstractmethod
from asyncio import CancelledError, Future
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from typing import Any, ClassVar, Protocol, cast
from urllib.parse import parse_qs

import msgspec

from sapwood import tracing
from sapwood.address import kebab
from sapwood.capabilities.exposed_methods import JSON_RESULT, exposed
from sapwood.capabilities.mcp_servers import McpServers
from sapwood.capabilities.state import State
from sapwood.clock import Clock
from sapwood.errors import InvalidArguments, Refused, SapwoodError, UsageError
from sapwood.kernel.actors.actor import THE_END, Actor
from sapwood.kernel.actors.outbox import Outbox
from sapwood.kernel.actors.sockets import TOO_BIG, TOO_LONG, WATCH_ONLY, Socket
from sapwood.kernel.marshal.call import Call
from sapwood.kernel.marshal.copier import to_json
from sapwood.kernel.marshal.disclosure import code_for_clients, told_of
from sapwood.kernel.marshal.exceptions import describe
from sapwood.kernel.ports.agent_hooks import AgentHooks
from sapwood.kernel.ports.log import OutOfTouch
from sapwood.settings import Settings
from sapwood.wire import frames
from sapwood.wire.inline_files import FrameText

log = logging.getLogger(__name__)

Message = str | bytes


class Speech(Protocol):
    """What an agent of the framework's own says to its clients, and hears from them, beside calls and state."""

    def greet(self, socket: Socket) -> None:
        """Greet a new client, before everything else."""
        ...

    def hear(self, socket: Socket, data: str) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """Return what deals with a message; None if it is not for this one."""
        ...

    def closed(self, socket: Socket) -> None:
        """A client has left."""
        ...

    async def request(self, request: Any) -> Any:
        """Return the answer to an HTTP request; None if it is not for this one."""
        ...


class ClientHooks(AgentHooks, Protocol):
    """The upcalls of the connections of one agent."""

    speeches: ClassVar[tuple[Callable[[Actor], Speech], ...]]
    """What the agent says to its clients and hears from them, in the order in which messages are offered."""
    has_conversation: ClassVar[bool]
    """Whether clients may send it messages for a model."""


class HearsFiles(ABC):
    """A `Speech` to whose messages clients may add files."""

    @abstractmethod
    def hear_files(self, socket: Socket, data: FrameText) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """Return what deals with a message and its files; None if it is not for this one."""


class HttpOnly:
    """The part of `Speech` that has to do with sockets, for what clients reach over HTTP only."""

    def greet(self, socket: Socket) -> None:
        """Say nothing to a new client."""

    def hear(self, socket: Socket, data: str) -> None:
        """Take no message."""

    def closed(self, socket: Socket) -> None:
        """A client has left."""


class AppSpeeches:
    """What all agents of an app say and hear, besides what their classes do: the protocols of `App(protocols=…)`."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.speeches: tuple[Callable[[Actor], Speech], ...] = ()


STREAMS = 256
"""How many streams one socket may carry."""


class Connection:
    """The socket of one client. While the agent is awake, all messages of the client have the same object."""

    def __init__(self, actor: Actor, socket: Socket) -> None:
        self._actor = actor
        self._socket = socket
        self._state: Any = None
        self._read = False

    @property
    def id(self) -> str:
        """The id that the client chose, stable over reconnects. It is not unique. Do not trust it."""
        return self._socket.id

    @property
    def user(self) -> Any:
        """The user that `App(authenticate=…)` returned."""
        return self._socket.user

    @property
    def path(self) -> str:
        """The URL path after the path of the agent; at least `/`."""
        return self._socket.path

    @property
    def query(self) -> dict[str, str]:
        """The query parameters of the URL. The last value of a repeated parameter counts."""
        return {name: values[-1] for name, values in parse_qs(self._socket.query, keep_blank_values=True).items()}

    @property
    def headers(self) -> Mapping[str, str]:
        """The request headers, by lower-case name."""
        return self._socket.headers

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that `connection_tags` returned."""
        return self._socket.tags

    @property
    def readonly(self) -> bool:
        """Whether it cannot set the agent's state."""
        return self._socket.is_readonly

    @readonly.setter
    def readonly(self, value: bool) -> None:
        self._socket.is_readonly = value

    @property
    def watch_only(self) -> bool:
        """Whether it cannot start turns, answer questions or call methods."""
        return self._socket.is_watch_only

    @watch_only.setter
    def watch_only(self, value: bool) -> None:
        self._socket.is_watch_only = value

    @property
    def is_open(self) -> bool:
        """Whether the socket is open."""
        return self._socket.is_open

    @property
    def state(self) -> Any:
        """The value that `set_state` stored; `None` at first. It lasts until the socket closes, also during sleep."""
        if not self._read:
            self._state = msgspec.json.decode(self._socket.note) if self._socket.note else None
            self._read = True
        return self._state

    def set_state(self, value: Any) -> None:
        """Store a JSON value with this socket."""
        try:
            self._socket.note = to_json(value)
        except TypeError as error:
            raise UsageError(f"The state of a connection must be a JSON value: {error}") from None
        self._read = False

    def send(self, message: object) -> None:
        """Send `str` or `bytes` as they are, anything else as JSON. It is sent when all earlier writes are durable."""
        self._actor.check_use()
        self._actor.of(Outbox).put(self._socket, as_frame(message))

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the socket after all earlier messages. npm clients reconnect, except after 1008 and 4000 to 4999."""
        if not (code in (1000, 1001, 1008, 1011, 1012, 1013) or 3000 <= code <= 4999):
            raise UsageError(f"A close code must be 1000 or from 4000 to 4999, got {code}.")
        if len(reason.encode()) > 123:
            raise UsageError("A close reason must have at most 123 bytes.")
        self._actor.host.sockets.remove(self._socket)
        self._actor.of(Outbox).close(self._socket, code, reason)

    def __repr__(self) -> str:
        return f"<connection {self.id} to {self._actor.address}>"


def as_frame(message: object) -> Message:
    if isinstance(message, str | bytes):
        return message
    if isinstance(message, bytearray | memoryview):
        return bytes(cast("bytes", message))
    try:
        return to_json(message).decode()
    except TypeError as error:
        raise UsageError(f"A message must be a string, bytes or a JSON value: {error}") from None


class Connections:
    """The clients of one agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._known: dict[Socket, Connection] = {}
        self._streams: dict[Socket, set[Call]] = {}
        self._calls: dict[tuple[Socket, str], Call] = {}
        """What clients called and may cancel, by the id they gave it."""
        self._outbox = actor.of(Outbox)
        speeches = (*cast("ClientHooks", actor.hooks).speeches, *actor.host.shared(AppSpeeches).speeches)
        self._speeches: list[Speech] = [actor.of(one) for one in speeches]

    def all(self, tag: str | None = None) -> list[Connection]:
        self._actor.check_use()
        sockets = self._actor.host.sockets.here(self._actor.address)
        return [self.of(socket) for socket in sockets if tag is None or tag in socket.tags]

    def of(self, socket: Socket) -> Connection:
        found = self._known.get(socket)
        if found is None:
            found = self._known[socket] = Connection(self._actor, socket)
        return found

    def broadcast(self, message: object, exclude: Iterable[Connection]) -> None:
        self._actor.check_use()
        frame, left_out = as_frame(message), {one._socket for one in exclude}  # pyright: ignore[reportPrivateUsage]
        for socket in self._actor.host.sockets.of(self._actor.address):
            if socket not in left_out:
                self._outbox.put(socket, frame)

    def run(self, name: str, function: Any, *args: Any, client: Connection | None = None) -> Future[Any]:
        """Run a handler as a call of this agent."""
        return self._actor.handle(name, function, *args, client=client)[1]

    async def perform(self, name: str, function: Any, *args: Any) -> Any:
        """Run a hook as a call of this agent, for as long as its caller waits for it."""
        if not self._actor.host.holds_lease():
            raise OutOfTouch  # a client may go to another node at once
        call, reply = self._actor.handle(name, function, *args)
        try:
            return await reply
        except CancelledError:
            self._actor.cancel(call)
            raise

    async def respond(self, request: Any) -> Any:
        """Return the answer to an HTTP request."""
        for speech in self._speeches:
            if (answer := await speech.request(request)) is not None:
                return answer
        return await self._actor.agent.on_request(request)

    async def connect(self, socket: Socket) -> None:
        """Greet a new client; return when `on_connect` is done and its messages may come."""
        await self.run("on_connect", self._connect, socket, client=self.of(socket))

    async def _connect(self, socket: Socket) -> None:
        if not socket.is_open:  # it was closed on its way in, and its agent never hears of it
            socket.is_orphan = True
            return
        actor, agent, connection = self._actor, self._actor.agent, self.of(socket)
        socket.is_readonly = bool(agent.is_readonly(connection))
        socket.is_watch_only = bool(agent.is_watch_only(connection))
        socket.is_protocol = bool(agent.send_protocol_frames(connection))
        socket.tags = tuple(agent.connection_tags(connection))
        if socket.is_protocol:
            for speech in self._speeches:
                speech.greet(socket)
            state = actor.of(State).text()
            if agent.send_identity:
                frame = frames.identity(actor.address.name, kebab(actor.address.type), state_follows=state is not None)
                self._outbox.put(socket, frame)
            if state is not None:
                self._outbox.put(socket, frames.state(state))
            self._outbox.put(socket, actor.of(McpServers).frame(socket))
        # Only now: broadcasts come after the greeting.
        actor.host.sockets.add(socket)
        await agent.on_connect(connection)

    def takes_files(self, socket: Socket) -> bool:
        """Return whether a client may send messages with inline files: only to an agent with a conversation."""
        has_conversation = cast("ClientHooks", self._actor.hooks).has_conversation
        return has_conversation and not socket.is_watch_only

    def message(self, socket: Socket, data: Message) -> Future[Any] | None:
        """Deliver what a client sent; return what ends when it has been dealt with."""
        if isinstance(data, FrameText):
            return self._message_with_files(socket, data)
        frame = frames.read(data) if isinstance(data, str) else None
        if isinstance(frame, frames.Rpc):
            return self._rpc(socket, frame)
        if isinstance(frame, frames.CancelFrame):
            call = self._calls.get((socket, frame.id))
            return self._actor.cancel(call) if call is not None else None
        connection = self.of(socket)
        if isinstance(frame, frames.StateChange):
            return self.run("set_state", self._change_state, connection, frame.value, frame.id, client=connection)
        if isinstance(data, str):
            for speech in self._speeches:
                if (hears := speech.hear(socket, data)) is not None:
                    return self._hear(hears, connection)
        handled = self.run("on_message", self._actor.agent.on_message, connection, data, client=connection)
        handled.add_done_callback(lambda handled: self._report(handled, connection))
        return handled

    def _message_with_files(self, socket: Socket, data: FrameText) -> Future[Any] | None:
        """Deliver a long message whose inline files were decoded; close the socket if it may not have any."""
        for speech in self._speeches:
            if isinstance(speech, HearsFiles) and (hears := speech.hear_files(socket, data)) is not None:
                return self._hear(hears, self.of(socket))
        socket.close(TOO_BIG, TOO_LONG)
        return None

    def _hear(self, hears: Callable[[], Coroutine[Any, Any, None]], connection: Connection) -> Future[Any]:
        heard = self.run("chat", hears, client=connection)
        heard.add_done_callback(self._report_unheard)
        return heard

    def _report_unheard(self, heard: Future[Any]) -> None:
        if not heard.cancelled() and (error := heard.exception()) is not None and self._actor.dropped is None:
            self._told(error, "chat")  # the client has no frame to be told it in: the log has it

    def _report(self, handled: Future[Any], connection: Connection) -> None:
        if not handled.cancelled() and (error := handled.exception()) is not None and self._actor.dropped is None:
            self.run("on_error", self._actor.agent.on_error, error, connection, client=connection).add_done_callback(
                lambda told: told.cancelled() or told.exception()
            )

    async def _change_state(self, connection: Connection, value: bytes, id: str | None) -> None:
        socket = connection._socket  # pyright: ignore[reportPrivateUsage]
        if socket.is_readonly or socket.is_watch_only:
            self._refuse_state(socket, id, frames.READONLY)
            return
        try:
            if frames.is_deep(value):
                raise InvalidArguments(frames.TOO_DEEP)
            self._actor.of(State).set_text(value, connection, socket)
        except Exception as error:  # noqa: BLE001 - the user's validation may raise anything
            # Not logged as an internal error: a client can send a wrong state as often as it likes.
            log.info("client state refused address=%s: %s", self._actor.address, describe(error))
            why = str(error) if isinstance(error, msgspec.ValidationError) else told_of(error)
            self._refuse_state(socket, id, frames.REJECTED, "" if why is None else f": {why}")
        else:
            if id is not None:
                self._outbox.put(socket, frames.result(id, None, done=True))

    def _refuse_state(self, socket: Socket, id: str | None, text: str, why: str = "") -> None:
        self._outbox.put(socket, frames.state_error(text) if id is None else frames.error(id, text + why))

    def _rpc(self, socket: Socket, frame: frames.Rpc) -> Future[Any] | None:
        actor = self._actor
        found = exposed(actor.kind).get(frame.method)
        try:
            if socket.is_watch_only:
                raise Refused(WATCH_ONLY)
            if found is None:
                raise InvalidArguments(f"Method {frame.method} {_why_not(actor, frame.method)}")
            arguments = [actor.agent, *found.arguments(frame.args)]
        except SapwoodError as error:
            self._outbox.put(socket, frames.error(frame.id, self._told(error, frame.method)))
            return None
        call = Call(actor, frame.method, None)
        call.client = self.of(socket)
        if found.method.streams and len(self._streams.get(socket, ())) >= STREAMS:
            self._outbox.put(socket, frames.error(frame.id, f"A client may have at most {STREAMS} open streams."))
            return None
        if found.method.streams:
            under_way = self._stream(call, socket, frame, found.method.function(*arguments))
        else:
            function = found.method.function
            if found.method.is_async:
                function = tracing.spanned(
                    f"call {found.method.full_name}", function, sapwood__address=str(actor.address)
                )
            under_way = actor.serve(call, function, arguments, {}, found.method.is_async, JSON_RESULT)
            under_way.add_done_callback(functools.partial(self._answer, socket, frame))
        key = (socket, frame.id)
        self._calls[key] = call
        under_way.add_done_callback(lambda _: self._calls.pop(key, None))
        # A stream may last for ever, and paces itself by how fast it is read.
        return under_way if not found.method.streams else None

    def _answer(self, socket: Socket, asked: frames.Rpc, reply: Future[Any]) -> None:
        if reply.cancelled():
            return
        error = reply.exception()
        text = frames.result(asked.id, reply.result(), done=True) if error is None else self._failed(asked, error)
        self._outbox.put(socket, text)

    def _failed(self, asked: frames.Rpc, error: BaseException) -> str:
        """Return the answer to a call that failed."""
        return frames.error(asked.id, self._told(error, asked.method), code_for_clients(error))

    def _told(self, error: BaseException, method: str) -> str:
        return self._actor.host.failures.disclose(error, address=self._actor.address, method=method)

    def _stream(self, call: Call, socket: Socket, asked: frames.Rpc, items: AsyncGenerator[Any, None]) -> Future[Any]:
        self._streams.setdefault(socket, set()).add(call)
        task = self._actor.spawn(call, self._pump(call, socket, asked, items))
        task.add_done_callback(lambda _: self._streams.get(socket, set()).discard(call))
        return task

    async def _pump(self, call: Call, socket: Socket, asked: frames.Rpc, items: AsyncGenerator[Any, None]) -> None:
        call.enter()
        actor, limit, id = self._actor, self._actor.limits.payload_bytes, asked.id
        try:
            try:
                await actor.until_leased(call)
                async for item in items:
                    text = JSON_RESULT.copy(item, limit)
                    self._outbox.put(socket, frames.result(id, text if text is not None else b"null", done=False))
                    if (room := socket.writer.room()) is not None:
                        await room
            finally:
                await items.aclose()
            self._outbox.put(socket, frames.result(id, None, done=True))
        except CancelledError:
            if actor.dropped is not None:
                self._outbox.put(socket, self._failed(asked, actor.dropped))
            raise
        except THE_END:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            actor.last_error = describe(error)
            self._outbox.put(socket, self._failed(asked, error))
        finally:
            actor.finished(call)

    async def closed(self, socket: Socket, code: int, reason: str) -> None:
        """A client is gone."""
        for call in self._streams.pop(socket, set()):
            self._actor.cancel(call)
        connection = self.of(socket)
        for speech in self._speeches:
            speech.closed(socket)
        try:
            await self.run("on_close", self._actor.agent.on_close, connection, code, reason, client=connection)
        finally:
            self._known.pop(socket, None)


def _why_not(actor: Actor, method: str) -> str:
    is_there = method in actor.kind.methods or (
        not method.startswith("_") and callable(getattr(actor.kind.cls, method, None))
    )
    return "is not callable" if is_there else "does not exist"
