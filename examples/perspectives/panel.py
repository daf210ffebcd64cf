"""A panel: three specialists answer one question in parallel, and a chair sums up."""

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
"""The number of answers that a summary needs."""
FAIL = "Fail on purpose."
"""The last line of a prompt that makes a specialist fail."""
LIST = "SELECT id, question, rule, outcome FROM discussions"


# --8<-- [start:specialists]
class Specialist(ChatAgent):
    """Answers a question from one point of view."""

    async def before_turn(self, turn: Turn) -> None:
        if str(turn.body.get("input")).endswith(FAIL):
            await asyncio.sleep(20 * panel_notes.PAUSE)  # during its work
            raise Refused("It failed on purpose.")

    @tool(idempotent=True)
    async def look_up(self, question: str) -> dict[str, str]:
        """Search your notes (they are simulated) for facts about a question."""
        return await panel_notes.read(type(self).__name__, question)


FORMAT = (
    "Search your notes once. Answer with 'Yes.', 'No.' or 'It depends.' in bold, and "
    "give the reason in one sentence. Then list a risk and what would change your mind."
)


class Engineer(Specialist):
    model = MODEL or Offline(as_specialist("Engineer"))
    instructions = f"You are an engineer: can it be built and maintained? {FORMAT}"


class Customer(Specialist):
    model = MODEL or Offline(as_specialist("Customer"))
    instructions = f"You speak for the customers: is it useful to them? {FORMAT}"


class Accountant(Specialist):
    model = MODEL or Offline(as_specialist("Accountant"))
    instructions = (
        f"You are an accountant: what does it cost, what does it earn? {FORMAT}"
    )


class Chair(ChatAgent):
    """Sums up the answers of the specialists."""

    model = MODEL or Offline(as_chair)
    instructions = (
        "You chair a panel. Sum up the answers of the specialists in a few sentences: "
        "who is for it, who is against it, where they agree, and what to do next. Use "
        "only their answers, and name the specialists that are missing."
    )


SPECIALISTS: tuple[type[Specialist], ...] = (Engineer, Customer, Accountant)


# --8<-- [end:specialists]
PAGE_WORDS = {"failed": "error", "cancelled": "aborted"}
"""The names of these statuses in the npm client, which the page uses."""


@dataclass(frozen=True)
class Lane:
    """One run in the timeline."""

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
    """`summed up`, `not summed up`, `too few` or `stopped`. `None` while it runs."""
    lanes: tuple[Lane, ...] = ()


@dataclass(frozen=True)
class PanelState:
    """The state that pages receive."""

    model: str = ""
    discussions: tuple[Discussion, ...] = ()


class Panel(Agent[PanelState]):
    """Runs discussions. Each is a fiber, so it resumes after a crash."""

    initial_state = PanelState()
    migrations = (
        """
        CREATE TABLE discussions (
            number   INTEGER PRIMARY KEY,
            id       TEXT NOT NULL UNIQUE,  -- chosen by the client
            question TEXT NOT NULL,
            rule     TEXT NOT NULL,
            outcome  TEXT                   -- NULL while it runs
        ) STRICT
        """,
    )

    @expose
    async def ask(
        self, id: str, question: str, rule: Rule, failing: list[str] | None = None
    ) -> None:
        """Start a discussion. The id is an idempotency key: a repeat has no effect."""
        if not re.fullmatch(r"[a-z0-9]{1,40}", id):
            raise Refused(
                f"The id must be 1 to 40 letters a to z or digits, got {id!r}."
            )
        if not question.strip():
            raise Refused("The question must not be empty.")
        insert = (
            "INSERT OR IGNORE INTO discussions (id, question, rule) VALUES (?, ?, ?)"
        )
        self.sql(insert, id, question.strip(), rule)
        self.start_fiber(id, self.discuss, id, question.strip(), rule, failing or [])
        self._publish()

    # --8<-- [start:discuss]
    async def discuss(
        self, id: str, question: str, rule: Rule, failing: list[str]
    ) -> None:
        branches = [
            Branch(cls, prompt(question, cls, failing), run_id=f"{id}-{cls.__name__}")
            for cls in SPECIALISTS
        ]
        if rule == "race":
            runs = [await self.runs.race(*branches)]
        else:
            runs = await self.runs.gather(
                *branches, quorum=2 if rule == "quorum" else None
            )
        answers = [run for run in runs if run.ok]
        if len(answers) < NEEDED[rule]:
            self._end(id, "too few")
        else:
            text = minutes(question, answers, self._failures(id))
            summary = await self.run_agent(Chair, text, run_id=f"{id}-Chair")
            self._end(id, "summed up" if summary.ok else "not summed up")

    # --8<-- [end:discuss]
    @expose
    async def stop(self, id: str) -> None:
        """Stop a discussion and all its runs."""
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
        """Delete all discussions and their runs."""
        for fiber in self.fibers.list():
            self.fibers.cancel(fiber.id)
        self.sql("DELETE FROM discussions")
        self._publish()
        await self.runs.clear()
        self.fibers.delete()

    @expose
    async def now(self) -> float:
        """Return the time of the server: the clock of a browser may be wrong."""
        return time.time()

    # --8<-- [start:timeline]
    async def on_start(self) -> None:
        self._publish()

    async def on_run_start(self, run: Run) -> None:
        self._publish()

    async def on_run_finish(self, run: Run) -> None:
        self._publish()

    def _publish(self) -> None:
        """Send all discussions with their runs to the pages."""
        lanes: dict[str, list[Lane]] = defaultdict(list)
        for run in self.runs.list():
            lanes[run.id.partition("-")[0]].append(lane(run))
        rows = self.sql(f"{LIST} ORDER BY number").into(Discussion)
        discussions = tuple(replace(row, lanes=tuple(lanes[row.id])) for row in rows)
        self.set_state(PanelState(MODEL or "offline script", discussions))

    # --8<-- [end:timeline]
    async def discussions(self) -> tuple[Discussion, ...]:
        """Return all discussions with their status."""
        return self.state.discussions

    def _end(self, id: str, outcome: str) -> None:
        self.sql("UPDATE discussions SET outcome = ? WHERE id = ?", outcome, id)
        self._publish()

    def _failures(self, id: str) -> list[Run]:
        """Return the failed runs of a discussion."""
        failed = self.runs.list("failed")
        return [run for run in failed if run.id.startswith(f"{id}-")]

    def is_readonly(self, connection: Connection) -> bool:
        return True


def prompt(question: str, cls: type[Specialist], failing: list[str]) -> str:
    """Return the input of a specialist."""
    return f"{question}\n\n{FAIL}" if cls.__name__ in failing else question


def minutes(question: str, answers: list[Run], failed: list[Run]) -> str:
    """Return the input of the chair."""
    texts = {run.agent.type: f"## {run.agent.type}\n\n{run.output}" for run in answers}
    errors = {run.agent.type: run.error for run in failed}
    missing = [
        f"- {name}: {errors.get(name, 'stopped')}"
        for name in (cls.__name__ for cls in SPECIALISTS)
        if name not in texts
    ]
    section = ["## Missing\n\n" + "\n".join(missing)] if missing else []
    return "\n\n".join([f"# {question}", *texts.values(), *section])


def lane(run: Run) -> Lane:
    began = run.started_at.timestamp() if run.started_at else 0.0
    ended = run.ended_at.timestamp() if run.ended_at else None
    who, status = run.agent.type, "running" if not run.is_over else run.status
    status = PAGE_WORDS.get(status, status)
    return Lane(run.id, who, status, began, ended, run.reason, run.error)
