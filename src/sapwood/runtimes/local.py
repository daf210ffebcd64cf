"""One process, one data folder: enough for most, and what every test runs on.

Where several processes share a folder, each is such a runtime with a share in it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from sapwood.clock import Clock, SystemClock
from sapwood.errors import UsageError
from sapwood.kernel.durability.local_gates import DiskGate, ProcessGate
from sapwood.kernel.history.gate import HistoryGate
from sapwood.kernel.history.recorder import HistoryRecorder
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.rpc_server import RpcServer
from sapwood.kernel.ports.durability import Gate
from sapwood.kernel.ports.placement import Directory
from sapwood.kernel.ports.transport import Transport
from sapwood.kernel.rpc.remote import Peers
from sapwood.randomness import SYSTEM, Random
from sapwood.runtimes.repartition import ALONE, arrange
from sapwood.settings import Durability, Settings
from sapwood.storage.availability import refusals
from sapwood.storage.files import Files, FolderLock
from sapwood.timings import DEFAULTS, Timings

FILES_PER_DATABASE = 2
FILES_TO_SYNC = 2
"""Descriptors of our own that every open database has under `disk`."""
OTHER_FILES = 512
COPIES = "cluster"
"""A file of this name in a data folder says which cluster has the trees that it has copies of."""


class Lock(Protocol):
    """Keeps others from running on what is held."""

    def release(self) -> None: ...


class Share(Protocol):
    """What one of several processes on a data folder has of it, and its way to the others."""

    @property
    def directory(self) -> Directory: ...

    @property
    def transport(self) -> Transport: ...

    @property
    def part(self) -> str:
        """What its own files in the folder are called by, beside their name."""
        ...

    @property
    def pool(self) -> str:
        """The pool it is for; "": all classes that name none."""
        ...

    @property
    def restarts(self) -> int:
        """How often the process was started again."""
        ...

    def hold(self, folder: Path) -> Lock:
        """Lock this share against other processes."""
        ...

    async def listen(self) -> None:
        """Answer the others from now on."""
        ...

    async def hang_up(self) -> None:
        """Stop answering and sending requests."""
        ...


class Predecessor(Protocol):
    """A server that holds the data folder and is about to release it to this one."""

    async def until_released(self) -> None:
        """Return when it runs nothing any more."""
        ...


class LocalRuntime:
    """Holds the data folder, or a share of it, and the node that runs on it."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
        share: Share | None = None,
        predecessor: Predecessor | None = None,
        timings: Timings = DEFAULTS,
        random: Random = SYSTEM,
    ) -> None:
        self._settings = settings
        self._timings = timings
        self._clock = clock or SystemClock()
        self._random = random
        self._files = files or Files(random)
        self._share = share
        self._predecessor = predecessor
        self._lock: Lock | None = None
        self._history: HistoryRecorder | None = None

    async def start(self, deps: object) -> Node:
        if self._predecessor is not None:
            await self._predecessor.until_released()
        with refusals():
            return self._start(deps)

    def _start(self, deps: object) -> Node:
        folder = Path(self._settings.data)
        self._history = self._make_history(folder)
        gate = self.make_gate()
        fitting = databases_that_fit(self._settings.connections, synced=gate.synced)
        try:
            self._lock = self._hold(folder)
        except BaseException:
            gate.close()
            raise
        share = self._share
        far = (
            None
            if share is None
            else Peers(
                share.directory, share.transport, asyncio.get_running_loop(), self._settings.limits, self._random
            )
        )
        node = Node(
            self._settings,
            folder,
            clock=self._clock,
            files=self._files,
            gate=gate,
            deps=deps,
            open_databases=self._settings.open_databases or fitting,
            far=far,
            part="" if share is None else share.part,
            pool="" if share is None else share.pool,
            restarts=0 if share is None else share.restarts,
            history=self._history,
            timings=self._timings,
            random=self._random,
        )
        if self._history is not None:
            self._history.attach(node.trees.get, node.owns, node.crashed_before)
        if far is not None:
            RpcServer(node, far)
        return node

    def _hold(self, folder: Path) -> Lock:
        if self._share is not None:
            return self._share.hold(folder)
        lock = FolderLock(folder)
        try:
            if (folder / COPIES).exists():
                raise UsageError(
                    f"The data folder {str(folder)!r} belongs to a node of a cluster: it holds copies of some "
                    "trees, and the cluster has them all. To run a node, set its NATS servers with SAPWOOD_NATS, "
                    "which is not set. Otherwise choose another folder; `sapwood backup` copies the data of the "
                    "cluster into one."
                )
            arrange(folder, ALONE, self._files)
        except BaseException:
            lock.release()
            raise
        return lock

    async def listen(self) -> None:
        """Answer the other processes, if there are any: the node has taken up work."""
        if self._share is not None:
            await self._share.listen()

    async def hang_up(self) -> None:
        """Answer them no more."""
        if self._share is not None:
            await self._share.hang_up()

    def make_gate(self) -> Gate:
        is_synced = self._settings.durability == Durability.DISK
        gate: Gate = DiskGate(self._files, asyncio.get_running_loop()) if is_synced else ProcessGate()
        return gate if self._history is None else HistoryGate(gate, self._history)

    def _make_history(self, folder: Path) -> HistoryRecorder | None:
        if not self._settings.history_seconds:
            return None
        return HistoryRecorder(
            folder,
            self._settings.history_seconds,
            clock=self._clock,
            files=self._files,
            loop=asyncio.get_running_loop(),
            limits=self._settings.limits,
            timings=self._timings,
        )

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def databases_that_fit(sockets: int, *, synced: bool) -> int:
    """Raise the limit on open files as far as it goes, and return how many databases fit below it, beside sockets."""
    most = _open_files()
    if most is None:
        return 1000
    left = most - OTHER_FILES - min(sockets, most // 2)
    return max(left // (FILES_PER_DATABASE + FILES_TO_SYNC * synced), 16)


def sockets_that_fit(sockets: int) -> int:
    """Return how many of these sockets may be open at once: half of the open files are for databases and the rest."""
    most = _open_files()
    return sockets if most is None else min(sockets, most // 2)


def _open_files() -> int | None:
    """Raise the limit on open files as far as it goes, and return it; `None` on Windows, which has none."""
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(hard, 1_000_000)
