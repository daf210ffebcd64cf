"""The past of a tree of a real cluster, from its archive."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.cluster.servers import Nats
from tests.cluster.test_own_archive import Cluster
from tests.unit.histories import Node, rows_in

from sapwood.errors import NotFound, UsageError
from sapwood.kernel.node.past import write_tree_at
from sapwood.types import Address, BeforeTurn

ROOT = Address.parse("Node:a")


@pytest.fixture
def cluster(nats: Nats, tmp_path: Path) -> Cluster:
    return Cluster(nats, tmp_path, agents=[Node])


@pytest.mark.slow
async def test_a_tree_of_a_cluster_is_read_as_it_was_at_a_time(cluster: Cluster, tmp_path: Path) -> None:
    async with cluster.node("a", cluster.url("archive")) as app:
        before = datetime.now(UTC)
        node = await app.get_agent(Node, "a")
        await node.add("v1", "m1")
        between = time.time()
        await asyncio.sleep(0.005)
        await node.add("v2", "m2")
        await write_tree_at(app.node, ROOT, datetime.fromtimestamp(between, UTC), tmp_path / "then")
        held = "\n".join(rows_in(tmp_path / "then")["root"])
        assert ("'v1'" in held, "'v2'" in held) == (True, False)
        await write_tree_at(app.node, ROOT, datetime.now(UTC), tmp_path / "now")
        assert "'v2'" in "\n".join(rows_in(tmp_path / "now")["root"])
        with pytest.raises(NotFound, match=r"The archive has no Node:a at .* Settings\(history=…\)"):
            await write_tree_at(app.node, ROOT, before, tmp_path / "before")
        for at in ("m1", BeforeTurn("t")):
            with pytest.raises(UsageError, match="In a cluster, `at` must be a time"):
                await write_tree_at(app.node, ROOT, at, tmp_path / "named")
        done = await app.rewind(Node, "a", at=datetime.fromtimestamp(between, UTC), keep_as="kept")
        assert done.address == ROOT
        for name, values in (("a", ["v1"]), ("kept", ["v1", "v2"])):
            assert await (await app.get_agent(Node, name)).values() == values
