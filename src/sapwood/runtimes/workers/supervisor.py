"""Starts the workers, restarts those that die, and shuts them all down.

It runs no agent and reads no request, so there is little it could die of; and if it does, the
workers see their line to it close and end by themselves.

On Linux a worker is a fork of a process that has imported what all workers need, and nothing
else: no program of a user, no thread, no open database. So it is there in a tenth of a second.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import IO, Any

from sapwood.clock import Clock, SystemClock, real_time
from sapwood.kernel.actors.watchdog import write_crash
from sapwood.randomness import SYSTEM, Random, new_id
from sapwood.runtimes.handover_line import HandoverLine
from sapwood.runtimes.workers.placement import ShardPlan, WorkerPart
from sapwood.runtimes.workers.share import WorkerShare
from sapwood.runtimes.workers.supervisor_upgrade import StartedServer, SupervisorUpgrade, WorkersBefore
from sapwood.runtimes.workers.worker_messages import (
    CLOSED,
    DRAINED,
    END,
    HANDED_OVER,
    PREPARED,
    READY,
    RESUME,
    SETTLED,
    UPGRADE,
)
from sapwood.storage.files import FolderLock
from sapwood.timings import DEFAULTS, Timings

log = logging.getLogger("sapwood.server")

WHERE = signal.SIGXCPU
"""The signal that asks a worker which is silent where it is."""
LONGEST_PAUSE = 10.0
STUCK = 1.0
"""Seconds that a worker has to stop accepting connections; one that takes longer accepts none anyway."""
BACKLOG = 1024
UNKNOWN = 255
"""The exit code of a process that exited for an unknown reason."""
LOOK = 1.0
"""Seconds between two looks, at most."""


class InheritedFile:
    """An open file that the other process holds too."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherited, (reduction.DupFd(self.descriptor),)


def _inherited(duplicate: Any) -> InheritedFile:
    return InheritedFile(duplicate.detach())


@dataclass(frozen=True, slots=True)
class Seat:
    """What one worker is given. It goes to another process."""

    number: int
    sharing: ShardPlan
    restarts: int
    sockets: dict[str, Path]
    """Where each worker listens to the others."""
    listening: socket.socket
    """Where this one does."""
    secret: str
    folder_lock: InheritedFile
    line: Connection
    """To the supervisor, which closes it by ending."""
    stacks: InheritedFile
    """A file to write to where it is, when it is asked by `WHERE`: the supervisor reads it."""
    successor: InheritedFile
    """The line to the worker that will take over from this one some day."""
    predecessor: InheritedFile | None = None
    """The line to the worker that this one takes over from, if there is one."""
    timings: Timings = DEFAULTS

    def share(self) -> WorkerShare:
        part = WorkerPart(self.number, self.sharing)
        folder_lock = self.folder_lock.descriptor
        return WorkerShare(
            part,
            self.sockets,
            self.listening,
            self.secret,
            folder_lock,
            restarts=self.restarts,
            timings=self.timings,
        )


@dataclass(slots=True)
class WorkerProcess:
    """One worker, as the supervisor sees it."""

    number: int
    process: BaseProcess | None = None
    line: Connection | None = None
    started: float = 0.0
    heard: float = 0.0
    """When it last said anything."""
    asked: float = 0.0
    """When it was last asked why it says nothing."""
    stacks: IO[bytes] | None = None
    """What it said where it was then."""
    is_ready: bool = False
    is_closed: bool = False
    """Whether it accepts no connection any more."""
    is_drained: bool = False
    is_prepared: bool = False
    """Whether it waits for the worker before it."""
    is_settled: bool = False
    """Whether it runs no slow call, and can hand over."""
    has_handed_over: bool = False
    """Whether it runs nothing any more, and can serve again."""
    heirs: tuple[HandoverLine, HandoverLine] | None = None
    """The line to the worker that will take over: this worker's end, and the other one."""
    restarts: int = -1
    """How often it was started again."""
    failures: int = 0
    """How often it died soon after its start, since it last did not."""
    start_at: float = 0.0
    """When to start it again."""


@dataclass(slots=True)
class Supervisor:
    """Keeps the workers running until it is told to stop."""

    sharing: ShardPlan
    work: Callable[..., None]
    """What a worker does, given its seat and `arguments`. It is looked up by name in the other process."""
    arguments: tuple[Any, ...]
    folder: Path
    lock: FolderLock
    grace: float
    silence: float
    """Seconds without a word after which a worker is killed."""
    public: socket.socket | None = None
    """The listening socket of the workers: clients that connect after the workers stopped accepting are refused."""
    imports: Sequence[str] = ()
    """The modules that every worker needs, and that start no thread when they are imported."""
    when_ready: Callable[[], None] = lambda: None
    """Called when all workers are ready for the first time, and again after an upgrade that failed."""
    prepare_folder: Callable[[], None] = lambda: None
    """Called once, before a worker uses the data folder."""
    start_successor: Callable[[Sequence[int]], StartedServer] | None = None
    """Starts a new server with the lines to the old workers. `None`: the server cannot be upgraded."""
    predecessor: WorkersBefore | None = None
    """The server that this one takes over from, if there is one."""
    timings: Timings = DEFAULTS
    clock: Clock = field(default_factory=SystemClock)
    real_time: Callable[[], float] = real_time
    """It has no event loop, whose time it could use."""
    random: Random = SYSTEM
    _workers: list[WorkerProcess] = field(default_factory=list[WorkerProcess])
    _listening: list[socket.socket] = field(default_factory=list[socket.socket])
    _paths: dict[str, Path] = field(default_factory=dict[str, Path])
    _secret: str = field(init=False)
    _stop_at: float | None = None
    """When to kill the workers that have not ended."""
    _is_asked_to_stop: bool = False
    _were_ready: bool = False
    _is_announced: bool = False
    """Whether all workers were ready since the last start or resumption."""
    _upgrade: SupervisorUpgrade = field(init=False)

    def __post_init__(self) -> None:
        self._secret = new_id(self.random, 32)
        self._upgrade = SupervisorUpgrade(self)

    @property
    def workers(self) -> Sequence[WorkerProcess]:
        return self._workers

    @property
    def is_replaced(self) -> bool:
        """Whether a successor serves."""
        return self._upgrade.is_done

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether a signal came. It is for the successor if that serves by then."""
        return self._is_asked_to_stop

    @property
    def is_stopping(self) -> bool:
        return self._stop_at is not None

    def run(self) -> int:
        """Run until a signal comes, or a successor serves; return the exit code: 1 if the workers could not start."""
        folder = Path(tempfile.mkdtemp(prefix="sapwood-"))
        awake, wake = os.pipe()
        os.set_blocking(awake, False)
        os.set_blocking(wake, False)
        before = {number: signal.signal(number, self._asked_to_stop) for number in (signal.SIGTERM, signal.SIGINT)}
        woken = signal.set_wakeup_fd(wake)
        try:
            self._open(folder)
            if self.predecessor is None:
                self.prepare_folder()
            for worker in self._workers:
                self._start(worker)
            while any(worker.process is not None or self._stop_at is None for worker in self._workers):
                self._look(awake)
            return 0 if self._were_ready else 1
        finally:
            for worker in self._workers:
                if worker.process is not None:
                    _signal(worker.process, signal.SIGKILL)
                if worker.stacks is not None:
                    worker.stacks.close()
                for end in worker.heirs or ():
                    end.close()
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(awake)
            os.close(wake)
            for listening in self._listening:
                listening.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _open(self, folder: Path) -> None:
        for number in range(self.sharing.count):
            path = self._paths[str(number)] = folder / str(number)
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(str(path))
            listening.listen(BACKLOG)
            self._listening.append(listening)
            self._workers.append(WorkerProcess(number))

    def _start(self, worker: WorkerProcess) -> None:
        worker.restarts += 1
        with contextlib.ExitStack() as unless_started:
            try:
                line, far_end = multiprocessing.Pipe()
                unless_started.callback(line.close)
                with far_end:
                    process = self._process(self._seat(worker, far_end), f"worker {worker.number}")
                    process.start()
            except (OSError, EOFError) as error:  # what it needs is not there now, or who was to fork it has just ended
                log.error("starting worker %d failed: %r", worker.number, error)
                worker.start_at = self.real_time() + self.timings.worker_start_interval
                return
            unless_started.pop_all()
        worker.process, worker.line = process, line
        worker.started = worker.heard = self.real_time()
        worker.is_ready = worker.is_closed = worker.is_drained = False
        worker.is_prepared = worker.is_settled = worker.has_handed_over = False

    def _seat(self, worker: WorkerProcess, line: Connection) -> Seat:
        if worker.stacks is not None:
            worker.stacks.close()
        worker.stacks = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the worker
        worker.heirs = worker.heirs or HandoverLine.pair()
        before = self.predecessor
        return Seat(
            worker.number,
            self.sharing,
            worker.restarts,
            self._paths,
            self._listening[worker.number],
            self._secret,
            InheritedFile(self.lock.descriptor),
            line,
            InheritedFile(worker.stacks.fileno()),
            InheritedFile(worker.heirs[0].descriptor),
            None if before is None or before.is_gone else InheritedFile(before.lines[worker.number]),
            self.timings,
        )

    def _process(self, seat: Seat, name: str) -> BaseProcess:
        if sys.platform != "linux":  # elsewhere libraries of the system have threads that no fork survives
            spawning = multiprocessing.get_context("spawn")
            return spawning.Process(target=self.work, args=(seat, *self.arguments), name=name)
        forking = multiprocessing.get_context("forkserver")
        forking.set_forkserver_preload([*self.imports])
        return forking.Process(target=self.work, args=(seat, *self.arguments), name=name)

    def _look(self, awake: int) -> None:
        """Wait for something to happen, and see to it."""
        lines = [worker.line for worker in self._workers if worker.line is not None]
        running = [worker.process for worker in self._workers if worker.process is not None]
        ends = [process.sentinel for process in running if process.is_alive()]
        again = self.timings.worker_start_interval
        upgrades = self._upgrade.lines()
        if self.predecessor is not None and self._stop_at is None:
            upgrades.append(self.predecessor.watched)
        wait([awake, *lines, *ends, *upgrades], timeout=min(LOOK, again if len(running) < self.sharing.count else LOOK))
        with contextlib.suppress(BlockingIOError):
            os.read(awake, 1024)
        if self._is_asked_to_stop and self._stop_at is None:
            self.stop()
        for worker in self._workers:
            self._listen(worker)
            process = worker.process
            if process is not None and _has_ended(worker, process):
                self._ended(worker, process)
        self._upgrade.look()
        if self.predecessor is not None and self._stop_at is None:
            self.predecessor.look(self)
        now = self.real_time()
        for worker in self._workers:
            process = worker.process
            if process is None:
                if self._stop_at is None and now >= worker.start_at and not self._upgrade.is_handing_over:
                    self._start(worker)
            elif self._stop_at is not None and now > self._stop_at:
                self._kill(worker, process)
            elif now > worker.heard + self.silence and not worker.has_handed_over:
                self._ask_or_kill(worker, process)
        if self._stop_at is not None:
            self._refuse_all()
        if self._stop_at is not None and (
            now > self._stop_at - self.timings.worker_exit_timeout
            or all(one.is_drained or one.process is None for one in self._workers)
        ):
            for worker in self._workers:
                self.tell(worker, END)

    def _ask_or_kill(self, worker: WorkerProcess, process: BaseProcess) -> None:
        now = self.real_time()
        if worker.asked < worker.heard:
            worker.asked = now
            _signal(process, WHERE)
        elif now > worker.asked + self.timings.worker_answer_timeout:
            self._kill(worker, process)

    def _kill(self, worker: WorkerProcess, process: BaseProcess) -> None:
        log.error("%s does not answer and is killed", self._named(worker, process))
        _signal(process, signal.SIGKILL)
        process.join()
        assert worker.stacks is not None
        worker.stacks.seek(0)
        if stacks := worker.stacks.read().decode(errors="replace"):
            text = f"Worker {worker.number} (process {process.pid}) stopped answering. Its stack traces:\n{stacks}"
            log.error("%s", text)
            with contextlib.suppress(OSError):  # it is in the log
                write_crash(self.folder, process.pid or 0, text, self.clock.now())

    def _listen(self, worker: WorkerProcess) -> None:
        line = worker.line
        while line is not None and line.poll():
            try:
                said = line.recv_bytes()
            except (EOFError, OSError):
                line.close()
                worker.line = None
                return
            worker.heard = self.real_time()
            worker.is_closed = worker.is_closed or said == CLOSED
            worker.is_drained = worker.is_drained or said == DRAINED
            worker.is_prepared = worker.is_prepared or said == PREPARED
            worker.is_settled = worker.is_settled or said == SETTLED
            worker.has_handed_over = worker.has_handed_over or said == HANDED_OVER
            if said == UPGRADE:
                self._upgrade.start(worker)
            if said == READY:
                worker.is_ready = True
                if not self._is_announced and all(one.is_ready for one in self._workers):
                    self._were_ready = self._is_announced = True
                    self.when_ready()
                    if self.predecessor is not None:
                        self.predecessor.serves(self)

    def tell(self, worker: WorkerProcess, what: bytes) -> None:
        if worker.line is not None:
            with contextlib.suppress(OSError):  # it has just ended
                worker.line.send_bytes(what)

    def _ended(self, worker: WorkerProcess, process: BaseProcess) -> None:
        process.join()
        code, worker.process = process.exitcode or 0, None
        if worker.line is not None:
            worker.line.close()
            worker.line = None
        if self._stop_at is not None or self._upgrade.is_handing_over:
            return
        how = f"was killed by {_named(-code)}" if code < 0 else f"exited with code {code}"
        how = "exited for an unknown reason" if code == UNKNOWN else how
        if not self._were_ready and not worker.is_ready:
            log.error("worker %d %s before it was ready; sapwood shuts down", worker.number, how)
            self.stop()
            return
        now = self.real_time()
        worker.failures = 0 if now - worker.started > self.timings.worker_steady_after else worker.failures + 1
        pause = min(0.25 * 2 ** (worker.failures - 1), LONGEST_PAUSE) if worker.failures > 1 else 0.0
        worker.start_at = now + pause
        log.error("%s %s; restarting it", self._named(worker, process), how)

    def _named(self, worker: WorkerProcess, process: BaseProcess) -> str:
        pool = self.sharing.pool(worker.number)
        return f"worker {worker.number} ({pool and f'{pool}, '}process {process.pid})"

    def _asked_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._is_asked_to_stop = True  # seen to when it is looked: a worker may just be being started

    def stop(self) -> None:
        """End all workers, as after a signal."""
        self._upgrade.abandon()
        if self.predecessor is not None and not self._were_ready:
            self.public = None  # it is still the predecessor's
        self._stop_at = self.real_time() + self.grace + self.timings.worker_exit_timeout
        for worker in self._workers:
            if worker.process is not None:
                _signal(worker.process, signal.SIGTERM)

    def end_handed_over(self) -> None:
        """End the workers, which have handed over everything. The public port stays open: it is the successor's now."""
        self.public = None
        self._stop_at = self.real_time() + self.timings.worker_exit_timeout
        for worker in self._workers:
            self.tell(worker, END)

    def resume(self) -> None:
        """Have the workers serve again."""
        self._is_announced = False
        for worker in self._workers:
            worker.is_ready = worker.is_drained = worker.is_closed = False
            worker.is_settled = worker.has_handed_over = False
            worker.heard = self.real_time()
            self.tell(worker, RESUME)

    def _refuse_all(self) -> None:
        """Close the public port, when all workers have: as long as one process has it open, clients would wait."""
        is_late = (
            self._stop_at is not None
            and self.real_time() > self._stop_at - self.grace - self.timings.worker_exit_timeout + STUCK
        )
        if self.public is not None and (is_late or all(one.is_closed or one.process is None for one in self._workers)):
            with contextlib.suppress(OSError):  # not every system can; there it ends with the last that has it open
                self.public.shutdown(socket.SHUT_RDWR)
            self.public.close()
            self.public = None


def _has_ended(worker: WorkerProcess, process: BaseProcess) -> bool:
    if process.is_alive():
        return False
    # If who forked it has ended, that looks like the end of all workers; but one that lives holds its end of the line.
    return process.exitcode != UNKNOWN or worker.line is None


def _named(number: int) -> str:
    return signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"


def _signal(process: BaseProcess, number: signal.Signals) -> None:
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
