"""Whether the data folder can be written: while the operating system refuses that, `/readyz` has the reason."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from sapwood.storage.availability import StorageUnavailable, probe
from sapwood.timings import Timings

log = logging.getLogger(__name__)

MINUTE = 60.0


class StorageState:
    """The data folder of one node, as the operating system lets it be used."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop, timings: Timings) -> None:
        self._folder = folder
        self._loop = loop
        self._interval = timings.storage_probe_interval
        self._error: StorageUnavailable | None = None
        self._since = 0.0
        self._logged_at = 0.0
        self._count = 0
        """Writes that were refused since the last line in the log."""
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = float("-inf")

    @property
    def reason(self) -> str | None:
        """Why nothing can be written, or `None` if something can."""
        if self._error is None:
            return None
        text = self._error.reason.removesuffix(".")
        return text[:1].lower() + text[1:]

    def refused(self, error: StorageUnavailable) -> None:
        """Count a write that the operating system refused, and probe the folder until it can be written."""
        self._count += 1
        self._found(error)

    def look(self) -> None:
        """Probe the folder, at most once per interval: another process may have been refused, or none has tried."""
        now = self._loop.time()
        if self._error is None and now >= self._looked_at + self._interval:
            self._looked_at = now
            if (found := probe(self._folder)) is not None:
                self._found(found)

    def _found(self, error: StorageUnavailable) -> None:
        if self._error is not None and self._error.reason == error.reason:
            return
        if self._error is None:
            self._since = self._loop.time()
            self._timer = self._loop.call_later(self._interval, self._probe)
        self._error = error
        self._log()

    def _log(self) -> None:
        log.error(
            "data folder cannot be written refused=%d: %s Agents and runs continue when it can be.",
            self._count,
            self._error,
        )
        self._count, self._logged_at = 0, self._loop.time()

    def _probe(self) -> None:
        found = probe(self._folder)
        if found is None:
            seconds = self._loop.time() - self._since
            log.warning("data folder can be written again seconds=%.0f refused=%d", seconds, self._count)
            self._error, self._timer, self._count = None, None, 0
            return
        self._error = found
        if self._loop.time() >= self._logged_at + MINUTE:
            self._log()
        self._timer = self._loop.call_later(self._interval, self._probe)

    def stop(self) -> None:
        """Stop probing."""
        if self._timer is not None:
            self._timer.cancel()
