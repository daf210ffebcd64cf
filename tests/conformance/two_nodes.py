"""A world of two nodes in one process: one that the test and its clients meet, and one that runs every tree.

All that crosses between them crosses as it does between workers: packed, over a Unix socket. Only what a test hands
to its agents, deps and clock, is shared.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import shutil
import socket
import tempfile
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sapwood import App
from sapwood.address import Address
from sapwood.drivers.temporal import TemporalDriver
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.durability import Gate
from sapwood.runtimes.local import LocalRuntime
from sapwood.runtimes.workers.transport import UnixTransport
from sapwood.settings import Settings
from sapwood.storage.files import Files, FolderLock
from sapwood.testing.clock import FakeClock
from sapwood.testing.faults import CountingFiles, CountingGate, CrashPoints
from sapwood.testing.world import World, WorldApp, lived
from sapwood.timings import DEFAULTS, Timings

FRONT, BACK = "front", "back"


@dataclass(frozen=True)
class AllAtTheBack:
    """One node has nothing, and the other all."""

    here: str
    moves: bool = False
    """Whether nobody knows for how long."""

    def is_here(self, root: Address) -> bool:
        return self.here == BACK

    def fixed_owner(self, root: Address) -> str | None:
        return None if self.moves else BACK

    async def owner(self, root: Address) -> str:
        return BACK

    def epoch_of(self, shard: int) -> None:
        return None

    def heard_wrong(self, shard: int) -> None:
        pass  # it never is

    async def until_moved(self, shard: int, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def everybody(self) -> Iterable[str]:
        return (FRONT, BACK)

    def pool_of(self, node: str) -> str:
        return ""

    def lock_of(self, node: str) -> str:
        return "lock"


class Side:
    """One of the two: a share in a folder of its own."""

    part = pool = ""
    restarts = 0

    def __init__(self, here: str, folder: Path, *, moves: bool = False) -> None:
        self.directory = AllAtTheBack(here, moves)
        self.transport = UnixTransport(here, {FRONT: folder / FRONT, BACK: folder / BACK}, "secret")
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / here))
        self._listening.listen()

    def hold(self, folder: Path) -> FolderLock:
        return FolderLock(folder)

    async def listen(self) -> None:
        await self.transport.listen(self._listening)

    async def hang_up(self) -> None:
        await self.transport.close()
        self._listening.close()


class _Runtime(LocalRuntime):
    def __init__(self, settings: Settings, clock: FakeClock, points: CrashPoints, side: Side, timings: Timings) -> None:
        super().__init__(settings, clock=clock, files=CountingFiles(points, Files()), share=side, timings=timings)
        self._points = points

    def make_gate(self) -> Gate:
        return CountingGate(self._points, super().make_gate())


class Front(WorldApp):
    """The app that a test has in its hands; it ends the other one too."""

    back: App
    folder: Path

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        await self.back.__aexit__()
        shutil.rmtree(self.folder, ignore_errors=True)  # a test may have ended it already


class TwoNodes(World):
    """A running app whose agents are run by another node than the one that a test speaks with."""

    moves = False

    async def start(self) -> None:
        self.points = CrashPoints()
        folder = Path(tempfile.mkdtemp(prefix="sapwood-"))
        front, back = (Side(here, folder, moves=self.moves) for here in (FRONT, BACK))
        given = self._given
        options: dict[str, Any] = {
            "agents": given.agents,
            "authenticate": given.authenticate,
            "authorize": given.authorize,
            "protocols": given.protocols,
            "user_limits": given.user_limits,
            "redact": given.redact,
            "pages": given.pages,
        }
        driver = copy.copy(given.driver)  # before it drives: each process has one of its own
        if isinstance(driver, TemporalDriver):
            driver.paces = {}
        behind = WorldApp(
            **options,
            deps=given.deps,
            driver=given.driver,
            settings=self.settings,
            runtime=_Runtime(self.settings, self.clock, self.points, back, self.timings),
        )
        try:
            await behind.__aenter__()
        except BaseException:
            for side in (front, back):
                await side.hang_up()
            shutil.rmtree(folder)
            raise
        settings = replace(self.settings, data=str(folder / "front-data"))
        deps = behind.node.deps
        self.app = app = Front(
            **options,
            deps=given.deps if not callable(given.deps) else lambda: contextlib.nullcontext(deps),
            driver=driver,
            settings=settings,
            runtime=LocalRuntime(settings, clock=self.clock, share=front, timings=self.timings),
        )
        app.back, app.folder = behind, folder
        await app.__aenter__()
        if self._slow_slices == "fail":
            self.node.watchdog.on_slow.append(self.slow.append)

    @property
    def node(self) -> Node:
        """The node that runs the agents."""
        assert isinstance(self.app, Front)
        return self.app.back.node


class MovableTrees(TwoNodes):
    """The same where the other node might hand the trees on at any time, as in a cluster."""

    moves = True


@asynccontextmanager
async def running_with_movable_trees(
    app: App, *, slow_slices: str = "fail", timings: Timings = DEFAULTS, **settings: Any
) -> AsyncGenerator[World, None]:
    """Run an app for a test, as `sapwood.testing.running` does."""
    async with lived(MovableTrees, app, slow_slices, settings, timings) as world:
        yield world


@asynccontextmanager
async def running_on_two_nodes(
    app: App, *, slow_slices: str = "fail", timings: Timings = DEFAULTS, **settings: Any
) -> AsyncGenerator[World, None]:
    """Run an app for a test, as `sapwood.testing.running` does."""
    async with lived(TwoNodes, app, slow_slices, settings, timings) as world:
        yield world
