"""A lab: a model writes Python, which runs in a sandbox and reaches one function only.

That function is a method of the lab, which asks the database, a sub-agent: the code
holds no stub of it. Where the code waits and what it called is shown on the page.
"""

import asyncio
import os
import re
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai import RunContext
from sapwood import ChatAgent, Connection, Refused, expose, tool
from sapwood.sandbox import CodeLimits, CodeResult, run_code
from sapwood.types import PathSegment
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response

from lab_customers import Customer, CustomerDatabase
from lab_escapes import ESCAPES, Escape
from lab_script import Offline

MODEL = os.environ.get("MODEL")
LIMITS = CodeLimits(
    seconds=1.0,
    memory_bytes=16 * 1024 * 1024,
    depth=100,
    calls=20,
    output_bytes=2000,
)
LISTED = 40
"""Runs that pages are shown: the latest."""


@dataclass(frozen=True)
class Call:
    """A call of the one function, by code."""

    run: str
    city: str
    answer: str | None
    """None: the code waits for it."""
    made: int
    """How often it was made: more than once if the server was killed meanwhile."""


@dataclass(frozen=True)
class CodeRun:
    """Code, and what became of it, as pages show it."""

    id: str
    code: str
    begun: int
    """How often: once, and once more for each time that the server was killed."""
    printed: str = ""
    value: str | None = None
    kind: str | None = None
    """The kind of failure; None: there was none."""
    message: str = ""
    line: int | None = None
    status: str = "running"
    """`running`, `paused` at a call, `done`, `refused`, or `stopped`."""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Shown:
    """What pages see of the lab."""

    model: str = ""
    limits: CodeLimits = LIMITS
    escapes: tuple[Escape, ...] = ()
    runs: tuple[CodeRun, ...] = ()
    customers: tuple[Customer, ...] = ()


class Lab(ChatAgent[str, Shown]):
    """Answers questions about the customers with Python."""

    initial_state = Shown()
    model = MODEL or Offline()
    instructions = (
        "You answer questions about customers with Python, which you run with "
        "`run_python`. The cities are London, Milan and Rome. If the code fails, mend "
        "it and run it again. Answer in a sentence or two, from what came out of it."
    )
    migrations = (
        """
        CREATE TABLE code_runs (
            number  INTEGER PRIMARY KEY,
            id      TEXT NOT NULL UNIQUE,
            code    TEXT NOT NULL,
            begun   INTEGER NOT NULL DEFAULT 0,
            printed TEXT NOT NULL DEFAULT '',
            value   TEXT,
            kind    TEXT,
            message TEXT NOT NULL DEFAULT '',
            line    INTEGER,
            status  TEXT NOT NULL DEFAULT 'running'
        ) STRICT;
        CREATE TABLE calls (
            number INTEGER PRIMARY KEY,
            run    TEXT NOT NULL,
            city   TEXT NOT NULL,
            answer TEXT,             -- NULL while the code waits for it
            made   INTEGER NOT NULL DEFAULT 1
        ) STRICT;
        """,
    )

    # --8<-- [start:run]
    @tool(idempotent=True)
    async def run_python(self, context: RunContext[Any], code: str) -> str:
        """Run Python, and return what it prints and what its last expression is.

        There are no files, no network and no packages. It may call customers(city),
        which returns a list of {"name", "city", "plan", "pays"}; pays is in euros.
        """
        return str(await self._run(context.tool_call_id or "", code))

    async def _run(self, id: str, code: str) -> CodeResult:
        self._begin(id, code)
        one = {"customers": self._loopback(id)}
        try:
            result = await run_code(code, one, limits=LIMITS)
        except asyncio.CancelledError:
            self._stand(id, "stopped")
            raise
        self._end(id, result)
        return result

    def _loopback(self, id: str) -> Callable[[str], Coroutine[Any, Any, Any]]:
        """Return the one function of a run: the code calls us, and we the database."""

        async def customers(city: str) -> list[Customer]:
            self._note(id, city)
            database = await self.sub_agent(CustomerDatabase, "customers")
            found = await database.in_city(city)
            self._answer(id, f"{len(found)} found")
            return found

        return customers

    # --8<-- [end:run]
    @expose
    async def attempt(self, id: str, code: str) -> None:
        """Run code of somebody at the page: once, however often it is asked for."""
        if not code.strip() or len(code) > 10_000:
            raise Refused("Code has between one and 10,000 characters.")
        self.start_fiber(id, self.run_attempt, id, code)

    async def run_attempt(self, id: str, code: str) -> None:
        await self._run(id, code)

    def _begin(self, id: str, code: str) -> None:
        insert = "INSERT OR IGNORE INTO code_runs (id, code) VALUES (?, ?)"
        self.sql(insert, id, code)
        self.sql("UPDATE code_runs SET begun = begun + 1 WHERE id = ?", id)
        self._stand(id, "running")

    def _note(self, id: str, city: str) -> None:
        """Note that code waits for a call, perhaps the same as before a crash."""
        waiting = "SELECT count(*) FROM calls WHERE run = ? AND answer IS NULL"
        if self.sql(waiting, id).scalar(int):
            again = "UPDATE calls SET made = made + 1 WHERE run = ? AND answer IS NULL"
            self.sql(again, id)
        else:
            self.sql("INSERT INTO calls (run, city) VALUES (?, ?)", id, city)
        self._stand(id, "paused")

    def _answer(self, id: str, answer: str) -> None:
        update = "UPDATE calls SET answer = ? WHERE run = ? AND answer IS NULL"
        self.sql(update, answer, id)
        self._stand(id, "running")

    def _stand(self, id: str, status: str) -> None:
        self.sql("UPDATE code_runs SET status = ? WHERE id = ?", status, id)
        self._show()

    def _end(self, id: str, result: CodeResult) -> None:
        failure = result.failure
        self.sql(
            "UPDATE code_runs SET printed = ?, value = ?, kind = ?, message = ?, "
            "line = ?, status = ? WHERE id = ?",
            result.printed,
            None if result.value is None else repr(result.value),
            failure and failure.kind,
            failure.message if failure else "",
            failure and failure.line,
            "refused" if failure else "done",
            id,
        )
        self._show()

    def _show(self) -> None:
        """Have all pages see how every run stands."""
        calls: dict[str, list[Call]] = defaultdict(list)
        made = "SELECT run, city, answer, made FROM calls ORDER BY number"
        for call in self.sql(made).into(Call):
            calls[call.run].append(call)
        latest = (
            "SELECT id, code, begun, printed, value, kind, message, line, status "
            "FROM code_runs ORDER BY number DESC LIMIT ?"
        )
        runs = [
            replace(run, calls=tuple(calls[run.id]), line=run.line or waits_at(run))
            for run in self.sql(latest, LISTED).into(CodeRun)
        ]
        self.set_state(replace(self.state, runs=tuple(reversed(runs))))

    async def on_start(self) -> None:
        database = await self.sub_agent(CustomerDatabase, "customers")
        customers = tuple(await database.everybody())
        model = MODEL or "offline script"
        self.set_state(Shown(model, LIMITS, ESCAPES, customers=customers))
        self._show()

    async def shown(self) -> Shown:
        """Return what pages see."""
        return self.state

    async def on_before_sub_agent(
        self, request: HTTPConnection, child: PathSegment
    ) -> Response | None:
        """Let nobody from outside go to the database themselves."""
        return PlainTextResponse("The database is not for everybody.", 403)

    def is_readonly(self, connection: Connection) -> bool:
        return True


def waits_at(run: CodeRun) -> int | None:
    """Return the line at which code waits, if there is only one that calls."""
    if run.status != "paused":
        return None
    lines = [
        number
        for number, line in enumerate(run.code.splitlines(), 1)
        if re.search(r"\bcustomers\s*\(", line)
    ]
    return lines[0] if len(lines) == 1 else None
