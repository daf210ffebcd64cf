"""The streams of the log that have no room, until they have some again."""

from __future__ import annotations

import asyncio
import logging

from sapwood.errors import Unavailable
from sapwood.kernel.ports.log import FencedLog, Full

log = logging.getLogger(__name__)


class FullStreams:
    """The full streams of one log."""

    def __init__(self, stored: FencedLog, loop: asyncio.AbstractEventLoop, interval: float) -> None:
        self._log = stored
        self._loop = loop
        self._interval = interval
        """Seconds between two looks."""
        self._full: dict[int, tuple[int, str]] = {}
        """How many bytes were refused last, and what was said."""
        self._probe_task: asyncio.Task[None] | None = None

    @property
    def reason(self) -> str | None:
        """Why one of them is full, or `None` if none is."""
        return next((why for _, why in self._full.values()), None)

    def add(self, stream: int, size: int, error: Full) -> None:
        """A stream has refused so many bytes."""
        if stream not in self._full:
            log.error("%s", error)
        self._full[stream] = size, str(error)
        if self._probe_task is None:
            self._probe_task = self._loop.create_task(self._probe())

    async def _probe(self) -> None:
        """Return when no stream is full any more."""
        while self._full:
            await asyncio.sleep(self._interval)
            for stream, (size, _) in list(self._full.items()):
                try:
                    if await self._log.has_room(stream, size):
                        del self._full[stream]
                        log.warning("log has room again stream=%d", stream)
                except Unavailable as error:
                    log.warning("checking the room in the log failed: %s", error)
        self._probe_task = None

    def close(self) -> None:
        """Look no more."""
        if self._probe_task is not None:
            self._probe_task.cancel()
