"""Which finished runs are kept: how long, how many, and how much they may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sapwood.errors import UsageError
from sapwood.when import is_a


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which finished runs to keep, with their sub-agents. The oldest are deleted first. `None` means no limit."""

    age: timedelta | None = None
    """Maximum age of a run, counted from its end."""
    count: int | None = None
    """Maximum number of finished runs."""
    bytes: int | None = None
    """Maximum disk space of their sub-agents and everything below them, in bytes."""
    last: int = 0
    """Number of latest runs that are kept regardless of age and size."""

    def __post_init__(self) -> None:
        if self.age is not None and (not is_a(self.age, timedelta) or self.age < timedelta(0)):
            raise UsageError(f"Retention(age={self.age!r}): expected a timedelta of at least 0.")
        for name in ("count", "bytes", "last"):
            value = getattr(self, name)
            if name != "last" and value is None:
                continue
            if not is_a(value, int) or isinstance(value, bool) or value < 0:
                raise UsageError(f"Retention({name}={value!r}): expected an integer of at least 0.")
        if self.count is not None and self.last > self.count:
            raise UsageError(f"Retention(count={self.count}, last={self.last}): `last` must not exceed `count`.")

    @property
    def is_limited(self) -> bool:
        """Whether anything ever has to go."""
        return not (self.age is None and self.count is None and self.bytes is None)


KEEP_ALL = Retention()

Keep = Retention | Mapping[type[Any], Retention]
"""What a class says: for all its runs together, or for those of each class, and what extends it, together."""


def rules_of(keep: Keep) -> tuple[Retention, ...]:
    """Return every rule there is."""
    return (keep,) if isinstance(keep, Retention) else tuple(keep.values())


def rule_of(keep: Keep, cls: type | None) -> tuple[type | None, Retention]:
    """Return the rule for the runs of a class, and for whose runs together it is; of a lost class, None."""
    if isinstance(keep, Retention):
        return None, keep
    for owner in () if cls is None else cls.__mro__:
        if owner in keep:
            return owner, keep[owner]
    return None, KEEP_ALL


def check(name: str, keep: object) -> None:
    """Raise `UsageError` if `run_retention` of a class is invalid."""
    rules: Any = keep.items() if isinstance(keep, Mapping) else [(object, keep)]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    for cls, rule in rules:
        if not isinstance(cls, type) or not isinstance(rule, Retention):
            raise UsageError(
                f"{name}.run_retention must be Retention(…), or a dict such as {{Researcher: Retention(…)}}."
            )
