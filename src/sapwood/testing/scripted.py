"""A model that says what a test tells it to, token by token, and knows whether it was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec


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


class ScriptedModel:
    """A model that returns these answers in order, and then repeats the last one.

    With `each`, every conversation starts with the first answer. Without it, all conversations share
    the answers.
    """

    def __new__(cls, *lines: Line, each: bool = False) -> Any:
        from pydantic_ai.models.function import DeltaToolCall, FunctionModel

        class Scripted(FunctionModel):
            """Says what it was told to."""

            def __init__(self) -> None:
                self.lines = list(lines)
                self.asked: list[Any] = []
                """What it was asked, each time."""
                self.cancelled = 0
                """How often it was cut off."""
                super().__init__(self._answer, stream_function=self._say, model_name="scripted")

            def _next(self, messages: Any) -> Line:
                self.asked.append(messages)
                answered = [message for message in messages if message.kind == "response"]
                at = len(answered) if each else len(self.asked) - 1
                line = self.lines[min(at, len(self.lines) - 1)]
                if line.error is not None:
                    raise line.error
                return line

            async def _answer(self, messages: Any, info: Any) -> Any:
                from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

                line = self._next(messages)
                calls = [ToolCallPart(name, arguments, id or _new_id()) for name, arguments, id in line.calls]
                return ModelResponse(parts=[*([TextPart(line.text)] if line.text else []), *calls])

            async def _say(self, messages: Any, info: Any) -> AsyncIterator[Any]:
                line = self._next(messages)
                try:
                    for at, word in enumerate(_words(line.text)):
                        if line.delay:
                            await asyncio.sleep(line.delay)
                        yield word
                        if at == 0 and line.gate is not None:
                            await line.gate.wait()
                    for at, (name, arguments, given) in enumerate(line.calls):
                        text = msgspec.json.encode(arguments).decode()
                        yield {at: DeltaToolCall(name=name, json_args=text, tool_call_id=given or _new_id())}
                except (asyncio.CancelledError, GeneratorExit):
                    self.cancelled += 1
                    raise

        return Scripted()


def _words(said: str) -> list[str]:
    words = said.split(" ")
    return [word if at == 0 else f" {word}" for at, word in enumerate(words)] if said else []


def _new_id() -> str:
    return f"call-{uuid4().hex[:8]}"
