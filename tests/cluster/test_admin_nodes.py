"""The admin API of a cluster: every node answers for all trees, acts on those of others, and shows the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.cluster.servers import Nats
from tests.machine import patience

from sapwood import Agent, App, Settings
from sapwood.admin.door import AdminDoor
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.base.layout import Layout
from sapwood.runtimes.cluster.base.placement import wished
from sapwood.runtimes.cluster.runtime import ClusterRuntime
from sapwood.testing.loop import until
from sapwood.testing.memory_log import MemoryArchive
from sapwood.types import Address

TOKEN = "the-token-of-every-folder"
NAMES = [f"t{number:02}" for number in range(12)]


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[Nats, None, None]:
    servers = Nats(tmp_path_factory.mktemp("nats")).start().wait()
    yield servers
    servers.remove()


class AdminNodesPlanner(Agent):
    """Plans one call."""

    async def plan(self) -> None:
        self.schedule(timedelta(hours=1), self.note)

    async def note(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS notes (text TEXT)")


async def _started(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "lifespan.startup.complete"})


@asynccontextmanager
async def node(nats: Nats, folder: Path, archive: MemoryArchive, name: str) -> AsyncGenerator[tuple[App, Any], None]:
    """Yield a node, and a function that asks its admin API."""
    settings = Settings(
        data=folder / name,
        durability="replicated",
        nats=nats.urls,
        archive="memory://",
        cluster=folder.name.replace("_", "-"),
        node=name,
    )
    runtime = ClusterRuntime(settings, layout=Layout(streams=2), archive=archive)
    async with App(agents=[AdminNodesPlanner], settings=settings, runtime=runtime) as app:
        door = AdminDoor(_started, lambda: app.node, TOKEN)

        async def ignore(*_: Any) -> Any:
            pass

        await door({"type": "lifespan"}, ignore, ignore)
        transport = httpx2.ASGITransport(app=door)
        async with httpx2.AsyncClient(transport=transport, base_url=f"http://{name}/_sapwood", timeout=None) as client:

            async def ask(what: str, **params: Any) -> Any:
                answer = await client.post(f"/{what}", json=params, headers={"authorization": f"Bearer {TOKEN}"})
                assert answer.status_code == 200, answer.text
                return answer.json()

            yield app, ask


async def pages(ask: Any, what: str, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        page = await ask(what, after=after, limit=5, **params)
        assert page["unanswered"] == []
        found += page["rows"]
        if (after := page["next"]) is None:
            return found


def are_settled(*apps: App) -> bool:
    """Return whether each tree is at the node that it should be at: no shard is about to move."""
    names = [app.node.settings.node for app in apps]
    roots = [Address.parse(f"AdminNodesPlanner:{name}") for name in NAMES]
    return all(
        app.node.owns(root) == (wished(shard_of(root), names) == app.node.settings.node)
        for root in roots
        for app in apps
    )


async def test_each_node_answers_for_all_trees_and_acts_on_them(nats: Nats, tmp_path: Path) -> None:
    archive = MemoryArchive()
    async with node(nats, tmp_path, archive, "a") as (one, ask_a), node(nats, tmp_path, archive, "b") as (two, ask_b):
        await until(lambda: are_settled(one, two), patience())
        for name in NAMES:
            await (await one.get_agent(AdminNodesPlanner, name)).plan()
        await until(lambda: bool(one.node.trees and two.node.trees), patience())
        addresses = [f"AdminNodesPlanner:{name}" for name in NAMES]
        rows: list[dict[str, Any]] = []
        async with asyncio.timeout(patience()):
            while [row["address"] for row in rows] != addresses:
                rows = await pages(ask_a, "agenda")
        assert await pages(ask_b, "agenda") == rows
        for row in rows:
            told = await ask_b("act", address=row["address"], id=row["id"], do="cancel")
            assert told["done"] == 1
        assert await pages(ask_a, "agenda") == []

        seen = (await ask_b("cluster"))["cluster"]
        assert (seen["node"], seen["holds_lease"], seen["refuses_writes"]) == ("b", True, None)
        assert [one["node"] for one in seen["nodes"]] == ["a", "b"]
        assert seen["without_owner"] == []
