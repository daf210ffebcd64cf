"""Deletes finished runs that retention no longer keeps, and none that is still needed.

A sweep is a schedule of the agent's own. It exists only while a run will have to be deleted,
so no agent is woken in vain. Each run is deleted as by `runs.clear`: its row and the tombstone
of its sub-agent in one commit, the files after it. A sweep that dies is started again, and
deletes the rest.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from sapwood.capabilities.call_rows import CALLS
from sapwood.capabilities.due_work import Agenda
from sapwood.capabilities.fiber_rows import FIBERS
from sapwood.capabilities.schedules import Schedules
from sapwood.errors import StoredDataError, Unavailable, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.ports.work_id import WorkId
from sapwood.kernel.trees.tree import tree_of
from sapwood.retention import Retention
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.dispatch.results import Outcomes
from sapwood.runs.execution.clients import RunClients
from sapwood.runs.execution.executor import FOLLOW, RunExecutor, following
from sapwood.runs.tables.disk_usage import held_below
from sapwood.runs.tables.retention import rule_of, rules_of
from sapwood.runs.tables.run_settings import RunSettings
from sapwood.runs.tables.runs_table import RunRow
from sapwood.when import At

KEY = "sapwood sweep"
PAUSE = 60.0
"""Seconds from the end of a run, or of a sweep, to the next sweep: runs that end in between are swept together."""
SLACK = 0.01
"""Which part of its age a run may be kept longer, so that many go together."""
LONGEST_PAUSE = 86400.0
"""Seconds until to look again, at the latest, at what has to go and is still needed."""
AT_WORK = {
    FIBERS: "SELECT 1 FROM sapwood_fibers WHERE due_at IS NOT NULL LIMIT 1",
    CALLS: "SELECT 1 FROM sapwood_calls WHERE queue IS NOT NULL LIMIT 1",
}
"""Finds work that an agent has started or is about to start. Its schedules do not count: they may have no end."""
OVER = "status NOT IN ('queued', 'running') AND mode = 'ephemeral' AND NOT pinned"
"""What may have to go: the index of such rows has all that is asked of them."""


@dataclass(slots=True)
class Group:
    """The finished runs that one rule is for."""

    owner: type | None
    """The class of the agents that executed them, or a base class. `None` means all."""
    rule: Retention
    types: list[str] = field(default_factory=list[str])
    count: int = 0
    bytes: int = 0
    oldest: float = float("inf")
    """When the first of them was over."""

    def has_too_many(self, count: int, bytes: int, ended_at: float, now: float) -> bool:
        """Return whether the oldest of so many, with so many bytes, has to go."""
        rule = self.rule
        if count <= rule.last:
            return False
        if (rule.count is not None and count > rule.count) or (rule.bytes is not None and bytes > rule.bytes):
            return True
        return rule.age is not None and ended_at + rule.age.total_seconds() <= now

    def due(self, now: float) -> float | None:
        """Return when the next of them is due, or `None` if none is before another run has ended."""
        if self.has_too_many(self.count, self.bytes, self.oldest, now):
            return now + PAUSE
        if self.rule.age is None or self.count <= self.rule.last:
            return None
        age = self.rule.age.total_seconds()
        return max(self.oldest + age, now + max(PAUSE, age * SLACK))


class Sweeper:
    """Takes away what one agent does not have to keep of the runs it gave."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._settings: RunSettings = actor.agent
        self._db = actor.database
        self._runs = actor.of(Runs)
        self._outcomes = actor.of(Outcomes)
        self._sweeping = False

    def pin(self, id: str, is_pinned: bool) -> bool:
        """Have a run be kept whatever the rule says, or no longer; return whether there is one."""
        self._actor.check_use()
        row = self._runs.registry.get(id)
        if row is None:
            return False
        self._runs.registry.set(id, pinned=int(is_pinned))
        if not is_pinned:
            self._look_in_time()
        return True

    async def run_ended(self) -> None:
        """Schedule a sweep for when a run that has just ended, or an older one, is due."""
        if any(rule.is_limited for rule in rules_of(self._settings.run_retention)):
            self._look_in_time()

    def _look_in_time(self) -> None:
        """Have a sweep come when something has to go, if none comes before."""
        now = self._actor.host.clock.now()
        times = [due for group in self._groups() if (due := group.due(now)) is not None]
        if times and not self._sweeping:  # else it looks itself, last of all
            self._look_by(min(times))

    def _look_by(self, due: float) -> None:
        schedules = self._actor.of(Schedules)
        known = schedules.get(KEY)
        if known is None or known.due_at.timestamp() > due + 1 or self._sweeping:
            schedules.add(At(datetime.fromtimestamp(due, UTC), key=KEY), self._actor.agent._sapwood_sweep_runs, (), {})

    async def sweep(self) -> None:
        """Take away what has to go, and have the next sweep come in time."""
        self._sweeping = True
        try:
            needed = [row for group in self._groups() for row in await self._sweep(group)]
            self._actor.check_live()
            now = self._actor.host.clock.now()
            times = [due for group in self._groups() if (due := group.due(now)) is not None]
            if needed:  # no event says when they are no longer needed: look again, at growing intervals
                since = max(now - min(row.ended_at or now for row in needed), PAUSE)
                times = [max(min(times, default=now), now + min(since, LONGEST_PAUSE))]
            if times:
                self._look_by(min(times))
        finally:
            self._sweeping = False

    async def _sweep(self, group: Group) -> list[RunRow]:
        """Take away what has to go by one rule; return what had to, but is needed still."""
        if group.rule.bytes is not None:
            await self._measure(group)
        needed: list[RunRow] = []
        after = (-1.0, 0)
        while page := self._oldest(group, after):
            now = self._actor.host.clock.now()
            tallied = next((one for one in self._groups() if one.owner is group.owner), None)
            if tallied is None:
                break
            # Those that are still needed count as gone: no others are deleted in their place.
            count = tallied.count - len(needed)
            size = tallied.bytes - sum(row.bytes for row in needed)
            going: list[int] = []
            for ended_at, number, held in page:
                if not tallied.has_too_many(count, size, ended_at, now):
                    break
                going.append(number)
                after, count, size = (ended_at, number), count - 1, size - held
            rows = [row for number in going for row in self._runs.registry.find("WHERE number = ?", number)]
            needed += [row for row in rows if self._is_needed(row)]
            gone = self._runs.clear([row.id for row in rows if not self._is_needed(row)])
            if gone:
                await asyncio.shield(asyncio.gather(*gone))
            if len(going) < len(page):
                break
            await asyncio.sleep(0)
            self._actor.check_live()
        return needed

    def _groups(self) -> list[Group]:
        """Return the finished runs, by the rules that are for them; those that nothing limits are left out."""
        if not self._runs.registry.exists:
            return []
        groups: dict[type | None, Group] = {}
        for type_, count, size, oldest in self._db.execute(
            f"SELECT type, count(*), sum(bytes), min(ended_at) FROM sapwood_runs WHERE {OVER} GROUP BY type"  # noqa: S608 - ours
        ):
            owner, rule = rule_of(self._settings.run_retention, self._class_of(type_))
            if rule.is_limited:
                group = groups.setdefault(owner, Group(owner, rule))
                group.types.append(type_)
                group.count, group.bytes = group.count + count, group.bytes + size
                group.oldest = min(group.oldest, oldest)
        return list(groups.values())

    def _class_of(self, type_: str) -> type | None:
        tree = tree_of(self._actor)
        try:
            return tree.kind_of(type_, self._actor.kind).cls
        except UsageError:  # it is no more
            return None

    def _oldest(self, group: Group, after: tuple[float, int]) -> list[tuple[float, int, int]]:
        """Return the next runs that may have to go, oldest first: when each was over, its number, and what it holds."""
        return self._db.execute(
            f"SELECT ended_at, number, bytes FROM sapwood_runs WHERE {OVER} AND (ended_at, number) > (?, ?)"  # noqa: S608 - ours
            " AND type IN (SELECT value FROM json_each(?)) ORDER BY ended_at, number LIMIT ?",
            *after,
            msgspec.json.encode(group.types).decode(),
            self._actor.host.timings.run_cleanup_batch,
        )

    def _is_needed(self, row: RunRow) -> bool:
        """Return whether a run is still needed by code that waits for it, is notified of it, or may start it again."""
        if row.is_open or row.pinned or row.id in self._outcomes.followed or self._outcomes.waited_for[row.id]:
            return True
        agenda = self._actor.of(Agenda)
        return (
            ((work := row.work_id) is not None and self._actor.of(RunExecutor).goes_on(work))
            or (row.created_by is not None and agenda.is_under_way(WorkId.parse(row.created_by)))
            or agenda.fibers.is_under_way(following(row.id), FOLLOW)
            or bool(agenda.calls.rows.find("WHERE queue = ? LIMIT 1", f"run {row.id}"))
            or self._is_at_work(row)
        )

    def _is_at_work(self, row: RunRow) -> bool:
        """Return whether the sub-agent of a run has more to do: a turn with a client, a fiber, a queue."""
        tree = tree_of(self._actor)
        try:
            types = self._actor.of(RunClients).types_of(row)
            if any(tree.questions.has(self._actor.address.child(type_, row.name)) for type_ in types):
                return True  # it has asked a question, and nothing of it is under way until the answer
            database = self._actor.of(RunClients).database_of(row.id)
            if database is None:
                return False
            return any(database.has(schema) and database.execute(at_work) for schema, at_work in AT_WORK.items())
        except StoredDataError:  # what cannot be read does not continue
            return False
        except Unavailable:  # it cannot be read now
            return True

    async def _measure(self, group: Group) -> None:
        """See what the sub-agents hold by now: people may have talked to them since they were done."""
        tree = tree_of(self._actor)
        if not self._actor.registry.count():
            return
        rows = self._db.execute(
            "SELECT run.id, child.generation, run.bytes FROM sapwood_runs AS run JOIN sapwood_children AS child"  # noqa: S608 - ours
            f" ON child.name = run.name AND child.type = run.type AND child.deleted_at IS NULL WHERE {OVER}"
            " AND run.type IN (SELECT value FROM json_each(?))",
            msgspec.json.encode(group.types).decode(),
        )
        generations = [generation for _, generation, _ in rows]
        sizes = await self._actor.host.offload.in_thread(
            self._actor, held_below, (tree.folder, self._actor.stem, generations), {}
        )
        self._actor.check_live()
        for (id, _, before), size in zip(rows, sizes, strict=True):
            if size != before:
                self._runs.registry.set(id, bytes=size)
