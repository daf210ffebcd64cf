"""What the log holds of a tree: messages that name the one before.

Each is one or more commits of the tree, of all its files together, as the pages they changed. It carries the digest of
the message before it, and its own. So a reader of a tree knows whether anything is missing, was changed, or comes from
a node that was not the owner, whatever the disks below the log did.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from importlib.metadata import version

import msgspec

from sapwood.address import Address
from sapwood.errors import StoredDataError
from sapwood.kernel.ports.log import Record

FORMAT = 1
DIGEST = 16


@functools.cache
def program() -> str:
    """Return the version of the program that writes; found once, as files are read for it."""
    return version("sapwood")


class Change(msgspec.Struct, array_like=True, frozen=True):
    """What became of one file."""

    file: str
    """Its name without the suffix."""
    page_size: int
    size: int
    """How many pages it has now."""
    numbers: list[int]
    """The pages that changed, by number; the first is 1."""
    images: bytes
    """These pages, one after the other."""
    is_new: bool = False
    """Whether it begins here: whatever was called so before does not count."""


class Base(msgspec.Struct, array_like=True, frozen=True):
    """An object in the archive that has the tree as it was at one moment."""

    key: str
    digest: bytes
    """Of the object."""
    sequence: int
    """The last message that is in it."""
    chain: bytes
    """The digest of that message."""


class Message(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """One message of a tree's log, without its own digest."""

    format: int = FORMAT
    root: str
    """The address of the tree."""
    epoch: int
    previous: int
    """The place of the tree's message before this one; 0: there is none in the log, or it is a part of this commit."""
    before: bytes
    """The digest of the message before; empty: the tree begins here."""
    at: float
    """When it was written, by the clock of its writer."""
    version: str
    """Of the program that wrote it."""
    parts: int = 1
    part: int = 0
    """Large commits are cut into parts; they are applied when the last one is there."""
    base: Base | None = None
    """What the changes of this message are to be applied to, in place of all that was before it."""
    changes: list[Change] = msgspec.field(default_factory=list[Change])
    removed: list[str] = msgspec.field(default_factory=list[str])
    """Files that are no more."""
    is_end: bool = False
    """Whether the tree was destroyed."""
    moved_to: str = ""
    """The address that the tree has instead, since its class got another type id."""
    objects: str = ""
    """At its end, the folder of its larger files in the archive; empty if it never had any."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class ChainLink(msgspec.Struct, frozen=True):
    """A message as it was stored."""

    sequence: int
    digest: bytes
    message: Message


class ChainBroken(StoredDataError):
    """The log of a tree is not whole."""

    code = "chain_broken"


def tree_id(root: Address) -> str:
    """Return what a tree is called in the log and in the archive: no name a user chose is part of it."""
    (step,) = root.segments
    return hashlib.sha256(f"{step.type}\0{step.name}".encode()).hexdigest()[:40]


def seal(message: Message) -> tuple[bytes, bytes]:
    """Return a message as it is stored, and its digest."""
    body = _encode(message)
    digest = hashlib.blake2b(body, digest_size=DIGEST).digest()
    return digest + body, digest


def unseal(record: Record) -> ChainLink:
    """Return what was stored; `ChainBroken` if it was changed since."""
    digest, body = record.data[:DIGEST], record.data[DIGEST:]
    if hashlib.blake2b(body, digest_size=DIGEST).digest() != digest:
        raise ChainBroken(f"Message {record.sequence} of tree {record.tree} was changed after it was written.")
    try:
        return ChainLink(record.sequence, digest, _decode(body))
    except msgspec.DecodeError as error:
        raise ChainBroken(f"Message {record.sequence} of tree {record.tree} cannot be decoded: {error}") from error


def chained(records: Iterable[Record], before: bytes | None = None) -> list[ChainLink]:
    """Return the messages of a tree, checked; `before`: the digest that the first has to follow, None: any.

    A message that is stored twice counts once, and a commit whose last part was never stored not at all.
    """
    links: list[ChainLink] = []
    for record in records:
        link = unseal(record)
        if links and link.digest == links[-1].digest:
            continue
        if links and link.message.part == 0 and links[-1].message.part < links[-1].message.parts - 1:
            _leave_out_unfinished(links, link, before)
        expected = links[-1].digest if links else before
        if link.message.base is None and expected is not None and link.message.before != expected:
            raise ChainBroken(
                f"Message {record.sequence} of tree {record.tree} does not follow the one before it: a message is "
                "missing, or a node wrote that was not the owner."
            )
        if links and link.message.epoch < links[-1].message.epoch:
            raise ChainBroken(f"Message {record.sequence} of tree {record.tree} was written by an earlier owner.")
        links.append(link)
    return links


def _leave_out_unfinished(links: list[ChainLink], after: ChainLink, before: bytes | None) -> None:
    """Leave out the parts at the end if what comes after them follows what was before them."""
    first = len(links) - 1
    while first and links[first].message.part:
        first -= 1
    if after.message.before == links[first].message.before and (first or before in (None, after.message.before)):
        del links[first:]


def commits(links: Sequence[ChainLink]) -> list[list[ChainLink]]:
    """Return the messages by commit: those cut into parts together. The end of one that was never finished is left."""
    whole: list[list[ChainLink]] = []
    open_: list[ChainLink] = []
    for link in links:
        if link.message.part == 0:
            open_ = []
        open_.append(link)
        if link.message.part == link.message.parts - 1:
            whole.append(open_)
            open_ = []
    return whole
