"""What the log holds of every tree at the end, read from whoever leads it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from tests.faults.cluster.checker import check_chain

from sapwood.kernel.ports.log import Record

CLUSTER = "sapwood"


async def look_at_chains(urls: str) -> tuple[list[str], int, int]:
    """Return what is wrong with the chains of all trees, how many trees there are, and how many messages."""
    import nats

    connection = await nats.connect(urls.split(","), connect_timeout=5)
    try:
        trees = await _read(connection)
    finally:
        await connection.close()
    problems = [problem for tree, records in sorted(trees.items()) for problem in check_chain(tree, records)]
    return problems, len(trees), sum(len(records) for records in trees.values())


async def _read(connection: Any) -> dict[str, list[Record]]:
    trees: dict[str, list[Record]] = defaultdict(list)
    streams = connection.jetstream(timeout=10)
    names = [info.config.name for info in await streams.streams_info()]
    await asyncio.gather(*(_read_one(streams, name, trees) for name in names if name.startswith(f"{CLUSTER}-log-")))
    return trees


async def _read_one(streams: Any, name: str, trees: dict[str, list[Record]]) -> None:
    from nats.js.errors import NotFoundError

    number = name.rsplit("-", 1)[1]
    place = 1
    while True:
        try:
            message = await streams.get_msg(name, seq=place, subject=f"{CLUSTER}.log.{number}.*.tree.*", next=True)
        except NotFoundError:
            return
        tree = message.subject.rsplit(".", 1)[1]
        trees[tree].append(Record(tree, message.seq, message.data))
        place = message.seq + 1
