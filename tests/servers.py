"""Servers in processes of their own, for tests that end them and start them again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import ClassVar

from tests.front import Front
from tests.machine import patience
from tests.ports import free_port


class Server:
    """A server in a process of its own, on a folder of its own; it can be ended and started again."""

    environment: ClassVar[dict[str, str]] = {}
    has_front: ClassVar[bool] = False
    """Whether clients wait while it is away, as they do behind a balancer."""

    def __init__(self, work: Path, data: Path, **environment: str) -> None:
        self.told = environment
        self._work = work
        self._data = data
        self._log = work / f"{type(self).__name__.lower()}.log"
        self.port = free_port()
        self._front = Front(self.port) if self.has_front else None
        data.mkdir()
        self.start()

    def command(self) -> list[str]:
        raise NotImplementedError

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._front.port if self._front else self.port}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            command = self.command()  # first: it says where the pages are
            told = {**os.environ, **self.environment, **self.told}
            self._process = subprocess.Popen(command, cwd=self._work, env=told, stdout=log, stderr=log)
        end = time.monotonic() + patience()
        while time.monotonic() < end and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise RuntimeError(f"The server did not start: {self.log()}")

    def end(self, how: signal.Signals) -> None:
        self._process.send_signal(how)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """End it for good."""
        if self._front is not None:
            self._front.close()
        self.end(signal.SIGKILL)

    def log(self) -> str:
        return self._log.read_text()[-4000:]
