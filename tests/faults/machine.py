"""A computer in a test: its process can be killed and its power can fail, one after the other."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.disk import Disk, DiskFiles

from sapwood import Agent, App, Settings
from sapwood.runtimes.local import LocalRuntime


class StallingFiles(DiskFiles):
    """A disk that takes its time: no sync returns while it stalls."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.running = threading.Event()
        self.running.set()

    def sync_descriptor(self, path: Path, descriptor: int) -> None:
        self.running.wait()
        super().sync_descriptor(path, descriptor)

    def sync_file(self, path: Path) -> None:
        self.running.wait()
        super().sync_file(path)

    def sync_folder(self, path: Path) -> None:
        self.running.wait()
        super().sync_folder(path)


class Machine:
    """Runs one app after the other on the same disk, at the level `disk`."""

    def __init__(self, folder: Path, *agents: type[Agent[Any]]) -> None:
        self._folder = folder
        self._agents = agents
        self._images = 0
        self.data.mkdir()

    @property
    def data(self) -> Path:
        return self._folder / f"data-{self._images}"

    @property
    def _memory(self) -> Path:
        return self._folder / "memory"

    @asynccontextmanager
    async def run(self, *, then: str) -> AsyncIterator[tuple[App, StallingFiles]]:
        """Run an app. At the end of the block the process is `killed`, or there is a `power cut`: then everything
        that was not synced by the end of the block is lost."""
        disk = Disk(self.data, self._memory, slowness=0.0)
        files = StallingFiles(disk)
        settings = Settings(data=self.data, durability="disk", slow_after=10.0)
        app = App(agents=self._agents, settings=settings, runtime=LocalRuntime(settings, files=files))
        async with app:
            try:
                yield app, files
                if then == "killed":
                    disk.remember(self._memory)
                else:
                    self._memory.unlink(missing_ok=True)
                    self._images += 1
                    disk.image(self.data, Random(0), odds=0.0)
            finally:
                files.running.set()
                await app.node.die()
