"""What the clients of a workload sent, and what the server acknowledged."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

Place = tuple[str, tuple[str, ...]]
"""The name of a root, and the names of the children below it down to the agent."""


@dataclass
class Calls:
    """The calls of one kind to one agent, by the id that each carries."""

    sent: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Every call: it may have taken effect."""
    answered: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Those that were acknowledged, with the answer: they must have taken effect, and stay."""


@dataclass(frozen=True)
class RegisterCall:
    """A read or a write of a register."""

    root: str
    is_write: bool
    value: str
    began: float
    ended: float
    is_answered: bool


@dataclass
class History:
    """Everything that a checker compares with what the agents report."""

    appends: defaultdict[Place, Calls] = field(default_factory=lambda: defaultdict(Calls))
    members: defaultdict[Place, Calls] = field(default_factory=lambda: defaultdict(Calls))
    rings: defaultdict[Place, Calls] = field(default_factory=lambda: defaultdict(Calls))
    deep_appends: defaultdict[str, Calls] = field(default_factory=lambda: defaultdict(Calls))
    numbers: defaultdict[tuple[str, str], Calls] = field(default_factory=lambda: defaultdict(Calls))
    """Queued calls, by root and queue."""
    fibers: defaultdict[str, Calls] = field(default_factory=lambda: defaultdict(Calls))
    runs: defaultdict[str, Calls] = field(default_factory=lambda: defaultdict(Calls))
    payments: defaultdict[str, Calls] = field(default_factory=lambda: defaultdict(Calls))
    """Payments from a root to its child: the amounts sent, and those acknowledged."""
    registers: list[RegisterCall] = field(default_factory=list[RegisterCall])
    answered: Counter[str] = field(default_factory=Counter[str])
    """Acknowledged calls, by kind."""
    errors: Counter[str] = field(default_factory=Counter[str])
    """What clients were told instead of an answer."""
    violations: list[str] = field(default_factory=list[str])
    """What was seen by a client and must not be."""
