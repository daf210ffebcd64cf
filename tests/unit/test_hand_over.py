"""What a node has promised to others is handed over once it may act."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from sapwood.kernel.ports.log import Epoch
from sapwood.runtimes.cluster.base.ground import Ground
from sapwood.runtimes.cluster.ownership.ownership import Ownership

SHARD = 7


class OneStream:
    """Servers that keep all shards in one stream."""

    def stream_of(self, shard: int) -> int:
        return 0


async def test_a_promise_made_before_a_lapse_of_the_lease_is_kept_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = Ownership(cast(Ground, OneStream()), "birch")
    owners._table.own({SHARD: Epoch(1, 1)})
    owners._table.open([SHARD])
    owners._table.promise(SHARD, "alder")
    handed: list[Mapping[int, str]] = []
    done = asyncio.Event()

    async def hand_over(shards: Mapping[int, str]) -> None:
        handed.append(shards)
        done.set()

    monkeypatch.setattr(owners, "hand_over", hand_over)
    monkeypatch.setattr(owners._nodes, "live", lambda: {"alder": None, "birch": None})
    assert not owners._lease.is_valid()

    loop = asyncio.ensure_future(owners._hand_over_for_ever())
    try:
        await asyncio.sleep(10.0)
        assert handed == []

        monkeypatch.setattr(owners._lease, "is_valid", lambda: True)
        await asyncio.wait_for(done.wait(), 60.0)
    finally:
        loop.cancel()
    assert handed == [{SHARD: "alder"}]
