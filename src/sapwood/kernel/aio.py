"""Tasks that are certainly cancelled, threads that are waited for, and coroutines that run by hand."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


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


async def to_the_end(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do something to files in a thread. A cancelled caller waits: no other task may use these files."""
    done = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        while not done.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({done})
        if not done.cancelled():
            done.exception()
        raise
