"""When something last happened in a run, or in any run below it that it waits for.

Nothing is passed upward while runs progress. Callers look downward when a silence timeout is about to expire.
They read only agents that are awake, and wake none.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.dispatch.monitored_run import MonitoredRun
from sapwood.runs.dispatch.results import Outcomes
from sapwood.runs.execution.executor import RunExecutor


@dataclass(slots=True)
class Activity:
    """What is known of a run and of the runs below it."""

    said: float = 0.0
    """When one of them last said something or reported progress, as far as is known since a restart; 0 if none did."""
    has_spoken: bool = False
    """Whether one of them ever did, also before a restart."""
    changed: float = 0.0
    """When a run below last started, resumed after waiting for a person, ended or was given up; 0 if none did."""
    height: int = 0
    """How many levels of unfinished runs are below it."""

    @property
    def last(self) -> float:
        """When something last happened; 0 if nothing did."""
        return max(self.said, self.changed)


def activity_of(child: Actor | None, run: str) -> Activity:
    """Return when something last happened in a run that this agent executes, or below it."""
    found = Activity()
    _look(found, child, run, 0)
    return found


def _look(found: Activity, child: Actor | None, run: str, height: int) -> None:
    found.height = max(found.height, height)
    if child is None or child.dropped is not None:
        return
    served, outcomes = child.of(RunExecutor), child.of(Outcomes)
    found.said = max(found.said, served.last_heard.get(run, 0.0))
    last, spoken = outcomes.registry.last_ends_in(WorkId.run(run))
    found.has_spoken = found.has_spoken or spoken > 0 or served.has_spoken(run)
    found.changed, found.said = max(found.changed, last), max(found.said, spoken)
    for below in list(outcomes.followed.values()):
        if not below.given_up and outcomes.is_awaited(below.row, WorkId.run(run)):
            found.changed = max(found.changed, _began(below))
            _look(found, below.child, below.row.id, height + 1)


def _began(followed: MonitoredRun) -> float:
    """Return when a run started, or resumed after it waited for a person; not when its caller asked for it again."""
    return max(followed.row.started_at, followed.since) if followed.rested else followed.row.started_at
