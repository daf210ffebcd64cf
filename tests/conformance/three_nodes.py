"""A world of three nodes of a cluster, in one process, over three real NATS servers.

The test and its clients meet one of them, and each runs the trees of its shards. After a crash or a restart there are
three others, which have nothing on their disks: what they know of a tree is what the log and the archive hold. Only
what a test hands to its agents, deps and clock, is shared.

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
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
from tests.cluster.servers import Nats
from tests.conformance.replicated import Alive, StoringGate, is_backup
from tests.machine import patience

from sapwood import App
from sapwood.address import Address
from sapwood.drivers.temporal import TemporalDriver
from sapwood.errors import Unavailable
from sapwood.kernel.node.data_folder import TREES
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports import shards
from sapwood.kernel.trees.tree import Tree
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.copies.archive_identity import ID
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.runtimes.cluster.ownership.ownership import Ownership
from sapwood.runtimes.cluster.runtime import ClusterRuntime
from sapwood.runtimes.local import COPIES
from sapwood.settings import Settings
from sapwood.storage.files import Files
from sapwood.testing.faults import CountingFiles, CrashPoints
from sapwood.testing.memory_log import MemoryArchive
from sapwood.testing.world import World, WorldApp, lived, running
from sapwood.timings import DEFAULTS, Timings

NODES = ("hazel", "elm", "lime")
"""The last is the one that tests meet. With these names and so many shards each has its part of what tests call their
agents, and most trees are run by another one after a crash."""
FEW = 7
LAYOUT = Layout(streams=1)
LATER = 0.5
_numbers = itertools.count()
_servers: list[Nats] = []
_empty: list[tuple[str, MemoryArchive]] = []
"""Clusters whose streams have nothing in them, each with the archive that it was founded with, as empty."""


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
    """Takes its shards once all nodes are there, and keeps them until all of them end: a test sees trees stay.

    Its death is told to those that come after it: they need not wait until its lease is over.
    """

    def __init__(self, *given: Any, cluster: Cluster, **options: Any) -> None:
        super().__init__(*given, **options)
        self._cluster = cluster

    def _decide(self) -> float:
        if self._cluster.is_ending or len({*self._nodes.live(), self._node}) < len(NODES):
            return LATER
        return super()._decide()

    async def hand_over(self, shards: Mapping[int, str]) -> None:
        await super().hand_over(dict.fromkeys(shards, ""))  # those of the next test have the same names

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


class NodeRuntime(ClusterRuntime):
    """A node of the test's cluster."""

    def __init__(
        self, settings: Settings, *, clock: Any, cluster: Cluster, points: CrashPoints, timings: Timings
    ) -> None:
        super().__init__(
            settings,
            clock=clock,
            files=CountingFiles(points, Files()),
            layout=LAYOUT,
            archive=cluster.archive,
            around=partial(StoringGate, points),
            make_owners=partial(Mortal, cluster=cluster, lease=30.0, patience=60.0),
            keeper_files=CountingFiles(Alive(points), Files()),
            timings=timings,
        )


class Front(WorldApp):
    """The app that a test has in its hands; it ends the others too."""

    cluster: Cluster
    others: tuple[App, ...] = ()

    async def __aexit__(self, *exc: object) -> None:
        self.cluster.is_ending = True
        await super().__aexit__(*exc)
        if callable(self.deps):  # the last one has opened what all use
            for app in self.others:
                await app.__aexit__()
        else:
            await asyncio.gather(*(app.__aexit__() for app in self.others))


class Everywhere:
    """All nodes, for a test that looks into the process that runs its agents; what they are, `Node` says.

    What it asks for that is not here is asked of a node that has a tree open.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.alarms = AllAlarms(self)
        self.sockets = AllSockets(self)
        self.loader = AllLoaders(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.busy(), name)

    def busy(self) -> Node:
        """Return a node that has a tree open, or the first."""
        return next((node for node in self.nodes if node.trees), self.nodes[0])

    def of(self, root: Address) -> Node:
        """Return the node that runs a tree."""
        return next(node for node in self.nodes if node.owns(root))

    @property
    def trees(self) -> dict[Address, Tree]:
        return {root: tree for node in self.nodes for root, tree in node.trees.items()}

    def sleep(self, idle_for: float = 0.0) -> None:
        for node in self.nodes:
            node.sleep(idle_for)

    def die_now(self) -> None:
        for node in self.nodes:
            node.die_now()

    async def die(self) -> None:
        self.die_now()
        await asyncio.gather(*(node.die() for node in self.nodes))


class AllLoaders:
    """The trees of all nodes; what is not here is asked of a node that has a tree open."""

    def __init__(self, everywhere: Everywhere) -> None:
        self._all = everywhere

    def __getattr__(self, name: str) -> Any:
        return getattr(self._all.busy().loader, name)

    def tree(self, address: Address) -> Tree:
        return self._all.of(address).loader.tree(address)

    def held_back(self, root: Address) -> Exception | None:
        return self._all.of(root).loader.held_back(root)


class AllAlarms:
    """When trees have something to do, wherever they are run."""

    def __init__(self, everywhere: Everywhere) -> None:
        self._all = everywhere

    def stored(self, root: Address) -> Any:
        return self._all.of(root).alarms.stored(root)

    def earlier(self, root: Address, due: float | None, dead: int) -> None:
        self._all.of(root).alarms.earlier(root, due, dead)

    def with_dead_letters(self) -> list[tuple[Address, int]]:
        return sorted(one for node in self._all.nodes for one in node.alarms.with_dead_letters())


class AllSockets:
    """The clients of all agents."""

    def __init__(self, everywhere: Everywhere) -> None:
        self._all = everywhere

    @property
    def count(self) -> int:
        return sum(node.sockets.count for node in self._all.nodes)

    @property
    def arriving(self) -> list[Any]:
        return [one for node in self._all.nodes for one in node.sockets.arriving]

    def everyone(self) -> list[Any]:
        return [one for node in self._all.nodes for one in node.sockets.everyone()]


class Cluster:
    """What outlives every node of a test."""

    def __init__(self) -> None:
        self.name, self.archive = _empty.pop() if _empty else (f"c{os.getpid()}-{next(_numbers)}", MemoryArchive())
        self.lives = 0
        self.is_ending = False

    async def empty(self) -> None:
        """Leave only its streams, leases, and who owned what, for another test. All its nodes have ended well.

        Epochs go on, as they do in a cluster: messages of tests with the same clock are the same otherwise,
        and what is the same is stored once.
        """
        async with self._streams() as (streams, names):
            await streams.purge_stream(names.stream(0), subject=f"{self.name}.log.0.*.*.*")
        await self.archive.remove([key for key in self.archive.objects if key != ID])
        _empty.append((self.name, self.archive))

    async def remove(self) -> None:
        """Leave nothing: what its nodes sent before they died may still arrive."""
        async with self._streams() as (streams, names):
            for stream in (names.members, names.stream(0)):
                await streams.delete_stream(stream)

    @asynccontextmanager
    async def _streams(self) -> AsyncGenerator[tuple[Any, Names], None]:
        connection = await connect(servers().urls, "test")
        yield connection.jetstream(), Names(self.name, LAYOUT)
        await connection.close()


_kept: dict[Path, Cluster] = {}
"""By the data folder: a test may run two apps on one."""


class ThreeNodes(World):
    """A running app of three nodes."""

    _cluster: Cluster
    _nodes: Sequence[Node] = ()

    def _settings(self, name: str) -> Settings:
        """Return those of one node. Its folder is its own, but its trees lie where a test looks for them."""
        data = self.data
        if name != NODES[0]:
            data = Path(f"{self.data}-{name}")
            data.mkdir()
            (data / TREES).symlink_to(self.data / TREES)
        return replace(self.settings, cluster=self._cluster.name, node=f"{name}-{self._cluster.lives}", data=str(data))

    def _clear(self) -> None:
        """Have other machines go on: nothing is on their disks."""
        for name in NODES[1:]:
            shutil.rmtree(f"{self.data}-{name}", ignore_errors=True)
        shutil.rmtree(self.data / TREES, ignore_errors=True)
        (self.data / COPIES).unlink(missing_ok=True)
        (self.data / TREES).mkdir()

    async def start(self) -> None:
        cluster = self._cluster = _kept.setdefault(self.data, Cluster())
        cluster.lives += 1
        cluster.is_ending = False
        self.points = CrashPoints()
        self._clear()
        given = self._given
        drivers = [given.driver, *(copy.copy(given.driver) for _ in NODES[1:])]  # before it drives: each has its own
        for driver in drivers[1:]:
            if isinstance(driver, TemporalDriver):
                driver.paces = {}
        apps: list[App] = []
        for name, driver in zip(NODES, drivers, strict=True):
            settings = self._settings(name)
            app = (WorldApp if name != NODES[-1] else Front)(
                agents=given.agents,
                authenticate=given.authenticate,
                authorize=given.authorize,
                protocols=given.protocols,
                user_limits=given.user_limits,
                redact=given.redact,
                pages=given.pages,
                deps=given.deps if not apps or not callable(given.deps) else partial(_as_it_is, apps[0]),
                driver=driver,
                settings=settings,
                runtime=NodeRuntime(
                    settings, clock=self.clock, cluster=cluster, points=self.points, timings=self.timings
                ),
            )
            apps.append(app)
        first, *others = apps
        await first.__aenter__()
        await asyncio.gather(*(app.__aenter__() for app in others))
        front = apps.pop()
        assert isinstance(front, Front)
        front.cluster, front.others = cluster, tuple(reversed(apps))
        self.app = front
        self._nodes = [front.node, *(app.node for app in apps)]
        async with asyncio.timeout(patience()):
            while not all(any(_has(node, shard) for node in self._nodes) for shard in range(FEW)):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        if self._slow_slices == "fail":
            self.node.watchdog.on_slow.append(self.slow.append)

    @property
    def node(self) -> Node:
        assert self.app.node is not None  # or it raises that the app does not run
        return cast("Node", Everywhere(self._nodes))

    @property
    def has_died(self) -> bool:
        return any(node.has_died for node in self._nodes)

    async def crash(self) -> None:
        if self.points.ended:
            for node in self._nodes:
                assert isinstance(node.gate, StoringGate)
                await node.gate.stored()
        await super().crash()

    def _is_flushing(self) -> bool:
        """Return whether a log writes, or a tree comes from one: neither waits for the test."""
        return any(
            node.loader.is_loading or (isinstance(node.gate, StoringGate) and node.gate.is_flushing)
            for node in self._nodes
        )

    def _something_due(self) -> bool:
        return any(not node.waking.is_quiet for node in self._nodes) or super()._something_due()


def _has(node: Node, shard: int) -> bool:
    assert node.far is not None
    assert isinstance(node.far.directory, Ownership)
    return node.far.directory.has(shard)


def _as_it_is(app: App) -> AbstractAsyncContextManager[Any]:
    """Return what another app has opened for all."""
    return contextlib.nullcontext(app.node.deps)


@asynccontextmanager
async def running_on_three_nodes(
    app: App, *, slow_slices: str = "fail", timings: Timings = DEFAULTS, **settings: Any
) -> AsyncGenerator[World, None]:
    """Run an app for a test, as `sapwood.testing.running` does."""
    if is_backup(settings):
        async with running(app, slow_slices=slow_slices, timings=timings, **settings) as world:
            yield world
        return
    timings = replace(timings, whole_stream_shards=1)  # shards are asked for together, as where there are many
    cluster = {"durability": "replicated", "nats": servers().urls, "archive": "memory://"}
    worlds: list[ThreeNodes] = []
    try:
        async with lived(ThreeNodes, app, slow_slices, {**settings, **cluster}, timings) as world:
            worlds.append(world)
            yield world
    finally:
        for world in worlds:
            for name in NODES[1:]:
                shutil.rmtree(f"{world.data}-{name}", ignore_errors=True)
            if "data" not in settings:
                cluster = _kept.pop(world.data)
                await (cluster.remove() if world.has_died else cluster.empty())
