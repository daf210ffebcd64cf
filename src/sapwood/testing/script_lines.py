"""The lines of a script for `ScriptedModel`: text, tool calls and errors."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """One answer of a scripted model: text, tool calls or an error."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any], str | None], ...] = ()
    error: BaseException | None = None
    delay: float = 0.0
    """Seconds before each token."""
    gate: asyncio.Event | None = None
    """An event to wait for after the first token."""


def text(said: str, *, delay: float = 0.0, gate: asyncio.Event | None = None) -> Line:
    """The model answers with this text, word by word."""
    return Line(text=said, delay=delay, gate=gate)


def call(tool: str, *, id: str | None = None, **arguments: Any) -> Line:
    """The model calls a tool."""
    return Line(calls=((tool, arguments, id),))


def calls(*lines: Line) -> Line:
    """The model calls several tools at once."""
    return Line(calls=tuple(one for line in lines for one in line.calls))


def fails(error: BaseException) -> Line:
    """The model request fails."""
    return Line(error=error)
