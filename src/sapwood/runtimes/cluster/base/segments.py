"""The second copy of the log: what each stream got, in order, in objects that are never written over.

A segment is named by the first place it covers and says the last, so the next one is named by the one after that: the
copy of a stream is whole if each begins where the one before ends. What the stream had forgotten by the time it was
looked at is in none.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import msgspec

from sapwood.kernel.log.records import DIGEST, ChainBroken
from sapwood.kernel.ports.log import Archive, Record

log = logging.getLogger(__name__)

FORMAT = 1
SEGMENTS = "segments"


class SegmentLine(msgspec.Struct, array_like=True, frozen=True):
    """One message of a stream."""

    sequence: int
    at: float
    """When the stream got it."""
    subject: str
    data: bytes

    @property
    def kind(self) -> str:
        """What it is about: `tree`, `alarm` or `owner`."""
        parts = self.subject.split(".")
        return "owner" if parts[-1] == "owner" else parts[-2]

    @property
    def tree(self) -> str:
        return self.subject.rsplit(".", 1)[1]


class Segment(msgspec.Struct, array_like=True, frozen=True):
    """What a stream got between two places."""

    format: int
    stream: int
    first: int
    last: int
    """Up to where the stream was looked at; the message there may be gone."""
    count: int
    begun: float
    """When the first message was stored, and the last; 0: there is none."""
    ended: float
    body: bytes
    """The lines, packed."""


class CopyProgress(NamedTuple):
    """How far the second copy of a stream goes."""

    last: int
    at: float


_encode = msgspec.msgpack.Encoder().encode
_segment = msgspec.msgpack.Decoder(Segment).decode
_lines = msgspec.msgpack.Decoder(list[SegmentLine]).decode


def segment_key(stream: int, first: int) -> str:
    """Return what a segment is called."""
    return f"{SEGMENTS}/{stream:04}/{first:020}"


def pack_segment(stream: int, first: int, last: int, lines: Sequence[SegmentLine]) -> bytes:
    """Return a segment as it is stored. Takes a while."""
    begun, ended = (lines[0].at, lines[-1].at) if lines else (0.0, 0.0)
    body = zlib.compress(_encode(list(lines)), 1)
    whole = _encode(Segment(FORMAT, stream, first, last, len(lines), begun, ended, body))
    return hashlib.blake2b(whole, digest_size=DIGEST).digest() + whole


def unpack_segment(data: bytes, key: str) -> Segment:
    """Return what was stored; `ChainBroken` if it was changed since."""
    digest, whole = data[:DIGEST], data[DIGEST:]
    if hashlib.blake2b(whole, digest_size=DIGEST).digest() != digest:
        raise ChainBroken(f"The object {key!r} in the archive was changed after it was written.")
    try:
        segment = _segment(whole)
    except msgspec.DecodeError as error:
        raise ChainBroken(f"The object {key!r} in the archive cannot be read: {error}") from error
    if key.startswith(SEGMENTS) and key != segment_key(segment.stream, segment.first):
        raise ChainBroken(f"The object {key!r} in the archive is another segment than its name says.")
    return segment


def lines_of(segment: Segment) -> list[SegmentLine]:
    """Return what is in a segment. Takes a while."""
    return _lines(zlib.decompress(segment.body))


async def get_segment(archive: Archive, key: str) -> Segment | None:
    """Return a segment, or `None` if there is none."""
    data = await archive.get(key)
    return None if data is None else await asyncio.to_thread(unpack_segment, data, key)


async def last_copied(archive: Archive, stream: int) -> CopyProgress | None:
    """Return how far the second copy of a stream goes without damage at its end, or `None` if there is none."""
    keys = [key async for key in archive.keys(f"{SEGMENTS}/{stream:04}/")]
    for key in reversed(keys):
        try:
            segment = await get_segment(archive, key)
        except ChainBroken as error:
            log.error("segment is copied again: %s", error, extra={"stream": stream})
            continue
        if segment is not None:
            return CopyProgress(segment.last, segment.ended)
    return None


async def segments(archive: Archive, stream: int, lacking: dict[str, str]) -> AsyncIterator[Segment]:
    """Return the intact segments of a stream, in order.

    `lacking` gets the objects that are damaged, or before which others are missing, and what is wrong.
    """
    expected = 0
    for key in [key async for key in archive.keys(f"{SEGMENTS}/{stream:04}/")]:
        try:
            segment = await get_segment(archive, key)
        except ChainBroken as error:
            lacking[key] = str(error)
            expected = 0
            continue
        if segment is None:  # swept since
            expected = 0
            continue
        if expected and segment.first != expected:
            missing = f"messages {expected} to {segment.first - 1} of stream {stream}"
            lacking[key] = f"The archive lacks the object before {key!r}, with {missing}."
        expected = segment.last + 1
        yield segment


async def tree_from_segments(
    archive: Archive, stream: int, tree: str, lacking: dict[str, str], until: float | None = None
) -> list[Record]:
    """Return the messages of a tree that the second copy of its stream has, up to a time.

    `lacking` gets the objects that are damaged or missing, as by `segments`.
    """
    records: list[Record] = []
    async for segment in segments(archive, stream, lacking):
        if until is not None and segment.begun > until:
            break
        lines = await asyncio.to_thread(lines_of, segment)
        mine = [line for line in lines if line.kind == "tree" and line.tree == tree]
        records += [Record(tree, one.sequence, one.data) for one in mine if until is None or one.at <= until]
    return records
