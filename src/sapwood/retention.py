"""Which finished work is kept: how long, how much of it, and how much disk space it may use."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

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
RECORDS = Retention(age=timedelta(days=7), count=2000)
"""The records that a class keeps which does not set `record_retention`."""
