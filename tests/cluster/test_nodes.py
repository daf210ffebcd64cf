"""Nodes of a cluster, each with a data folder of its own, over real NATS servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.cluster.moving import Client
from tests.cluster.servers import Nats
from tests.machine import patience

from sapwood import Agent, App, expose
from sapwood.errors import Quarantined, Unavailable
from sapwood.kernel.actors.quarantine import STRIKES
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.base.layout import Layout
from sapwood.runtimes.cluster.ownership.ownership import Ownership
from sapwood.runtimes.cluster.ownership.shard_moves import LEAVING
from sapwood.runtimes.cluster.runtime import ClusterRuntime
from sapwood.settings import Settings
from sapwood.testing.memory_log import MemoryArchive
from sapwood.types import Address

LEASE = 6.0
LONG_LEASE = 600.0
"""No test waits for its end: what happens sooner did not wait for it."""


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[Nats, None, None]:
    servers = Nats(tmp_path_factory.mktemp("nats")).start().wait()
    yield servers
    servers.remove()


CALLED: list[Callable[[], object]] = []
"""What is done when a diary is asked to count."""


class NodesDiary(Agent):
    """Keeps lines."""

    migrations = ("CREATE TABLE lines (text TEXT NOT NULL) STRICT",)

    async def write(self, text: str) -> int:
        self.sql("INSERT INTO lines VALUES (?)", text)
        return self.sql("SELECT count(*) FROM lines").scalar(int)

    async def lines(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM lines ORDER BY rowid")]

    async def last(self) -> str:
        return self.sql("SELECT substr(text, 1, 9) FROM lines ORDER BY rowid DESC LIMIT 1").scalar(str)

    @expose
    async def count(self, steps: int) -> int:
        for act in CALLED:
            act()
        for _ in range(steps):
            await asyncio.sleep(0)
        return steps

    async def later(self, seconds: float) -> None:
        self.schedule(timedelta(seconds=seconds), self.write, "by the clock")


DIARY = Address.root_of("NodesDiary", "d")


class Group:
    """Some nodes of one cluster."""

    def __init__(self, nats: Nats, folder: Path, lease: float) -> None:
        self.nats = nats
        self.owners = partial(Ownership, lease=lease, renewal=1.0, margin=0.5)
        self.folder = folder
        self.name = f"c{uuid4().hex[:8]}"
        self.archive = MemoryArchive()
        self.apps: dict[str, App] = {}

    async def start(self, node: str, **settings: Any) -> App:
        given = Settings(
            data=self.folder / node,
            durability="replicated",
            nats=self.nats.urls,
            archive="memory://",
            cluster=self.name,
            node=node,
            **settings,
        )
        runtime = ClusterRuntime(given, layout=Layout(streams=2), archive=self.archive, make_owners=self.owners)
        app = self.apps[node] = App(agents=[NodesDiary], settings=given, runtime=runtime)
        await app.__aenter__()
        return app

    async def stop(self, node: str) -> None:
        await self.apps.pop(node).__aexit__()

    async def kill(self, node: str) -> None:
        app = self.apps.pop(node)
        await app.node.die()
        await app.__aexit__()

    def runner(self, name: str) -> str:
        """Return which node has this diary open."""
        (node,) = [node for node, app in self.apps.items() for root in app.node.trees if root.name == name]
        return node


@asynccontextmanager
async def group(nats: Nats, folder: Path, lease: float = LEASE) -> AsyncGenerator[Group, None]:
    nodes = Group(nats, folder, lease)
    try:
        yield nodes
    finally:
        for node in list(nodes.apps):
            await nodes.stop(node)


async def test_what_one_node_wrote_is_read_after_it_is_gone(nats: Nats, tmp_path: Path) -> None:
    async with group(nats, tmp_path) as nodes:
        app = await nodes.start("a")
        diary = await app.get_agent(NodesDiary, "d")
        assert await diary.write("one") == 1
        await nodes.stop("a")

        app = await nodes.start("b")
        diary = await app.get_agent(NodesDiary, "d")
        assert await diary.lines() == ["one"]
        assert await diary.write("two") == 2


@pytest.mark.promise("B-7")
async def test_a_tree_goes_on_elsewhere_when_its_node_leaves(nats: Nats, tmp_path: Path) -> None:
    async with group(nats, tmp_path, LONG_LEASE) as nodes:
        first = await nodes.start("a")
        await (await first.get_agent(NodesDiary, "d")).write("one")
        second = await nodes.start("b")
        diary = await second.get_agent(NodesDiary, "d")
        assert await diary.lines() == ["one"]

        async with asyncio.timeout(patience()):
            await nodes.stop("a")
            assert await diary.write("two") == 2
        assert nodes.runner("d") == "b"


async def test_calls_of_a_client_that_end_while_their_tree_begins_to_move_are_answered(
    nats: Nats, tmp_path: Path
) -> None:
    called = asyncio.Event()
    CALLED[:] = [called.set]
    async with group(nats, tmp_path) as nodes:
        apps = [await nodes.start("a"), await nodes.start("b")]
        client = Client(apps[0], "/agents/nodes-diary/d", "me")

        async def count(steps: int) -> Any:
            client.say(json.dumps({"type": "rpc", "id": f"{steps}", "method": "count", "args": [steps]}))
            while '"rpc"' not in (message := await asyncio.wait_for(client.down.get(), patience())).get("text", ""):
                assert message["type"] != "websocket.close", message
            return json.loads(message["text"])["result"]

        async def move() -> None:
            await called.wait()
            (runner,) = [app.node for app in apps if app.node.owns(DIARY)]
            assert runner.far is not None
            assert isinstance(runner.far.directory, Ownership)
            others = {app.node.settings.node for app in apps if app.node is not runner}
            await runner.far.directory.hand_over({shard_of(DIARY): others.pop()})

        assert await count(0) == 0
        for steps in range(12):
            called.clear()
            moving = asyncio.create_task(move())
            assert await count(steps) == steps
            await moving
        await client.leave()


async def test_a_large_tree_is_fetched_before_it_is_let_go_and_runs_meanwhile(nats: Nats, tmp_path: Path) -> None:
    async with group(nats, tmp_path) as nodes:
        first = await nodes.start("a")
        diary = await first.get_agent(NodesDiary, "d")
        for at in range(6):
            await diary.write(f"{at}" * 500_000)
        second = await nodes.start("b")
        other = await second.get_agent(NodesDiary, "d")
        runner = nodes.runner("d")
        old, new = nodes.apps[runner].node, nodes.apps["b" if runner == "a" else "a"].node
        assert new.keeper is not None
        fetch, read, while_fetched, reads = new.keeper.fetch, new.keeper.trees.read, list[str](), list[str]()

        async def fetched(root: Address, folder: Path) -> None:
            await fetch(root, folder)
            assert root in old.trees
            while_fetched.append(await other.last())
            await other.write("meanwhile")

        async def noted(shard: int, tree: str) -> Any:
            reads.append(tree)
            return await read(shard, tree)

        new.keeper.fetch = fetched
        new.keeper.trees.read = noted
        stays = nodes.apps[new.settings.node]
        await nodes.stop(runner)
        diary = await stays.get_agent(NodesDiary, "d")
        assert await diary.last() == "meanwhile"
        assert while_fetched == ["5" * 9]
        assert len(reads) == 1  # what was written since was added to what had been fetched
        assert await diary.write("then") == 8


async def test_a_tree_that_is_moved_waits_for_a_slow_fetch(nats: Nats, tmp_path: Path) -> None:
    async with group(nats, tmp_path) as nodes:
        for name in "ab":
            await nodes.start(name)
        diary = await nodes.apps["a"].get_agent(NodesDiary, "d")
        for at in range(6):
            await diary.write(f"{at}" * 500_000)
        old = nodes.apps[runner := nodes.runner("d")].node
        new = nodes.apps["b" if runner == "a" else "a"].node
        assert new.keeper is not None
        assert old.far is not None
        assert isinstance(old.far.directory, Ownership)
        fetch, fetched = new.keeper.fetch, list[bool]()

        async def slowly(root: Address, folder: Path) -> None:
            await asyncio.sleep(LEAVING + 1)
            await fetch(root, folder)
            fetched.append(old.owns(root))

        new.keeper.fetch = slowly
        await old.far.directory.hand_over({shard_of(DIARY): new.settings.node})
        assert fetched == [True]
        assert await diary.last() == "5" * 9


@pytest.mark.promise("B-7")
async def test_a_tree_goes_on_elsewhere_when_its_node_dies(nats: Nats, tmp_path: Path) -> None:
    async with group(nats, tmp_path) as nodes:
        for node in "abc":
            await nodes.start(node)
        diary = await nodes.apps["a"].get_agent(NodesDiary, "d")
        await diary.write("one")
        runner = nodes.runner("d")
        asker = next(node for node in "abc" if node != runner)
        diary = await nodes.apps[asker].get_agent(NodesDiary, "d")

        await nodes.kill(runner)

        async with asyncio.timeout(patience()):
            while True:
                try:
                    assert await diary.write("two") == 2
                    break
                except Unavailable:
                    await asyncio.sleep(0.05)
        assert await diary.lines() == ["one", "two"]


async def test_a_tree_is_held_back_for_what_it_did_to_any_node_until_it_is_released_at_one(
    nats: Nats, tmp_path: Path
) -> None:
    async with group(nats, tmp_path) as nodes:
        for at, node in enumerate("ab"):
            (tmp_path / node).mkdir()
            (tmp_path / node / STRIKES).write_text(f'{{"root": "NodesDiary:d", "at": {at}}}')
        for node in "abc":
            await nodes.start(node, strikes=2)
        await seen(lambda: all(app.node.loader.held_back(DIARY) for app in nodes.apps.values()))
        with pytest.raises(Quarantined):
            await nodes.apps["c"].get_agent(NodesDiary, "d")

        nodes.apps["c"].release(NodesDiary, "d")

        await seen(lambda: not any(app.node.loader.held_back(DIARY) for app in nodes.apps.values()))
        await (await nodes.apps["a"].get_agent(NodesDiary, "d")).write("one")
        await seen(lambda: all("released" in (tmp_path / node / STRIKES).read_text() for node in "ab"))
        await nodes.stop("c")
        assert await (await nodes.apps["b"].get_agent(NodesDiary, "d")).lines() == ["one"]


async def seen(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patience()):
        while not condition():  # noqa: ASYNC110 - nodes tell each other
            await asyncio.sleep(0.02)


@pytest.mark.nightly
async def test_what_is_due_is_done_by_whoever_takes_over(nats: Nats, tmp_path: Path) -> None:
    async with group(nats, tmp_path) as nodes:
        await nodes.start("a")
        diary = await nodes.apps["a"].get_agent(NodesDiary, "d")
        await diary.later(1.0)
        await nodes.kill("a")

        await nodes.start("b")

        async with asyncio.timeout(patience()):
            while not nodes.apps["b"].node.trees:  # noqa: ASYNC110 - nobody asks for the tree
                await asyncio.sleep(0.02)
        diary = await nodes.apps["b"].get_agent(NodesDiary, "d")
        async with asyncio.timeout(patience()):
            while await diary.lines() != ["by the clock"]:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.02)
