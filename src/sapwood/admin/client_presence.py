"""Cancels what only its client waits for when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from sapwood.web.asgi_types import Receive

T = TypeVar("T")


async def answer_while_present(answer: Awaitable[T], receive: Receive) -> T | None:
    """Return an answer. If the client leaves before it, cancel it and return `None`. The body was read."""
    answering, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(_left(receive))
    tasks: set[asyncio.Future[object]] = {answering, leaving}  # pyright: ignore[reportAssignmentType]
    try:
        await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
        return answering.result() if answering.done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _left(receive: Receive) -> None:
    message = await receive()
    while message["type"] != "http.disconnect":
        await asyncio.sleep(0)  # some servers say again that there is no more
        message = await receive()
