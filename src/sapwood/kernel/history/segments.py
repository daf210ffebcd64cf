"""The files that hold the past of a tree: segments, each of which can be read alone.

A segment begins with all files of the tree, the base, and continues with what changed in them: the messages of
`kernel.log.records`, compressed. Lines between them name moments. The last line of a segment says that its tree was
closed with everything recorded; it is removed when the tree is opened again. A segment that a crash cut short is
valid up to there. Each header has a checksum, so damage in the middle is told from such an end.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from sapwood.address import Address
from sapwood.errors import StoredDataError
from sapwood.kernel.log.records import DIGEST, tree_id
from sapwood.kernel.ports.history import MomentKind

HISTORY = "history"
"""The folder in the data folder."""
SUFFIX = ".segment"
NAME = re.compile(r"\d{8}\.segment")
MAGIC = b"sapwood history 1\n"

PART, PAGES, MOMENT, CLOSED = range(1, 5)
"""A message that more follow before there is a state; the message that completes a state; a name of the state; the
last line of a tree that was closed."""

_header = struct.Struct(">BIQdII")
"""The kind, the length of the body, the number of the last message, the time, the checksum of these, and the checksum
of all that with the body."""
CHECKSUM = 4
_closed = struct.Struct(f">{DIGEST}s{DIGEST}sQ")
"""The digest of the last message, what identifies the files of the tree, and the size of the base."""
HEADER = _header.size
BLOCK = 1024 * 1024
CLOSED_SIZE = HEADER + _closed.size


class Line(NamedTuple):
    """One line of a segment, without its body."""

    kind: int
    sequence: int
    """The number of the last message, in its segment; the first is 1."""
    at: float
    body: int
    """Where its body begins."""
    length: int


class MomentName(msgspec.Struct, array_like=True, frozen=True):
    """The body of a line that names a moment."""

    kind: MomentKind
    agent: str
    label: str


class ClosedState(NamedTuple):
    """The end of a segment whose tree was closed with everything recorded."""

    sequence: int
    at: float
    digest: bytes
    """Of the last message."""
    files: bytes
    """Identifies the files of the tree as they were then."""
    base_size: int


encode_name = msgspec.msgpack.Encoder().encode
decode_name = msgspec.msgpack.Decoder(MomentName).decode


def history_folder(data: Path, root: Address) -> Path:
    """Return where the past of a tree lies: no name a user chose is part of the path."""
    return data / HISTORY / tree_id(root)


def segments_in(folder: Path) -> list[Path]:
    """Return the segments of a tree, oldest first."""
    try:
        names = [name for name in os.listdir(folder) if NAME.fullmatch(name)]  # noqa: PTH208 - names are enough
    except FileNotFoundError:
        return []
    return [folder / name for name in sorted(names)]


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08}{SUFFIX}"


def number_of(segment: Path) -> int:
    return int(segment.stem)


def encode_line(kind: int, sequence: int, at: float, body: bytes) -> bytes:
    """Return a line as it is stored."""
    head = _header.pack(kind, len(body), sequence, at, 0, 0)[: -2 * CHECKSUM]
    head += zlib.crc32(head).to_bytes(CHECKSUM, "big")
    return head + zlib.crc32(body, zlib.crc32(head)).to_bytes(CHECKSUM, "big") + body


def encode_closed(state: ClosedState) -> bytes:
    """Return the last line of a tree that was closed."""
    return encode_line(CLOSED, state.sequence, state.at, _closed.pack(state.digest, state.files, state.base_size))


def closed_state(segment: Path) -> ClosedState | None:
    """Return how a segment ends if its tree was closed with everything recorded, or `None` if it was not."""
    with segment.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < len(MAGIC) + CLOSED_SIZE:
            return None
        file.seek(size - CLOSED_SIZE)
        last = file.read(CLOSED_SIZE)
    kind, length, sequence, at, *_ = _header.unpack_from(last)
    body = last[HEADER:]
    if kind != CLOSED or length != len(body) or encode_line(kind, sequence, at, body) != last:
        return None
    return ClosedState(sequence, at, *_closed.unpack(body))


def begun_at(segment: Path) -> float | None:
    """Return when a segment began, or `None` if it has no line. A damaged one began when it was last written."""
    try:
        return next((line.at for line in SegmentReader(segment).lines()), None)
    except StoredDataError:
        return segment.stat().st_mtime


def reopen(segment: Path) -> None:
    """Remove the line that says that the tree was closed: what follows may be cut off by a crash."""
    os.truncate(segment, segment.stat().st_size - CLOSED_SIZE)


class SegmentReader:
    """Reads one segment, as far as it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = number_of(path)

    def lines(self) -> Iterator[Line]:
        """Yield the lines, without reading what is long in them; `StoredDataError` if the segment is damaged."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:  # removed since: it is older than the history that is kept
            return
        with file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if size >= len(MAGIC) and file.read(len(MAGIC)) != MAGIC:
                self._check_end(file, 0)
                return
            place = len(MAGIC)
            while place + HEADER <= size:
                file.seek(place)
                head = file.read(HEADER)
                kind, length, sequence, at, checksum, _ = _header.unpack(head)
                if zlib.crc32(head[: -2 * CHECKSUM]) != checksum or not PART <= kind <= CLOSED:
                    self._check_end(file, place)
                    return
                if place + HEADER + length > size:  # a crash cut it short
                    return
                yield Line(kind, sequence, at, place + HEADER, length)
                place += HEADER + length

    def _check_end(self, file: BinaryIO, place: int) -> None:
        """Refuse a segment that has something else than a line at this place.

        The end of a process leaves a part of a line, and a loss of power perhaps zeros. Anything else is damage.
        """
        file.seek(place)
        while block := file.read(BLOCK):
            if block.count(0) < len(block):
                raise StoredDataError(f"The history in {self.path.name} is damaged at byte {place}.")

    def bodies(self, lines: list[Line]) -> Iterator[bytes]:
        """Yield what these lines hold; `StoredDataError` if one was changed since it was written."""
        with self.path.open("rb") as file:
            for line in lines:
                file.seek(line.body - HEADER)
                stored = file.read(HEADER + line.length)
                body = stored[HEADER:]
                if encode_line(line.kind, line.sequence, line.at, body) != stored:
                    raise StoredDataError(f"The history in {self.path.name} is damaged at byte {line.body}.")
                yield body
