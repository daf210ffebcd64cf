"""One connection between two workers, and the exchanges that go over it.

Only the side that connected opens exchanges, so each worker has its own connection to each
other one. The first frame after something was read goes at once, past the loop: most likely
the other side waits for nothing else. What is written in one turn of the loop after it is
written together: by the loop, if it is uvloop's, or else here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
from asyncio import AbstractEventLoop, BaseTransport, Future, Transport
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import cast

from sapwood.errors import Unavailable, UsageError
from sapwood.kernel.marshal.failures import pack_error, unpack_error
from sapwood.kernel.ports.placement import NotBegun
from sapwood.kernel.ports.transport import Answer
from sapwood.runtimes.workers.frames import OPENING, FrameReader, Gap, Kind, Unheard, credit, head, opening, read_credit

log = logging.getLogger(__name__)

WINDOW = 256 * 1024
"""Bytes of one exchange that may be on their way in one direction."""
EACH = 64
"""Bytes that a message takes beside its own: many small ones are much."""
GATHERED = 64 * 1024
"""Bytes that are written at once, however soon more may follow."""

NOTHING = b""
read_opening = OPENING.unpack_from
# Plain numbers: the members of an enumeration are looked up each time.
OPEN, MESSAGE, CREDIT, LAST, END, FAIL, STOP = map(int, Kind)

Answers = Mapping[bytes, Answer]
"""Who takes the first message of an exchange that the other side opened, by what it is about."""


class LinkExchange:
    """One exchange, seen from one of its ends."""

    # Most exchanges are one message each way: what they never need stands on the class.
    _items = 0
    """How many messages the answering side may send unasked; 0: it counts bytes."""
    _credit = WINDOW
    _granted = 0
    """What was taken and is not granted again yet."""
    _reader: Future[None] | None = None
    _reply: Future[bytes] | None = None
    """Receives the only message; then there is no reader."""
    _incoming: deque[bytes] | None = None
    _room: Future[None] | None = None
    _ended = False
    """Whether the other side has said all."""
    _said_all = False
    """Whether this side has."""
    _is_deaf = False
    """Whether the other side listens to nothing any more but the end."""
    _error: Exception | None = None
    _is_stopped = False
    """Whether the other side wants no more."""
    _stops: list[Callable[[], object]] | None = None
    """What to do when it does."""

    def __init__(self, link: Link, number: int, items: int, is_answer: bool) -> None:
        self._link = link
        self._number = number
        self._is_answer = is_answer
        if items:
            self._items = items
            if is_answer:
                self._credit = items

    def send(self, message: bytes) -> Awaitable[None] | None:
        if self._said_all or self._is_deaf:
            return None
        self._credit -= 1 if self._items and self._is_answer else len(message) + EACH
        link = self._link
        link.write(self._number, MESSAGE, message)
        if self._credit > 0:
            return None if link.room is None else link.until_room()
        if self._room is None or self._room.done():
            self._room = link.loop.create_future()
        return self._room

    @property
    def is_held_up(self) -> bool:
        """Whether no more may be sent until the other side has taken some."""
        return self._credit <= 0 and not (self._said_all or self._is_deaf)

    async def receive(self) -> bytes | None:
        while not self._incoming:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            self._reader = self._link.loop.create_future()
            await self._reader
        message = self._incoming.popleft()
        if not self._ended:
            self._grant(message)
        return message

    def reply(self) -> Future[bytes]:
        self._reply = self._link.loop.create_future()
        if self._ended:
            self._settle()
        return self._reply

    def _settle(self) -> None:
        """Notify the caller that waits for the only message."""
        reply = self._reply
        if reply is None or reply.done():
            return
        if self._incoming:
            reply.set_result(self._incoming.popleft())
        else:
            reply.set_exception(self._error or Unavailable("The connection ended before the response."))

    def _grant(self, message: bytes) -> None:
        by_items = self._items > 0 and not self._is_answer
        self._granted += 1 if by_items else len(message) + EACH
        if by_items or self._granted >= WINDOW // 4:
            self._link.write(self._number, CREDIT, credit(self._granted))
            self._granted = 0

    def end(self, message: bytes | None = None) -> None:
        if not self._said_all:
            self._said_all = True
            if message is None:
                self._link.write(self._number, END, NOTHING)
            else:
                self._link.write(self._number, LAST, message)
            if self._is_answer:
                self._forget()

    def fail(self, error: Exception) -> None:
        if not self._said_all:
            self._said_all = True
            self._link.write(self._number, FAIL, pack_error(error))
            if self._is_answer:
                self._forget()

    def _forget(self) -> None:
        """The last word is said."""
        self._link.talks.pop(self._number, None)
        self._stops = None
        if self._room is not None:
            self._let_go()

    def drop(self) -> None:
        if not self._ended and not self._said_all:
            self._said_all = True
            self._link.write(self._number, STOP, NOTHING)

    async def stop(self) -> None:
        if not self._ended:
            self._said_all = True
            self._link.write(self._number, STOP, NOTHING)
        while not self._ended:
            self._incoming = None
            self._reader = self._link.loop.create_future()
            await self._reader

    def when_stopped(self, act: Callable[[], object]) -> None:
        if self._is_stopped:
            act()
        elif self._stops is None:
            self._stops = [act]
        else:
            self._stops.append(act)

    def take(self, kind: int, content: bytes) -> None:
        """Take a frame of the other side."""
        if kind == LAST:
            reply = self._reply
            if reply is None or reply.done():
                self._keep(content)
                self._over()
            else:  # what most exchanges are
                reply.set_result(content)
                self._ended = True
                del self._link.talks[self._number]
                return
        elif kind == MESSAGE:
            self._keep(content)
        elif kind == CREDIT:
            self._credit += read_credit(content)
            if self._credit > 0:
                self._let_go()
            return
        elif kind == END:
            self._over()
        elif kind == FAIL:
            self._error = unpack_error(content)
            self._over()
        elif kind == STOP:
            self._ended = self._is_deaf = True
            self._let_go()
            self._wake()
            self._stopped()
            return
        else:
            raise Gap(f"Unknown frame kind {kind}.")
        self._wake()

    def _keep(self, message: bytes) -> None:
        if self._incoming is None:
            self._incoming = deque()
        self._incoming.append(message)

    def lose(self, error: Unavailable) -> None:
        """The other side is gone."""
        if not self._ended:
            self._error = error
            self._over()
        self._said_all = self._is_deaf = True
        self._let_go()
        self._wake()
        self._stopped()

    def _over(self) -> None:
        self._ended = True
        if not self._is_answer:
            self._is_deaf = True
            self._link.talks.pop(self._number, None)
            if self._room is not None:
                self._let_go()

    def _stopped(self) -> None:
        self._is_stopped = True
        stops, self._stops = self._stops, None
        for act in stops or ():
            act()

    def _wake(self) -> None:
        if self._ended:
            self._settle()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _let_go(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


class Link(asyncio.Protocol):
    """One connection, at one of its ends."""

    def __init__(
        self, loop: AbstractEventLoop, who: str, answers: Answers | None, lost: Callable[[Link], None]
    ) -> None:
        self.loop = loop
        self.who = who
        """The other worker, as people read it."""
        self.talks: dict[int, LinkExchange] = {}
        self.is_lost = False
        self.answers = answers
        """What the other side may ask. `None` means nothing."""
        self.is_greeted = False
        """Whether the other side has shown that it is a worker of ours."""
        self._lost = lost
        self._reader = FrameReader()
        self._last = 0
        self._sent = 0
        self._transport: Transport | None = None
        self.room: Future[None] | None = None
        """Done when the other side has read enough of what was written, or `None` if it has."""
        self._parts: list[bytes] = []
        self._bytes = 0
        self._turn = False
        """Whether something was written in this turn of the loop."""
        self._gathers = type(loop).__module__.startswith("uvloop")
        """Whether the loop itself combines what it is given in one turn into one write."""
        self._is_first = False
        """Whether nothing was written since something was read."""
        self._socket = -1
        """Our own descriptor of the connection: its number can never refer to another file."""

    def open(self, verb: bytes, message: bytes, items: int) -> LinkExchange:
        """Begin an exchange."""
        self._last += 1
        talk = LinkExchange(self, self._last, items, False)
        if self.is_lost:
            talk.lose(self._unheard())
        else:
            self.talks[self._last] = talk
            self.write(self._last, OPEN, opening(verb, items, message))
        return talk

    def write(self, exchange: int, kind: int, content: bytes) -> None:
        transport = self._transport
        if self.is_lost or transport is None:
            return
        self._sent += 1
        frame = head(len(content), self._sent, exchange, kind) + content
        if self._is_first:
            self._is_first = False
            if not transport.get_write_buffer_size():
                try:
                    written = os.write(self._socket, frame)
                except OSError:  # there is no room, or the connection has no reader any more: the loop finds out
                    written = 0
                if written == len(frame):
                    return
                frame = frame[written:]
        if self._gathers:
            transport.write(frame)
            return
        if not self._turn:
            self._turn = True
            self.loop.call_soon(self._end_turn)
            transport.write(frame)
            return
        self._parts.append(frame)
        self._bytes += len(frame)
        if self._bytes >= GATHERED:
            self._flush()

    def _leave_to_loop(self) -> None:
        """Write nothing past the loop any more."""
        self._is_first = False
        if self._socket >= 0:
            os.close(self._socket)
            self._socket = -1

    def _end_turn(self) -> None:
        self._turn = False
        self._flush()

    def _flush(self) -> None:
        if self._parts and self._transport is not None:
            parts, self._parts, self._bytes = self._parts, [], 0
            self._transport.write(b"".join(parts))

    @property
    def held_up(self) -> int:
        """How many exchanges may not send more now; while the connection itself is full, all of them."""
        return len(self.talks) if self.room is not None else sum(talk.is_held_up for talk in self.talks.values())

    def until_room(self) -> Awaitable[None] | None:
        """Return what to await before more is written. `None` means nothing."""
        return None if self.room is None else asyncio.shield(self.room)

    def close(self) -> None:
        """Write what waits, and end the connection."""
        self._flush()
        self._leave_to_loop()
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """End the connection as the end of the process does."""
        self._parts.clear()
        self._leave_to_loop()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: BaseTransport) -> None:
        self._transport = cast("Transport", transport)
        socket = transport.get_extra_info("socket")
        if socket is None:  # no connection of the loop's
            self._gathers = False
        elif self._gathers:
            self._socket = os.dup(socket.fileno())
            self._is_first = True

    def data_received(self, data: bytes) -> None:
        self._is_first = self._socket >= 0
        talks = self.talks
        try:
            for number, kind, content in self._reader.read(data):
                if kind == OPEN:
                    self._begin(number, content)
                elif (talk := talks.get(number)) is not None:
                    talk.take(kind, content)
        except Gap as gap:
            log.error("connection between two workers closed: %s", gap)
            self.cut()

    def _begin(self, number: int, content: bytes) -> None:
        if self.answers is None:
            raise Gap("The accepting side of a connection cannot open an exchange.")
        try:
            items, length = read_opening(content)
        except struct.error:
            raise Gap("An exchange began without a request.") from None
        verb = content[OPENING.size : OPENING.size + length]
        answer = self.answers.get(verb) or self._refuse(verb)
        talk = self.talks[number] = LinkExchange(self, number, items, True)
        try:
            answer(content[OPENING.size + length :], talk)
        except Exception as error:
            log.exception("request of another worker not understood: %s", verb)
            talk.fail(Unavailable(f"{type(error).__name__}: {error}"))

    def _refuse(self, verb: bytes) -> Answer:
        if not self.is_greeted:
            raise Gap("A peer sent a request before the handshake.")
        text = f"Unknown worker request {verb.decode(errors='replace')}."
        return lambda _, exchange: exchange.fail(UsageError(text))

    def pause_writing(self) -> None:
        self.room = self.loop.create_future()

    def resume_writing(self) -> None:
        room, self.room = self.room, None
        if room is not None and not room.done():
            room.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._leave_to_loop()
        self.resume_writing()
        talks, self.talks = self.talks, {}
        unheard: Collection[int] = exc.opened() if isinstance(exc, Unheard) else ()
        for number, talk in talks.items():
            talk.lose(self._unheard() if number in unheard else self._gone())
        self._lost(self)

    def _unheard(self) -> Unavailable:
        return NotBegun(f"{self.who} exited before it received the request.")

    def _gone(self) -> Unavailable:
        return Unavailable(f"{self.who} exited during the request; its outcome is unknown.")
