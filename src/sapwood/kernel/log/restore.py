"""Makes the files of a tree from what the log and the archive hold of it.

Nothing is believed: each message is checked by its own digest and by the one it follows, each object
of the archive by the digest in its name. What is not whole is refused, never served.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sapwood.address import Address
from sapwood.kernel.aio import to_the_end
from sapwood.kernel.log.archive_objects import SNAPSHOTS, Snapshot, is_parked, last_mark, name_of, unpack_snapshot
from sapwood.kernel.log.records import DIGEST, Base, ChainBroken, ChainLink, chained, commits, tree_id
from sapwood.kernel.ports.log import Archive, Record
from sapwood.storage.files import Files
from sapwood.storage.image import PAGE_SIZE
from sapwood.storage.wal_frames import whole_image

LABEL = "address"
SOON = ".copying"
"""How a folder is called that is not finished."""
AWAY = ".removed"
UNKNOWN = bytes(DIGEST)
"""Stands for the digest of a message that cannot be read."""


class RestoredTree(NamedTuple):
    """Where a tree stands."""

    sequence: int
    """The place of its last message; one that was parked has none there any more."""
    digest: bytes
    """Of that message."""
    epoch: int
    stems: frozenset[str]
    """Its files, without the suffix."""
    base: Base | None
    """What its messages in the log are to be applied to."""
    messages: int
    """How many these are."""
    log_bytes: int
    """What they take."""
    begun: float | None
    """When the first of them was written. `None` means that there are none."""
    size: int
    """What its files take."""
    in_log: bool = True
    """Whether the last message is in the log; else the archive has it."""
    is_end: bool = False
    """Whether the tree was destroyed: then it has no files."""
    moved_to: str = ""
    """The address that it has instead."""
    root: str = ""
    """Its address."""
    objects: str = ""
    """If it was destroyed, the folder of its larger files in the archive."""


class File:
    """A file on its way: what it was, and the pages that changed since."""

    __slots__ = ("content", "page_size", "pages", "size")

    def __init__(self, page_size: int, content: bytes = b"", size: int = 0) -> None:
        """`size`: how many pages it has, where they need not be known."""
        self.page_size = page_size
        self.content = content
        self.size = size or len(content) // page_size
        self.pages: dict[int, memoryview] = {}

    def whole(self) -> bytes | bytearray:
        if not self.pages and len(self.content) == self.size * self.page_size:
            return self.content
        length, step = self.size * self.page_size, self.page_size
        whole = bytearray(self.content[:length])
        whole.extend(bytes(length - len(whole)))
        view = memoryview(whole)
        for number, image in self.pages.items():
            if number <= self.size:
                view[(number - 1) * step : number * step] = image
        view.release()
        return whole


Pages = dict[str, File]


def apply(files: Pages, links: Sequence[ChainLink]) -> None:
    """Have the files be what they are after these messages."""
    for commit in commits(links):
        last = commit[-1].message
        if last.is_end or last.moved_to:
            files.clear()
            continue
        for link in commit:
            for stem in link.message.removed:
                files.pop(stem, None)
            for change in link.message.changes:
                file = files.get(change.file)
                if change.is_new and link.message.part == _first(commit, change.file):
                    file = files[change.file] = File(change.page_size)
                elif file is None:
                    raise ChainBroken(
                        f"Message {link.sequence} of {link.message.root} changes {change.file!r}, whose base is "
                        "missing."
                    )
                images, step = memoryview(change.images), change.page_size
                if len(images) != step * len(change.numbers):
                    raise ChainBroken(f"Message {link.sequence} of {link.message.root} has an incomplete page.")
                file.size = change.size
                file.pages.update(
                    (number, images[at * step : (at + 1) * step]) for at, number in enumerate(change.numbers)
                )


def _first(commit: Sequence[ChainLink], stem: str) -> int:
    """Return the part of a commit in which a file is new."""
    return next(
        link.message.part for link in commit for change in link.message.changes if change.file == stem and change.is_new
    )


class TreeContent(NamedTuple):
    """A tree, put together."""

    files: dict[str, bytes | bytearray]
    page_sizes: dict[str, int]
    tail: RestoredTree


def state_in(folder: Path, root: Address, sequence: int, epoch: int) -> TreeContent:
    """Return a tree with the files of a folder, which no process has open, after a message that cannot be read.

    Takes a while: not for the event loop.
    """
    files: dict[str, bytes | bytearray] = {path.stem: whole_image(path) for path in sorted(folder.glob("*.db"))}
    size = sum(map(len, files.values()))
    tail = RestoredTree(sequence, UNKNOWN, epoch, frozenset(files), None, 0, 0, None, size, root=str(root))
    return TreeContent(files, dict.fromkeys(files, PAGE_SIZE), tail)


def since_base(links: Sequence[ChainLink]) -> Sequence[ChainLink]:
    """Return those messages that count: a later base takes the place of all that was before."""
    for at in range(len(links) - 1, 0, -1):
        if (links[at].message.base is not None and links[at].message.part == 0) or ends(links[at]):
            return links[at:]
    return links


def put_together(
    base: Snapshot | None, below: Snapshot | None, links: Sequence[ChainLink], found: Base | None
) -> TreeContent:
    """Return a tree after these messages, which follow a snapshot and the one that this one is made from.

    Takes a while: not for the event loop.
    """
    files: Pages = {}
    for snapshot in (below, base):
        if snapshot is None:
            continue
        for image in snapshot.images:
            files[image.file] = File(image.page_size, image.content)
        tree = tree_id(Address.parse(snapshot.root))
        records = [Record(tree, sequence, data) for sequence, data in snapshot.messages]
        inside = chained(records, None if below is None else below.chain)
        if inside and inside[-1].digest != snapshot.chain:
            raise ChainBroken(f"The messages in a snapshot of {snapshot.root} do not end at its stated position.")
        apply(files, inside)
    apply(files, links)
    done = {stem: file.whole() for stem, file in files.items()}
    ended = commits(links)
    last = ended[-1][-1] if ended else None
    if last is not None:
        end, digest, epoch, root = last.sequence, last.digest, last.message.epoch, last.message.root
    else:
        assert base is not None
        end, digest, epoch, root = base.sequence, base.chain, base.epoch, base.root
    tail = RestoredTree(
        end,
        digest,
        epoch,
        frozenset(done),
        found,
        len(links),
        0,
        links[0].message.at if links else None,
        sum(len(content) for content in done.values()),
        in_log=last is not None,
        is_end=last is not None and last.message.is_end,
        moved_to="" if last is None else last.message.moved_to,
        root=root,
        objects="" if last is None else last.message.objects,
    )
    return TreeContent(done, {stem: file.page_size for stem, file in files.items()}, tail)


async def get_snapshot(archive: Archive, base: Base) -> tuple[Snapshot, Snapshot | None]:
    """Return a snapshot and the one that it is made from, if any; `ChainBroken` if one is missing or was changed."""
    top = await _get(archive, base.key, base.digest)
    return top, None if top.base is None else await _get(archive, top.base.key, top.base.digest)


async def _get(archive: Archive, key: str, digest: bytes) -> Snapshot:
    data = await archive.get(key)
    if data is None:
        raise ChainBroken(f"The object {key!r} is missing in the archive.")
    snapshot = await asyncio.to_thread(unpack_snapshot, data, key, digest or None)
    if snapshot.chain != name_of(key).chain:
        raise ChainBroken(f"The object {key!r} in the archive is another snapshot than its name says.")
    return snapshot


async def read_tree(records: Sequence[Record], archive: Archive, tree: str) -> TreeContent | None:
    """Return a tree from its messages and what the archive has, or `None` if there is no such tree."""
    links = since_base(await asyncio.to_thread(chained, records))
    size = sum(len(record.data) for record in records if not links or record.sequence >= links[0].sequence)
    base: Base | None = None
    if not links:
        marked = await last_mark(archive, tree)
        if marked is None:
            return None
        key, mark = marked
        if not is_parked(key) or mark.parked is None:
            raise ChainBroken(f"The log has no messages of {mark.root}, though it was not parked after its last write.")
        base = mark.parked
    elif links[0].message.base is not None:
        base = links[0].message.base
    elif links[0].message.before and not ends(links[0]):
        base, links = await _parked_before(archive, tree, links)
    snapshot, below = (None, None) if base is None else await get_snapshot(archive, base)
    state = await asyncio.to_thread(put_together, snapshot, below, links, base)
    return state._replace(tail=state.tail._replace(log_bytes=size))


def ends(link: ChainLink) -> bool:
    """Return whether nothing that was before this message counts."""
    return link.message.is_end or bool(link.message.moved_to)


async def _parked_before(archive: Archive, tree: str, links: Sequence[ChainLink]) -> tuple[Base, Sequence[ChainLink]]:
    """Return what was parked and those messages that follow it; some before it may still be in the log."""
    marked = None
    with suppress(ChainBroken):  # without its mark, the names of the snapshots tell
        marked = await last_mark(archive, tree)
    if marked is not None and (parked := marked[1].parked) is not None:
        if links[0].message.before == parked.chain:
            return parked, links
        for at, link in enumerate(links):
            if link.digest == parked.chain:
                return parked, links[at + 1 :]
    async for key in archive.keys(f"{SNAPSHOTS}/{tree}/"):
        name = name_of(key)
        if name.chain == links[0].message.before:
            return Base(key, b"", name.sequence, name.chain), links
    raise ChainBroken(
        f"Message {links[0].sequence} of {links[0].message.root} does not follow any archived message: an earlier "
        "message is missing, or a node wrote that was not the owner."
    )


async def write(state: TreeContent, root: Address, folder: Path, files: Files) -> RestoredTree:
    """Put a tree into its folder in place of what is there; a crash leaves the one or the other."""
    await to_the_end(_write, state, root, folder, files)
    return state.tail


def _write(state: TreeContent, root: Address, folder: Path, files: Files) -> None:
    half = None
    if state.files:
        half = files.unused_path(folder, SOON)
        files.make_folder(half)
        for stem, content in state.files.items():
            files.create_database(half / f"{stem}.db", content)
        files.close(files.create(half / LABEL, str(root).encode()))
    clear(folder, files)
    if half is not None:
        files.rename(half, folder)


def clear(folder: Path, files: Files) -> None:
    """Remove a tree's files from this node: they are a copy that no longer counts."""
    if folder.exists():
        away = files.unused_path(folder, AWAY)
        files.rename(folder, away)
        shutil.rmtree(away, ignore_errors=True)
