"""A round: one seed of one program on a folder of its own, and the file that remembers which rounds are done."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What a round did and found."""

    faults: dict[str, int]
    """The faults that were injected, by kind."""
    answered: int = 0
    """Calls that were acknowledged."""
    violations: list[str] = field(default_factory=list[str])
    """A sentence for each broken promise."""
    errors: dict[str, int] = field(default_factory=dict[str, int])
    """What clients were told instead of an answer, the most frequent first."""


Play = Callable[[Path, int, int], Coroutine[Any, Any, Outcome]]
"""Plays a round in an empty folder: with this seed, and this many faults."""


@dataclass(frozen=True)
class Round:
    """A round that has ended."""

    program: str
    seed: int
    faults: int
    seconds: float
    outcome: Outcome

    def line(self) -> str:
        return json.dumps({"program": self.program, "seed": self.seed, "count": self.faults} | self._rest())

    def _rest(self) -> dict[str, object]:
        return {"seconds": round(self.seconds, 1), **asdict(self.outcome)}


class Results:
    """A file with a line of JSON for each round."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def add(self, ended: Round) -> None:
        with self._file.open("a") as lines:
            print(ended.line(), file=lines)

    def done(self) -> dict[tuple[str, int, int], list[str]]:
        """Return the violations of each round that has ended, by program, seed and number of faults.

        If a round was played several times, the last one counts.
        """
        if not self._file.exists():
            return {}
        lines = [json.loads(line) for line in self._file.read_text().splitlines()]
        return {(line["program"], line["seed"], line["count"]): line["violations"] for line in lines}


def most_frequent(errors: Counter[str]) -> dict[str, int]:
    """Return the errors, the most frequent first."""
    return dict(errors.most_common())
