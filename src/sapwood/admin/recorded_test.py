"""A pytest file that repeats a turn: the model is scripted, and the tools return what they returned then."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from sapwood.address import Address, kebab
from sapwood.admin.app_origin import Origin, import_lines
from sapwood.admin.literal import WIDTH, Group, Item, Node, Text, call_of, code, functions_of, literal, plain, quoted
from sapwood.admin.turn_script import TurnScript

LONGEST_NAME = 60
UNANSWERED = "This test cancels the turn: it completed while a tool call waited for an answer"


class RecordedAgent(NamedTuple):
    """A sub-agent of the turn, as it is in the test."""

    address: Address
    script: TurnScript


@dataclass(frozen=True, slots=True)
class RecordedTest:
    """A test that repeats a turn."""

    script: TurnScript
    expected_text: str
    address: Address
    origin: Origin
    version: str
    deps: Origin | None = None
    debounces: bool = False
    """Whether the class waits for further messages before it answers."""
    agents: Sequence[RecordedAgent] = ()
    """The sub-agents that run in the test."""
    notes: Sequence[str] = ()
    """What the test leaves out, as sentences without a full stop."""

    @property
    def file(self) -> str:
        """The name of the file."""
        return f"{self._function}.py"

    @property
    def _function(self) -> str:
        words = f"test {kebab(self.address.segments[-1].type)} {self.script.copy.id}"
        return re.sub(r"[^a-zA-Z0-9]+", "_", words)[:LONGEST_NAME].strip("_").lower()

    def text(self) -> str:
        """Return the file."""
        mark = "pytestmark = pytest.mark.anyio"  # it also runs where pytest is not told to run coroutines
        lines = [*self._docstring(), "", *self._imports(), "", mark, "", "", f"async def {self._function}() -> None:"]
        return "\n".join([*lines, *self._setup(), *self._turn(), "", *self._checks(), ""])

    def _docstring(self) -> Iterator[str]:
        day = datetime.fromtimestamp(self.script.copy.ended_at, UTC).strftime("%Y-%m-%d")
        what = f"The turn {plain(self.script.copy.id)} of {plain(str(self.address))}, {day}, sapwood {self.version}."
        notes = [*self.notes, *([UNANSWERED] if self.script.is_unanswered else [])]
        if not notes:
            yield f'"""{what}"""'
            return
        yield f'"""{what}'
        yield ""
        yield from (f"{plain(note)}." for note in notes)
        yield '"""'

    def _imports(self) -> Iterator[str]:
        if self.deps is not None:
            yield from ("from unittest.mock import NonCallableMock", "")
        if self.script.output is not None:
            yield "from pydantic_core import to_jsonable_python"
        yield "import pytest"
        yield "from sapwood import App"
        scripts = [self.script, *(one.script for one in self.agents)]
        nodes = [node for one in scripts for node in (one.model, *([one.tools] if one.calls else []))]
        used = {name.partition(".")[0] for node in nodes for name in functions_of(node)} - {"RuntimeError"}
        names = sorted(used | {"running"}, key=_as_sorted)
        line = f"from sapwood.testing import {', '.join(names)}"
        yield from (
            [line] if len(line) <= WIDTH else ["from sapwood.testing import (", *(f"    {one}," for one in names), ")"]
        )
        yield ""
        yield from import_lines(*(one for one in (self.origin, self.deps) if one is not None))

    def _setup(self) -> Iterator[str]:
        yield _statement("model = ", self.script.model)
        if self.script.output is not None:
            yield _statement("output = ", self.script.output)
        if self.script.calls:
            yield _statement("tools = ", self.script.tools)
        if self.script.copy.before:
            yield _statement("before = ", literal(self.script.copy.before))
        for one, name in self._named_agents():
            yield f"    # {plain(str(one.address))}"
            yield _statement(f"{name}_model = ", one.script.model)
            if one.script.calls:
                yield _statement(f"{name}_tools = ", one.script.tools)

    def _named_agents(self) -> Iterator[tuple[RecordedAgent, str]]:
        """Yield the sub-agents, each with the beginning of the names of its variables."""
        counts: Counter[str] = Counter()
        for one in self.agents:
            words = re.sub(r"[^a-z0-9]+", "_", kebab(one.address.type).lower()).strip("_")
            name = words if words.isidentifier() else f"agent_{words}"
            counts[name] += 1
            yield one, name if counts[name] == 1 else f"{name}_{counts[name]}"

    def _turn(self) -> Iterator[str]:
        cls, name = self.origin.name, quoted(self.address.segments[-1].name)
        deps: dict[str, Node] = {}
        if self.deps is not None:
            deps["deps"] = call_of("NonCallableMock", spec=self.deps.name)
        named = [(quoted(str(one.address)), name, one.script) for one, name in self._named_agents()]
        replaced: dict[str, Node] = {
            "models": _by_agent([(cls, "model"), *((key, f"{name}_model") for key, name, _ in named)])
        }
        tools = [(cls, "tools")] if self.script.calls else []
        if tools := [*tools, *((key, f"{name}_tools") for key, name, one in named if one.calls)]:
            replaced["tools"] = _by_agent(tools)
        app = call_of("App", **{"agents": Group("[", [Item(cls)], "]"), **deps})
        yield _statement("async with ", call_of("running", app, **replaced), " as world:")
        yield f"        agent = await world.get_agent({cls}, {name})"
        if self.script.copy.before:
            yield "        await world.put_messages(agent, before)"
        yield ""
        asked = self.script.copy.asked
        is_text = len(asked) == 1 and len(asked[0]["parts"]) == 1
        message = literal(asked[0]["parts"][0]["text"] if is_text else asked)
        stalled = "model" if self.script.stalls_in_model else "tools" if self.script.stalls_in_tools else None
        if stalled is None and not self.debounces:
            yield _statement("turn = await ", call_of("agent.send", message), indent=8)
        else:
            yield _statement("turn = await ", call_of("agent.turns.start", message), indent=8)
            if self.debounces:
                yield f"        await world.clock.advance({cls}.debounce)"
            if stalled is not None:
                yield f"        await world.until(lambda: {stalled}.is_stalled)"
                yield "        await agent.turns.cancel()"
            yield "        turn = await agent.turns.wait(turn.id)"
        for step in self.script.copy.steps:
            if step.continues:
                yield "        turn = await agent.turns.continue_last()"

    def _checks(self) -> Iterator[str]:
        text = Text(self.expected_text)
        both = Group("(", [Item(Text(self.script.status)), Item(text)], ")")
        if "\n" not in (line := _statement("assert (turn.status, turn.text) == ", both)):
            yield line
        else:
            yield _statement("assert turn.status == ", Text(self.script.status))
            yield _statement("assert turn.text == ", text)
        if self.script.output is not None:
            yield "    assert to_jsonable_python(turn.output) == output"
        elif (output := self.script.scalar_output) is not None:
            is_one = output in ("None", "True", "False")
            yield _statement(f"assert turn.output {'is' if is_one else '=='} ", output)
        if self.script.calls:
            yield _statement("assert tools.calls == ", self.script.calls_made)
        for one, name in self._named_agents():
            if one.script.calls:
                yield _statement(f"assert {name}_tools.calls == ", one.script.calls_made)


def _statement(begin: str, node: Node, end: str = "", *, indent: int = 4) -> str:
    return " " * indent + begin + code(node, indent=indent, used=indent + len(begin) + len(end)) + end


def _by_agent(values: Sequence[tuple[str, str]]) -> Node:
    return Group("{", [Item(value, f"{key}: ") for key, value in values], "}")


def _as_sorted(name: str) -> tuple[bool, str]:
    """Return the place of a name in an import: classes first."""
    return name[0].islower(), name
