"""What clients asked for, what they were told and when; and what was there at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf


@dataclass(slots=True)
class Act:
    """Something a client asked for."""

    kind: str
    """`append`, `read`, `plan`, `dig` or `carry`."""
    where: str
    """The path of the list."""
    item: str
    begin: float
    """All times are of one monotonic clock."""
    node: str = ""
    """Through whom it was asked."""
    end: float = inf
    """When it was answered; `inf`: it was not, and nobody knows whether it was done."""
    length: int = 0
    """What was answered: how long the list is."""
    last: str = ""
    """What was answered: the last item of the list; or the output of a run."""
    problem: str = ""

    @property
    def is_answered(self) -> bool:
        return self.end != inf


@dataclass(slots=True)
class Written:
    """One item of a list."""

    item: str
    writer: str = ""
    epoch: int = 0
    """The ownership in which it was written; 0: not known."""


@dataclass(slots=True)
class Kept:
    """What a list remembered at the end."""

    items: list[Written] = field(default_factory=list[Written])
    due: dict[str, float] = field(default_factory=dict[str, float])
    """When what was planned had to ring, by the wall clock."""
    rung: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    dug: list[tuple[str, int, str]] = field(default_factory=list[tuple[str, int, str]])
    """Fiber, step, what was found."""
    fibers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class History:
    """One round of a cluster."""

    acts: list[Act] = field(default_factory=list[Act])
    kept: dict[str, Kept] = field(default_factory=dict[str, Kept])
    """What every list was at the end, by its path."""
