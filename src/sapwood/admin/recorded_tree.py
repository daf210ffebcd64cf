"""The scripts of a turn and of the sub-agents that its tool calls are, at every level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sapwood.address import Address
from sapwood.admin.endpoint import AdminCall
from sapwood.admin.recorded_test import RecordedAgent
from sapwood.admin.redacted_turn import RedactedTurn
from sapwood.admin.turn_records import TurnRecords
from sapwood.admin.turn_script import PROCESSED, TurnScript
from sapwood.chat.store.turn_copies import CopiedCall, CopiedResult, TurnCopy, turn_copy
from sapwood.chat.tools.persistent_children import SPAWN
from sapwood.chat.tools.tools import options_of_class
from sapwood.errors import InvalidArguments, NotFound, UnknownAgent
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.trees.tree import Tree
from sapwood.runs.dispatch.lifecycle import PREFIX
from sapwood.runs.tables.run_reads import ToolCallRun
from sapwood.storage.database import Database

MOST_AGENTS = 100
"""Sub-agents in a test."""
FILES = "files in results of tools"
"""What a copy leaves out if a tool returned a file."""


class RecordedTree:
    """Reads the turns of one tree that a test repeats."""

    def __init__(self, call: AdminCall, redacted: RedactedTurn, *, runs_tools: bool) -> None:
        self._call = call
        self._redacted = redacted
        self._runs_tools = runs_tools
        self.agents: list[RecordedAgent] = []
        """The sub-agents that run in the test."""
        self.missing: list[str] = []
        """What the test leaves out, as nouns."""

    async def script(
        self, address: Address, place: Address, copy: TurnCopy, records: TurnRecords, kind: AgentClass | None
    ) -> TurnScript:
        """Return the script of a turn; `place` is the address of its agent in the test."""
        shown = self._redacted.of(copy)
        self.missing += shown.missing
        error = records.model_error(copy)
        steps, calls = records.step_comments(has_failed=error is not None), records.call_comments(copy, self._redacted)
        run: list[str] = []
        if copy.status == "completed" and kind is not None and getattr(kind.cls, "loop", None) is None:
            for tool in dict.fromkeys(one.tool for step in copy.steps for one in step.calls):
                before = len(self.agents)
                if await self._does_run(tool, address, place, copy, shown, records, kind):
                    run.append(tool)
                else:
                    del self.agents[before:]
        return TurnScript(shown, error, steps, calls, run=run, is_root=place.parent is None)

    async def _does_run(
        self,
        tool: str,
        address: Address,
        place: Address,
        copy: TurnCopy,
        shown: TurnCopy,
        records: TurnRecords,
        kind: AgentClass,
    ) -> bool:
        """Return whether a tool runs in the test; add the sub-agents that its calls are."""
        ids = {short: id for id, short in copy.ids.items()}
        calls = [one for step in copy.steps for one in step.calls if one.tool == tool]
        results = [result for one in calls if (result := copy.results.get(one.id)) is not None]
        is_whole = len(results) == len(calls) and all(_is_shown(one, copy, shown) for one in calls)
        if not is_whole or len(self.agents) >= MOST_AGENTS:
            return False
        runs = [records.runs.get(ids[one.id], []) for one in calls]
        if not any(runs):
            return self._runs_tools and self._may_run(tool, results, copy, records, kind)
        for one, started in zip(calls, runs, strict=True):
            if len(started) != 1 or not await self._add_agent(one, ids[one.id], started[0], address, place, copy):
                return False
        return True

    def _may_run(
        self, tool: str, results: Sequence[CopiedResult], copy: TurnCopy, records: TurnRecords, kind: AgentClass
    ) -> bool:
        """Return whether a tool is code of the agent's that returns the same without a person."""
        options = next((one for name, one in options_of_class(kind.cls) if name == tool), None)
        if options is None or options.requires_approval or FILES in copy.missing:
            return False
        if records.answers(copy, self._redacted):  # perhaps it was this tool that asked
            return False
        return all(one.ending in ("returned", "failed", "retried") and one.value != PROCESSED for one in results)

    async def _add_agent(
        self, made: CopiedCall, id: str, run: ToolCallRun, address: Address, place: Address, copy: TurnCopy
    ) -> bool:
        """Add the sub-agent of a call; return whether it can run in the test as it did."""
        is_tool = run.id == f"{PREFIX}{id}" and run.mode == "ephemeral"
        result: Any = copy.results[made.id].value
        was_spawned = made.tool == SPAWN and isinstance(result, dict) and "result" in result  # the model waited for it
        if run.status != "completed" or not (is_tool or was_spawned):
            return False
        where = address.child(run.type, run.name)
        new = place.child(run.type, f"{PREFIX}{made.id}" if is_tool else run.name)
        try:
            tree, database = await self._call.read(where)
            kind = class_of(self._call, tree, where)
            turn = turn_copy(database, run.id)
            if turn is None:
                return False  # it has no conversation
            turn = copy_of(database, where, run.id, kind)
        except (NotFound, InvalidArguments):
            self.missing.append(f"the work of {where}, of which only the result is known")
            return False
        if kind is None or turn.status != "completed":
            return False
        records = TurnRecords.read(self._call, database, turn)
        at = len(self.agents)
        script = await self.script(where, new, turn, records, kind)
        self.agents.insert(at, RecordedAgent(new, script))  # before those below it
        return True


def _is_shown(one: CopiedCall, copy: TurnCopy, shown: TurnCopy) -> bool:
    """Return whether a call and its result have no secrets that the test leaves out."""
    calls = [call for step in shown.steps for call in step.calls]
    return one in calls and copy.results.get(one.id) == shown.results.get(one.id)


def class_of(call: AdminCall, tree: Tree, address: Address) -> AgentClass | None:
    """Return the class of an agent; `None` without the app."""
    try:
        return call.admin.lookup.kind(tree, address)
    except UnknownAgent:
        return None


def copy_of(database: Database, address: Address, turn: str, kind: AgentClass | None) -> TurnCopy:
    copy = turn_copy(database, turn)
    if copy is None:
        raise NotFound(f"{address} has no turn {turn!r}.", path=address.segments)
    if isinstance(copy, str):
        why = "it did not begin" if copy in ("skipped", "cancelled") else "wait until it has ended"
        raise InvalidArguments(f"The turn {turn!r} of {address} is {copy}: {why}.")
    if kind is not None and kind.overrides("respond"):
        raise InvalidArguments(f"{kind.cls.__name__} answers in respond(), so there is no model to script.")
    if not copy.steps and copy.status == "completed":
        raise InvalidArguments(f"The turn {turn!r} of {address} completed without a model, so there is none to script.")
    if not copy.asked:
        raise InvalidArguments(f"The message that the turn {turn!r} of {address} answers is deleted.")
    if any(step.continues for step in copy.steps) and copy.status != "completed":
        raise InvalidArguments(f"The turn {turn!r} of {address} was continued and then {copy.status}.")
    return copy
