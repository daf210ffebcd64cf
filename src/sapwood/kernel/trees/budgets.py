"""Whether a request to a model fits into one limit on tokens or dollars."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from sapwood.errors import OverLimit
from sapwood.kernel.actors.actor import Actor
from sapwood.periods import LimitWarning, Per, each

NANO = 1_000_000_000

Field = Literal["tokens", "dollars"]
FIELDS: tuple[Field, ...] = ("tokens", "dollars")


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request that is about to be sent."""

    actor: Actor
    model: str
    tokens: int
    """What it takes at most."""
    nanodollars: int | None
    """What it costs at most. `None` if the price is unknown."""


@dataclass(frozen=True, slots=True)
class Budget:
    """One limit, and the agent whose own it is: it holds for this agent and all under it."""

    owner: Actor
    field: Field
    limit: float | Per

    def check(self, request: ModelRequest, used: int, reserved: int) -> None:
        """Refuse a request that does not fit beside what is used and reserved, in tokens or nanodollars."""
        asked = request.tokens if self.field == "tokens" else request.nanodollars
        if asked is None:
            raise self._over(
                request,
                f"its price is unknown, so {self} cannot be enforced. Set the price with Settings(prices=…).",
            )
        if used + reserved + asked <= self.amount:
            return
        now = self.owner.host.clock.now()
        end = f" The period ends at {self.limit.end(now)}." if isinstance(self.limit, Per) else ""
        # If the request alone is too large, the next period does not help.
        wait = self.limit.span(now).ends_at - now if isinstance(self.limit, Per) and asked <= self.amount else None
        if self.field == "tokens":
            also = f" and {reserved} reserved" if reserved else ""
            text = (
                f"the request takes up to {asked} tokens, and of {self} {used} are used{also}.{end} Reserved for an "
                "answer are max_tokens of the model's settings, or 4096."
            )
        else:
            also = f" and {_money(reserved)} reserved" if reserved else ""
            text = f"the request costs up to {_money(asked)}, and of {self} {_money(used)} are spent{also}.{end}"
        raise self._over(request, text, wait)

    def warning(self, used: int) -> LimitWarning | None:
        """Return that so much is used of the current period, in tokens or nanodollars, if a warning is due."""
        limit = self.limit
        if not isinstance(limit, Per) or limit.warn_at is None or used < limit.warn_at * self.amount:
            return None
        starts_at, ends_at = (datetime.fromtimestamp(at, UTC) for at in limit.span(self.owner.host.clock.now()))
        return LimitWarning(
            limit=self.field,
            amount=float(limit.amount),
            threshold=limit.warn_at * limit.amount,
            used=used / NANO if self.field == "dollars" else float(used),
            period=limit.period,
            zone=limit.zone,
            starts_at=starts_at,
            ends_at=ends_at,
        )

    @property
    def unit(self) -> Literal["tokens", "nanodollars"]:
        """The name of what it counts."""
        return "tokens" if self.field == "tokens" else "nanodollars"

    @property
    def amount(self) -> int:
        """The limit in tokens or nanodollars."""
        amount = self.limit.amount if isinstance(self.limit, Per) else self.limit
        return round(amount * NANO) if self.field == "dollars" else int(amount)

    def __str__(self) -> str:
        limit = repr(self.limit) if isinstance(self.limit, Per) else f"{self.limit:.15g}"
        return f"Limits({self.field}={limit}) for {self.owner.address} and all agents under it"

    def _over(self, request: ModelRequest, text: str, wait: float | None = None) -> OverLimit:
        return OverLimit(
            f"{request.actor.address} cannot call {request.model}: {text}",
            path=self.owner.address.segments,
            limit=self.field,
            retry_after=wait,
        )


def budgets_of(actor: Actor) -> list[Budget]:
    """Return the limits on tokens and dollars for an agent, root first: each at the highest agent that has it."""
    if actor.limits.tokens is None and actor.limits.dollars is None:
        return []
    found: list[Budget] = []
    for one in [*actor.lineage()][::-1]:
        for field in FIELDS:
            above = () if one.parent is None else each(getattr(one.parent.limits, field))
            found += [Budget(one, field, limit) for limit in each(getattr(one.limits, field)) if limit not in above]
    return found


def _money(nanodollars: int) -> str:
    return f"${nanodollars / NANO:.9g}"
