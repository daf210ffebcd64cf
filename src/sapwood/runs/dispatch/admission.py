"""Whether another run may begin: so many at once, and so many in a minute, of an agent or of all below one together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sapwood.errors import OverLimit, StoredDataError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.trees.run_quota import MINUTE, RunQuota
from sapwood.kernel.trees.tree import Tree, tree_of
from sapwood.runs.tables.run_settings import RunSettings
from sapwood.runs.tables.runs_table import RunRow, RunsTable


@dataclass(frozen=True, slots=True)
class AdmissionRefusal:
    """That no other run may begin now."""

    error: OverLimit
    """Why."""
    until: float | None = None
    """When a run may start if nothing else changes. `None` means when another run ends, or never."""


class Allowance:
    """What one agent may have others do."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._settings: RunSettings = actor.agent
        self._registry = RunsTable(actor.database, actor.host.clock)
        self._idle: set[str] = set()
        """Agents that were seen to have no run under way."""
        self._begun: list[float] = []
        """When runs of this slice began, until the root knows."""

    @property
    def _tree(self) -> Tree:
        return tree_of(self._actor)

    @property
    def _givers(self) -> RunQuota:
        return self._tree.givers

    @property
    def _is_limited(self) -> bool:
        limits = self._actor.limits
        return limits.runs_at_once is not None or limits.runs_per_minute is not None

    def refusal(self) -> AdmissionRefusal | None:
        """Return why no other run may start, or `None` if one may."""
        most = self._settings.max_concurrent_runs
        if most is not None and (going := self._registry.count_open()) >= most:
            told = f"The agent has {going} unfinished runs, and the limit is max_concurrent_runs={most}."
            return AdmissionRefusal(OverLimit(told, limit="max_concurrent_runs"))
        if not self._is_limited:
            return None
        lineage = [*self._actor.lineage()][::-1]  # root first: those below inherit its limit, and are not to be named
        going = self._open() if self._actor.limits.runs_at_once is not None else []
        for one in lineage:
            limit, number = one.limits.runs_at_once, sum(count for count, above in going if one.stem in above)
            if limit is not None and number >= limit:
                return AdmissionRefusal(self._over(one, "runs_at_once", f"There are {number} unfinished runs", limit))
        return self._refusal_by_minute(lineage) if self._actor.limits.runs_per_minute is not None else None

    def _refusal_by_minute(self, lineage: list[Actor]) -> AdmissionRefusal | None:
        now = self._actor.host.clock.now()
        begun = self._givers.of_last_minute(now)
        for one in lineage:
            limit, times = one.limits.runs_per_minute, [at for at, above in begun if one.stem in above]
            if limit is None or len(times) < limit:
                continue
            what = f"{len(times)} runs started within a minute"
            if limit == 0:
                return AdmissionRefusal(self._over(one, "runs_per_minute", what, limit))
            until = times[-limit] + MINUTE
            return AdmissionRefusal(self._over(one, "runs_per_minute", what, limit, until - now), until)
        return None

    def begun(self, row: RunRow) -> None:
        """Note, in this slice, that a run has begun."""
        if not self._is_limited:
            return
        if self._actor.limits.runs_per_minute is not None:
            self._begun.append(row.started_at)
            stems = frozenset(one.stem for one in self._actor.lineage())
            self._givers.of_last_minute(row.started_at).append((row.started_at, stems))
        if self._actor.parent is None:
            self._note()
        else:
            # What is written here lands in one commit, and the root knows before it does.
            self._tree.slices.before_commit(f"giver {self._actor.stem}", self._note)

    def _note(self) -> None:
        """Have the root know that this agent has given a run, and forget those that have none any more."""
        idle, self._idle = self._idle, set()
        for stem in idle:
            if not self._open_of(stem):
                self._givers.forget(stem)
        begun, self._begun = self._begun, []
        self._givers.note(self._actor, begun)

    def _over(self, one: Actor, limit: str, what: str, allowed: int, wait: float | None = None) -> OverLimit:
        when = "" if wait is None else f" The next run may start in {math.ceil(wait)} seconds."
        return OverLimit(
            f"{what}, and the limit is Limits({limit}={allowed}) for {one.address} and all agents under it.{when}",
            path=one.address.segments,
            limit=limit,
            retry_after=wait,
        )

    def _open(self) -> list[tuple[int, frozenset[str]]]:
        """Return how many runs of each agent are not over, and whose limits they count for."""
        mine = frozenset(one.stem for one in self._actor.lineage())
        found = [(self._registry.count_open(), mine)]
        for stem, above in self._givers.all():
            if stem == self._actor.stem:
                continue
            if number := self._open_of(stem):
                found.append((number, above))
            else:
                self._idle.add(stem)
        return found

    def _open_of(self, stem: str) -> int:
        """Return how many runs of another agent of the tree are not over."""
        try:
            return RunsTable(self._tree.database(stem, self._actor.limits), self._actor.host.clock).count_open()
        except StoredDataError:
            return 0  # what cannot be read is not continued
