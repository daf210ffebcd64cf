"""Frames between two workers: a head, then the content; each has the number that follows the last one's."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

HEAD = Struct(">IQQB")
"""How long the content is, the number of the frame, its exchange, and its kind."""
LARGEST = 1 << 30
"""No content is longer. What claims to be is no frame of ours."""


class Kind(IntEnum):
    """What a frame does to its exchange."""

    OPEN = 0
    """Begins it: what it is about, how many items may come unasked, and the first message."""
    MESSAGE = 1
    CREDIT = 2
    """So much more may be sent."""
    LAST = 3
    """The last message."""
    END = 4
    """There is no further message."""
    FAIL = 5
    """The error in place of a last message."""
    STOP = 6
    """The side that opened it has cancelled it."""


Frame = tuple[int, int, bytes]
"""Its exchange, kind and content. Its number, which counts the frames of one connection in one direction from 1, is
checked where it is read."""


class Gap(Exception):
    """A frame is missing, or what came is no frame."""


class Unheard(Exception):
    """The connection is lost, and these frames, the last that were written, did not get to the other end."""

    def __init__(self, frames: bytes) -> None:
        super().__init__("The other process closed the connection.")
        self._frames = frames

    def opened(self) -> set[int]:
        """Return the exchanges that were to be begun by them."""
        found: set[int] = set()
        at = 0
        while at + _HEAD <= len(self._frames):
            length, _, exchange, kind = _read_head(self._frames, at)
            if kind == Kind.OPEN:
                found.add(exchange)
            at += _HEAD + length
        return found


head = HEAD.pack
"""Returns the head of a frame."""
_read_head = HEAD.unpack_from
_HEAD = HEAD.size
OPENING = Struct(">IB")
"""How the content of a frame begins that opens an exchange: how many items may come unasked, and how long the verb is
that follows. The rest is the first message."""
_opening = OPENING.pack


def framed(number: int, exchange: int, kind: int, content: bytes) -> bytes:
    """Return a frame as bytes."""
    return head(len(content), number, exchange, kind) + content


def opening(verb: bytes, items: int, message: bytes) -> bytes:
    """Return the content of a frame that begins an exchange."""
    return _opening(items, len(verb)) + verb + message


def credit(granted: int) -> bytes:
    """Return the content of a frame that grants credit."""
    return granted.to_bytes(8, "big")


def read_credit(content: bytes) -> int:
    """Return what `credit` was given."""
    return int.from_bytes(content, "big")


class FrameReader:
    """Makes frames of bytes, however they were cut."""

    __slots__ = ("_bytes", "_last", "_needed", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        """What came of a frame that is not complete."""
        self._bytes = 0
        self._needed = 0
        """How many bytes have to be there before it is worth looking again; until then, nothing is copied."""
        self._last = 0

    def read(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete by now; raises `Gap` if one is missing."""
        found: list[Frame] = []
        if self._parts:
            self._parts.append(data)
            self._bytes += len(data)
            if self._bytes < self._needed:
                return found
            data = b"".join(self._parts)
            self._parts.clear()
        at, end, needed = 0, len(data), _HEAD
        while end - at >= _HEAD:
            length, number, exchange, kind = _read_head(data, at)
            if length > LARGEST:
                raise Gap(f"Got a frame of {length} bytes, which exceeds the limit.")
            if number != self._last + 1:
                raise Gap(f"Expected frame {self._last + 1}, got {number}.")
            needed = _HEAD + length
            if end - at < needed:
                break
            self._last = number
            found.append((exchange, kind, data[at + _HEAD : at + needed]))
            at += needed
            needed = _HEAD
        if at < end:
            self._parts.append(data[at:])
            self._bytes = end - at
            self._needed = needed
        return found
