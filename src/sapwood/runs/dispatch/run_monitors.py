"""The monitors of the runs that one agent has started: each unfinished run is followed by its own fiber."""

from __future__ import annotations

from sapwood.capabilities.due_work import Agenda
from sapwood.capabilities.steps import Work
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.marshal.call import current
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.dispatch.results import Outcomes, RunCleared
from sapwood.runs.dispatch.run_monitor import RunMonitor
from sapwood.runs.execution.executor import FOLLOW, RunExecutor, following
from sapwood.runs.tables.inputs import PendingInputs
from sapwood.runs.tables.runs_table import HARD


class RunMonitors:
    """Starts, finds and wakes the monitors of the runs of one agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._outcomes = actor.of(Outcomes)
        self._inputs = actor.of(PendingInputs).by_run
        self._kinds: dict[str, AgentClass] = {}

    def take_input(self, id: str, kind: AgentClass, text: bytes) -> None:
        """Keep the class and the input of a run until its sub-agent takes them."""
        self._kinds[id], self._inputs[id] = kind, text
        if (followed := self._outcomes.followed.get(id)) is not None:
            followed.take_input()

    def forget(self, id: str) -> None:
        """A run is no more."""
        for what in (self._outcomes.followed, self._inputs, self._kinds):
            what.pop(id, None)

    def launch(self, id: str) -> None:
        """Start the fiber that follows a run."""
        self._actor.of(Agenda).fibers.launch(following(id), FOLLOW, id)

    def launch_again(self, id: str) -> None:
        """Follow a run that is not followed now, because it rests or was abandoned."""
        if not self.wake(id):
            self.launch(id)

    def rests(self, id: str) -> bool:
        """Return whether a run is not followed in memory because it waits for an answer."""
        return self._actor.of(Agenda).fibers.is_asleep(following(id), FOLLOW)

    def wake(self, id: str) -> bool:
        """Have a run followed again that rests; return whether it did."""
        return self._actor.of(Agenda).fibers.wake(following(id), FOLLOW)

    def all_wait(self, work: WorkId) -> bool:
        """Return whether this waits for runs, all of which wait for answers."""
        rows = [row for row in self._outcomes.registry.open() if self._outcomes.is_awaited(row, work)]
        return bool(rows) and all(self.waits(row.id) for row in rows)

    def waits(self, id: str) -> bool:
        """Return whether a run, or a run below it, waits for an answer."""
        followed = self._outcomes.followed.get(id)
        if followed is None:
            return self.rests(id)
        child = followed.child
        if child is None or child.dropped is not None:
            return False
        return child.of(RunExecutor).worker.waits(id)

    async def follow(self, id: str) -> None:
        """Follow a run to its end, as a fiber."""
        row = self._outcomes.registry.get(id)
        if id in self._outcomes.followed or row is None or row.status in HARD:
            return
        call = current.get()
        rested = call is not None and isinstance(call.work, Work) and call.work.resumed
        monitor = self._outcomes.followed[id] = RunMonitor(self._actor, row, self._kinds, rested=rested)
        try:
            await monitor.follow()
        except RunCleared:
            pass
        finally:
            if monitor.is_followed:
                self.forget(id)
            self._outcomes.changed(id)
