"""Ending tasks for sure.

Until Python 3.12 the cancelling of a task gets lost when what its `wait_for` waits for comes in the same moment, and
libraries use that for every answer they wait for. A task without an end would continue then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN = 0.5
"""Seconds after which a task that goes on is cancelled once more: it may still be about to end."""


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and return when all have ended."""
    tasks = list(tasks)
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN)
    await asyncio.gather(*tasks, return_exceptions=True)
