"""Waits for an event, with a limit so that a hang fails with a sentence."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

from tests.machine import patience

POLL = 0.05


async def wait_until(condition: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = 30.0) -> None:
    """Return once a condition holds."""
    end = time.monotonic() + patience(seconds)
    while True:
        holds = condition()
        if await holds if inspect.isawaitable(holds) else holds:
            return
        if time.monotonic() > end:
            raise AssertionError(f"Expected within {patience(seconds):.0f} s: {what}.")
        await asyncio.sleep(POLL)
