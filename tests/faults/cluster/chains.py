"""What the log holds of every tree at the end, read from whoever leads it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.faults.cluster.checker import check_chain

from sapwood.kernel.ports import Record

CLUSTER = "sapwood"
PATIENCE = 30.0
AT_ONCE = 200


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


def _config() -> Any:
    from nats.js.api import AckPolicy, ConsumerConfig

    return ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=60)


async def _read(connection: Any) -> dict[str, list[Record]]:
    trees: dict[str, list[Record]] = defaultdict(list)
    streams = connection.jetstream(timeout=10)
    for info in await streams.streams_info():
        if not info.config.name.startswith(f"{CLUSTER}-log-") or not info.state.messages:
            continue
        reading = await streams.pull_subscribe(info.config.subjects[0], stream=info.config.name, config=_config())
        left = 1
        while left:
            for message in await reading.fetch(AT_ONCE, timeout=PATIENCE):
                *_, kind, name = message.subject.split(".")
                if kind == "tree":
                    trees[name].append(Record(name, message.metadata.sequence.stream, message.data))
                left = message.metadata.num_pending
        await reading.unsubscribe()
    return trees
