"""The upgrade of a server with workers: what the old supervisor does in it, and what the new one does.

All workers change at the same time: two versions of the code never talk to each other.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sapwood.errors import Refused
from sapwood.runtimes.handover_line import FAILED, PREPARED, RELEASED, SERVING, HandoverLine, LineLost, Message
from sapwood.runtimes.workers import worker_messages as say

log = logging.getLogger("sapwood.server")


class UpgradedWorker(Protocol):
    """A worker, as an upgrade sees it."""

    number: int
    process: Any
    is_drained: bool
    is_prepared: bool
    is_settled: bool
    has_handed_over: bool
    heirs: tuple[HandoverLine, HandoverLine] | None


class StartedServer(Protocol):
    """A new server, as the one that has started it sees it."""

    line: HandoverLine

    @property
    def process_id(self) -> int: ...

    def dismiss(self) -> None: ...

    def end(self) -> None: ...


class UpgradedSupervisor(Protocol):
    """A supervisor, as an upgrade sees it."""

    start_successor: Callable[[Sequence[int]], StartedServer] | None
    prepare_folder: Callable[[], None]

    @property
    def workers(self) -> Sequence[UpgradedWorker]: ...

    @property
    def is_stopping(self) -> bool: ...

    def tell(self, worker: Any, what: bytes) -> None: ...

    def stop(self) -> None: ...

    def resume(self) -> None: ...

    def end_handed_over(self) -> None: ...


class SupervisorUpgrade:
    """Replaces a supervisor with all its workers by another one."""

    def __init__(self, supervisor: UpgradedSupervisor) -> None:
        self._supervisor = supervisor
        self._successor: StartedServer | None = None
        """The new server, from its start until this one ends."""
        self._asker: UpgradedWorker | None = None
        """The worker that waits for an answer."""
        self.is_settling = False
        """Whether it is waited for slow calls, while all is served."""
        self.is_handing_over = False
        self._are_drained = False
        self._is_released = False
        self.is_done = False
        """Whether the successor serves."""

    def lines(self) -> list[int]:
        """Return the open files on which something may come."""
        return [] if self._successor is None or self.is_done else [self._successor.line.descriptor]

    def start(self, asker: UpgradedWorker) -> None:
        """Start a new server, because a worker was asked to."""
        supervisor = self._supervisor
        if self._successor is not None or self.is_handing_over:
            which = "" if self._successor is None else f" To cancel it, end process {self._successor.process_id}."
            self._tell(asker, error=f"An upgrade is in progress.{which}")
            return
        if supervisor.is_stopping or supervisor.start_successor is None:
            self._tell(asker, error="The server shuts down.")
            return
        self._asker = asker
        try:
            self._successor = supervisor.start_successor([heirs[1].descriptor for heirs in self._heirs()])
        except (OSError, Refused) as error:
            self._answer(error=str(error))

    def look(self) -> None:
        """Do what is to be done now."""
        try:
            while not self.is_done and (message := self._received()) is not None:
                if message.kind == PREPARED:
                    self._settle(message.facts)
                elif message.kind == SERVING:
                    self.is_done = True
                    self._supervisor.end_handed_over()
                elif message.kind == FAILED:
                    self._answer(error=f"The new server cannot start: {message.facts['error']} This server continues.")
                    self._lost()
        except LineLost:
            self._lost()
        if self.is_done or self._supervisor.is_stopping:
            return
        workers = self._supervisor.workers
        if self.is_settling and all(one.is_settled or one.process is None for one in workers):
            self._hand_over()
        if not self.is_handing_over:
            return
        if not self._are_drained and all(one.is_drained or one.process is None for one in workers):
            self._are_drained = True
            for worker in workers:
                self._supervisor.tell(worker, say.END)
        if not self._is_released and all(one.has_handed_over or one.process is None for one in workers):
            if self._successor is None:
                self._resume()
                return
            self._is_released = True
            with contextlib.suppress(LineLost):  # that is noticed when the line is read
                self._successor.line.send(RELEASED)

    def abandon(self) -> None:
        """End a new server that does not serve yet: this one stops."""
        if self._successor is not None and not self.is_done:
            self._successor.dismiss()
            self._successor = None

    def _received(self) -> Message | None:
        return None if self._successor is None else self._successor.line.received_now()

    def _settle(self, facts: dict[str, Any]) -> None:
        self._answer(to=facts["version"], pid=facts["pid"])
        log.info("upgrade: process %d is prepared", facts["pid"])
        self.is_settling = True
        for worker in self._supervisor.workers:
            self._supervisor.tell(worker, say.SETTLE)

    def _hand_over(self) -> None:
        assert self._successor is not None
        log.info("upgrade: handing over to process %d", self._successor.process_id)
        self.is_settling, self.is_handing_over = False, True
        for worker in self._supervisor.workers:
            self._supervisor.tell(worker, say.HAND_OVER)

    def _lost(self) -> None:
        assert self._successor is not None
        self._successor.end()
        self._successor = None
        self._answer(error="The new server ended before it was prepared. See the log. This server continues.")
        if self.is_settling:
            log.error("upgrade: the new server has ended; this one continues")
            self.is_settling = False
            for worker in self._supervisor.workers:
                worker.is_settled = False
        if self.is_handing_over:
            log.error("upgrade: the new server has ended before it served; this one continues")
            self._is_released = False

    def _resume(self) -> None:
        """Serve again, once each worker has handed over: before, it would not hear that it has to."""
        self.is_handing_over = self._are_drained = False
        for heirs in self._heirs():
            heirs[1].discard()  # the connections that were given are still open at the workers
        self._supervisor.resume()

    def _answer(self, **facts: Any) -> None:
        asker, self._asker = self._asker, None
        if asker is not None:
            if "error" in facts:
                log.error("upgrade: %s", facts["error"])
            self._tell(asker, **facts)

    def _tell(self, asker: UpgradedWorker, **facts: Any) -> None:
        self._supervisor.tell(asker, say.UPGRADE + json.dumps(facts).encode())

    def _heirs(self) -> list[tuple[HandoverLine, HandoverLine]]:
        return [one.heirs for one in self._supervisor.workers if one.heirs is not None]


class WorkersBefore:
    """The old server with its workers, seen from the new supervisor."""

    def __init__(self, line: HandoverLine, first: HandoverLine, lines: Sequence[int], facts: dict[str, Any]) -> None:
        self._line = line
        self._first = first
        """The line to the first process of the server."""
        self.lines = lines
        """The lines to the old workers, in their order."""
        self._facts = facts
        """The version and the process id of this server, for the old one."""
        self._is_prepared = False
        self.is_gone = False
        """Whether the old workers run nothing any more."""
        self.is_done = False
        """Whether this server serves."""

    @property
    def watched(self) -> int:
        """The open file on which something may come."""
        return (self._first if self.is_done else self._line).descriptor

    def look(self, supervisor: UpgradedSupervisor) -> None:
        """Do what is to be done now."""
        if not self._is_prepared and all(one.is_prepared for one in supervisor.workers):
            self._is_prepared = True
            with contextlib.suppress(LineLost):  # that is noticed when the line is read
                self._line.send(PREPARED, **self._facts)
        line = self._first if self.is_done else self._line
        try:
            while (message := line.received_now()) is not None:
                if message.kind == RELEASED:
                    self._begin(supervisor)
        except LineLost:
            log.error("the first process of this server is gone, server shuts down")
            supervisor.stop()

    def _begin(self, supervisor: UpgradedSupervisor) -> None:
        self.is_gone = True
        supervisor.prepare_folder()
        for worker in supervisor.workers:
            supervisor.tell(worker, say.GO)

    def serves(self, supervisor: UpgradedSupervisor) -> None:
        """Say that this server serves now. Once: then the first process reads the line, which expects a process id."""
        if self.is_done:
            return
        self.is_done = True
        with contextlib.suppress(LineLost):
            self._line.send(SERVING)
        for worker in supervisor.workers:
            supervisor.tell(worker, say.ALL_SERVE)
