"""Whether another run may begin: so many at once, and so many in a minute, of an agent or of all below one together."""

from __future__ import annotations

from collections import deque
from typing import Any

from sapwood.errors import OverLimit, StoredDataError
from sapwood.kernel.actor import Actor
from sapwood.kernel.givers import Givers
from sapwood.kernel.tree import Tree
from sapwood.runs.registry import Registry, Row

MINUTE = 60.0


class Allowance:
    """What one agent may have others do."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._agent: Any = actor.agent
        self._registry = Registry(actor.database, actor.host.clock)
        self._idle: set[str] = set()
        """Agents that were seen to have no run under way."""

    @property
    def _tree(self) -> Tree:
        home = self._actor.home
        assert isinstance(home, Tree)
        return home

    @property
    def _givers(self) -> Givers:
        return self._tree.givers

    @property
    def _is_limited(self) -> bool:
        limits = self._actor.limits
        return limits.runs_at_once is not None or limits.runs_per_minute is not None

    def refusal(self) -> OverLimit | None:
        """Return why no other run may begin; None: it may."""
        most = self._agent.max_runs
        if most is not None and (going := self._registry.count_open()) >= most:
            return OverLimit(f"{going} runs are under way, and max_runs = {most} allows no more.", limit="max_runs")
        if not self._is_limited:
            return None
        lineage = [*self._actor.lineage()]
        going = self._open() if self._actor.limits.runs_at_once is not None else []
        for one in lineage:
            limit, number = one.limits.runs_at_once, sum(count for count, above in going if one.stem in above)
            if limit is not None and number >= limit:
                return self._over(one, "runs_at_once", f"{number} runs are under way", limit)
        begun = self._begun() if self._actor.limits.runs_per_minute is not None else ()
        for one in lineage:
            limit, number = one.limits.runs_per_minute, sum(one.stem in above for _, above in begun)
            if limit is not None and number >= limit:
                return self._over(one, "runs_per_minute", f"{number} runs have begun within a minute", limit)
        return None

    def begun(self, row: Row) -> None:
        """Note, in this slice, that a run has begun."""
        if not self._is_limited:
            return
        stems = frozenset(one.stem for one in self._actor.lineage())
        if self._givers.begun is not None:
            self._givers.begun.append((row.started_at, stems))
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
        self._givers.note(self._actor)

    def _over(self, one: Actor, limit: str, what: str, allowed: int) -> OverLimit:
        return OverLimit(
            f"{what}, and Limits({limit}={allowed}) for {one.address} and all below it allow no more.",
            path=one.address.steps,
            limit=limit,
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
            elif not self._begun_by(stem):
                self._idle.add(stem)
        return found

    def _of(self, stem: str) -> Registry | None:
        """Return the runs of another agent of the tree; None if they cannot be looked at now."""
        database = self._tree.database(stem, self._actor.limits)
        return None if database.busy_elsewhere else Registry(database, self._actor.host.clock)

    def _open_of(self, stem: str) -> int:
        last = self._givers.last_open
        if (registry := self._of(stem)) is not None:
            try:
                last[stem] = registry.count_open()
            except StoredDataError:
                last[stem] = 0  # nobody goes on with what cannot be read
        return last.get(stem, 0)

    def _begun_by(self, stem: str) -> list[float]:
        """Return when runs of an agent began within the last minute."""
        registry = self._of(stem)
        try:
            return [] if registry is None else registry.begun_since(self._actor.host.clock.now() - MINUTE)
        except StoredDataError:
            return []

    def _begun(self) -> deque[tuple[float, frozenset[str]]]:
        """Return when the runs of the last minute began, and whose limits they count for."""
        begun = self._givers.begun
        if begun is None:  # those of an earlier life
            stored = [(at, above) for stem, above in self._givers.all() for at in self._begun_by(stem)]
            begun = self._givers.begun = deque(sorted(stored, key=lambda one: one[0]))
        while begun and begun[0][0] <= self._actor.host.clock.now() - MINUTE:
            begun.popleft()
        return begun
