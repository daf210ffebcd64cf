"""All trees of a cluster, whether a node runs them or not: by the messages of the log, and the marks in the archive."""

# nats-py says of little what it is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from sapwood.address import Address
from sapwood.kernel.log.archive_objects import MARKS, is_parked, last_mark
from sapwood.kernel.log.records import ChainBroken, unseal
from sapwood.kernel.ports.log import Archive, Record
from sapwood.kernel.ports.shards import SHARDS, shard_of
from sapwood.runtimes.cluster.base.cluster_status import last_of, owners_of
from sapwood.runtimes.cluster.base.layout import Names
from sapwood.runtimes.cluster.nats.nats_log import NatsLog

AT_ONCE = 64
"""Trees whose last messages are asked for together: each may be as long as a message can be."""


class ListedTree(msgspec.Struct, frozen=True):
    """One tree."""

    root: str
    """Its address; of one whose log or mark cannot be read, its id."""
    node: str
    """The owner; empty if there is none now."""
    messages: int
    """How many the log has of it; 0: it is parked, and lies in the archive."""


async def every_tree(connection: Any, names: Names, archive: Archive) -> AsyncIterator[ListedTree]:
    """Return all trees: those with messages in the log first, then those that are parked. Nothing is opened."""
    log = NatsLog(connection, names)
    try:
        seen: set[str] = set()
        owners: dict[int, str] = {}
        for stream in range(names.layout.streams * names.layout.cells):
            owners |= {shard: owner.node for shard, owner in (await owners_of(connection, names, stream)).items()}
            shards = [shard for shard in range(SHARDS) if names.layout.stream_of(shard) == stream]
            there = [(shard, tree, n) for shard, some in (await log.trees(shards)).items() for tree, n in some.items()]
            seen.update(tree for _, tree, _ in there)
            for at in range(0, len(there), AT_ONCE):
                for one in await _in_log(connection, names, stream, there[at : at + AT_ONCE], owners):
                    yield one
        async for one in _parked(archive, seen, owners):
            yield one
    finally:
        log.close()


async def _in_log(
    connection: Any, names: Names, stream: int, some: list[tuple[int, str, int]], owners: dict[int, str]
) -> list[ListedTree]:
    last = {
        message.headers["Nats-Subject"]: message
        for message in await last_of(
            connection, names.stream(stream), [names.tree(shard, tree) for shard, tree, _ in some]
        )
    }
    found: list[ListedTree] = []
    for shard, tree, count in some:
        message = last.get(names.tree(shard, tree))
        if message is None:
            continue  # parked since; those come later
        try:
            said = unseal(Record(tree, int(message.headers["Nats-Sequence"]), message.data)).message
        except ChainBroken:
            found.append(ListedTree(tree, owners.get(shard, ""), count))
            continue
        if not said.is_end and not said.moved_to:
            found.append(ListedTree(said.root, owners.get(shard, ""), count))
    return found


async def _parked(archive: Archive, seen: set[str], owners: dict[int, str]) -> AsyncIterator[ListedTree]:
    marks: dict[str, str] = {}
    async for key in archive.keys(f"{MARKS}/"):
        tree = key.split("/")[-2]
        marks[tree] = max(marks.get(tree, ""), key)
    resting = [tree for tree, key in marks.items() if tree not in seen and is_parked(key)]
    for at in range(0, len(resting), AT_ONCE):
        for one in await asyncio.gather(*(_one_parked(archive, tree, owners) for tree in resting[at : at + AT_ONCE])):
            if one is not None:
                yield one


async def _one_parked(archive: Archive, tree: str, owners: dict[int, str]) -> ListedTree | None:
    try:
        marked = await last_mark(archive, tree)
    except ChainBroken:
        return ListedTree(tree, "", 0)
    if marked is None:
        return None
    root = marked[1].root
    return ListedTree(root, owners.get(shard_of(Address.parse(root)), ""), 0)
