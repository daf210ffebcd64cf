"""What the models may be used for by each user, in all trees: the function of the app that says so, and its limits."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from sapwood.address import MAX_NAME_BYTES
from sapwood.clock import Clock
from sapwood.errors import UsageError
from sapwood.kernel.trees.budgets import FIELDS, Field
from sapwood.periods import Per, Period, each
from sapwood.runs.tables.question import id_of
from sapwood.settings import Limits, Settings

GetLimits = Callable[[str], Limits | Awaitable[Limits | None] | None]
"""Returns the limits of a user by id; `None` means no limit. It may be async."""
HASHED = "sha256-"
"""The prefix of names that stand for ids that cannot be names."""


@dataclass(frozen=True, slots=True)
class UserLimit:
    """One limit of one user, as it is sent to the ledger of that user."""

    field: Field
    amount: float
    period: Period | None
    """`None` means the lifetime of the user."""
    zone: str

    @property
    def limit(self) -> float | Per:
        """The limit as it was written."""
        return self.amount if self.period is None else Per(self.period, self.amount, zone=self.zone)


class UserLimits:
    """The limits of users on one node."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.function: GetLimits | None = None

    async def of(self, user: str) -> list[UserLimit]:
        """Return the limits of a user; none if the app sets none."""
        if self.function is None:
            return []
        limits: Any = self.function(user)
        if inspect.isawaitable(limits):
            limits = await limits
        return [] if limits is None else _checked(limits)


def _checked(limits: Any) -> list[UserLimit]:
    if not isinstance(limits, Limits):
        raise UsageError(f"App(user_limits=…) must return Limits(…) or None, got a {type(limits).__name__}.")
    others = Limits(tokens=limits.tokens, dollars=limits.dollars)
    if limits != others:
        names = [one.name for one in fields(Limits) if getattr(limits, one.name) != getattr(others, one.name)]
        raise UsageError(f"App(user_limits=…) can limit tokens and dollars, but not {', '.join(names)}.")
    found: list[UserLimit] = []
    for name in FIELDS:
        for one in each(getattr(limits, name)):
            if isinstance(one, Per):
                if one != replace(one, warn_at=None, extend_by=None, approvers=None):
                    raise UsageError(f"App(user_limits=…): {one!r} must not have warn_at or extend_by.")
                found.append(UserLimit(name, float(one.amount), one.period, one.zone))
            else:
                found.append(UserLimit(name, float(one), None, "UTC"))
    return found


def ledger_name(user: str) -> str:
    """Return the name of the ledger of a user: the id, or its hash if that cannot be a name."""
    id = user.encode(errors="surrogatepass")
    if user and "\0" not in user and len(id) <= MAX_NAME_BYTES and not user.startswith(HASHED):
        try:
            user.encode()
        except UnicodeEncodeError:
            pass
        else:
            return user
    return HASHED + hashlib.sha256(id).hexdigest()


def with_id(authenticate: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """Return a function that authenticates in the same way, and refuses users without an id: nothing limits them."""
    if authenticate is None:
        return None

    async def authenticated(request: Any) -> Any:
        user = authenticate(request)
        if inspect.isawaitable(user):
            user = await user
        if user is not None and id_of(user) is None:
            raise UsageError(
                f"App(user_limits=…) needs users with an id, and authenticate returned a {type(user).__name__}. Return "
                "a string, or an object whose `id` is a string."
            )
        return user

    return authenticated
