"""The script of a model and the recorded results of tools that repeat a turn, as Python expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sapwood.admin.literal import Group, Item, Node, Text, are_keywords, call_of, literal, plain, quoted
from sapwood.chat.store.turn_copies import CopiedCall, CopiedResult, CopiedStep, TurnCopy

LONGEST_COMMENT = 100
PROCESSED = "Final result processed."
"""What Pydantic AI returns for the tool call that ended a turn."""
NO_STEP = CopiedStep(0, "", [])


@dataclass(frozen=True, slots=True)
class TurnScript:
    """What a model and tools do in a test that repeats a turn."""

    copy: TurnCopy
    model_error: str | None = None
    """With what the last request to the model failed; `None` if it did not."""
    step_comments: Mapping[int, str] = field(default_factory=dict[int, str])
    """What else is known of steps, by their numbers."""
    call_comments: Mapping[str, str] = field(default_factory=dict[str, str])
    """What else is known of tool calls, by their ids."""
    run: Sequence[str] = ()
    """The names of the tools that run in the test."""
    is_root: bool = True
    """Whether the turn is the one that the test begins, and not of a sub-agent."""

    @property
    def model(self) -> Node:
        """The model."""
        items = [Item(self._line(step), comment=_comment(self.step_comments, step.number)) for step in self.copy.steps]
        if self.stalls_in_model and not self._last.is_cut:
            items.append(Item(call_of("text", Text(""), stalls="True")))
        if self._fails_in_model and not self._last.is_cut:
            items.append(Item(self._failure("")))
        return Group("ScriptedModel(", items, ")")

    @property
    def tools(self) -> Node:
        """The recorded results of its calls."""
        items = [
            Item(result, f"{quoted(one.id)}: ", _comment(self.call_comments, one.id))
            for one in self.calls
            if (result := self._result(one)) is not None
        ]
        if not items:
            return call_of("RecordedTools")
        if not self.run:
            return Group("RecordedTools({", items, "})")
        return call_of("RecordedTools", Group("{", items, "}"), run=literal(list(self.run)))

    @property
    def calls(self) -> list[CopiedCall]:
        """All tool calls of the model."""
        return [one for step in self.copy.steps for one in step.calls]

    @property
    def calls_made(self) -> Node:
        """The same as an expression."""
        return Group("[", [Item(_call(one)) for one in self.calls], "]")

    @property
    def status(self) -> str:
        """How the turn ends in the test."""
        return "cancelled" if self.is_unanswered else self.copy.status

    @property
    def output(self) -> Node | None:
        """The output, if it is an array or an object."""
        output: Any = self.copy.output
        return literal(output) if type(output) in (dict, list) and self.is_root else None

    @property
    def scalar_output(self) -> Node | None:
        """The output, if it is another value, and not what the model said last."""
        output = self.copy.output
        is_text = not self._last.calls and output == self._last.text
        return None if output is None or is_text or self.output is not None else literal(output)

    @property
    def is_unanswered(self) -> bool:
        """Whether the turn completed although a tool call waited for an answer."""
        return self.copy.status == "completed" and self.copy.output is None and self._is_interrupted

    @property
    def stalls_in_model(self) -> bool:
        """Whether the turn was cancelled during a request to the model."""
        return self.copy.status == "cancelled" and not self._is_interrupted

    @property
    def stalls_in_tools(self) -> bool:
        """Whether the turn ended before a tool call did."""
        return self.is_unanswered or (self.copy.status == "cancelled" and self._is_interrupted)

    @property
    def _fails_in_model(self) -> bool:
        return self.copy.status == "failed" and self.model_error is not None

    @property
    def _is_interrupted(self) -> bool:
        results = [self.copy.results.get(one.id) for one in self._last.calls]
        return any(one is None or one.ending == "interrupted" for one in results)

    @property
    def _last(self) -> CopiedStep:
        return self.copy.steps[-1] if self.copy.steps else NO_STEP

    @property
    def _output_call(self) -> CopiedCall | None:
        """The tool call that ended the turn."""
        calls = self._last.calls
        if self.copy.status != "completed" or self.copy.output is None or not calls:
            return None
        return next((one for one in calls if self._returned(one) == PROCESSED), calls[-1])

    def _returned(self, call: CopiedCall) -> Any:
        result = self.copy.results.get(call.id)
        return None if result is None else result.value

    def _ends_turn(self, call: CopiedCall) -> bool:
        """Return whether a call is one of the tools that end a turn."""
        output = self._output_call
        return call.tool.startswith("final_result") or (output is not None and call.tool == output.tool)

    def _line(self, step: CopiedStep) -> Node:
        """Return what the model says in a step."""
        if step.is_cut and step is self._last and self.copy.status == "failed":
            return self._failure(step.text)
        if step.is_cut and step is self._last and self.stalls_in_model:
            return call_of("text", Text(step.text), stalls="True")
        lines = [_call(one) for one in step.calls]
        if step.text:
            lines.insert(0, call_of("text", Text(step.text)))
        return lines[0] if len(lines) == 1 else call_of("calls", *lines)

    def _failure(self, said: str) -> Node:
        error = call_of("RuntimeError", Text(self.model_error or "The request failed."))
        return call_of("fails", error, **({"after": Text(said)} if said else {}))

    def _result(self, call: CopiedCall) -> Node | None:
        """Return how a call ends; `None` if nothing is known of it."""
        result = self.copy.results.get(call.id)
        if call == self._output_call:
            return call_of("ToolResult.output", "output" if self.output is not None else literal(self.copy.output))
        if result is None:
            return call_of("ToolResult.stalled") if self.stalls_in_tools and call in self._last.calls else None
        if result.ending == "returned":
            return literal(result.value)
        if result.ending == "retried":
            return self._retry(call, result)
        if result.ending == "interrupted" and self.stalls_in_tools and call in self._last.calls:
            return call_of("ToolResult.stalled")
        return call_of("ToolResult.failed", literal(result.value))

    def _retry(self, call: CopiedCall, result: CopiedResult) -> Node:
        if not self._ends_turn(call):
            return call_of("ToolResult.retry", literal(result.value))
        if result.is_invalid:
            return call_of("ToolResult.output", "None")
        return call_of("ToolResult.output_retry", literal(result.value))


def _comment(comments: Mapping[Any, str], key: Any) -> str:
    found = plain(comments.get(key, ""))
    return found if len(found) <= LONGEST_COMMENT else f"{found[:LONGEST_COMMENT]}…"


def _call(one: CopiedCall) -> Node:
    given, tool, id = one.arguments, quoted(one.tool), quoted(one.id)
    if isinstance(given, str):
        return call_of("call", tool, Text(given), id=id)
    if are_keywords(list(given), ("id",)):
        return call_of("call", tool, **{name: literal(value) for name, value in given.items()}, id=id)
    return call_of("call", tool, literal(given), id=id)
