"""The real server with its workers, so impatient that a test can wait for what it does in an hour.

Each server is a fork of one process that has imported everything, and so is the process its workers are forked from:
nobody waits for an interpreter to start.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import socket
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

from tests.faults import worker_mutants
from tests.machine import patience

from sapwood.address import Address
from sapwood.cli import server_process
from sapwood.cli.serve_options import ServeOptions
from sapwood.runtimes.workers.placement import ShardPlan
from sapwood.timings import Timings

APP = "tests.faults.worker_workload:app"
GRACE = 5.0
FATAL = 20.0
"""The app's `fatal_after`."""
SILENCE = 3.0
"""Seconds without a word after which a worker is killed here."""
PATIENCE = patience(30.0)
RUNNING = re.compile(r"running at http://")
EXPECTED = re.compile(
    r"was killed by SIGKILL; restarting it|does not answer and is killed|supervisor exited"
    r"|timeout graceful shutdown exceeded|exited for an unknown reason; restarting it"
    r"|starting worker \d+ failed: (EOF|ConnectionRefused|ConnectionReset)Error"
)


class Stem:
    """The process that servers are forked from. It has to be made before there is a loop, or a thread."""

    def __init__(self, mutant: str | None) -> None:
        ours, its = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            ours.close()
            _grow(its, mutant)
        its.close()
        self._asking = ours.makefile("rw")

    def ask(self, *what: Any) -> Any:
        self._asking.write(json.dumps(what) + "\n")
        self._asking.flush()
        return json.loads(self._asking.readline())

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _grow(asked: socket.socket, mutant: str | None) -> NoReturn:
    """Start servers, and say of each how it ended."""
    try:
        import pydantic_ai  # pyright: ignore[reportUnusedImport] # noqa: F401
        import tests.faults.worker_workload  # pyright: ignore[reportUnusedImport] # noqa: F401

        worker_mutants.apply(mutant)
        lines = asked.makefile("rw")
        codes: dict[int, int] = {}
        for line in lines:
            what, *about = json.loads(line)
            if what == "start":
                answer: Any = _start(asked, *about)
                codes.pop(answer, None)  # numbers of processes come again: this is not the one that ended
            else:
                answer = _ended(about[0], codes)
            lines.write(json.dumps(answer) + "\n")
            lines.flush()
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's code
        traceback.print_exc()
    os._exit(1)


def _ended(pid: int, codes: dict[int, int]) -> int | None:
    if pid not in codes:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            codes[pid] = os.waitstatus_to_exitcode(status)
    return codes.get(pid)


def _start(asked: socket.socket, count: int, port: int, data: str, level: str, log: str) -> int:
    if pid := os.fork():
        return pid
    code = 1
    try:
        asked.close()
        os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644), 2)
        os.environ["SAPWOOD_DURABILITY"] = level
        timings = Timings(worker_silence_timeout=SILENCE - FATAL, worker_steady_after=0.0)
        util.spawnv_passfds = fork_spawned
        options = ServeOptions(APP, "127.0.0.1", port, data=data, grace=GRACE, workers=count or None, timings=timings)
        server_process.serve(options)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    os._exit(code)


_spawned = util.spawnv_passfds


def fork_spawned(path: Any, arguments: Sequence[Any], descriptors: Sequence[int]) -> int:
    """Have the process that workers are forked from be a fork itself, where it would be a new interpreter."""
    if "forkserver" not in str(arguments[-1]):
        return _spawned(path, arguments, descriptors)
    if pid := os.fork():
        return pid
    try:
        gc.freeze()  # nothing of before is closed: its descriptors belong to others soon
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        below = 3
        for one in (*sorted(descriptors), 4096):
            os.closerange(below, one)
            below = one + 1
        exec(str(arguments[-1]))  # noqa: S102 - what the new interpreter would be given
    except SystemExit:
        os._exit(0)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    os._exit(1)


@dataclass
class Server:
    """One server after the other, on one folder and one port."""

    home: Path
    port: int
    level: str
    stem: Stem
    count: int = 0
    """How many workers it has now; 0: it is one process alone."""
    pid: int = 0
    is_up: asyncio.Event = field(default_factory=asyncio.Event)
    _logs: int = 0

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> str:
        return "".join((self.home / f"log-{number}").read_text() for number in range(1, self._logs + 1))

    async def start(self, count: int) -> None:
        """Start it, as soon as nobody is left on its folder."""
        self.count = count
        until = time.monotonic() + PATIENCE
        while not await self._try():
            if time.monotonic() > until:
                raise TimeoutError(f"the server does not start: {self._last_log()}")
        self.is_up.set()

    async def _try(self) -> bool:
        self._logs += 1
        path = self.home / f"log-{self._logs}"
        path.write_text("")
        self.pid = self.stem.ask("start", self.count, self.port, str(self.data), self.level, str(path))
        while self._code() is None:
            if RUNNING.search(self._last_log()):
                return True
            await asyncio.sleep(0.02)
        said = self._last_log()
        if "is in use by process" not in said and "Cannot listen on" not in said:
            raise AssertionError(f"the server does not start: {said}")
        self._logs -= 1  # those before have not ended yet
        return False

    def _last_log(self) -> str:
        return (self.home / f"log-{self._logs}").read_text()

    def _code(self) -> int | None:
        return self.stem.ask("ended", self.pid)

    async def ended(self) -> int:
        """Wait until it has ended; return its exit code."""
        until = time.monotonic() + PATIENCE
        while (code := self._code()) is None:
            if time.monotonic() > until:
                raise TimeoutError("the server does not end")
            await asyncio.sleep(0.01)
        return code

    def signal(self, number: signal.Signals) -> None:
        self.is_up.clear()
        os.kill(self.pid, number)

    def kill_all(self) -> None:
        """End it, whatever it does."""
        if self.pid and self._code() is None:
            keeper = self.keeper()
            for pid in [*self.workers().values(), *([] if keeper is None else _children(keeper)), self.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def worker_of(self, root: str, kind: str = "Depot") -> int:
        """Return the number of the worker that runs a root."""
        if not self.count:
            return 0
        address = Address.root_of(kind, root)
        return ShardPlan(self.count).worker(address)

    def workers(self) -> dict[int, int]:
        """Return the process of each worker that has its share."""
        found: dict[int, int] = {}
        for number in range(self.count):
            with suppress(OSError, ValueError):
                found[number] = int((self.data / f"lock-{number}").read_text())
        return found

    def keeper(self) -> int | None:
        """Return the process that the workers are forked from."""
        for pid in _children(self.pid):
            with suppress(OSError):
                if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return None

    def newest(self) -> int | None:
        """Return the worker that was started last, perhaps before it has its share."""
        keeper = self.keeper()
        return max(_children(keeper), default=None) if keeper is not None else None

    def holder(self, port: int) -> int | None:
        """Return the number of the worker that holds the other end of a connection from this port of ours."""
        wanted = f":{self.port:04X} 0100007F:{port:04X} "
        for line in Path("/proc/net/tcp").read_text().splitlines():
            if wanted in line:
                inode = f"socket:[{line.split()[9]}]"
                return next((number for number, pid in self.workers().items() if _holds(pid, inode)), None)
        return None


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _holds(pid: int, inode: str) -> bool:
    try:
        return any(str(one.readlink()) == inode for one in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
