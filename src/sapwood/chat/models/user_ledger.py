"""What one user has used of models in all trees, counted in a root of its own, and refused before it is too much.

An agent reserves here what a request may use at most, and settles it when that is known. Both name what the turn has
used so far in all, so a call that is repeated, late or lost does not count twice, and what a crash left uncounted is
counted by the next one. A reservation of a turn replaces the one before it, and ends by itself after an hour.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from sapwood.agent import Agent
from sapwood.chat.models.user_limits import UserLimit
from sapwood.decorators import agent
from sapwood.errors import OverLimit
from sapwood.kernel.trees.budgets import NANO, Field, shortage
from sapwood.periods import KEPT_PERIODS, Per
from sapwood.when import zone

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import Response

RESERVED_FOR = timedelta(hours=1)
TURNS_FOR = timedelta(days=30)
"""How long it is known what a turn has used."""


TOTALS = """CREATE TABLE totals (
    calendar    TEXT NOT NULL,     -- the period and the zone; empty: the lifetime of the user
    starts_at   REAL NOT NULL,
    tokens      INTEGER NOT NULL,
    nanodollars INTEGER NOT NULL,
    PRIMARY KEY (calendar, starts_at)
) STRICT, WITHOUT ROWID"""
TURNS = """CREATE TABLE turns (
    turn                 TEXT PRIMARY KEY,
    tokens               INTEGER NOT NULL,  -- what is counted of it
    nanodollars          INTEGER NOT NULL,
    reservation          TEXT,              -- NULL: none
    reserved_tokens      INTEGER NOT NULL,
    reserved_nanodollars INTEGER NOT NULL,
    reserved_until       REAL NOT NULL,
    changed_at           REAL NOT NULL
) STRICT, WITHOUT ROWID"""


@dataclass(frozen=True, slots=True)
class Amount:
    """Tokens and their cost."""

    tokens: int
    nanodollars: int

    def of(self, field: Field) -> int:
        """Return what a limit on tokens or dollars counts."""
        return self.tokens if field == "tokens" else self.nanodollars


@dataclass(frozen=True, slots=True)
class Total(Amount):
    """What is counted in one period of a calendar."""

    calendar: str
    starts_at: float


@dataclass(frozen=True, slots=True)
class TurnUsage:
    """What one turn has used so far."""

    turn: str
    """The address of its agent, and its id."""
    tokens: int
    nanodollars: int
    reservation: str
    """The id of the reservation of its last request."""
    limits: list[UserLimit]
    """The limits of the user."""


@dataclass(frozen=True, slots=True)
class UserRequest:
    """A request to a model that is about to be sent for a user."""

    user: str
    agent: str
    """The address of the agent that sends it."""
    model: str
    tokens: int
    """What it takes at most."""
    nanodollars: int | None
    """What it costs at most. `None` if the price is unknown."""


@agent(type="SapwoodUser")
class UserLedger(Agent):
    """The account of one user. Only chat agents call it."""

    migrations: ClassVar[Any] = (TOTALS, TURNS, "CREATE INDEX turns_changed ON turns (changed_at)")

    async def reserve(self, request: UserRequest, so_far: TurnUsage) -> None:
        """Set aside what a request may use at most, or refuse it."""
        now = self._actor.host.clock.now()
        self._count(so_far, now)
        (reserved,) = self.sql(
            "SELECT coalesce(sum(reserved_tokens), 0) AS tokens, coalesce(sum(reserved_nanodollars), 0) AS nanodollars"
            " FROM turns WHERE reservation IS NOT NULL AND reserved_until > ? AND turn <> ?",
            now,
            so_far.turn,
        ).into(Amount)
        for one in so_far.limits:
            used = self._used(one, now)
            asked = request.tokens if one.field == "tokens" else request.nanodollars
            owner = f"the user {request.user!r}"
            short = shortage(one.field, one.limit, owner, asked, used, reserved.of(one.field), now=now)
            if short is not None:
                raise OverLimit(
                    f"{request.agent} cannot call {request.model}: {short.text}",
                    path=self.address.segments,
                    limit=one.field,
                    retry_after=short.retry_after,
                )
        self.sql(
            "UPDATE turns SET reservation = ?, reserved_tokens = ?, reserved_nanodollars = ?, reserved_until = ?"
            " WHERE turn = ?",
            so_far.reservation,
            request.tokens,
            request.nanodollars or 0,
            now + RESERVED_FOR.total_seconds(),
            so_far.turn,
        )

    async def settle(self, usage: TurnUsage) -> None:
        """Count what a turn has used, and end its reservation."""
        self._count(usage, self._actor.host.clock.now())
        self.sql(
            "UPDATE turns SET reservation = NULL, reserved_tokens = 0, reserved_nanodollars = 0"
            " WHERE turn = ? AND reservation = ?",
            usage.turn,
            usage.reservation,
        )

    async def used(self) -> list[dict[str, Any]]:
        """Return what the user has used: in all, where the period is `None`, and in each period that is stored."""
        found: list[dict[str, Any]] = []
        for total in self.sql("SELECT * FROM totals ORDER BY calendar, starts_at").into(Total):
            period, _, place = total.calendar.partition(" ")
            starts_at = datetime.fromtimestamp(total.starts_at, zone(place)).isoformat() if period else None
            used = {"tokens": total.tokens, "dollars": total.nanodollars / NANO}
            found.append({"period": period or None, "starts_at": starts_at} | used)
        return found

    async def reserved(self) -> int:
        """Return the number of requests that are in progress."""
        now = self._actor.host.clock.now()
        rows = self.sql("SELECT count(*) FROM turns WHERE reservation IS NOT NULL AND reserved_until > ?", now)
        return rows.scalar(int)

    def _count(self, usage: TurnUsage, now: float) -> None:
        """Count what a turn has used since it was last counted. Of a turn that is new here, that is nothing."""
        known = self.sql("SELECT tokens, nanodollars FROM turns WHERE turn = ?", usage.turn).into(Amount)
        if not known:
            oldest = now - TURNS_FOR.total_seconds()
            self.sql("DELETE FROM turns WHERE changed_at < ?", oldest)
            self.sql(
                "INSERT INTO turns VALUES (?, ?, ?, NULL, 0, 0, 0, ?)", usage.turn, usage.tokens, usage.nanodollars, now
            )
            return
        tokens, nanodollars = usage.tokens - known[0].tokens, usage.nanodollars - known[0].nanodollars
        if tokens > 0 or nanodollars > 0:  # a late call says less
            self.sql(
                "UPDATE turns SET tokens = max(tokens, ?), nanodollars = max(nanodollars, ?), changed_at = ?"
                " WHERE turn = ?",
                usage.tokens,
                usage.nanodollars,
                now,
                usage.turn,
            )
            for calendar, starts_at in {("", 0.0), *(_place(one, now) for one in usage.limits)}:
                self._add(calendar, starts_at, max(tokens, 0), max(nanodollars, 0))

    def _add(self, calendar: str, starts_at: float, tokens: int, nanodollars: int) -> None:
        self.sql(
            "INSERT INTO totals VALUES (?, ?, ?, ?) ON CONFLICT (calendar, starts_at) DO UPDATE SET"
            " tokens = tokens + excluded.tokens, nanodollars = nanodollars + excluded.nanodollars",
            calendar,
            starts_at,
            tokens,
            nanodollars,
        )
        self.sql(
            "DELETE FROM totals WHERE calendar = ?1 AND starts_at NOT IN (SELECT starts_at FROM totals"
            " WHERE calendar = ?1 ORDER BY abs(starts_at - ?2) LIMIT ?3)",
            calendar,
            starts_at,
            KEPT_PERIODS,
        )

    def _used(self, limit: UserLimit, now: float) -> int:
        found = self.sql(
            "SELECT tokens, nanodollars FROM totals WHERE calendar = ? AND starts_at = ?", *_place(limit, now)
        ).into(Amount)
        return found[0].of(limit.field) if found else 0

    async def on_before_request(self, request: Request) -> Response:
        return _not_found()

    async def on_before_connect(self, request: HTTPConnection) -> Response:
        return _not_found()


def _place(limit: UserLimit, now: float) -> tuple[str, float]:
    """Return the calendar of a limit, and the start of its current period."""
    per = limit.limit
    return (f"{per.period} {per.zone}", per.span(now).starts_at) if isinstance(per, Per) else ("", 0.0)


def _not_found() -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse("Not found", 404)
