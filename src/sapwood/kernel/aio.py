"""Tasks that are certainly cancelled, and coroutines that run by hand to their first suspension."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any


@types.coroutine
def driven(work: Coroutine[Any, Any, Any], suspended: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Return what a coroutine returns; call `suspended` when it is first suspended, before another task runs."""
    try:
        wanted = work.send(None)
    except StopIteration as done:
        return done.value
    suspended()
    return (yield from _rest_of(work, wanted))


@types.coroutine
def rest_of(work: Coroutine[Any, Any, Any], wanted: Any) -> Generator[Any, Any, Any]:
    """Continue a coroutine that was started by hand and waits for `wanted`; return what it returns."""
    return (yield from _rest_of(work, wanted))


def _rest_of(work: Coroutine[Any, Any, Any], wanted: Any) -> Generator[Any, Any, Any]:
    while True:
        try:
            given = yield wanted
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001 - a cancellation, most of all; it is the coroutine's to handle
            step: Callable[[Any], Any] = work.throw
            given = error
        else:
            step = work.send
        try:
            wanted = step(given)
        except StopIteration as done:
            return done.value


AGAIN = 0.5
"""Seconds after which a task that still runs is cancelled once more: it may still be about to end."""


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and return when all have ended."""
    tasks = list(tasks)
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN)
    await asyncio.gather(*tasks, return_exceptions=True)
