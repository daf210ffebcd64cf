"""The unfinished work of one agent, as its file has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Self

from sapwood.capabilities.call_rows import CALLS
from sapwood.capabilities.fiber_rows import FIBERS, UNTIL_WOKEN
from sapwood.capabilities.steps import BEGUN, STEPS
from sapwood.chat.store.record import DRIVE, driving
from sapwood.chat.store.transcript import CHAT
from sapwood.chat.store.turn_rows import ToolCall, TurnRow
from sapwood.chat.store.turns import ALL as ALL_TURNS
from sapwood.chat.store.turns import ALL_CALLS, IS_OPEN
from sapwood.kernel.forks.forked_tree import ForkedAgent
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.backends.method_backend import SERVE, serving
from sapwood.runs.execution.executor import FOLLOW, following
from sapwood.runs.tables.executed_runs_table import SERVED
from sapwood.runs.tables.own_questions import OWN_QUESTIONS
from sapwood.runs.tables.runs_table import RUNS
from sapwood.runs.tables.work_column import stored_work
from sapwood.storage.offline_edit import OfflineEdit

INTERNAL = "_sapwood_"
"""The prefix of the framework's own methods."""


class OpenFiber(NamedTuple):
    """A fiber that has not ended."""

    number: int
    name: str
    method: str | None

    @property
    def is_internal(self) -> bool:
        return self.method is not None and self.method.startswith(INTERNAL)


class OpenRun(NamedTuple):
    """An unfinished run that the agent has started."""

    number: int
    id: str
    work: str | None
    tool_call: str | None
    type: str
    name: str
    remote: str | None


class OpenQuestion(NamedTuple):
    """An open question that the agent's code asks."""

    id: str
    fiber: int
    run: str | None


@dataclass(slots=True)
class AgentWork:
    """What one agent has begun and not finished, and what it has to do."""

    agent: ForkedAgent
    turns: list[TurnRow] = field(default_factory=list[TurnRow])
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])
    fibers: list[OpenFiber] = field(default_factory=list[OpenFiber])
    runs: list[OpenRun] = field(default_factory=list[OpenRun])
    served: list[str] = field(default_factory=list[str])
    """The unfinished runs that the agent executes."""
    questions: list[OpenQuestion] = field(default_factory=list[OpenQuestion])
    calls: int = 0
    """Scheduled and queued calls."""
    reopened: list[ToolCall] = field(default_factory=list[ToolCall])
    """Tool calls that a person has allowed, and that have not begun. Their turns wait for other answers. In a fork,
    they are asked again."""
    busy: set[str] = field(default_factory=set[str])
    """The works that have begun a step beside what they wait for."""
    due: float | None = None
    """When the first of them, or a fiber, is due."""
    has_dead_letters: bool = False

    @classmethod
    def read(cls, agent: ForkedAgent, edit: OfflineEdit) -> Self:
        """Read the work of an agent."""
        work, dues = cls(agent), list[float | None]()
        if edit.has(CALLS):
            ((work.calls, due),) = edit.execute("SELECT count(*), min(due_at) FROM sapwood_calls")
            dues.append(due)
            work.has_dead_letters = bool(edit.execute("SELECT 1 FROM sapwood_dead_letters LIMIT 1"))
        if edit.has(FIBERS):
            rows = edit.execute("SELECT number, name, method FROM sapwood_fibers WHERE due_at IS NOT NULL")
            work.fibers = [OpenFiber(*row) for row in rows]
            ((due,),) = edit.execute("SELECT min(due_at) FROM sapwood_fibers WHERE due_at < ?", UNTIL_WOKEN)
            dues.append(due)
        if edit.has(CHAT):
            work.turns = [TurnRow(*row) for row in edit.execute(f"{ALL_TURNS} WHERE {IS_OPEN} ORDER BY number")]
            work.tool_calls = [ToolCall(*row) for row in edit.execute(ALL_CALLS)] if work.turns else []
            waiting = {turn.number for turn in work.turns if turn.status == "waiting"}
            work.reopened = [call for call in work.tool_calls if call.turn in waiting and is_allowed(call)]
        if edit.has(RUNS):
            rows = edit.execute(
                "SELECT number, id, work, tool_call, type, name, remote FROM sapwood_runs"
                " WHERE status IN ('queued', 'running') ORDER BY number"
            )
            work.runs = [OpenRun(*row) for row in rows]
        if edit.has(SERVED):
            rows = edit.execute("SELECT id FROM sapwood_served_runs WHERE status = 'running'")
            work.served = [id for (id,) in rows]
        if edit.has(OWN_QUESTIONS):
            rows = edit.execute("SELECT id, fiber, run FROM sapwood_own_questions WHERE answer IS NULL")
            work.questions = [OpenQuestion(*row) for row in rows]
        if edit.has(STEPS):
            rows = edit.execute(
                "SELECT DISTINCT work FROM sapwood_steps WHERE substr(name, 1, ?) = ?", len(BEGUN), BEGUN
            )
            work.busy = {busy for (busy,) in rows}
        work.due = min((due for due in dues if due is not None), default=None)
        return work

    @property
    def has_any(self) -> bool:
        """Whether anything of it may act by itself."""
        return bool(self.turns or self.fibers or self.runs or self.served or self.questions or self.calls)

    def is_busy(self, fiber: OpenFiber) -> bool:
        """Return whether a step of a fiber has begun, and nothing of it is stored: to continue repeats it."""
        return not self.busy.isdisjoint({str(WorkId.fiber(fiber.number)), str(WorkId.recovery(fiber.number))})

    def calls_of(self, turn: TurnRow) -> list[ToolCall]:
        """Return the tool calls of a turn."""
        return [call for call in self.tool_calls if call.turn == turn.number]

    def runs_of(self, work: str) -> list[OpenRun]:
        """Return the unfinished runs that a turn, a run or a fiber waits for."""
        return [run for run in self.runs if run.work == work]

    def serving_fiber(self, run: str) -> OpenFiber | None:
        """Return the fiber in which a method executes a run."""
        return next((one for one in self.fibers if one.method == SERVE and one.name == serving(run)), None)

    def driving_fiber(self, turn: TurnRow) -> OpenFiber | None:
        """Return the fiber that drives a turn."""
        return next((one for one in self.fibers if one.method == DRIVE and one.name == driving(turn.number)), None)

    def following_fiber(self, run: OpenRun) -> OpenFiber | None:
        """Return the fiber that follows a run."""
        return next((one for one in self.fibers if one.method == FOLLOW and one.name == following(run.id)), None)


def is_allowed(call: ToolCall) -> bool:
    """Return whether a person has allowed a tool call that has not ended."""
    if call.answer is None or call.status in ("done", "failed"):
        return False
    return call.returned() is None


def work_of_fiber(fiber: OpenFiber) -> str:
    """Return how runs name the fiber that waits for them."""
    return stored_work(WorkId.fiber(fiber.number))
