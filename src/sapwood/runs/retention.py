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
    """Which finished runs are kept, with the sub-agents that did them. The oldest go first; None limits nothing."""

    age: timedelta | None = None
    """How long after its end a run is kept."""
    count: int | None = None
    """How many are kept."""
    bytes: int | None = None
    """How much the sub-agents that did them may hold on the disk together, with all below them."""
    last: int = 0
    """How many of the latest are kept, however old and large they are."""

    def __post_init__(self) -> None:
        if self.age is not None and (not is_a(self.age, timedelta) or self.age < timedelta(0)):
            raise UsageError(f"Retention(age={self.age!r}): it takes a timedelta, 0 or more.")
        for name in ("count", "bytes", "last"):
            value = getattr(self, name)
            if name != "last" and value is None:
                continue
            if not is_a(value, int) or isinstance(value, bool) or value < 0:
                raise UsageError(f"Retention({name}={value!r}): it takes a whole number, 0 or more.")
        if self.count is not None and self.last > self.count:
            raise UsageError(f"Retention(count={self.count}, last={self.last}): more would be kept than may be.")

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
    """Refuse what is no rule, when the class is made."""
    rules: Any = keep.items() if isinstance(keep, Mapping) else [(object, keep)]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    for cls, rule in rules:
        if not isinstance(cls, type) or not isinstance(rule, Retention):
            raise UsageError(f"{name}.run_retention: write Retention(…), or {{Researcher: Retention(…)}}.")
