"""A model that says what a test tells it to, token by token, and knows whether it was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import msgspec
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from sapwood.testing.script_lines import Line


class ScriptedModel(FunctionModel):
    """A model that returns these answers in order, and then repeats the last one.

    Without `each`, each request takes the next answer, also a request that is repeated after a crash, a timeout or
    an error. All conversations share the answers. With `each`, the answer depends on the conversation: the first
    answer if it has no response yet, then the second. A request that is repeated gets the same answer again. Use it
    in crash tests, and for an agent with several instances.
    """

    def __init__(self, *lines: Line, each: bool = False) -> None:
        self.lines = list(lines)
        self.asked: list[Any] = []
        """The input of each request, in order: a list of Pydantic AI messages."""
        self.cancelled = 0
        """Number of requests that were cancelled before the answer was complete."""
        self.is_stalled = False
        """Whether the model has reached a line that stalls."""
        self._each = each
        super().__init__(self._answer, stream_function=self._say, model_name="scripted")

    def _next(self, messages: list[ModelMessage]) -> Line:
        self.asked.append(messages)
        answered = [message for message in messages if message.kind == "response"]
        at = len(answered) if self._each else len(self.asked) - 1
        line = self.lines[min(at, len(self.lines) - 1)]
        if line.error is not None and not line.text:
            raise line.error
        return line

    async def _answer(self, messages: list[ModelMessage], info: Any) -> ModelResponse:
        line = self._next(messages)
        if line.error is not None:
            raise line.error
        calls = [ToolCallPart(name, arguments, id or _new_id()) for name, arguments, id in line.calls]
        return ModelResponse(parts=[*([TextPart(line.text)] if line.text else []), *calls])

    async def _say(self, messages: list[ModelMessage], info: Any) -> AsyncIterator[Any]:
        line = self._next(messages)
        try:
            for at, word in enumerate(_words(line.text)):
                if line.delay:
                    await asyncio.sleep(line.delay)
                yield word
                if at == 0 and line.gate is not None:
                    await line.gate.wait()
            for at, (name, arguments, given) in enumerate(line.calls):
                text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
                yield {at: DeltaToolCall(name=name, json_args=text, tool_call_id=given or _new_id())}
            if line.error is not None:
                raise line.error
            if line.stalls:
                self.is_stalled = True
                await asyncio.Event().wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise


def _words(said: str) -> list[str]:
    words = said.split(" ")
    return [word if at == 0 else f" {word}" for at, word in enumerate(words)] if said else []


def _new_id() -> str:
    return f"call-{uuid4().hex[:8]}"
