"""Whether a request to a model fits into one limit on tokens or dollars."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

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

    def check(self, request: ModelRequest, used: int, reserved: int, extra: int = 0) -> None:
        """Refuse a request that does not fit beside what is used and reserved, in tokens or nanodollars.

        A person has allowed `extra` beside the amount. Raises `Extensible` if a person may be asked for more.
        """
        asked = request.tokens if self.field == "tokens" else request.nanodollars
        now = self.owner.host.clock.now()
        short = shortage(self.field, self.limit, self._whose, asked, used, reserved, extra, now=now)
        if short is None:
            return
        refusal = OverLimit(
            f"{request.actor.address} cannot call {request.model}: {short.text}",
            path=self.owner.address.segments,
            limit=self.field,
            retry_after=short.retry_after,
        )
        if short.missing is not None and isinstance(self.limit, Per) and self.limit.extend_by is not None:
            raise Extensible(self, short.missing, refusal)
        raise refusal

    def warning(self, used: int) -> LimitWarning | None:
        """Return that so much is used of the current period, in tokens or nanodollars, if a warning is due."""
        limit = self.limit
        if not isinstance(limit, Per) or limit.warn_at is None or used < limit.warn_at * self.amount:
            return None
        starts_at, ends_at = (datetime.fromtimestamp(at, UTC) for at in limit.span(self.owner.host.clock.now()))
        return LimitWarning(
            limit=self.field,
            amount=float(limit.amount),
            threshold=float(f"{limit.warn_at * limit.amount:.12g}"),  # 0.1 * 0.025 has seventeen digits
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
        return in_unit(self.field, self.limit)

    @property
    def _whose(self) -> str:
        return f"{self.owner.address} and all agents under it"

    def __str__(self) -> str:
        return named(self.field, self.limit, self._whose)


class Extensible(Exception):
    """A request does not fit into a limit, but a person may allow more."""

    def __init__(self, budget: Budget, missing: int, refusal: OverLimit) -> None:
        super().__init__(str(refusal))
        self.budget = budget
        self.missing = missing
        """How much more the request needs, in tokens or nanodollars."""
        self.refusal = refusal


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


class Shortage(NamedTuple):
    """Why a request does not fit into a limit."""

    text: str
    missing: int | None
    """How much more it needs, in tokens or nanodollars. `None` if its price is unknown."""
    retry_after: float | None
    """Seconds until it may fit. `None` if a wait does not help."""


def shortage(
    field: Field,
    limit: float | Per,
    whose: str,
    asked: int | None,
    used: int,
    reserved: int,
    extra: int = 0,
    *,
    now: float,
) -> Shortage | None:
    """Return why a request does not fit beside what is used and reserved; `None` if it fits.

    Amounts are in tokens or nanodollars. `extra` was allowed beside the limit.
    """
    name, amount = named(field, limit, whose), in_unit(field, limit)
    if asked is None:
        text = f"its price is unknown, so {name} cannot be enforced. Set the price with Settings(prices=…)."
        return Shortage(text, None, None)
    missing = used + reserved + asked - amount - extra
    if missing <= 0:
        return None
    if asked > amount + extra:
        return Shortage(_too_large(field, asked, name), missing, None)
    end = f" The period ends at {limit.end(now)}." if isinstance(limit, Per) else ""
    # If the request alone is too large, the next period does not help.
    wait = limit.span(now).ends_at - now if isinstance(limit, Per) and asked <= amount else None
    if field == "tokens":
        also = f" and {reserved} reserved" if reserved else ""
        allowed = f"; a person has allowed {extra} more" if extra else ""
        text = (
            f"the request takes up to {asked} tokens, and of {name} {used} are used{also}{allowed}.{end} "
            "Reserved for an answer are max_tokens of the model's settings, or 4096."
        )
    else:
        also = f" and {money(reserved)} reserved" if reserved else ""
        allowed = f"; a person has allowed {money(extra)} more" if extra else ""
        text = f"the request costs up to {money(asked)}, and of {name} {money(used)} are spent{also}{allowed}.{end}"
    return Shortage(text, missing, wait)


def _too_large(field: Field, asked: int, name: str) -> str:
    """Return why a request fits into no period: not even if nothing else is used."""
    what = f"take up to {asked} tokens" if field == "tokens" else f"cost up to {money(asked)}"
    return (
        f"one request may {what}, more than all of {name}. Set max_tokens in model_settings (without it, 4096 tokens "
        "are reserved for an answer), or raise the limit."
    )


def named(field: Field, limit: float | Per, whose: str) -> str:
    """Return a limit as errors name it."""
    return (
        f"Limits({field}={limit!r}) for {whose}"
        if isinstance(limit, Per)
        else f"Limits({field}={limit:.15g}) for {whose}"
    )


def in_unit(field: Field, limit: float | Per) -> int:
    """Return a limit in tokens, or in nanodollars."""
    amount = limit.amount if isinstance(limit, Per) else limit
    return round(amount * NANO) if field == "dollars" else int(amount)


def money(nanodollars: int) -> str:
    return f"${nanodollars / NANO:.9g}"
