"""Repairs the log of a tree from copies that differ."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import NamedTuple

from sapwood.errors import Unavailable
from sapwood.kernel.log.archive_objects import SNAPSHOTS, name_of
from sapwood.kernel.log.records import ChainBroken, ChainLink, unseal
from sapwood.kernel.log.restore import TreeContent, ends, read_tree
from sapwood.kernel.ports.log import Archive, Record

log = logging.getLogger(__name__)
Read = Callable[[], Awaitable[list[Record]]]
"""Reads a tree's messages from one of the places that should have them."""


class RepairedTree(NamedTuple):
    """A tree that was put together from several copies."""

    state: TreeContent
    records: list[Record]
    """Its messages, in order."""
    seen: int
    """The highest place that a message was found at, also one that does not count."""


async def heal(reads: Iterable[Read], archive: Archive, tree: str, newest: int = 0) -> RepairedTree | None:
    """Put a tree together from all places that have its messages, where no single one has them all.

    They are asked one after the other until nothing is missing up to `newest`, 0 for all of them. Returns `None` if no
    replica has anything of it. `ChainBroken` if they are not whole even together, `Unavailable` if that cannot be
    known, as one of them does not answer. A message counts wherever it was found, as its digest tells that it was not
    changed; whether it belongs to the tree, those after it tell.
    """
    archived = {name_of(key).chain async for key in archive.keys(f"{SNAPSHOTS}/{tree}/")}
    found: dict[bytes, Record] = {}
    links: dict[bytes, ChainLink] = {}
    best: list[ChainLink] | None = None
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
        return None if state is None else RepairedTree(state, [], 0)
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
    return RepairedTree(state, whole, max(link.sequence for link in links.values()))


def _add(records: Iterable[Record], links: dict[bytes, ChainLink], found: dict[bytes, Record]) -> bool:
    """Add the records that are intact; return whether there was anything new."""
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


def _follows_unknown(link: ChainLink, links: dict[bytes, ChainLink], archived: Collection[bytes]) -> bool:
    """Return whether something is missing before a message; else its writer had an outdated state."""
    while link.message.before and link.message.base is None and link.message.before not in archived:
        before = links.get(link.message.before)
        if before is None:
            return True
        link = before
    return False


def _longest(links: dict[bytes, ChainLink], archived: Collection[bytes]) -> list[ChainLink] | None:
    """Return the whole chain that goes furthest; it may begin with what follows a snapshot."""
    by_before: dict[bytes, list[ChainLink]] = {}
    for link in links.values():
        by_before.setdefault(link.message.before, []).append(link)
    starts = [link for link in links.values() if link.message.base is not None or ends(link) or not link.message.before]
    starts += [link for chain in archived for link in by_before.get(chain, ())]
    best: list[ChainLink] | None = None
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
