"""One process, one data folder: enough for most, and what every test runs on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sapwood.clock import Clock, SystemClock
from sapwood.kernel.gate import DiskGate, ProcessGate
from sapwood.kernel.node import Node
from sapwood.kernel.ports import Gate
from sapwood.settings import Durability, Settings
from sapwood.storage.files import Files, FolderLock

FILES_PER_DATABASE = 2
FILES_TO_SYNC = 2
"""Descriptors of our own that every open database has under `disk`."""
OTHER_FILES = 512


class LocalRuntime:
    """Holds the data folder and the node that runs on it."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None, files: Files | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._files = files or Files()
        self._lock: FolderLock | None = None

    async def start(self, deps: object) -> Node:
        folder = Path(self._settings.data)
        gate = self.make_gate()
        fitting = _databases_that_fit(self._settings.connections, synced=gate.synced)
        try:
            self._lock = FolderLock(folder)
        except BaseException:
            gate.close()
            raise
        return Node(
            self._settings,
            folder,
            clock=self._clock,
            files=self._files,
            gate=gate,
            deps=deps,
            open_databases=self._settings.open_databases or fitting,
        )

    def make_gate(self) -> Gate:
        if self._settings.durability == Durability.DISK:
            return DiskGate(self._files, asyncio.get_running_loop())
        return ProcessGate()

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _databases_that_fit(sockets: int, *, synced: bool) -> int:
    """Raise the limit on open files as far as it goes, and return how many databases fit below it, beside sockets."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = min(hard, 1_000_000)
    left = most - OTHER_FILES - min(sockets, most // 2)
    return max(left // (FILES_PER_DATABASE + FILES_TO_SYNC * synced), 16)
