"""What the archive holds of a tree, and what it is called there.

Three kinds of objects, never written over, so a late writer cannot take anything back:

- a snapshot: the tree after one of its messages. Its key says after which.
- a mark: whether the tree was parked after a message, or lives since one. The one that sorts last counts.
- what a node hands to the owner of a tree that is to be put back. It goes when the owner has it.

Snapshots of a tree that was destroyed lie elsewhere, as only a restore to an earlier time may find them, with a note of
when that was. They go with the history.

Owners follow each other by epoch, and messages of one owner by their place, so keys sort in the order of time, also
after the log was lost and created again.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from sapwood.address import Address
from sapwood.kernel.log.records import DIGEST, Base, ChainBroken, tree_id
from sapwood.kernel.ports.log import Archive

FORMAT = 1
SNAPSHOTS = "trees"
MARKS = "marks"
HANDED = "handed"
ENDED = "ended"
ENDS = "ends"
LIVE, PARKED = "live", "parked"  # in this order they sort, too


class Image(msgspec.Struct, array_like=True, frozen=True):
    """One file, whole."""

    file: str
    page_size: int
    content: bytes


class Snapshot(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A tree after one of its messages: its files, or what to make them from."""

    format: int = FORMAT
    root: str
    epoch: int
    sequence: int
    """The last message that is in it."""
    chain: bytes
    """The digest of that message."""
    at: float
    version: str
    images: list[Image] = msgspec.field(default_factory=list[Image])
    base: Base | None = None
    """Another snapshot, which has files: `messages` are to be applied to it."""
    messages: list[tuple[int, bytes]] = msgspec.field(default_factory=list[tuple[int, bytes]])
    """Messages of the tree and their places, as the log had them, where that is less than the files."""


class ArchiveMark(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What a mark says."""

    format: int = FORMAT
    root: str
    at: float
    parked: Base | None
    """Where the tree is as it was parked last; a live one's messages follow it. None: it never was."""


_pack = msgspec.msgpack.Encoder().encode
_snapshot = msgspec.msgpack.Decoder(Snapshot).decode
_mark = msgspec.msgpack.Decoder(ArchiveMark).decode


class Name(NamedTuple):
    """What the key of a snapshot says."""

    epoch: int
    sequence: int
    chain: bytes
    at: int
    """The second after it was made: at this time it was there."""
    has_files: bool


def snapshot_key(snapshot: Snapshot) -> str:
    """Return what a snapshot is called."""
    tree = tree_id(Address.parse(snapshot.root))
    kind = "messages" if snapshot.messages else "files"
    place = f"{snapshot.epoch:010}-{snapshot.sequence:020}"
    return f"{SNAPSHOTS}/{tree}/{place}-{snapshot.chain.hex()}-{int(snapshot.at) + 1}-{kind}"


def name_of(key: str) -> Name:
    """Return what the key of a snapshot says."""
    epoch, sequence, chain, at, kind = key.rsplit("/", 1)[1].split("-")
    return Name(int(epoch), int(sequence), bytes.fromhex(chain), int(at), kind == "files")


def mark_key(tree: str, epoch: int, sequence: int, state: str) -> str:
    """Return what a mark is called."""
    return f"{MARKS}/{tree}/{epoch:010}-{sequence:020}-{state}"


class TreeEnd(NamedTuple):
    """The destruction of a tree: when, of which one, and by which message."""

    at: int
    tree: str
    epoch: int
    sequence: int


def end_key(end: TreeEnd) -> str:
    """Return what the note of a destruction is called. They sort by time."""
    return f"{ENDS}/{end.at:010}-{end.tree}-{end.epoch:010}-{end.sequence:020}"


def ended_key(key: str) -> str:
    """Return where a snapshot lies once its tree was destroyed."""
    return f"{ENDED}{key.removeprefix(SNAPSHOTS)}"


async def ends(archive: Archive) -> AsyncIterator[TreeEnd]:
    """Return the destructions that the archive knows of, in the order of time."""
    async for key in archive.keys(f"{ENDS}/"):
        at, tree, epoch, sequence = key.rsplit("/", 1)[1].split("-")
        yield TreeEnd(int(at), tree, int(epoch), int(sequence))


async def sweep_ended(archive: Archive, before: float) -> int:
    """Remove what is left of trees that were destroyed before this time; return of how many."""
    count = 0
    async for end in ends(archive):
        if end.at >= before:
            break
        keys = [key async for key in archive.keys(f"{ENDED}/{end.tree}/") if place_of(key) <= (end.epoch, end.sequence)]
        await archive.remove([*keys, end_key(end)])
        count += 1
    return count


def handed_key(tree: str, at: float, id: str) -> str:
    """Return what something is called that is handed to the owner of a tree: the second it was made in, first."""
    return f"{HANDED}/{tree}/{int(at):010}-{id}"


async def sweep_handed(archive: Archive, before: float) -> int:
    """Remove what was handed over before this time, by nodes that ended before they removed it; return how much."""
    old = [key async for key in archive.keys(f"{HANDED}/") if float(key.rsplit("/", 1)[1].partition("-")[0]) < before]
    if old:
        await archive.remove(old)
    return len(old)


def pack_snapshot(snapshot: Snapshot) -> tuple[bytes, Base]:
    """Return a snapshot as it is stored, and what the log calls it. Takes a while: not for the event loop."""
    body = zlib.compress(_pack(snapshot), 1)
    digest = hashlib.blake2b(body, digest_size=DIGEST).digest()
    return digest + body, Base(snapshot_key(snapshot), digest, snapshot.sequence, snapshot.chain)


def unpack_snapshot(data: bytes, key: str, digest: bytes | None) -> Snapshot:
    """Return what was stored; `ChainBroken` if it was changed since, or is not what `digest` says. Takes a while."""
    found, body = data[:DIGEST], memoryview(data)[DIGEST:]
    if hashlib.blake2b(body, digest_size=DIGEST).digest() != found or digest not in (None, found):
        raise ChainBroken(f"The object {key!r} in the archive was changed after it was written.")
    try:
        return _snapshot(zlib.decompress(body))
    except (zlib.error, msgspec.DecodeError) as error:
        raise ChainBroken(f"The object {key!r} in the archive cannot be read: {error}") from error


def pack_mark(key: str, mark: ArchiveMark) -> bytes:
    """Return a mark as it is stored under this key."""
    body = _pack(mark)
    return _mark_digest(key, body) + body


def _mark_digest(key: str, body: bytes) -> bytes:
    return hashlib.blake2b(key.encode() + body, digest_size=DIGEST).digest()


async def last_mark(archive: Archive, tree: str) -> tuple[str, ArchiveMark] | None:
    """Return the key of the mark that counts, and what it says. `None` means the archive knows no such tree.

    `ChainBroken` if the mark was changed since it was written.
    """
    last = ""
    async for key in archive.keys(f"{MARKS}/{tree}/"):
        last = max(last, key)
    if not last or (data := await archive.get(last)) is None:
        return None
    digest, body = data[:DIGEST], data[DIGEST:]
    if _mark_digest(last, body) != digest:
        raise ChainBroken(f"The object {last!r} in the archive was changed after it was written.")
    try:
        return last, _mark(body)
    except msgspec.DecodeError as error:
        raise ChainBroken(f"The object {last!r} in the archive cannot be read: {error}") from error


def is_parked(mark: str) -> bool:
    """Return whether a tree with this mark was parked."""
    return mark.endswith(f"-{PARKED}")


def place_of(key: str) -> tuple[int, int]:
    """Return the epoch and the place that the key of a snapshot or a mark names."""
    epoch, sequence, *_ = key.rsplit("/", 1)[1].split("-")
    return int(epoch), int(sequence)
