"""The id of one piece of durable work: a stored call, a fiber, the recovery of a fiber, a run or a turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

RUN = "run "


@dataclass(frozen=True, slots=True)
class WorkId:
    """What steps, questions and runs belong to, and end with. It is unique in its agent."""

    kind: Literal["call", "fiber", "recovery", "run"]
    """A `run` is also a turn: both have ids of their own."""
    id: str
    """Of a stored call, its number and occurrence: `7` or `7.2`. Of a fiber, its number. Of a run or turn, its id."""

    @classmethod
    def call(cls, number: int, occurrence: int) -> WorkId:
        return cls("call", f"{number}.{occurrence}" if occurrence else str(number))

    @classmethod
    def fiber(cls, number: int) -> WorkId:
        return cls("fiber", str(number))

    @classmethod
    def recovery(cls, number: int) -> WorkId:
        return cls("recovery", str(number))

    @classmethod
    def run(cls, id: str) -> WorkId:
        return cls("run", id)

    @classmethod
    def parse(cls, stored: str) -> WorkId:
        """Return the id of a stored call, a fiber or a recovery that `str` has stored."""
        kind, _, id = stored.partition(" ")
        if kind != "call" and kind != "fiber" and kind != "recovery":
            raise ValueError(f"Expected the id of a call, a fiber or a recovery, got {stored!r}.")
        return cls(kind, id)

    @classmethod
    def runs_in(cls, works: Iterable[str]) -> dict[str, str]:
        """Return those of some stored works that are runs or turns, by their own ids."""
        return {id: work for work in works if (id := work.removeprefix(RUN)) != work}

    @property
    def number(self) -> int:
        """The number of a stored call or a fiber."""
        return int(self.id.partition(".")[0])

    def __str__(self) -> str:
        """Return the text that steps, questions and the creators of runs are stored with."""
        return f"{self.kind} {self.id}"
