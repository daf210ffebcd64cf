"""Pictures as WebP, joined into an animation. Nothing is decoded: an animation has the frames as they are."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

IMAGE = (b"VP8 ", b"VP8L", b"ALPH")
ANIMATED = 0x02
HEADER = 12
"""Bytes before the first chunk of a file: `RIFF`, the size, and `WEBP`."""


def animation(frames: Sequence[tuple[bytes, int]], width: int, height: int) -> bytes:
    """Return an animation of pictures, each with the milliseconds for which it is shown. It repeats without end."""
    size = _three(width - 1) + _three(height - 1)
    parts = [_chunk(b"VP8X", bytes([ANIMATED, 0, 0, 0]) + size), _chunk(b"ANIM", struct.pack("<IH", 0xFFFFFFFF, 0))]
    for picture, shown in frames:
        image = b"".join(_chunk(name, data) for name, data in chunks(picture) if name in IMAGE)
        parts.append(_chunk(b"ANMF", bytes(6) + size + _three(shown) + b"\x02" + image))
    body = b"WEBP" + b"".join(parts)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def durations(file: bytes) -> list[int]:
    """Return the milliseconds for which each frame of an animation is shown."""
    return [int.from_bytes(data[12:15], "little") for name, data in chunks(file) if name == b"ANMF"]


def chunks(file: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the names and contents of the chunks of a WebP file."""
    if file[:4] != b"RIFF" or file[8:HEADER] != b"WEBP":
        raise ValueError("This is no WebP file.")
    at = HEADER
    while at + 8 <= len(file):
        (size,) = struct.unpack_from("<I", file, at + 4)
        yield file[at : at + 4], file[at + 8 : at + 8 + size]
        at += 8 + size + size % 2


def _chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def _three(number: int) -> bytes:
    return number.to_bytes(3, "little")
