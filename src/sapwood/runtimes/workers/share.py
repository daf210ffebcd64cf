"""One worker's share of a data folder: which trees it runs, what keeps others away, how it reaches them.

The supervisor holds the folder's own lock and hands it down: it is held as long
as one of them lives, whatever becomes of the supervisor. So all workers of a
folder agree on how it is shared. Each also holds its own lock, named by its number.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from sapwood.runtimes.workers.placement import WorkerPart
from sapwood.runtimes.workers.transport import UnixTransport
from sapwood.storage.files import FolderLock
from sapwood.timings import DEFAULTS, Timings


class WorkerShare:
    """What one worker has of a data folder."""

    def __init__(
        self,
        directory: WorkerPart,
        sockets: Mapping[str, Path],
        listening: socket.socket,
        secret: str,
        folder_lock: int,
        *,
        restarts: int = 0,
        timings: Timings = DEFAULTS,
    ) -> None:
        self.directory = directory
        self.restarts = restarts
        self.transport = UnixTransport(directory.here, sockets, secret, timings=timings)
        self._listening = listening
        self._folder_lock = folder_lock
        """The open file that the folder is locked by; it is let go by the end of the process."""

    @property
    def part(self) -> str:
        return self.directory.suffix

    @property
    def pool(self) -> str:
        return self.directory.pool

    def hold(self, folder: Path) -> FolderLock:
        os.fstat(self._folder_lock)  # fails if this worker has lost it: it has no folder then
        return FolderLock(folder, self.directory.lock_of(self.directory.here))

    async def listen(self) -> None:
        await self.transport.listen(self._listening)

    async def hang_up(self) -> None:
        await self.transport.close()
