"""A world of one node whose trees lie in a replicated log and an archive, both in memory, which outlive it.

After every second crash nothing is left of its data folder, as if another machine went on.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sapwood import App
from sapwood.address import Address
from sapwood.errors import Unavailable, UsageError
from sapwood.kernel.node.data_folder import TREES
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.durability import Commit, Gate
from sapwood.kernel.ports.log import Epoch
from sapwood.kernel.ports.shards import SHARDS
from sapwood.runtimes.cluster.runtime import Member, Ways, hold, make_member
from sapwood.runtimes.local import COPIES
from sapwood.settings import Settings
from sapwood.storage.files import Files, FolderLock
from sapwood.testing.clock import FakeClock
from sapwood.testing.faults import CountingFiles, CountingGate, CrashPoints
from sapwood.testing.memory_log import MemoryArchive, MemoryLog
from sapwood.testing.world import World, lived, running
from sapwood.timings import DEFAULTS, Timings

CLUSTER = {"durability": "replicated", "nats": "memory", "archive": "memory"}


class Alive(CrashPoints):
    """Counts nothing: what restores a tree is none of the places that a test may want to crash at."""

    def __init__(self, points: CrashPoints) -> None:
        super().__init__()
        self._points = points

    def passing(self, point: str) -> None:
        self._points.check_alive()

    def check_alive(self) -> None:
        self._points.check_alive()


class StoringGate(CountingGate):
    """A gate with a crash point after every commit, which the log gets nevertheless: nobody hears that it did."""

    def __init__(self, points: CrashPoints, below: Gate) -> None:
        super().__init__(points, below)
        self._roots: set[Address] = set()

    def committed(self, commit: Commit) -> None:
        self._below.committed(commit)
        if commit.root is not None:
            self._roots.add(commit.root)
        self._points.passing("committed")

    async def stored(self) -> None:
        """Return when all that was committed is stored."""
        for root in self._roots:
            with contextlib.suppress(Unavailable):
                await self._below.flushed(root)


class Storage:
    """What outlives every node."""

    def __init__(self) -> None:
        self.log = MemoryLog(2)
        self.archive = MemoryArchive()
        self.lives = 0
        self.ended_well = True


_kept: dict[Path, Storage] = {}
"""What the cluster has of which a data folder has copies: a test may run two apps on one."""


def storage_of(data: Path) -> Storage:
    """Return what the cluster has of which this data folder has copies."""
    return _kept.setdefault(data, Storage())


def put_storage(data: Path, storage: Storage) -> None:
    """Have a node with this data folder begin with what an earlier cluster left."""
    _kept[data] = storage


class MemoryRuntime:
    """One node that owns everything."""

    def __init__(
        self, settings: Settings, clock: FakeClock, points: CrashPoints, storage: Storage, timings: Timings
    ) -> None:
        self._settings = settings
        self._timings = timings
        self._clock = clock
        self._points = points
        self._storage = storage
        self._lock: FolderLock | None = None
        self._member: Member | None = None

    async def start(self, deps: object) -> Node:
        storage = self._storage
        self._lock = hold(Path(self._settings.data), self._settings.cluster, Files())
        storage.lives += 1
        epochs = {shard: Epoch(storage.lives, storage.log.own(shard)) for shard in range(SHARDS)}
        self._member = make_member(
            self._settings,
            clock=self._clock,
            files=CountingFiles(self._points, Files()),
            deps=deps,
            log=storage.log,
            archive=storage.archive,
            ways=Ways(epochs.get, lambda: True, lambda shards: None),
            keeper_files=CountingFiles(Alive(self._points), Files()),
            around=lambda gate: StoringGate(self._points, gate),
            timings=self._timings,
        )
        return self._member.node

    async def listen(self) -> None:
        assert self._member is not None
        await self._member.holding.gained(dict.fromkeys(range(SHARDS), self._storage.ended_well))

    async def hang_up(self) -> None:
        if self._member is not None:
            await self._member.keeper.close()
            self._storage.ended_well = not self._member.node.has_died

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class Replicated(World):
    """A running app whose data outlives its machine."""

    _crashes = 0

    async def start(self) -> None:
        self.points = CrashPoints()
        storage = _kept.setdefault(self.data, Storage())
        given = self._given
        self.app = App(
            agents=given.agents,
            deps=given.deps,
            authenticate=given.authenticate,
            authorize=given.authorize,
            user_limits=given.user_limits,
            redact=given.redact,
            protocols=given.protocols,
            pages=given.pages,
            settings=self.settings,
            runtime=MemoryRuntime(self.settings, self.clock, self.points, storage, self.timings),
            driver=given.driver,
        )
        await self.app.__aenter__()
        if self._slow_slices == "fail":
            self.node.watchdog.on_slow.append(self.slow.append)

    def _is_flushing(self) -> bool:
        """Return whether a log writes, or a tree comes from one: neither waits for the test."""
        if super()._is_flushing():
            return True
        with contextlib.suppress(UsageError):  # not running
            return bool(self.node.loader.is_loading)
        return False

    async def crash(self) -> None:
        if self.points.ended and isinstance(self.node.gate, StoringGate):
            await self.node.gate.stored()
        self.points.ended = True
        await self.node.die()
        await self.app.__aexit__()
        self._crashes += 1
        if self._crashes % 2:
            await asyncio.to_thread(shutil.rmtree, self.data / TREES, ignore_errors=True)
        await self.start()


def is_backup(settings: dict[str, Any]) -> bool:
    """Return whether a test opens a backup as it is: that is no node's of a cluster."""
    data = settings.get("data")
    return data is not None and (Path(data) / TREES).exists() and not (Path(data) / COPIES).exists()


@asynccontextmanager
async def running_replicated(
    app: App, *, slow_slices: str = "fail", timings: Timings = DEFAULTS, **settings: Any
) -> AsyncGenerator[World, None]:
    """Run an app for a test, as `sapwood.testing.running` does."""
    if is_backup(settings):
        async with running(app, slow_slices=slow_slices, timings=timings, **settings) as world:
            yield world
        return
    async with lived(Replicated, app, slow_slices, {**settings, **CLUSTER}, timings) as world:
        yield world
    if "data" not in settings:
        del _kept[world.data]
