"""Agents that the model uses as tools: they begin as soon as it has asked, and what becomes of them are the answers."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from sapwood import tracing
from sapwood.chat.models.genai_metrics import timed_tool
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.chat.store.turns import RUN_SOON
from sapwood.chat.store.turns import ToolCall as Called
from sapwood.chat.tools.agent_tools import AgentTool
from sapwood.chat.tools.persistent_children import Companions
from sapwood.chat.tools.tools import toolbox
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.call import Step, running_step
from sapwood.kernel.marshal.disclosure import for_clients
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.dispatch.results import Outcomes
from sapwood.runs.dispatch.run_request import RunRequest, ToolCall, tool_call
from sapwood.runs.tables.runs_table import shown

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage


class AgentToolCalls:
    """Gives the runs that tool calls of one conversation are."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        record = actor.of(ConversationRecord)
        self._turns, self._stream = record.turns, record.stream

    @property
    def _agents(self) -> Mapping[str, AgentTool]:
        return self._actor.of(toolbox).agents

    @property
    def _companions(self) -> Companions:
        return self._actor.of(Companions)

    def begin(self, row: TurnRow, asked: ModelMessage) -> None:
        """Have the agents begin that the model wants to use: they work beside our own tools."""
        place = 0
        for part in asked.parts:
            tool = self._agents.get(part.tool_name) if part.part_kind == "tool-call" else None
            if tool is None or part.part_kind != "tool-call":
                continue
            id = part.tool_call_id
            self._turns.ask_about(id, row.number, part.tool_name, part.args_as_json_str(), RUN_SOON)
            self._give(row, tool, id, part.args_as_json_str(), place)
            place += 1

    def wanted(self, row: TurnRow) -> list[tuple[str, str]]:
        """Give the runs that a turn waits for, or find them again; return each call with its run."""
        calls = [call for call in self._turns.calls(row.number) if call.answerer == "run" and call.is_open]
        given = [(call.id, self._given(row, call)) for call in calls]
        return [(call, run) for call, run in given if run is not None]

    def _given(self, row: TurnRow, call: Called) -> str | None:
        tool = self._agents.get(call.name)
        if tool is not None:
            return self._give(row, tool, call.id, call.input, is_known=True)
        return self._companions.waited_for(WorkId.run(row.id), call.id, call.name, msgspec.json.decode(call.input))

    def _give(
        self, row: TurnRow, tool: AgentTool, id: str, arguments: str, place: int = 0, *, is_known: bool = False
    ) -> str | None:
        """Give a run for a tool call, or find it again; return its id. None: the arguments do not fit.

        One that `is_known`, and is no more, was cleared away: the turn fails, and does not begin it once more.
        """
        try:
            given = tool.given(msgspec.json.decode(arguments))
        except (ValueError, msgspec.DecodeError) as error:
            self._turns.answer_call(id, "failed", f"The arguments are invalid: {error}", go_on=True)
            return None
        wish = RunRequest(
            tool_call=id, place=place, timeout=tool.timeout, display=tool.display, work=WorkId.run(row.id)
        )
        wish.client_tools = row.tools() if tool.client_tools else []
        runs = self._actor.of(Runs)
        if is_known:
            self._actor.of(Outcomes).row(runs.id_of(wish))
        return runs.give(tool.cls, given, wish).id

    def tell_refusal(self, id: str) -> None:
        """Send clients the failure of a call that began no run: its arguments do not fit."""
        call = self._turns.call(id)
        known = None if call is None else call.returned()
        if known is not None and known[1] == "failed":
            self._stream.put({"type": "tool-output-error", "toolCallId": id, "errorText": for_clients(known[0])})

    def answer(self, id: str, run_id: str) -> None:
        """Take what became of a run as the answer to a tool call."""
        call, run = self._turns.call(id), shown(self._actor.of(Outcomes).row(run_id))
        assert call is not None
        failure = None if run.ok else run.failure()
        if failure is None:
            try:
                tool = self._agents.get(call.name) or self._companions
                self._turns.answer_call(id, "done", tool.returned(run), go_on=True)
                return
            except ValueError as error:
                failure = {
                    "ok": False,
                    "status": "failed",
                    "error": f"The output of the agent is invalid: {error}",
                    "retryable": False,
                }
        self._turns.answer_call(id, "failed", msgspec.json.encode(failure).decode(), go_on=True)
        self._stream.put({"type": "tool-output-error", "toolCallId": id, "errorText": for_clients(failure["error"])})
        self._stream.flush()  # now: once it is answered, it is not sent again

    @contextmanager
    def within(self, row: TurnRow, id: str, name: str) -> Generator[None, None, None]:
        """Have the runs that are given in this block belong to a tool call."""
        actor = self._actor
        token = tool_call.set(ToolCall(actor, id, WorkId.run(row.id)))
        own = Step(actor.birthplace, actor.stem, f"turn {row.number}", row.created_at, f"tool {id}")
        step = running_step.set(own)
        try:
            with (
                tracing.span(f"execute_tool {name}", gen_ai__tool__name=name, gen_ai__tool__call__id=id),
                timed_tool(actor, name),
            ):
                yield
        finally:
            running_step.reset(step)
            tool_call.reset(token)
