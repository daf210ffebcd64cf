"""A stream of bytes between two nodes, made of messages that may get lost.

NATS delivers a message at most once: what is published while a node reconnects,
or while it reads too slowly, is gone. So each packet has a number, is kept until the other
end has said that it came, and is sent again if it did not. A peer that sends nothing for a few
seconds, asked or not, is treated as gone.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Any

from sapwood.runtimes.workers.frames import Unheard
from sapwood.timings import DEFAULTS, Timings

log = logging.getLogger(__name__)

HEAD = Struct(">BQQ")
"""Its kind, its number, and the number of the last packet that came from the other end without a gap."""
UNSAID = 64 * 1024
"""Bytes that may come before the other end is told that they did."""
NOTHING = 1 << 63
"""In place of the number of a packet."""


class Kind(IntEnum):
    """What a packet is for."""

    DATA = 0
    TAKEN = 1
    """Acknowledges what came. Its number is what should have come so far; if that is more, the rest is missing."""
    ASK = 2
    """Asks what came. Its number: the last that was sent."""
    BYE = 3
    """The end. Its number: the last that was sent."""


# Plain numbers: the members of an enumeration are looked up each time.
DATA, TAKEN, ASKED, BYE = map(int, Kind)
_pack = HEAD.pack
_unpack = HEAD.unpack_from
_HEAD = HEAD.size


def farewell() -> bytes:
    """Return the reply to a peer that uses a closed pipe."""
    return _pack(BYE, 0, 0)


class Pipe(asyncio.Transport):
    """One end of it."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        protocol: Any,
        publish: Callable[[bytes, int], None],
        largest: int,
        forget: Callable[[], None],
        timings: Timings = DEFAULTS,
    ) -> None:
        super().__init__()
        self._loop = loop
        self._timings = timings
        self._high, self._low = timings.pipe_high_water, timings.pipe_low_water
        self._ack_delay = timings.pipe_ack_delay
        self._protocol = protocol
        self._publish = publish
        """Sends a packet. With a number: `nobody` is to be called with it if there is no listener."""
        self._largest = largest - _HEAD
        self._forget = forget
        self._sent = 0
        self._kept: deque[tuple[int, bytes, bool]] = deque()
        """What the other end has not said to have: its number, content, and whether a write begins with it."""
        self._bytes = 0
        self._taken = 0
        """The last packet that came without a gap."""
        self._unsaid = 0
        """Bytes that came and were not said to have."""
        self._told: asyncio.TimerHandle | None = None
        self._missed = 0
        """Which packet was asked for since the last look."""
        self._absent: tuple[int, float] | None = None
        """The first packet that had no listener, and when that was reported, if nothing was heard since."""
        self._full = False
        self._closing = False
        self._lost = False
        self._heard = self._looked = loop.time()
        self._progress = self._heard
        """When the other end last said that something came, or nothing was on its way."""
        self._look = loop.call_later(timings.pipe_check_interval, self._look_after)
        protocol.connection_made(self)

    # What a protocol asks of its transport.

    def write(self, data: Any) -> None:
        if self._lost or self._closing:
            return
        if len(data) <= self._largest:
            self._send(bytes(data), True)
            return
        view = memoryview(data)
        for at in range(0, len(data), self._largest):
            self._send(bytes(view[at : at + self._largest]), not at)

    def get_write_buffer_size(self) -> int:
        return self._bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def close(self) -> None:
        """Say what waits, and end it."""
        if self._closing or self._lost:
            return
        self._closing = True
        if not self._kept:
            self._end(None)

    def abort(self) -> None:
        """End it now; the other end is told, if it listens."""
        self._end(None)

    def cut(self) -> None:
        """End it and say nothing, as the end of the process does."""
        self._end(None, silent=True)

    # What the other end says.

    def hear(self, packet: bytes) -> None:
        """Take a packet."""
        if self._lost:
            return
        self._heard = self._loop.time()
        self._absent = None
        kind, number, taken = _unpack(packet)
        if self._kept and taken >= self._kept[0][0]:
            self._has(taken)
        if kind == DATA:
            if number == self._taken + 1:
                self._taken = number
                self._unsaid += len(packet)
                if self._unsaid >= UNSAID:
                    self._say(TAKEN, number)
                elif self._told is None:
                    self._told = self._loop.call_later(self._ack_delay, self._tell)
                self._protocol.data_received(packet[_HEAD:])
            elif number <= self._taken:
                self._say(TAKEN, self._taken)  # it was told so once, and did not hear it
            elif self._missed != self._taken + 1:
                self._missed = self._taken + 1
                self._say(TAKEN, number)
        elif kind == TAKEN:
            if number > taken:
                self._again()
        elif kind == ASKED:
            self._say(TAKEN, max(number, self._taken))
        elif kind == BYE:
            if number > self._taken:
                log.warning("connection to another node closed, its last data is missing")
            self._end(None, silent=True)

    def nobody(self, number: int) -> None:
        """There was no listener where this packet was sent."""
        first, since = self._absent or (number, self._loop.time())
        self._absent = min(first, number), since

    def _give_up(self, number: int) -> None:
        """End it: from this packet on nothing was heard, as none of it was sent again."""
        unheard = [(data, begins) for sent, data, begins in self._kept if sent >= number]
        while unheard and not unheard[0][1]:
            unheard.pop(0)
        self._end(Unheard(b"".join(data for data, _ in unheard)), silent=True)

    def _has(self, taken: int) -> None:
        kept = self._kept
        while kept and kept[0][0] <= taken:
            self._bytes -= len(kept.popleft()[1])
        self._progress = self._heard
        if self._full and self._bytes <= self._low:
            self._full = False
            self._protocol.resume_writing()
        if self._closing and not kept:
            self._end(None)

    def _send(self, data: bytes, begins: bool) -> None:
        self._sent = number = self._sent + 1
        first = not self._kept
        if first:
            self._progress = self._loop.time()
        self._kept.append((number, data, begins))
        self._bytes += len(data)
        self._unsaid = 0
        if self._told is not None:
            self._told.cancel()
            self._told = None
        self._publish(_pack(DATA, number, self._taken) + data, number if first else 0)
        if self._bytes > self._high and not self._full:
            self._full = True
            self._protocol.pause_writing()

    def _again(self) -> None:
        """Send again what did not come."""
        for number, data, _ in list(self._kept):
            self._publish(_pack(DATA, number, self._taken) + data, 0)

    def _tell(self) -> None:
        self._told = None
        if self._unsaid and not self._lost:
            self._say(TAKEN, self._taken)

    def _say(self, kind: int, number: int) -> None:
        self._unsaid = 0
        # The sender of a query needs an answer: it should know if there is no listener. What is sent after it may be
        # heard by a listener that came back in between: nothing is reported as unheard.
        self._publish(_pack(kind, number, self._taken), NOTHING if kind == ASKED else 0)

    def _look_after(self) -> None:
        now, timings = self._loop.time(), self._timings
        check = timings.pipe_check_interval
        self._look = self._loop.call_later(check, self._look_after)
        if now - self._looked > 4 * check:
            # It was this node that stood still: what the others sent during that time is yet to be read.
            self._heard = self._progress = now
            self._absent = None
        self._looked = now
        self._missed = 0
        if self._absent is not None and now - self._absent[1] > timings.pipe_absence_timeout:
            self._give_up(self._absent[0])
        elif now - self._heard > timings.pipe_timeout:
            self._end(None)
        elif (self._kept and now - self._progress > check) or now - self._heard > timings.pipe_ping_after:
            self._say(ASKED, self._sent)

    def _end(self, error: Exception | None, *, silent: bool = False) -> None:
        if self._lost:
            return
        self._lost = True
        self._look.cancel()
        if self._told is not None:
            self._told.cancel()
        if not silent:
            self._publish(_pack(BYE, self._sent, self._taken), 0)
        self._kept.clear()
        self._bytes = 0
        self._forget()
        self._loop.call_soon(self._protocol.connection_lost, error)
