"""One connection between two workers, and the exchanges that go over it.

Only the side that connected opens exchanges, so each worker has a connection of its own to
each other. What is written in one turn of the loop is written together: by the loop, if it is
uvloop's, or else here, but for the first.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop, BaseTransport, Future, Transport
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, cast

from sapwood.errors import Unavailable
from sapwood.kernel.parcels import pack_error, unpack_error
from sapwood.runtimes.workers.framing import Gap, Kind, Reader, framed

log = logging.getLogger(__name__)

WINDOW = 256 * 1024
"""Bytes of one exchange that may be on their way in one direction."""
EACH = 64
"""Bytes that a message takes beside its own: many small ones are much."""
GATHERED = 64 * 1024
"""Bytes that are written at once, however soon more may follow."""

Opened = Callable[[str, bytes, "Talk"], None]


class Talk:
    """One exchange, seen from one of its ends."""

    # Most exchanges are one message each way: what they never need stands on the class.
    _granted = 0
    """What was taken and is not granted anew yet."""
    _reader: Future[None] | None = None
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

    def __init__(self, link: Link, number: int, items: int, *, is_answer: bool) -> None:
        self._link = link
        self._number = number
        self._items = items
        """How many messages the answering side may send unasked; 0: it counts bytes."""
        self._is_answer = is_answer
        self._credit = items if is_answer and items else WINDOW
        self._incoming: deque[bytes] = deque()

    def send(self, message: bytes) -> Awaitable[None] | None:
        if self._said_all or self._is_deaf:
            return None
        self._credit -= 1 if self._counts_items else len(message) + EACH
        self._link.write(self._number, Kind.MESSAGE, message)
        return self._until_room()

    @property
    def _counts_items(self) -> bool:
        return self._is_answer and self._items > 0

    def _until_room(self) -> Awaitable[None] | None:
        if self._credit > 0:
            return self._link.until_room()
        if self._room is None or self._room.done():
            self._room = self._link.loop.create_future()
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

    def _grant(self, message: bytes) -> None:
        by_items = self._items > 0 and not self._is_answer
        self._granted += 1 if by_items else len(message) + EACH
        if by_items or self._granted >= WINDOW // 4:
            self._link.write(self._number, Kind.CREDIT, self._granted)
            self._granted = 0

    def end(self, message: bytes | None = None) -> None:
        if not self._said_all:
            self._said_all = True
            self._link.write(self._number, Kind.END, message)
            self._forget()

    def fail(self, error: Exception) -> None:
        if not self._said_all:
            self._said_all = True
            self._link.write(self._number, Kind.FAIL, pack_error(error))
            self._forget()

    def _forget(self) -> None:
        if self._is_answer:  # it has the last word
            self._link.talks.pop(self._number, None)
            self._stops = None
            self._let_go()

    def drop(self) -> None:
        if not self._ended and not self._said_all:
            self._said_all = True
            self._link.write(self._number, Kind.STOP, None)

    async def stop(self) -> None:
        if not self._ended:
            self._said_all = True
            self._link.write(self._number, Kind.STOP, None)
        while not self._ended:
            self._incoming.clear()
            self._reader = self._link.loop.create_future()
            await self._reader

    def when_stopped(self, act: Callable[[], object]) -> None:
        if self._is_stopped:
            act()
        elif self._stops is None:
            self._stops = [act]
        else:
            self._stops.append(act)

    def take(self, kind: int, content: Any) -> None:
        """Take a frame of the other side."""
        if kind == Kind.MESSAGE:
            self._incoming.append(content)
        elif kind == Kind.CREDIT:
            self._credit += content
            if self._credit > 0:
                self._let_go()
            return
        elif kind == Kind.END:
            if content is not None:
                self._incoming.append(content)
            self._over()
        elif kind == Kind.FAIL:
            self._error = unpack_error(content)
            self._over()
        elif kind == Kind.STOP:
            self._ended = self._is_deaf = True
            self._let_go()
            self._wake()
            self._stopped()
            return
        self._wake()

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
            self._let_go()

    def _stopped(self) -> None:
        self._is_stopped = True
        stops, self._stops = self._stops, None
        for act in stops or ():
            act()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _let_go(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


class Link(asyncio.Protocol):
    """One connection, at one of its ends."""

    def __init__(self, loop: AbstractEventLoop, who: str, opened: Opened | None, lost: Callable[[Link], None]) -> None:
        self.loop = loop
        self.who = who
        """The other worker, as people read it."""
        self.talks: dict[int, Talk] = {}
        self.is_lost = False
        self._opened = opened
        self._lost = lost
        self._reader = Reader()
        self._last = 0
        self._sent = 0
        self._transport: Transport | None = None
        self._room: Future[None] | None = None
        self._parts: list[bytes] = []
        self._bytes = 0
        self._turn = False
        """Whether something was written in this turn of the loop."""
        self._gathers = type(loop).__module__.startswith("uvloop")
        """Whether the loop writes together by itself what it is given in one turn."""

    def open(self, verb: str, message: bytes, items: int) -> Talk:
        """Begin an exchange."""
        self._last += 1
        talk = Talk(self, self._last, items, is_answer=False)
        if self.is_lost:
            talk.lose(self._gone())
        else:
            self.talks[self._last] = talk
            self.write(self._last, Kind.OPEN, (verb, items, message))
        return talk

    def write(self, exchange: int, kind: int, content: object) -> None:
        if self.is_lost or self._transport is None:
            return
        self._sent += 1
        frame = framed(self._sent, exchange, kind, content)
        if self._gathers:
            self._transport.write(frame)
            return
        if not self._turn:
            self._turn = True
            self.loop.call_soon(self._end_turn)
            self._transport.write(frame)
            return
        self._parts.append(frame)
        self._bytes += len(frame)
        if self._bytes >= GATHERED:
            self._flush()

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
        return len(self.talks) if self._room is not None else sum(talk.is_held_up for talk in self.talks.values())

    def until_room(self) -> Awaitable[None] | None:
        """Return what to await before more is written; None: nothing."""
        return None if self._room is None else asyncio.shield(self._room)

    def close(self) -> None:
        """Write what waits, and end the connection."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """End the connection as the end of the process does."""
        self._parts.clear()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: BaseTransport) -> None:
        self._transport = cast("Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for _, number, kind, content in self._reader.read(data):
                if kind == Kind.OPEN:
                    self._begin(number, *content)
                elif (talk := self.talks.get(number)) is not None:
                    talk.take(kind, content)
        except Gap as gap:
            log.error("a connection between two workers is cut: %s", gap)
            self.cut()

    def _begin(self, number: int, verb: str, items: int, message: bytes) -> None:
        if self._opened is None:
            raise Gap("Whoever was connected to opens no exchange.")
        talk = self.talks[number] = Talk(self, number, items, is_answer=True)
        try:
            self._opened(verb, message, talk)
        except Exception as error:
            log.exception("a worker does not understand what another one asks: %s", verb)
            talk.fail(Unavailable(f"{type(error).__name__}: {error}"))

    def pause_writing(self) -> None:
        self._room = self.loop.create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.resume_writing()
        talks, self.talks = self.talks, {}
        for talk in talks.values():
            talk.lose(self._gone())
        self._lost(self)

    def _gone(self) -> Unavailable:
        return Unavailable(f"{self.who} ended while it was asked; whether it did what it was asked is not known.")
