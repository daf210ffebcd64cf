"""The server of the kills: started, killed, and started again on the same port, with the same data."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.machine import patience
from tests.ports import free_port

CHECKOUT = Path(__file__).parents[3]


class KilledServer:
    """`sapwood serve` in a process of its own, or with workers."""

    def __init__(self, folder: Path, workers: int = 0) -> None:
        self.folder, self.workers, self.port = folder, workers, free_port()
        self.courier_port = free_port()
        self.process = 0
        told = {"KILLS_FOLDER": str(folder), "KILLS_COURIER": f"http://127.0.0.1:{self.courier_port}"}
        self._forks = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.kills.fork_server", str(folder)],
            cwd=CHECKOUT,
            env={**os.environ, **told},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ready(self) -> None:
        """Wait until servers can be forked."""
        if await asyncio.to_thread(self._answer) != "ready":
            raise RuntimeError("The process that servers are forked from has ended.")

    def _answer(self) -> str:
        assert self._forks.stdout is not None
        return self._forks.stdout.readline().strip()

    async def start(self) -> None:
        """Start it, and wait until it listens or is killed already."""
        assert self._forks.stdin is not None
        self._forks.stdin.write(f"{self.port} {self.workers}\n")
        self._forks.stdin.flush()
        self.process = int(self._answer())
        async with asyncio.timeout(patience(60)):
            while self.is_alive and not await self._listens():  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True

    @property
    def is_alive(self) -> bool:
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        return True

    async def kill(self) -> None:
        """End it and its workers as `kill -9` does, and wait until none is left."""
        with suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        async with asyncio.timeout(patience(30)):
            while self._has_group():  # noqa: ASYNC110 - it is the child of another process
                await asyncio.sleep(0.005)

    def _has_group(self) -> bool:
        try:
            os.killpg(self.process, 0)
        except ProcessLookupError:
            return False
        return True

    async def end(self) -> None:
        if self.process:
            await self.kill()
        assert self._forks.stdin is not None
        self._forks.stdin.close()
        await asyncio.to_thread(self._forks.wait)
        assert self._forks.stdout is not None
        self._forks.stdout.close()

    def log(self) -> str:
        file = self.folder / "server.log"
        return file.read_text() if file.exists() else ""
