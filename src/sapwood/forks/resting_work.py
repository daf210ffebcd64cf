"""Which unfinished work of a fork only waits for people: it stays as it is, and continues after an answer in the fork.

Work rests if it waits for the answer to a question, or only for runs of sub-agents that rest, and no step of it has
begun beside that. What rests below is found first. Then what is above decides: the run of a turn that does not rest
stops with it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from sapwood.address import Address
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.forks.agent_work import AgentWork, OpenFiber, OpenRun, is_allowed, work_of_fiber
from sapwood.kernel.forks.forked_tree import ForkedAgent


@dataclass(slots=True)
class RestingWork:
    """What rests of the work of one agent."""

    turns: set[int] = field(default_factory=set[int])
    fibers: set[int] = field(default_factory=set[int])
    runs: set[str] = field(default_factory=set[str])
    """Unfinished runs that it has started."""
    served: set[str] = field(default_factory=set[str])
    """Unfinished runs that it executes."""


def resting_work(root: ForkedAgent, works: dict[Address, AgentWork], *, was_root: bool) -> dict[Address, RestingWork]:
    """Return what rests in each agent of a fork. `was_root`: its root was a root before, so no parent waits for it."""
    found = {address: RestingWork() for address in works}
    agents = [agent for agent in root.below() if agent.address in works]
    for agent in reversed(agents):  # children before their parents
        found[agent.address] = _Rest(works[agent.address], found).of_agent()
    if not was_root and root.address in works:
        found[root.address].served.clear()
    for agent in agents:
        _end_unwanted(works[agent.address], found)
    return found


class _Rest:
    """Looks for what rests in one agent, whose children are known."""

    def __init__(self, work: AgentWork, found: dict[Address, RestingWork]) -> None:
        self._work = work
        self._found = found

    def of_agent(self) -> RestingWork:
        work, rest = self._work, RestingWork()
        rest.runs = {run.id for run in work.runs if self._rests_below(run)}
        for turn in work.turns:
            if self._turn_rests(turn, rest.runs):
                rest.turns.add(turn.number)
                if turn.run is not None:
                    rest.served.add(turn.run)
        for run in work.served:
            fiber = work.serving_fiber(run)
            if fiber is None or work.is_busy(fiber):
                continue
            if self._asks(fiber.number, run) or self._waits_for_resting(run, rest.runs):
                rest.served.add(run)
                rest.fibers.add(fiber.number)
        for fiber in work.fibers:
            if not fiber.is_internal and not work.is_busy(fiber) and self._fiber_rests(fiber, rest.runs):
                rest.fibers.add(fiber.number)
        return rest

    def _rests_below(self, run: OpenRun) -> bool:
        child = self._found.get(self._work.agent.address.child(run.type, run.name))
        return run.remote is None and child is not None and run.id in child.served

    def _turn_rests(self, turn: TurnRow, runs: Collection[str]) -> bool:
        calls = self._work.calls_of(turn)
        if turn.cancelled is not None or turn.waits_for_limit:
            return False
        if turn.status == "waiting":
            return any(call.is_open or call in self._work.reopened for call in calls)
        if any(is_allowed(call) for call in calls):
            return False  # a tool that a person allowed runs, or is about to
        if turn.status != "running" or self._work.driving_fiber(turn) is None:
            return False
        resting = {run.tool_call for run in self._work.runs if run.id in runs}
        unanswered = [call for call in calls if call.status not in ("done", "failed") and call.answer is None]
        return bool(unanswered) and all(call.answerer == "run" and call.id in resting for call in unanswered)

    def _fiber_rests(self, fiber: OpenFiber, runs: Collection[str]) -> bool:
        return self._asks(fiber.number) or self._waits_for_resting(work_of_fiber(fiber), runs)

    def _asks(self, fiber: int, run: str | None = None) -> bool:
        return any(one.fiber == fiber or (run is not None and one.run == run) for one in self._work.questions)

    def _waits_for_resting(self, work: str, runs: Collection[str]) -> bool:
        waited_for = self._work.runs_of(work)
        return bool(waited_for) and all(run.id in runs for run in waited_for)


def _end_unwanted(work: AgentWork, found: dict[Address, RestingWork]) -> None:
    """Keep what rests in an agent if all above it does, too. That was found out before, up to the runs it executes."""
    rest = found[work.agent.address]
    rest.turns = {
        one.number for one in work.turns if one.number in rest.turns and (one.run is None or one.run in rest.served)
    }
    for run in work.served:
        if run not in rest.served and (fiber := work.serving_fiber(run)) is not None:
            rest.fibers.discard(fiber.number)
    kept = {turn.id for turn in work.turns if turn.number in rest.turns} | rest.served
    kept |= {work_of_fiber(fiber) for fiber in work.fibers if fiber.number in rest.fibers}
    wanted = [
        run
        for run in work.runs
        if run.id in rest.runs and (run.work is None or run.work in kept) and work.following_fiber(run) is not None
    ]
    rest.runs = {run.id for run in wanted}
    for child in work.agent.children:
        if child.address in found:
            segment = child.address.segments[-1]
            found[child.address].served &= {run.id for run in wanted if (run.type, run.name) == segment[:2]}
