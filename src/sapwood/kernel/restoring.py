"""Makes the files of a tree from what the log and the archive hold of it.

Nothing is believed: each message is checked by its own digest and by the one it follows, each object
of the archive by the digest in its name. What is not whole is refused, never served.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.chain import Base, ChainBroken, Link, chained, commits, tree_id, unseal
from sapwood.kernel.kept import SNAPSHOTS, Snapshot, is_parked, last_mark, name_of, unpack_snapshot
from sapwood.kernel.ports import Archive, FencedLog, Record
from sapwood.kernel.shards import shard_of
from sapwood.storage.files import Files

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

LABEL = "address"
SOON = ".copying"
"""How a folder is called that is not finished."""
AWAY = ".removed"


class Restored(NamedTuple):
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
    begun: float
    """When the first of them was written."""
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


Read = Callable[[], Awaitable[list[Record]]]
"""Reads a tree's messages from one of the places that should have them."""


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


def apply(files: Pages, links: Sequence[Link]) -> None:
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


def _first(commit: Sequence[Link], stem: str) -> int:
    """Return the part of a commit in which a file is new."""
    return next(
        link.message.part for link in commit for change in link.message.changes if change.file == stem and change.is_new
    )


class State(NamedTuple):
    """A tree, put together."""

    files: dict[str, bytes | bytearray]
    page_sizes: dict[str, int]
    tail: Restored


def since_base(links: Sequence[Link]) -> Sequence[Link]:
    """Return those messages that count: a later base takes the place of all that was before."""
    for at in range(len(links) - 1, 0, -1):
        if (links[at].message.base is not None and links[at].message.part == 0) or ends(links[at]):
            return links[at:]
    return links


def put_together(base: Snapshot | None, below: Snapshot | None, links: Sequence[Link], found: Base | None) -> State:
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
    tail = Restored(
        end,
        digest,
        epoch,
        frozenset(done),
        found,
        len(links),
        0,
        links[0].message.at if links else time.time(),
        sum(len(content) for content in done.values()),
        in_log=last is not None,
        is_end=last is not None and last.message.is_end,
        moved_to="" if last is None else last.message.moved_to,
        root=root,
    )
    return State(done, {stem: file.page_size for stem, file in files.items()}, tail)


async def get_snapshot(archive: Archive, base: Base) -> tuple[Snapshot, Snapshot | None]:
    """Return a snapshot and the one that it is made from, if any; `ChainBroken` if one is missing or was changed."""
    top = await _get(archive, base.key, base.digest)
    return top, None if top.base is None else await _get(archive, top.base.key, top.base.digest)


async def _get(archive: Archive, key: str, digest: bytes) -> Snapshot:
    data = await archive.get(key)
    if data is None:
        raise ChainBroken(f"The object {key!r} is missing in the archive.")
    return await asyncio.to_thread(unpack_snapshot, data, key, digest or None)


async def read_tree(records: Sequence[Record], archive: Archive, tree: str) -> State | None:
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


def ends(link: Link) -> bool:
    """Return whether nothing that was before this message counts."""
    return link.message.is_end or bool(link.message.moved_to)


async def _parked_before(archive: Archive, tree: str, links: Sequence[Link]) -> tuple[Base, Sequence[Link]]:
    """Return what was parked and those messages that follow it; some before it may still be in the log."""
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


async def restore(stored: FencedLog, archive: Archive, root: Address, folder: Path, files: Files) -> Restored | None:
    """Make the folder of a tree what the log and the archive say; return where it stands, None: there is no such tree.

    `ChainBroken` if what they have is not whole: then the folder is left as it was.
    """
    tree = tree_id(root)
    state = await read_tree(await stored.read(shard_of(root), tree), archive, tree)
    return None if state is None else await write(state, root, folder, files)


async def to_the_end(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do something to files in a thread. A cancelled caller waits: no other task may use these files."""
    done = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        while not done.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({done})
        if not done.cancelled():
            done.exception()
        raise


async def write(state: State, root: Address, folder: Path, files: Files) -> Restored:
    """Put a tree into its folder in place of what is there; a crash leaves the one or the other."""
    await to_the_end(_write, state, root, folder, files)
    return state.tail


def _write(state: State, root: Address, folder: Path, files: Files) -> None:
    half = None
    if state.files:
        half = folder.with_name(f"{folder.name}-{time.time_ns()}{SOON}")
        files.make_folder(half)
        for stem, content in state.files.items():
            files.close(files.create(half / f"{stem}.db", bytes(content)))
        files.close(files.create(half / LABEL, str(root).encode()))
    clear(folder, files)
    if half is not None:
        files.rename(half, folder)


def clear(folder: Path, files: Files) -> None:
    """Remove a tree's files from this node: they are a copy that no longer counts."""
    if folder.exists():
        away = folder.with_name(f"{folder.name}-{time.time_ns()}{AWAY}")
        files.rename(folder, away)
        shutil.rmtree(away, ignore_errors=True)


class Healed(NamedTuple):
    """A tree that was put together from several copies."""

    state: State
    records: list[Record]
    """Its messages, in order."""
    seen: int
    """The highest place that a message was found at, also one that does not count."""


async def heal(reads: Iterable[Read], archive: Archive, tree: str, newest: int = 0) -> Healed | None:
    """Put a tree together from all places that have its messages, where no single one has them all.

    They are asked one after the other until nothing is missing up to `newest`, 0 for all of them. Returns `None` if no
    replica has anything of it. `ChainBroken` if they are not whole even together, `Unavailable` if that cannot be
    known, as one of them does not answer. A message counts wherever it was found, as its digest tells that it was not
    changed; whether it belongs to the tree, those after it tell.
    """
    archived = {name_of(key).chain async for key in archive.keys(f"{SNAPSHOTS}/{tree}/")}
    found: dict[bytes, Record] = {}
    links: dict[bytes, Link] = {}
    best: list[Link] | None = None
    unread: Exception | None = None
    for read in reads:
        if newest and best is not None and best[-1].sequence >= newest:
            break
        try:
            records = await read()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this place, others may have it
            log.warning("reading a replica of tree %s failed: %s", tree, error)
            if isinstance(error, Unavailable | OSError):
                unread = error
            continue
        if _add(records, links, found):
            best = _longest(links, archived)
    if unread is not None and (best is None or best[-1].sequence < newest):
        # What is missing may be in the one that was not read: that is not damage.
        raise Unavailable(f"Not all replicas of the log of tree {tree} can be read now: {unread}")
    if not links:
        state = await read_tree([], archive, tree)
        return None if state is None else Healed(state, [], 0)
    if best is None:
        (some, *_) = links.values()
        raise ChainBroken(f"No replica of the log of {some.message.root} is intact, nor are all of them together.")
    newer = [link for link in links.values() if link.sequence > best[-1].sequence]
    places = [link.sequence for link in newer]
    if any(_follows_unknown(link, links, archived) for link in newer):
        raise ChainBroken(
            f"No replica of the log of {best[0].message.root} has the messages that lead to message {max(places)}."
        )
    if newer:
        text = "%d messages of tree %s, %d to %d, were written by a node that was not the owner: ignored"
        log.error(text, len(places), tree, min(places), max(places))
    whole = [found[link.digest] for link in best]
    state = await read_tree(whole, archive, tree)
    assert state is not None
    return Healed(state, whole, max(link.sequence for link in links.values()))


def _add(records: Iterable[Record], links: dict[bytes, Link], found: dict[bytes, Record]) -> bool:
    """Add what is whole by itself; return whether there was anything new."""
    news = False
    for record in records:
        try:
            link = unseal(record)
        except ChainBroken as error:
            log.warning("%s", error)
            continue
        if link.digest not in links or record.sequence < links[link.digest].sequence:
            links[link.digest], found[link.digest] = link, record
            news = True
    return news


def _follows_unknown(link: Link, links: dict[bytes, Link], archived: Collection[bytes]) -> bool:
    """Return whether something is missing before a message; else it was written by somebody who did not know better."""
    while link.message.before and link.message.base is None and link.message.before not in archived:
        before = links.get(link.message.before)
        if before is None:
            return True
        link = before
    return False


def _longest(links: dict[bytes, Link], archived: Collection[bytes]) -> list[Link] | None:
    """Return the whole chain that goes furthest; it may begin with what follows a snapshot."""
    by_before: dict[bytes, list[Link]] = {}
    for link in links.values():
        by_before.setdefault(link.message.before, []).append(link)
    starts = [link for link in links.values() if link.message.base is not None or ends(link) or not link.message.before]
    starts += [link for chain in archived for link in by_before.get(chain, ())]
    best: list[Link] | None = None
    # Oldest first: who begins a tree that was there already did not know of it, and was not its owner.
    for start in sorted(starts, key=lambda link: link.sequence):
        chain = [start]
        while True:
            after = [link for link in by_before.get(chain[-1].digest, ()) if link.sequence > chain[-1].sequence]
            after = [link for link in after if link.message.epoch >= chain[-1].message.epoch]
            if not after:
                break
            chain.append(max(after, key=lambda link: (link.message.epoch, link.sequence)))
        fresh = not start.message.before and start.message.base is None and best is not None
        if best is None or (chain[-1].sequence > best[-1].sequence and not fresh):
            best = chain
    return best
