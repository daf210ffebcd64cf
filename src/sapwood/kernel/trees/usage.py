"""What the agents of a tree use of models, counted once, at its root, and refused before it is too much.

What a request may use at most is reserved before it is sent, and exchanged for what it has
used when that is known. It counts in the period in which it becomes known. Reservations are
only in memory: requests die with the process. What was used is stored right after the agent
has stored it of its turn, and before that ends. So if the process died in between, the process
that continues the turn corrects it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, NamedTuple

import msgspec

from sapwood.address import Address
from sapwood.errors import Path, SapwoodError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.durability.slices import Slices
from sapwood.kernel.marshal.call import current
from sapwood.kernel.ports.durability import Gate
from sapwood.kernel.trees.budgets import NANO, Budget, Extensible, ModelRequest, budgets_of
from sapwood.kernel.trees.hourly_usage import Hour, HourlyUsage
from sapwood.kernel.trees.limit_extensions import LimitExtensions, period_of
from sapwood.kernel.trees.period_usage import PeriodTotal, PeriodUsage
from sapwood.kernel.trees.tree_index import TreeIndex
from sapwood.periods import Per
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

log = logging.getLogger(__name__)

SPENDING = Schema("sapwood.kernel", "spending")
ALL_BELOW = "*"
"""Instead of a run: all that an agent and those below it have used."""
SUMS = "sum(requests), sum(input_tokens), sum(output_tokens), sum(nanodollars), sum(unpriced)"


class Spent(NamedTuple):
    """Requests to a model, and what they have used."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    nanodollars: int = 0
    """What those cost whose price is known."""
    unpriced: int = 0
    """Number of requests with an unknown price."""

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def cost(self) -> float | None:
        """In dollars, or `None` if a part has an unknown price."""
        return None if self.unpriced else self.nanodollars / NANO

    def plus(self, other: Spent, sign: int = 1) -> Spent:
        return Spent(*(one + sign * more for one, more in zip(self, other, strict=True)))

    def told(self) -> dict[str, float | None]:
        """Return it as users see it."""
        tokens = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return {"requests": self.requests, **tokens, "cost": self.cost}


Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
"""A number that another server claims: it cannot lower an account, and sums of them fit into SQLite."""


class UsageReport(msgspec.Struct):
    """The same, as users see it, and other servers tell it."""

    requests: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0
    cost: Annotated[float, msgspec.Meta(ge=0, le=10**6)] | None = None

    def __post_init__(self) -> None:
        if self.cost is not None and not isfinite(self.cost):
            raise ValueError(f"cost must be a number, got {self.cost}")

    def spent(self) -> Spent:
        unpriced = self.requests if self.cost is None else 0
        return Spent(self.requests, self.input_tokens, self.output_tokens, round((self.cost or 0) * NANO), unpriced)


Claims = Annotated[dict[Annotated[str, msgspec.Meta(max_length=200)], UsageReport], msgspec.Meta(max_length=100)]
"""What another server claims that a run has used, by model."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one agent has used of one model in one run."""

    agent: Path
    """The steps of the agent, root first."""
    run: str | None
    """The run it did, or the turn if that was no run. `None` means all turns of a root."""
    model: str
    """Who answered, as the provider calls it."""
    requests: int
    """How often it was asked and began to answer."""
    input_tokens: int
    """What it has read."""
    output_tokens: int
    """What it has written."""
    cost: float | None
    """In dollars, or `None` if the price is unknown."""


@dataclass(slots=True, eq=False)
class Reservation:
    """What a request that is under way may use at most."""

    actor: Actor
    stems: frozenset[str]
    """Those whose limits it counts for."""
    tokens: int
    nanodollars: int


class UsageMeter(TreeIndex):
    """The account of one tree."""

    def __init__(self, root: Database, slices: Slices, gate: Gate) -> None:
        super().__init__(root, slices, gate)
        self._reserved: set[Reservation] = set()
        self._periods = PeriodUsage(root)
        self.hours = HourlyUsage(root)
        self.extensions = LimitExtensions(root, slices, gate)
        """What people have allowed beside the limits."""

    def reserve(self, actor: Actor, tokens: int, nanodollars: int | None, model: str) -> Reservation:
        """Set aside what a request may use at most, or refuse it; `nanodollars` is `None` if the price is unknown.

        Raises `Extensible` if only limits refuse it that a person may extend.
        """
        self._reserved = {one for one in self._reserved if one.actor.dropped is None}
        request = ModelRequest(actor, model, tokens, nanodollars)
        extensible: Extensible | None = None
        for budget in budgets_of(actor):
            try:
                self._check(budget, request)
            except Extensible as reached:
                extensible = extensible or reached
        if extensible is not None:
            raise extensible
        stems = frozenset(one.stem for one in actor.lineage())
        reservation = Reservation(actor, stems, tokens, nanodollars or 0)
        self._reserved.add(reservation)
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Nothing more comes of a request."""
        self._reserved.discard(reservation)

    def _check(self, budget: Budget, request: ModelRequest) -> None:
        """Refuse a request that does not fit into a limit: requests under way count in the period they end in."""
        stem, limit = budget.owner.stem, budget.limit
        now = request.actor.host.clock.now()
        spent = self._periods.of(stem, limit, now) if isinstance(limit, Per) else self.of(stem)
        reserved = sum(getattr(one, budget.unit) for one in self._reserved if stem in one.stems)
        extra = 0
        if isinstance(limit, Per) and limit.extend_by is not None:
            extra = self.extensions.granted(period_of(budget, now).key)
        budget.check(request, getattr(spent, budget.unit), reserved, extra)

    def add(self, actor: Actor, run: str, model: str, spent: Spent) -> None:
        """Count what was used, here and for all agents above."""
        if not any(spent):
            return
        self._warn(actor, spent)
        self._begin(SPENDING)
        rows = [(actor.stem, run, model, str(actor.address), *spent)]
        rows += [(one.stem, ALL_BELOW, model, str(one.address), *spent) for one in actor.lineage()]
        marks = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?)"] * len(rows))
        self._root.execute(
            f"INSERT INTO sapwood_spending VALUES {marks} ON CONFLICT (agent, run, model) DO UPDATE SET"  # noqa: S608 - marks
            " requests = requests + excluded.requests, input_tokens = input_tokens + excluded.input_tokens,"
            " output_tokens = output_tokens + excluded.output_tokens,"
            " nanodollars = nanodollars + excluded.nanodollars, unpriced = unpriced + excluded.unpriced,"
            " path = excluded.path",
            *(value for row in rows for value in row),
        )
        self._add_to_periods(actor, spent)
        call = current.get()
        user = None if call is None else call.user
        self.hours.add(Hour.at(actor.host.clock.now(), actor.address.type, model, user), spent)
        self._commit_before(actor.database)  # no process corrects it once the turn is over

    def _warn(self, actor: Actor, spent: Spent) -> None:
        """Have agents warned whose limits come near. They store that before the count is stored, so none is lost.

        A power cut may keep the count and lose the warning: the next request of the period warns again. The root cannot
        wait for the agent's file to reach the disk, because files of agents wait for the root's.
        """
        now, used = actor.host.clock.now(), _in_period(spent)
        for budget in budgets_of(actor) if any(used) else ():
            owner, limit = budget.owner, budget.limit
            if not isinstance(limit, Per) or limit.warn_at is None:
                continue
            before = self._periods.of(owner.stem, limit, now)
            total = getattr(before, budget.unit) + getattr(used, budget.unit)
            if (warning := budget.warning(total)) is None:
                continue
            try:
                owner.hooks.limit_near(warning)
            except SapwoodError as error:  # its database cannot be written: the usage counts all the same
                log.warning("limit warning not stored address=%s: %s", owner.address, error)

    def _add_to_periods(self, actor: Actor, spent: Spent) -> None:
        """Count what was used in the current period of each limit that has periods."""
        now, used = actor.host.clock.now(), _in_period(spent)
        calendars = {
            (budget.owner.stem, budget.limit.period, budget.limit.zone): budget.limit
            for budget in (budgets_of(actor) if any(used) else ())
            if isinstance(budget.limit, Per)
        }
        for (stem, _, _), per in calendars.items():
            self._periods.add(stem, per, now, used)

    def put_right(self, actor: Actor, run: str, by_model: Mapping[str, Spent]) -> None:
        """Have the count be what the agent itself has stored of a run: the process may have died in between.

        A loss of power may also have kept the count and lost what the agent had stored: then it is too much.
        """
        for model in {*by_model, *self._models(actor.stem, run)}:
            counted = self._find("agent = ? AND run = ? AND model = ?", actor.stem, run, model)
            self.add(actor, run, model, by_model.get(model, Spent()).plus(counted, -1))

    def _models(self, stem: str, run: str) -> list[str]:
        """Return the models that are counted for a run."""
        if not self._root.has(SPENDING):
            return []
        rows = self._root.execute("SELECT model FROM sapwood_spending WHERE agent = ? AND run = ?", stem, run)
        return [model for (model,) in rows]

    def of(self, stem: str) -> Spent:
        """Return what an agent and all below it have used."""
        return self._find("agent = ? AND run = ?", stem, ALL_BELOW)

    def _find(self, where: str, *arguments: str) -> Spent:
        if not self._root.has(SPENDING):
            return Spent()
        (row,) = self._root.execute(f"SELECT {SUMS} FROM sapwood_spending WHERE {where}", *arguments)  # noqa: S608 - ours
        return Spent(*(value or 0 for value in row))

    def by_model(self, stem: str, *, below: bool) -> dict[str, Spent]:
        """Return what an agent has used of each model, with all `below` it or alone."""
        if not self._root.has(SPENDING):
            return {}
        rows = self._root.execute(
            f"SELECT model, {SUMS} FROM sapwood_spending WHERE agent = ? AND (run = '*') = ? GROUP BY model",  # noqa: S608 - ours
            stem,
            int(below),
        )
        return {model: Spent(*spent) for model, *spent in rows}

    def by_agent(self, address: Address) -> Iterator[tuple[Address, str, Spent]]:
        """Yield what an agent and those below it that still exist have used of each model, all runs together."""
        if not self._root.has(SPENDING):
            return
        path = str(address)
        rows = self._root.execute(
            f"SELECT path, model, {SUMS} FROM sapwood_spending"  # noqa: S608 - ours
            " WHERE run <> '*' AND (path = ? OR substr(path, 1, ?) = ?) GROUP BY path, model",
            path,
            len(path) + 1,
            f"{path}/",
        )
        for owner, model, *spent in rows:
            yield Address.parse(owner), model, Spent(*spent)

    def rows(self, address: Address) -> list[Usage]:
        """Return what an agent and those below it that still exist have used, one row per run and model."""
        if not self._root.has(SPENDING):
            return []
        path = str(address)
        rows = self._root.execute(
            "SELECT path, run, model, requests, input_tokens, output_tokens, nanodollars, unpriced"
            " FROM sapwood_spending WHERE run <> '*' AND (path = ? OR substr(path, 1, ?) = ?)"
            " ORDER BY path, run, model",
            path,
            len(path) + 1,
            f"{path}/",
        )
        return [
            Usage(Address.parse(path).segments, run or None, model, *told[:3], cost=Spent(*told).cost)
            for path, run, model, *told in rows
        ]

    def forget(self, stem: str) -> None:
        """Forget an agent that is being deleted. What it has used stays counted above it."""
        if self._root.has(SPENDING):
            self._root.execute("DELETE FROM sapwood_spending WHERE agent = ?", stem)
        self._periods.forget(stem)
        self.extensions.forget(stem)


def _in_period(spent: Spent) -> PeriodTotal:
    """Return what counts in a period: a correction does not lower it, because the requests were made."""
    return PeriodTotal(max(spent.tokens, 0), max(spent.nanodollars, 0))
