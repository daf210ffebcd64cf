"""Which finished runs a class keeps: one rule for all of them, or one for each class of sub-agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sapwood.errors import UsageError
from sapwood.retention import KEEP_ALL, Retention

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
