"""The ids of tool calls: unique in a turn, though some models use the same ones in each response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse


class CallIds:
    """Gives each tool call of one response an id that no earlier call of its turn has."""

    def __init__(self, history: Sequence[ModelMessage], steps: int) -> None:
        """`steps` is how many responses the turn has so far: they are the last ones of the history."""
        responses = [one for one in history if one.kind == "response"]
        self._before = frozenset(
            part.tool_call_id
            for response in responses[max(len(responses) - steps, 0) :]
            for part in response.parts
            if part.part_kind == "tool-call"
        )
        self._step = steps + 1
        self._streamed: set[str] = set()
        self._by_index: dict[int, str] = {}

    def of_event(self, event: Any) -> Any:
        """Return an event of the response, as it is streamed, with the id of its call."""
        part = getattr(event, "part", None)
        if part is None or part.part_kind != "tool-call":
            return event
        if event.event_kind == "part_start":
            self._by_index[event.index] = self._unique(part.tool_call_id, self._streamed)
        id = self._by_index.get(getattr(event, "index", -1), part.tool_call_id)
        return event if id == part.tool_call_id else replace(event, part=replace(part, tool_call_id=id))

    def of_response(self, response: ModelResponse) -> ModelResponse:
        """Return the response with the ids of its calls."""
        taken: set[str] = set()
        parts: list[Any] = []
        for part in response.parts:
            if part.part_kind == "tool-call" and (id := self._unique(part.tool_call_id, taken)) != part.tool_call_id:
                parts.append(replace(part, tool_call_id=id))
            else:
                parts.append(part)
        return replace(response, parts=parts)

    def _unique(self, id: str, taken: set[str]) -> str:
        number, found = 0, id
        while found in self._before or found in taken:
            number += 1
            found = f"{id}~{self._step}" if number == 1 else f"{id}~{self._step}.{number}"
        taken.add(found)
        return found
