"""A client that has one operation after the other done, whatever becomes of its server, and holds it to its word."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.e2e.kills.effects import Effects

PAUSE = 0.02
"""Seconds until a client tries again."""
RESULTS = ["3 kg", "3 euros"]
DEATHS = 5
"""After so many deaths of its process without progress, a turn fails: whatever kills it may be the turn itself."""
GIVEN_UP = f"without progress; the process ended {DEATHS} times"
WORDS = " ".join(f"w{number}" for number in range(12))


@dataclass
class Counts:
    """What a client went through."""

    kills: int = 0
    """Kills of the server while an operation was under way."""
    operations: int = 0
    """Operations that were answered."""
    lost: int = 0
    """Operations whose request was cut before the client had an id of it, in a protocol that cannot repeat it."""
    given_up: int = 0
    """Operations that failed because they met with as many kills as the server forgives."""
    cuts: int = 0
    """Connections that broke."""
    effects: int = 0
    """What the tools of all operations did in the world."""


@dataclass
class Asked:
    """Ids of what a server has asked for, and whether it has accepted the answer."""

    ids: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    accepted: set[str] = field(default_factory=set)


class Caller:
    """One client of one protocol."""

    name = ""
    questions = 1
    """How many questions an operation asks."""
    page_tools = 0
    """How many calls of tools of the page an operation makes."""
    tools: tuple[str, ...] = ("weigh", "pay")
    """The tools that a receiver can tell apart by their calls: exactly one call for each operation."""
    careful: tuple[str, ...] = ("stamp",)
    """The tools that must not run twice."""
    may_fail = False
    """Whether a crash may have a careful tool end as interrupted, so that less is asked."""

    def __init__(self, url: str, heard: Callable[[], None], seed: str) -> None:
        self.url = url
        self.random = Random(f"{seed} {self.name}")
        self.counts = Counts()
        self.is_working = False
        self.has_heard = False
        self.violations: list[str] = []
        self.stopping = False
        self._heard = heard
        self._questions, self._page_tools = Asked(), Asked()
        self._answered: list[str] = []
        self._lost: list[str] = []
        """Operations without an answer: lost, or given up."""

    async def open(self) -> None:
        """Make what the client keeps for all operations. Override it if there is something."""

    async def close(self) -> None:
        """Close it."""

    async def operate(self, operation: str) -> str | None:
        """Have one operation done; return its answer, or `None` if no id of it is known. Override it."""
        raise NotImplementedError

    def expected(self, operation: str) -> str:
        """Return what a server that is never killed answers."""
        return f"{operation}: {', '.join(RESULTS)}. {WORDS}"

    async def run(self) -> None:
        """Have operations done until told to stop."""
        await self.open()
        try:
            number = 0
            while not self.stopping:
                await self._one(f"{self.name}-{number}")
                number += 1
        finally:
            await self.close()

    async def _one(self, operation: str) -> None:
        self.is_working, before = True, self.counts.kills
        answer = await self.operate(operation)
        self.is_working = False
        if answer is None:
            self.counts.lost += 1
            self._lost.append(operation)
            return
        if GIVEN_UP in answer and self.counts.kills - before >= DEATHS:
            self.counts.given_up += 1
            self._lost.append(operation)
            return
        self.counts.operations += 1
        self._answered.append(operation)
        if answer.strip() != self.expected(operation):
            self.violations.append(f"{operation}: the answer is {answer!r}")

    def heard(self) -> None:
        """Count what came from the server: the test may kill it now."""
        self.has_heard = True
        self._heard()

    async def cut(self) -> None:
        """Count a connection that broke, and wait a moment."""
        self.counts.cuts += 1
        await asyncio.sleep(PAUSE)

    def asked(self, operation: str, *ids: str) -> None:
        """Note questions that the server says are open."""
        self._note("question", self._questions, operation, ids)

    def called(self, operation: str, *ids: str) -> None:
        """Note calls of tools of the page that the server says are open."""
        self._note("tool of the page", self._page_tools, operation, ids)

    def accepted(self, *ids: str) -> None:
        """Note that the server has accepted the answers to these questions, or results of these calls."""
        self._questions.accepted.update(ids)
        self._page_tools.accepted.update(ids)

    def _note(self, what: str, asked: Asked, operation: str, ids: tuple[str, ...]) -> None:
        for id in ids:
            if id in asked.accepted:
                self.violations.append(f"{operation}: {what} {id} is asked for after its answer was accepted")
            if id not in asked.ids[operation]:
                asked.ids[operation].append(id)

    def check(self, effects: Effects) -> None:
        """Compare what the server told with what its tools did."""
        for operation in self._answered:
            for tool in self.tools:
                if (calls := effects.calls[operation, tool]) != 1:
                    self.violations.append(f"{operation}: {calls} calls of {tool}")
            for what, asked, most in (
                ("questions", self._questions, self.questions),
                ("tools of the page", self._page_tools, self.page_tools),
            ):
                found = asked.ids[operation]
                if len(found) > most or (len(found) < most and not self.may_fail):
                    self.violations.append(f"{operation}: {len(found)} {what} instead of {most}: {found}")
        for operation in self._lost:
            for tool in self.tools:
                if (calls := effects.calls[operation, tool]) > 1:
                    self.violations.append(f"{operation}: {calls} calls of {tool} without an answer")
        for operation in (*self._answered, *self._lost):
            self.counts.effects += sum(effects.calls[operation, tool] for tool in (*self.tools, *self.careful))
            for tool in self.careful:
                if (attempts := effects.attempts[operation, tool]) > 1:
                    self.violations.append(f"{operation}: {tool} ran {attempts} times")

    def report(self) -> dict[str, Any]:
        return dict(vars(self.counts))
