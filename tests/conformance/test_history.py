"""The past of a tree is read through any process, and written by the one that runs it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.conformance.worlds import Run
from tests.unit.histories import Node, rows_in

from sapwood.errors import NotFound
from sapwood.kernel.node.past import write_tree_at
from sapwood.types import Address

ROOT = Address.parse("Node:a")


@pytest.mark.core("workers")
async def test_any_process_reads_the_past_of_a_tree(run: Run, tmp_path: Path) -> None:
    async with run(Node, history=86400.0) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "first")
        await node.grow("b")
        await node.mark("second")
        first, second = await world.app.moments(Node, "a")
        assert (first.label, second.label) == ("first", "second")
        assert await world.app.moments(Node, "a", since=second.at + timedelta(seconds=1)) == []
        now = datetime.fromtimestamp(world.clock.now(), UTC)
        for at, files in ((first, 1), ("first", 1), (second, 2), (now, 2)):
            folder = tmp_path / f"{at}"[:20].replace("/", "-")
            await write_tree_at(world.app.node, ROOT, at, folder)
            assert len(rows_in(folder)) == files
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        with pytest.raises(NotFound, match="a moment 'third'"):
            await write_tree_at(world.app.node, ROOT, "third", tmp_path / "third")


@pytest.mark.core("workers")
async def test_any_process_forks_and_rewinds_a_tree_as_of_a_moment(run: Run) -> None:
    async with run(Node, history=86400.0) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "first")
        await node.grow("b")
        fork = await world.app.fork(Node, "a", to="c", at="first")
        done = await world.app.rewind(Node, "a", at="first", keep_as="kept")
        assert (fork.agents, done.agents) == (1, 1)
        for name, below in (("a", []), ("c", []), ("kept", ["b"])):
            agent = await world.get_agent(Node, name)
            assert (await agent.values(), await agent.below()) == (["v1"], below)
