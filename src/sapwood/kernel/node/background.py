"""Work of a node that no caller waits for."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

log = logging.getLogger(__name__)


class Background:
    """Runs work in tasks of their own. A failure is logged."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self._loop = loop
        self._context = context
        self.tasks: set[Task[None]] = set()
        self._resumable: set[Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], *, is_resumable: bool = False) -> Task[None]:
        """Run `work`, and return its task. `is_resumable`: it ends with the node, and the next start continues it."""
        task = self._loop.create_task(work, context=self._context.copy())
        self.tasks.add(task)
        if is_resumable:
            self._resumable.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: Task[None]) -> None:
        self.tasks.discard(task)
        self._resumable.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed", exc_info=error)

    async def wait(self) -> None:
        """Return when all work has ended, including the work that it starts."""
        while self.tasks:
            for task in self._resumable:
                task.cancel()
            await asyncio.wait(self.tasks)
