"""A node whose answers from NATS come late begins nothing that the next owner of its trees has done."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.cluster.proxies import Proxy
from tests.cluster.servers import Nats
from tests.machine import patience

from sapwood import Agent, App
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.base.layout import Layout
from sapwood.runtimes.cluster.base.placement import wished
from sapwood.runtimes.cluster.ownership.ownership import Ownership
from sapwood.runtimes.cluster.runtime import ClusterRuntime
from sapwood.settings import Settings
from sapwood.testing.memory_log import MemoryArchive
from sapwood.types import Address


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[Nats, None, None]:
    """Three NATS servers that clients know only by the addresses that they are given."""
    servers = Nats(tmp_path_factory.mktemp("nats"), advertises=False).start().wait()
    yield servers
    servers.remove()


@dataclass
class Till:
    """What the nodes of a test do outside, and what they wait for."""

    acts: list[str] = field(default_factory=list[str])
    may_return: asyncio.Event = field(default_factory=asyncio.Event)
    may_renew: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Node:
    """What the agents of one node know."""

    name: str
    till: Till

    def act(self, what: str) -> None:
        self.till.acts.append(f"{self.name} {what}")


class LatePayer(Agent):
    """Acts outside in two steps."""

    deps: Node

    async def begin(self) -> None:
        self.start_fiber("work", self.work)

    async def work(self) -> str:
        await self.step("order", self.order)
        await self.step("pay", self.pay)
        return self.deps.name

    async def order(self) -> None:
        self.deps.act("orders")
        await self.deps.till.may_return.wait()

    async def pay(self) -> None:
        self.deps.act("pays")

    async def result(self) -> str:
        return await self.fibers.result("work")


class Ground:
    """What a node knows of its cluster, whose renewals wait until the test lets them go."""

    def __init__(self, ground: Any, may_renew: asyncio.Event) -> None:
        self._ground = ground
        self._may_renew = may_renew

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ground, name)

    async def renew(self, *lease: Any) -> Any:
        await self._may_renew.wait()
        return await self._ground.renew(*lease)


@dataclass
class Group:
    """Two nodes; what NATS answers to one of them passes proxies."""

    apps: dict[str, App]
    proxies: list[Proxy]

    def withhold_answers(self) -> None:
        for proxy in self.proxies:
            proxy.withhold(answers=True)

    def deliver(self) -> None:
        for proxy in self.proxies:
            proxy.deliver()


@asynccontextmanager
async def two_nodes(nats: Nats, folder: Path, till: Till) -> AsyncGenerator[Group, None]:
    cluster, archive = f"c{uuid4().hex[:8]}", MemoryArchive()
    group = Group({}, [Proxy(port) for port in nats.ports])

    def owners(ground: Any, name: str, **more: Any) -> Ownership:
        if name == "late":
            ground = Ground(ground, till.may_renew)
        return Ownership(ground, name, lease=6.0, renewal=1.0, margin=0.5, **more)

    async def start(name: str, urls: str) -> None:
        settings = Settings(
            data=folder / name,
            durability="replicated",
            nats=urls,
            archive="memory://",
            cluster=cluster,
            node=name,
        )
        runtime = ClusterRuntime(settings, layout=Layout(streams=1), archive=archive, make_owners=owners)
        app = App(agents=[LatePayer], deps=Node(name, till), settings=settings, runtime=runtime)
        await app.__aenter__()
        group.apps[name] = app

    async with AsyncExitStack() as stack:
        urls = nats.urls
        for proxy, port in zip(group.proxies, nats.ports, strict=True):
            await stack.enter_async_context(proxy)
            urls = urls.replace(f":{port}", f":{proxy.port}")
        try:
            await start("late", urls)
            await start("next", nats.urls)
            yield group
        finally:
            group.deliver()
            till.may_renew.set()
            till.may_return.set()
            for app in group.apps.values():
                await app.__aexit__()


def tree_of_the_late_node() -> Address:
    """Return a root that the late node runs while both are there."""
    roots = (Address.root_of("LatePayer", f"p{n}") for n in itertools.count())
    return next(root for root in roots if wished(shard_of(root), ("late", "next")) == "late")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patience()):
        while not condition():  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.02)


@pytest.mark.promise("B-7")
@pytest.mark.slow
async def test_a_late_acknowledgement_begins_no_step_that_the_next_owner_has_finished(
    nats: Nats, tmp_path: Path
) -> None:
    till, root = Till(), tree_of_the_late_node()
    till.may_renew.set()
    async with two_nodes(nats, tmp_path, till) as group:
        late, following = group.apps["late"].node, group.apps["next"].node
        payer = await group.apps["next"].get_agent(LatePayer, root.name)
        await payer.begin()
        await until(lambda: till.acts == ["late orders"])

        # The result of the step is stored, and only the acknowledgement is withheld.
        group.withhold_answers()
        till.may_renew.clear()
        till.may_return.set()
        await until(lambda: root in following.trees)
        async with asyncio.timeout(patience()):
            assert await payer.result() == "next"

        # It comes before the node can find out that it has lost the tree.
        assert late.gate.waiting > 0
        group.deliver()
        await until(lambda: late.gate.waiting == 0)
        till.may_renew.set()
        await until(lambda: root not in late.trees and late.holds_lease())

    assert till.acts == ["late orders", "next pays"]
