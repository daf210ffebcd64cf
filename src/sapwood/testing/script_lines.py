"""The lines of a script for `ScriptedModel`: text, tool calls and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Arguments: TypeAlias = dict[str, Any] | str
"""The arguments of a tool call. A text is sent as it is: models may write JSON that is invalid."""


@dataclass(frozen=True, slots=True)
class Line:
    """One answer of a scripted model: text, tool calls or an error."""

    text: str = ""
    calls: tuple[tuple[str, Arguments, str | None], ...] = ()
    error: BaseException | None = None
    delay: float = 0.0
    """Seconds before each token."""
    gate: asyncio.Event | None = None
    """An event to wait for after the first token."""
    stalls: bool = False
    """Whether the model says no more after this, and does not end its answer."""


def text(said: str, *, delay: float = 0.0, gate: asyncio.Event | None = None, stalls: bool = False) -> Line:
    """The model answers with this text, word by word. With `stalls`, it does not end its answer."""
    return Line(text=said, delay=delay, gate=gate, stalls=stalls)


def call(tool: str, arguments: Mapping[str, Any] | str | None = None, /, *, id: str | None = None, **more: Any) -> Line:
    """The model calls a tool, with the arguments as keywords, as a dictionary, or as the JSON text that it wrote."""
    given: Arguments = arguments if isinstance(arguments, str) else {**(arguments or {}), **more}
    return Line(calls=((tool, given, id),))


def calls(*lines: Line) -> Line:
    """The model calls several tools at once. With `calls(text(…), call(…))`, it says something before."""
    return Line(text="".join(line.text for line in lines), calls=tuple(one for line in lines for one in line.calls))


def fails(error: BaseException, *, after: str = "") -> Line:
    """The model request fails, perhaps after a part of the answer."""
    return Line(text=after, error=error)
