"""The customers, in their own database. Only a decision changes it.

Each proposal is decided once: the change and the decision are one commit. Only the
gatekeeper has a stub of this agent, and no tool calls `decide`.
"""

import hashlib
import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sapwood import Agent, Refused

Field = Literal["name", "email", "city", "plan"]
FIELDS: tuple[Field, ...] = ("name", "email", "city", "plan")
MAX_DECISIONS = 20
"""The number of decisions that pages receive, the latest first."""


@dataclass(frozen=True)
class Customer:
    id: int
    name: str
    email: str
    city: str
    plan: str


@dataclass(frozen=True)
class Change:
    """A change to one customer, and the reason for it."""

    action: Literal["add", "change", "delete"]
    customer: int | None = None
    values: dict[Field, str] = field(default_factory=dict[Field, str])
    why: str = ""


@dataclass(frozen=True)
class Decision:
    """The decision of a person on a proposal."""

    proposal: str
    verdict: Literal["approved", "edited", "rejected"]
    by: str
    """The agents that proposed it."""
    what: str
    """The change, as text."""
    reason: str
    at: float


@dataclass(frozen=True)
class Outcome:
    """A customer before and after a change, or the reason why it is invalid."""

    before: Customer | None
    after: Customer | None
    problem: str = ""


class Records(Agent):
    migrations = (
        """
        CREATE TABLE customers (
            id    INTEGER PRIMARY KEY AUTOINCREMENT,
            name  TEXT NOT NULL CHECK (name <> ''),
            email TEXT NOT NULL CHECK (email <> ''),
            city  TEXT NOT NULL,
            plan  TEXT NOT NULL CHECK (plan IN ('free', 'pro', 'team'))
        ) STRICT;
        INSERT INTO customers (name, email, city, plan) VALUES
            ('Ada Lovelace', 'ada@engine.example', 'London', 'pro'),
            ('Alan Turing', 'alan@bombe.example', 'Manchester', 'free'),
            ('Grace Hopper', 'grace@navy.example', 'New York', 'team'),
            ('Katherine Johnson', 'katherine.orbit.example', 'Hampton', 'pro'),
            ('Grace Hopper', 'grace@navy.example', 'New York', 'free'),
            ('Radia Perlman', 'radia@bridge.example', 'Boston', 'pro');
        -- Each proposal is decided once.
        CREATE TABLE decisions (
            number   INTEGER PRIMARY KEY,
            proposal TEXT NOT NULL UNIQUE,
            verdict  TEXT NOT NULL,
            by       TEXT NOT NULL,
            what     TEXT NOT NULL,
            reason   TEXT NOT NULL,
            at       REAL NOT NULL
        ) STRICT;
        """,
    )

    async def find(self, words: str = "") -> list[Customer]:
        """Return the customers that contain all of these words."""
        customers = self.sql("SELECT * FROM customers ORDER BY id").into(Customer)
        return [
            customer
            for customer in customers
            if all(
                word in " ".join(map(str, asdict(customer).values())).casefold()
                for word in words.casefold().split()
            )
        ]

    async def preview(self, change: Change) -> Outcome:
        """Return the effect of a change, without applying it."""
        return self._preview(change)

    # --8<-- [start:decide]
    async def decide(
        self,
        proposal: str,
        expected: Customer | None,
        change: Change,
        *,
        verdict: Literal["approved", "edited", "rejected"],
        by: str,
        reason: str = "",
    ) -> Decision:
        """Store the decision on a proposal. Apply the change unless it is rejected."""
        if self._decision(proposal):
            raise Refused("The proposal was decided before.")
        outcome = self._preview(change)
        what = describe(change, outcome)
        if verdict != "rejected":
            if outcome.problem:
                raise Refused(outcome.problem)
            if outcome.before != expected:
                raise Refused("The customer has changed. Reload the gate.")
            self._apply(change)
        decision = Decision(proposal, verdict, by, what, reason, time.time())
        self.sql(
            "INSERT INTO decisions (proposal, verdict, by, what, reason, at)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            *asdict(decision).values(),
        )
        # No await in this method: the change and its decision are one commit.
        return decision

    # --8<-- [end:decide]
    async def decision(self, proposal: str) -> Decision | None:
        """Return the decision on a proposal, or `None` if it is undecided."""
        return self._decision(proposal)

    async def decisions(self) -> list[Decision]:
        """Return the latest decisions, the newest first."""
        columns = "SELECT proposal, verdict, by, what, reason, at FROM decisions"
        latest = f"{columns} ORDER BY number DESC LIMIT ?"
        return list(self.sql(latest, MAX_DECISIONS).into(Decision))

    def _decision(self, proposal: str) -> Decision | None:
        columns = "SELECT proposal, verdict, by, what, reason, at FROM decisions"
        rows = self.sql(f"{columns} WHERE proposal = ?", proposal).into(Decision)
        return next(iter(rows), None)

    def _preview(self, change: Change) -> Outcome:
        values = {name: value.strip() for name, value in change.values.items()}
        if change.action == "add":
            blank = dict.fromkeys(FIELDS, "") | {"plan": "free"}
            after = Customer(0, **{**blank, **values})
            missing = [name for name, value in asdict(after).items() if value == ""]
            problem = f"A new customer needs: {', '.join(missing)}." if missing else ""
            return Outcome(None, after, problem or problem_with(after))
        query = "SELECT * FROM customers WHERE id = ?"
        rows = self.sql(query, change.customer or 0).into(Customer)
        before = next(iter(rows), None)
        if before is None:
            return Outcome(None, None, f"There is no customer {change.customer}.")
        if change.action == "delete":
            return Outcome(before, None)
        after = Customer(**{**asdict(before), **values})
        problem = "The change has no effect." if after == before else ""
        return Outcome(before, after, problem or problem_with(after))

    def _apply(self, change: Change) -> None:
        after = self._preview(change).after
        if change.action == "delete":
            self.sql("DELETE FROM customers WHERE id = ?", change.customer)
        elif after is not None:
            self.sql(
                "INSERT INTO customers (id, name, email, city, plan)"
                " VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
                " name = excluded.name, email = excluded.email,"
                " city = excluded.city, plan = excluded.plan",
                *(after.id or None, after.name, after.email, after.city, after.plan),
            )


def problem_with(customer: Customer) -> str:
    """Return why a customer is invalid, or an empty string."""
    if not customer.name:
        return "The name must not be empty."
    if "@" not in customer.email:
        return f"The email must contain an @, got {customer.email!r}."
    if customer.plan not in ("free", "pro", "team"):
        return f"The plan must be free, pro or team, got {customer.plan!r}."
    return ""


def describe(change: Change, outcome: Outcome) -> str:
    """Return the change as text, without a full stop."""
    before, after = outcome.before, outcome.after
    if before is None:
        name = after.name if after else f"customer {change.customer}"
        return f"{change.action} {name}"
    who = f"{before.name} ({before.id})"
    if after is None:
        return f"delete {who}"
    new = asdict(after)
    parts = [
        f"{name} {value!r} → {new[name]!r}"
        for name, value in asdict(before).items()
        if new[name] != value
    ]
    return f"change {who}: {', '.join(parts) or 'nothing'}".replace("'", "")


def fingerprint(*parts: Any) -> str:
    """Return a short hash of the parts."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
