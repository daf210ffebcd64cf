"""The events of an A2A stream, and the silence between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import msgspec

from sapwood.protocols import a2a_wire as wire
from sapwood.runs.events.events import Event

KEEP_ALIVE = 15.0
"""Seconds without an event after which a stream sends a comment."""


def update(kind: str, id: str, context: str, **fields: Any) -> dict[str, Any]:
    """Return an update of a task."""
    return {kind: {"taskId": id, "contextId": context, **fields}}


def line(call: wire.Call, event: dict[str, Any]) -> bytes:
    """Return an event of a stream; an empty one is a comment, so that the connection is not taken for dead."""
    return b"data: " + msgspec.json.encode(wire.response(call.id, event)) + b"\n\n" if event else b": quiet\n\n"


async def or_silence(events: AsyncGenerator[Event, None], seconds: float) -> AsyncGenerator[Event | None, None]:
    """Yield events, and `None` whenever nothing has happened for so long."""
    following = _next(events)
    try:
        while True:
            done, _ = await asyncio.wait({following}, timeout=seconds)
            if not done:
                yield None
                continue
            event = following.result()
            following = _next(events)
            yield event
    finally:
        following.cancel()
        await asyncio.wait({following})
        await events.aclose()


def _next(events: AsyncGenerator[Event, None]) -> asyncio.Task[Event]:
    return asyncio.ensure_future(cast("Any", anext(events)))
