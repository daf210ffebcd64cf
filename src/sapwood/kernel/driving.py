"""Runs a coroutine, and tells when it is first suspended: until then everything it did was one slice."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any


@types.coroutine
def driven(work: Coroutine[Any, Any, Any], suspended: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Return what a coroutine returns; call `suspended` when it is first suspended, before another task runs."""
    try:
        wanted = work.send(None)
    except StopIteration as done:
        return done.value
    suspended()
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
