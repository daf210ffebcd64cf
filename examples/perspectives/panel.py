"""A panel: three specialists look at one question at once, and a chair sums up."""

import asyncio
import os
import re
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Literal

from sapwood import (
    Agent,
    Branch,
    ChatAgent,
    Connection,
    Refused,
    Run,
    Turn,
    expose,
    tool,
)

import panel_notes
from panel_script import Offline, as_chair, as_specialist

MODEL = os.environ.get("MODEL")
Rule = Literal["settle", "quorum", "race"]
NEEDED: dict[Rule, int] = {"settle": 1, "quorum": 2, "race": 1}
"""How many have to answer before there is something to sum up."""
FAIL = "Fail on purpose."
"""Told to a specialist that is to fail, in a line of its own."""
LIST = "SELECT id, question, rule, outcome FROM discussions"


# --8<-- [start:specialists]
class Specialist(ChatAgent):
    """Looks at a question from one side, and says what it thinks of it."""

    async def before_turn(self, turn: Turn) -> None:
        if str(turn.body.get("input")).endswith(FAIL):
            await asyncio.sleep(20 * panel_notes.PAUSE)  # in the midst of its work
            raise Refused("It was told to fail.")

    @tool(idempotent=True)
    async def look_up(self, question: str) -> dict[str, str]:
        """Look into your notes (simulated ones) for what is known about a question."""
        return await panel_notes.read(type(self).__name__, question)


HOW = (
    "Look into your notes once. Answer with 'Yes.', 'No.' or 'It depends.' in bold and "
    "one sentence why; then a list with a risk, and with what would change your mind."
)


class Engineer(Specialist):
    model = MODEL or Offline(as_specialist("Engineer"))
    instructions = f"You are an engineer: can it be done, and kept running? {HOW}"


class Customer(Specialist):
    model = MODEL or Offline(as_specialist("Customer"))
    instructions = f"You speak for those who pay: is it any good to them? {HOW}"


class Accountant(Specialist):
    model = MODEL or Offline(as_specialist("Accountant"))
    instructions = f"You are an accountant: what does it cost, and bring in? {HOW}"


class Chair(ChatAgent):
    """Sums up what the specialists said."""

    model = MODEL or Offline(as_chair)
    instructions = (
        "You chair a panel. Sum up in a few sentences what its specialists said: who "
        "is for it and who against it, where they agree, and what to do next. Answer "
        "only from what was said, and name those who were not heard."
    )


SPECIALISTS: tuple[type[Specialist], ...] = (Engineer, Customer, Accountant)


# --8<-- [end:specialists]
PAGE_WORDS = {"failed": "error", "cancelled": "aborted"}
"""The page shows a run in the words that npm's client has for it."""


@dataclass(frozen=True)
class Lane:
    """One run, as a timeline shows it."""

    run: str
    who: str
    status: str
    began: float
    ended: float | None
    reason: str | None
    error: str | None


@dataclass(frozen=True)
class Discussion:
    id: str
    question: str
    rule: str
    outcome: str | None
    """`summed up`, `not summed up`, `too few`, `stopped`; None while it goes on."""
    lanes: tuple[Lane, ...] = ()


@dataclass(frozen=True)
class Shown:
    """What pages see of a panel."""

    model: str = ""
    discussions: tuple[Discussion, ...] = ()


class Panel(Agent[Shown]):
    """Has questions discussed. Each is a fiber: it goes on after a crash."""

    initial_state = Shown()
    migrations = (
        """
        CREATE TABLE discussions (
            number   INTEGER PRIMARY KEY,
            id       TEXT NOT NULL UNIQUE,  -- whoever asks makes it up
            question TEXT NOT NULL,
            rule     TEXT NOT NULL,
            outcome  TEXT                   -- NULL while it goes on
        ) STRICT
        """,
    )

    @expose
    async def ask(
        self, id: str, question: str, rule: Rule, failing: list[str] | None = None
    ) -> None:
        """Have a question discussed: once, however often it is asked under this id."""
        if not re.fullmatch(r"[a-z0-9]{1,40}", id) or not question.strip():
            raise Refused("A question needs an id of letters and digits, and words.")
        insert = (
            "INSERT OR IGNORE INTO discussions (id, question, rule) VALUES (?, ?, ?)"
        )
        self.sql(insert, id, question.strip(), rule)
        self.start_fiber(id, self.discuss, id, question.strip(), rule, failing or [])
        self._show()

    # --8<-- [start:discuss]
    async def discuss(
        self, id: str, question: str, rule: Rule, failing: list[str]
    ) -> None:
        branches = [
            Branch(cls, brief(question, cls, failing), run_id=f"{id}-{cls.__name__}")
            for cls in SPECIALISTS
        ]
        if rule == "race":
            runs = [await self.runs.race(*branches)]
        else:
            runs = await self.runs.gather(
                *branches, quorum=2 if rule == "quorum" else None
            )
        heard = [run for run in runs if run.ok]
        if len(heard) < NEEDED[rule]:
            self._end(id, "too few")
        else:
            said = minutes(question, heard, self._failures(id))
            sum = await self.run_agent(Chair, said, run_id=f"{id}-Chair")
            self._end(id, "summed up" if sum.ok else "not summed up")

    # --8<-- [end:discuss]
    @expose
    async def stop(self, id: str) -> None:
        """Stop a discussion, and with it everybody who still works for it."""
        if self.fibers.cancel(id):
            self._end(id, "stopped")

    # --8<-- [start:cancel]
    @expose
    async def dismiss(self, run: str) -> None:
        """Cancel the run of one specialist. The others continue."""
        self.runs.cancel(run, "dismissed")

    # --8<-- [end:cancel]
    @expose
    async def clear(self) -> None:
        """Forget all discussions, and what everybody said in them."""
        for fiber in self.fibers.list():
            self.fibers.cancel(fiber.id)
        self.sql("DELETE FROM discussions")
        self._show()
        await self.runs.clear()
        self.fibers.delete()

    @expose
    async def now(self) -> float:
        """Return what time it is here: the clock of a browser may be wrong."""
        return time.time()

    # --8<-- [start:timeline]
    async def on_start(self) -> None:
        self._show()

    async def on_run_start(self, run: Run) -> None:
        self._show()

    async def on_run_finish(self, run: Run) -> None:
        self._show()

    def _show(self) -> None:
        """Have all pages see how the discussions stand, with every run in them."""
        lanes: dict[str, list[Lane]] = defaultdict(list)
        for run in self.runs.list():
            lanes[run.id.partition("-")[0]].append(lane(run))
        rows = self.sql(f"{LIST} ORDER BY number").into(Discussion)
        discussions = tuple(replace(row, lanes=tuple(lanes[row.id])) for row in rows)
        self.set_state(Shown(MODEL or "offline script", discussions))

    # --8<-- [end:timeline]
    async def discussions(self) -> tuple[Discussion, ...]:
        """Return how all discussions stand."""
        return self.state.discussions

    def _end(self, id: str, outcome: str) -> None:
        self.sql("UPDATE discussions SET outcome = ? WHERE id = ?", outcome, id)
        self._show()

    def _failures(self, id: str) -> list[Run]:
        """Return the runs of a discussion that failed by now."""
        failed = self.runs.list("failed")
        return [run for run in failed if run.id.startswith(f"{id}-")]

    def is_readonly(self, connection: Connection) -> bool:
        return True


def brief(question: str, cls: type[Specialist], failing: list[str]) -> str:
    """Return what a specialist is told."""
    return f"{question}\n\n{FAIL}" if cls.__name__ in failing else question


def minutes(question: str, heard: list[Run], failed: list[Run]) -> str:
    """Return what the chair is told."""
    said = {run.agent.type: f"## {run.agent.type}\n\n{run.output}" for run in heard}
    why = {run.agent.type: run.error for run in failed}
    missing = [
        f"- {name}: {why.get(name, 'stopped')}"
        for name in (cls.__name__ for cls in SPECIALISTS)
        if name not in said
    ]
    not_heard = ["## Not heard\n\n" + "\n".join(missing)] if missing else []
    return "\n\n".join([f"# {question}", *said.values(), *not_heard])


def lane(run: Run) -> Lane:
    began = run.started_at.timestamp() if run.started_at else 0.0
    ended = run.ended_at.timestamp() if run.ended_at else None
    who, status = run.agent.type, "running" if not run.is_over else run.status
    status = PAGE_WORDS.get(status, status)
    return Lane(run.id, who, status, began, ended, run.reason, run.error)
