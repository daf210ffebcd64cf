"""The thread that writes the past: one job after the other, and its outcome on the loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

import apsw

from sapwood.clock import report_work
from sapwood.errors import SapwoodError

log = logging.getLogger(__name__)

FAILURES = (OSError, SapwoodError, apsw.Error)
"""What writing the past may raise."""
Done = Callable[[Exception | None, object], None]
"""Called with the error of a job, or with its result."""


class JobThread:
    """Runs jobs in their order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._pending = 0
        self._end_work_report = report_work(loop, lambda: self._pending > 0)
        self._thread = threading.Thread(target=self._work, name="sapwood-history", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], object], done: Done) -> None:
        """Run a job, and then `done` on the loop."""
        self._pending += 1

        def ended(error: Exception | None, result: object) -> None:
            self._pending -= 1
            done(error, result)

        def run() -> None:
            error: Exception | None = None
            result: object = None
            try:
                result = job()
            except Exception as raised:
                if not isinstance(raised, FAILURES):
                    log.exception("writing the history failed")
                error = raised  # whatever it is: the jobs behind it are done, and what waits for this one learns it
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(ended, error, result)

        self._jobs.put(run)

    def close(self) -> None:
        """Do what is in the queue, and stop."""
        self._jobs.put(None)
        self._thread.join()
        self._end_work_report()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
