"""The customers, in a database of their own. Nothing in it changes but by a decision.

A decision names a proposal, and is made once: the change and the note that it was
decided are one commit. Nobody but the gatekeeper has a stub of this agent, and no tool
of a model leads to `decide`.
"""

import hashlib
import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sapwood import Agent, Refused

Field = Literal["name", "email", "city", "plan"]
FIELDS: tuple[Field, ...] = ("name", "email", "city", "plan")
LISTED = 20
"""Decisions that pages are shown, the latest first."""


@dataclass(frozen=True)
class Customer:
    id: int
    name: str
    email: str
    city: str
    plan: str


@dataclass(frozen=True)
class Change:
    """What somebody wants to be different, and why."""

    action: Literal["add", "change", "delete"]
    customer: int | None = None
    values: dict[Field, str] = field(default_factory=dict[Field, str])
    why: str = ""


@dataclass(frozen=True)
class Decision:
    """What a person made of a proposal."""

    proposal: str
    verdict: Literal["approved", "edited", "rejected"]
    by: str
    """Who had proposed it."""
    what: str
    """What was done, or was not, in words."""
    reason: str
    at: float


@dataclass(frozen=True)
class Outcome:
    """A customer before a change and after it; or why it cannot be made."""

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
        -- What people made of what was proposed; each proposal is decided once.
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
        """Return the customers that have all of these words somewhere, or all."""
        wanted = words.casefold().split()
        everybody = self.sql("SELECT * FROM customers ORDER BY id").into(Customer)
        return [
            one
            for one in everybody
            if all(
                word in " ".join(map(str, asdict(one).values())).casefold()
                for word in wanted
            )
        ]

    async def foresee(self, change: Change) -> Outcome:
        """Return what a change would do now. Nothing is changed by it."""
        return self._foresee(change)

    # --8<-- [start:decide]
    async def decide(
        self,
        proposal: str,
        shown: Customer | None,
        change: Change,
        *,
        verdict: Literal["approved", "edited", "rejected"],
        by: str,
        reason: str = "",
    ) -> Decision:
        """Do what a person has decided about a proposal that they were shown."""
        if self._decision(proposal):
            raise Refused("This has been decided already.")
        outcome = self._foresee(change)
        what = in_words(change, outcome)
        if verdict != "rejected":
            if outcome.problem:
                raise Refused(outcome.problem)
            if outcome.before != shown:
                raise Refused("The customer is not what you were shown. Look again.")
            self._carry_out(change)
        decision = Decision(proposal, verdict, by, what, reason, time.time())
        self.sql(
            "INSERT INTO decisions (proposal, verdict, by, what, reason, at)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            *asdict(decision).values(),
        )
        # No await in here: after a crash the change and its decision are there, or
        # neither.
        return decision

    # --8<-- [end:decide]
    async def decision(self, proposal: str) -> Decision | None:
        """Return what was decided about a proposal, if anything was."""
        return self._decision(proposal)

    async def decisions(self) -> list[Decision]:
        """Return what was decided, the latest first."""
        found = "SELECT proposal, verdict, by, what, reason, at FROM decisions"
        latest = f"{found} ORDER BY number DESC LIMIT ?"
        return list(self.sql(latest, LISTED).into(Decision))

    def _decision(self, proposal: str) -> Decision | None:
        found = "SELECT proposal, verdict, by, what, reason, at FROM decisions"
        rows = self.sql(f"{found} WHERE proposal = ?", proposal).into(Decision)
        return next(iter(rows), None)

    def _foresee(self, change: Change) -> Outcome:
        values = {name: value.strip() for name, value in change.values.items()}
        if change.action == "add":
            blank = dict.fromkeys(FIELDS, "") | {"plan": "free"}
            after = Customer(0, **{**blank, **values})
            missing = [name for name, value in asdict(after).items() if value == ""]
            problem = f"A new customer needs: {', '.join(missing)}." if missing else ""
            return Outcome(None, after, problem or wrong_with(after))
        found = "SELECT * FROM customers WHERE id = ?"
        rows = self.sql(found, change.customer or 0).into(Customer)
        before = next(iter(rows), None)
        if before is None:
            return Outcome(None, None, "There is no such customer.")
        if change.action == "delete":
            return Outcome(before, None)
        after = Customer(**{**asdict(before), **values})
        problem = "Nothing would be different." if after == before else ""
        return Outcome(before, after, problem or wrong_with(after))

    def _carry_out(self, change: Change) -> None:
        after = self._foresee(change).after
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


def wrong_with(customer: Customer) -> str:
    """Return why a customer cannot be like this, if there is a reason."""
    if not customer.name:
        return "A customer needs a name."
    if "@" not in customer.email:
        return "An email has an @."
    if customer.plan not in ("free", "pro", "team"):
        return "A plan is free, pro or team."
    return ""


def in_words(change: Change, outcome: Outcome) -> str:
    """Return what a change does, as a sentence without its full stop."""
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
    """Return a few characters that are others if any of the parts is another."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
