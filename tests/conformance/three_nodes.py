"""A world of three nodes of a cluster, in one process, over three real NATS servers.

One that the test and its clients meet, one that runs every tree, and one that looks on. After a crash or a restart a
new node, which has nothing on its disk, runs the trees: what it knows of them is what the log and the archive hold.
Only what a test hands to its agents, deps and clock, is shared.

Streams are made once and emptied after each test, and there are few shards: a cluster begins for every test, and most
of that would be to make streams and to write and read thousands of owners.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import copy
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from tests.cluster.servers import Nats
from tests.conformance.replicated import Alive, StoringGate, is_backup

from sapwood import App
from sapwood.drivers.temporal import TemporalDriver
from sapwood.errors import Unavailable
from sapwood.kernel import shards
from sapwood.kernel.node import Node
from sapwood.kernel.ports import Archive, Gate
from sapwood.runtimes.cluster.cells import Layout, Names
from sapwood.runtimes.cluster.connecting import connect
from sapwood.runtimes.cluster.memory import MemoryArchive
from sapwood.runtimes.cluster.ownership import Ownership
from sapwood.runtimes.cluster.runtime import ClusterRuntime
from sapwood.settings import Settings
from sapwood.storage.files import Files
from sapwood.testing.faults import CountingFiles, CrashPoints
from sapwood.testing.world import World, lived, running

FEW = 16
LAYOUT = Layout(streams=1)
LATER = 0.5
_numbers = itertools.count()
_servers: list[Nats] = []
_empty: list[str] = []
"""Names of clusters whose streams have nothing in them."""


def servers() -> Nats:
    """Return the servers that all tests of this process share."""
    if not _servers:
        nats = Nats(Path(tempfile.mkdtemp(prefix="sapwood-nats-")), 3, sync="2m")  # no server is killed here
        _servers.append(nats)
        atexit.register(nats.remove)
        nats.start().wait()
    return _servers[0]


def few_shards() -> None:
    """Have every cluster of this process consist of a few shards."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("sapwood.", "tests.")) and hasattr(module, "SHARDS"):
            setattr(module, "SHARDS", FEW)  # noqa: B010 - of several modules
    shards._shard.cache_clear()


class Mortal(Ownership):
    """A node whose death is told to those that come after it: they need not wait until its lease is over."""

    async def die(self) -> None:
        await super().die()
        is_told = False
        while not is_told:  # what it sent last may still be on its way
            place, lease = await self._ground.last_lease(self._node)
            if lease is None or lease.life != self.life:
                return
            last = msgspec.structs.replace(lease, beat=lease.beat + 1_000_000, state="left")
            with contextlib.suppress(Unavailable):
                is_told = await self._ground.renew(last, place) is not None


class Onlooker(Mortal):
    """Takes part, and takes nothing."""

    def _decide(self) -> float:
        return LATER


class NodeRuntime(ClusterRuntime):
    """A node of the test's cluster."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Any,
        archive: Archive,
        points: CrashPoints | None = None,
        owners: Callable[..., Ownership] = Mortal,
    ) -> None:
        def around(gate: Gate) -> Gate:
            return gate if points is None else StoringGate(points, gate)

        super().__init__(
            settings,
            clock=clock,
            files=None if points is None else CountingFiles(points, Files()),
            layout=LAYOUT,
            archive=archive,
            around=around,
            make_owners=partial(owners, lease=1.5, renewal=0.3, margin=0.2, patience=60.0),
            keeper_files=None if points is None else CountingFiles(Alive(points), Files()),
        )


class Front(App):
    """The app that a test has in its hands; it ends the others too."""

    others: tuple[App, ...] = ()

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        for app in self.others:
            await app.__aexit__()


class Cluster:
    """What outlives every node of a test."""

    def __init__(self) -> None:
        self.name = _empty.pop() if _empty else f"c{os.getpid()}-{next(_numbers)}"
        self.archive = MemoryArchive()
        self.lives = 0

    async def empty(self) -> None:
        """Leave nothing of it but its streams and who owned what, for another test. All its nodes have ended well.

        Epochs go on, as they do in a cluster: messages of tests with the same clock are the same otherwise,
        and what is the same is stored once.
        """
        connection = await connect(servers().urls, "test")
        streams = connection.jetstream()
        names = Names(self.name, LAYOUT)
        for stream, subject in (
            (names.stream(0), f"{self.name}.log.0.*.tree.*"),
            (names.stream(0), f"{self.name}.log.0.*.alarm.*"),
            (names.members, names.lease("*")),
        ):
            await streams.purge_stream(stream, subject=subject)
        await connection.close()
        _empty.append(self.name)


_kept: dict[Path, Cluster] = {}
"""By the data folder of the node that runs the trees: a test may run two apps on one."""


class ThreeNodes(World):
    """A running app whose agents are run by another node than the one that a test speaks with."""

    _cluster: Cluster
    behind: Node
    """The last node that ran the agents."""

    def _settings(self, node: str) -> Settings:
        data = self.data if node == "back" else Path(f"{self.data}-{node}")
        return replace(self.settings, cluster=self._cluster.name, node=f"{node}-{self._cluster.lives}", data=str(data))

    async def start(self) -> None:
        cluster = self._cluster = _kept.setdefault(self.data, Cluster())
        archive = cluster.archive
        cluster.lives += 1
        self.points = CrashPoints()
        if cluster.lives > 1:  # as if another machine went on
            for left in ("trees", "cluster"):
                path = self.data / left
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        given = self._given
        options: dict[str, Any] = {
            "agents": given.agents,
            "authenticate": given.authenticate,
            "authorize": given.authorize,
            "pages": given.pages,
        }
        drivers = [copy.copy(given.driver) for _ in range(2)]  # before it drives: each process has one of its own
        for driver in drivers:
            if isinstance(driver, TemporalDriver):
                driver.paces = {}
        settings = self._settings("back")
        behind = App(
            **options,
            deps=given.deps,
            driver=given.driver,
            settings=settings,
            runtime=NodeRuntime(settings, clock=self.clock, archive=archive, points=self.points),
        )
        await behind.__aenter__()
        deps = behind.node.deps
        apps: list[App] = []
        for name, driver in zip(("third", "front"), drivers, strict=True):
            settings = self._settings(name)
            app = (Front if name == "front" else App)(
                **options,
                deps=given.deps if not callable(given.deps) else lambda: contextlib.nullcontext(deps),
                driver=driver,
                settings=settings,
                runtime=NodeRuntime(settings, clock=self.clock, archive=archive, owners=Onlooker),
            )
            apps.append(app)
        third, front = apps
        await asyncio.gather(third.__aenter__(), front.__aenter__())
        assert isinstance(front, Front)
        front.others = (third, behind)
        self.app = front
        self.behind = behind.node
        if self._slow_slices == "fail":
            self.node.watchdog.on_slow.append(self.slow.append)

    async def crash(self) -> None:
        if self.points.ended and isinstance(self.node.gate, StoringGate):
            await self.node.gate.stored()
        await super().crash()

    def _is_flushing(self) -> bool:
        """Return whether a log writes, or a tree comes from one: neither waits for the test."""
        return super()._is_flushing() or bool(self.behind._bringing)

    @property
    def node(self) -> Node:
        """The node that runs the agents."""
        assert isinstance(self.app, Front)
        return self.app.others[-1].node


@asynccontextmanager
async def running_on_three_nodes(
    app: App, *, slow_slices: str = "fail", **settings: Any
) -> AsyncGenerator[World, None]:
    """Run an app for a test, as `sapwood.testing.running` does."""
    if is_backup(settings):
        async with running(app, slow_slices=slow_slices, **settings) as world:
            yield world
        return
    cluster = {"durability": "replicated", "nats": servers().urls, "archive": "memory://"}
    worlds: list[ThreeNodes] = []
    try:
        async with lived(ThreeNodes, app, slow_slices, {**settings, **cluster}) as world:
            worlds.append(world)
            yield world
    finally:
        for world in worlds:
            for name in ("front", "third"):
                shutil.rmtree(f"{world.data}-{name}", ignore_errors=True)
            if "data" not in settings:
                cluster = _kept.pop(world.data)
                if not world.behind.has_died:
                    await cluster.empty()
