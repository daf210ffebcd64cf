"""Frames between two workers: a length, then msgpack; each has the number that follows the last one's."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

LENGTH = 4
LARGEST = 1 << 30
"""No frame is longer. What claims to be is no frame of ours."""


class Kind(IntEnum):
    """What a frame does to its exchange."""

    OPEN = 0
    """Begins it: what it is about, how many items may come unasked, and the first message."""
    MESSAGE = 1
    CREDIT = 2
    """So much more may be sent."""
    END = 3
    """The last message, or none."""
    FAIL = 4
    """The error in place of a last message."""
    STOP = 5
    """Whoever opened it wants no more of it."""


Frame = tuple[int, int, int, Any]
"""Its number, which counts the frames of one connection in one direction from 1; its exchange, kind and content."""


class Gap(Exception):
    """A frame is missing, or what came is no frame."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, int, int, Any]).decode


def framed(number: int, exchange: int, kind: int, content: object) -> bytes:
    """Return a frame as bytes."""
    body = _encode((number, exchange, kind, content))
    return len(body).to_bytes(LENGTH, "big") + body


class Reader:
    """Makes frames of bytes, however they were cut."""

    __slots__ = ("_bytes", "_expected", "_needed", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        """What came of a frame that is not complete."""
        self._bytes = 0
        self._needed = 0
        """How many bytes have to be there before it is worth to look again; nothing is copied meanwhile."""
        self._expected = 1

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
        at, end = 0, len(data)
        while end - at >= LENGTH:
            length = int.from_bytes(data[at : at + LENGTH], "big")
            if length > LARGEST:
                raise Gap(f"A frame of {length} bytes was announced.")
            if end - at - LENGTH < length:
                break
            at += LENGTH
            try:
                frame = _decode(memoryview(data)[at : at + length])
            except msgspec.MsgspecError as error:
                raise Gap(f"A frame cannot be read: {error}.") from None
            at += length
            if frame[0] != self._expected:
                raise Gap(f"Frame {self._expected} was expected, and {frame[0]} came.")
            self._expected += 1
            found.append(frame)
        if at < end:
            self._parts.append(data[at:])
            self._bytes = end - at
            self._needed = LENGTH
            if self._bytes >= LENGTH:
                self._needed += int.from_bytes(data[at : at + LENGTH], "big")
        return found
