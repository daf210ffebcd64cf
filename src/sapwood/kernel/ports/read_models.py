"""What operators read of agents that may be asleep. Each package reads its own tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from sapwood.storage.database import Database


class DeadLetterRow(NamedTuple):
    """A stored call that failed and is not retried any more."""

    number: int
    method: str
    arguments: bytes
    code: str
    error: str
    attempts: int
    occurrences: int
    failed_at: float


class ListedRun(NamedTuple):
    """A run, as an operator sees it in a list."""

    id: str
    type: str
    name: str
    status: str
    started_at: float
    ended_at: float | None
    bytes: int
    pinned: int


QuestionReader: TypeAlias = Callable[[Database, int], list[dict[str, Any]]]
"""Reads at most so many open questions of an agent."""


def _none(*_: object) -> Any:
    return None


def _nothing(*_: object) -> list[Any]:
    return []


@dataclass(frozen=True, slots=True)
class ReadModels:
    """Reads the database of an agent. Without an app there are no packages, and nothing is found."""

    state: Callable[[Database], str | None] = _none
    """Returns the stored state as JSON; `None` if the agent has not set one."""
    dead_letters: Callable[[Database, int], list[DeadLetterRow]] = _nothing
    """Returns at most so many dead letters, in order."""
    waiting_calls: Callable[[Database, float, int], int | None] = _none
    """Counts the stored calls that are due at this time or wait in a queue, up to a maximum; `None` if it has none."""
    runs: Callable[[Database, str | None, int], list[ListedRun]] = _nothing
    """Returns at most so many runs, in order: all, or those of one status."""
    decisions: Callable[[Database, int], list[dict[str, Any]] | None] = _none
    """Returns at most so many decisions about tool calls, in order; `None` if there was never one."""
    questions: Sequence[QuestionReader] = ()
    spans: Callable[[Database, str | None, int], list[dict[str, Any]]] = _nothing
    """Returns at most so many spans: those of one piece of work in order, or the latest turns, calls and fibers."""
    sent_requests: Callable[[Database, int], list[dict[str, Any]]] = _nothing
    """Returns the URL and the body of what a model was sent in a step, by the number of its span."""


def has_table(database: Database, name: str) -> bool:
    """Return whether an agent has a table. Reading never creates or migrates it."""
    return database.exists and bool(database.look("SELECT 1 FROM sqlite_schema WHERE name = ?", (name,), 1)[1])
