"""What is stored of the time of a run that a method executes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from sapwood.capabilities.steps import StepTimes
from sapwood.runs.tables.own_questions import QuestionTimes

MAX_ENTRIES = 500
"""Attempts, steps and questions of one run that are listed, of each."""


class Attempt(msgspec.Struct, array_like=True):
    """A second or later attempt at a run."""

    began_at: float
    incarnation: int


class Entry(msgspec.Struct, array_like=True):
    """Something that the code of a run did."""

    kind: str
    """`function`: a step of `Agent.step`; or `wait`."""
    name: str
    began_at: float
    ended_at: float | None
    outcome: str | None = None
    """Of a question, how it was answered."""


class Journal(msgspec.Struct, omit_defaults=True):
    """The journal of one run."""

    fiber: int
    attempts: list[Attempt] = []
    """Those after the first."""
    entries: list[Entry] | None = None
    """`None` while the run is open, and if its code did nothing."""
    remote: dict[str, Any] | None = None
    """Of a run that another server does: its URL and ids."""


def journal_in(text: str) -> Journal | None:
    """Return a stored journal; `None` if it is damaged."""
    try:
        return msgspec.json.decode(text, type=Journal)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def entries_of(steps: Iterable[StepTimes], questions: Iterable[QuestionTimes]) -> list[Entry]:
    """Return the steps, sleeps and questions of a run in the order in which they began."""
    found = [
        Entry("wait", "sleep", one.began_at, one.ended_at)
        if one.is_sleep
        else Entry("function", one.name, one.began_at, one.ended_at)
        for one in steps
    ]
    found += [Entry("wait", "question", one.asked_at, one.answered_at, one.outcome) for one in questions]
    return sorted(found, key=lambda one: one.began_at)
