"""A lab: a model writes Python code that runs in a sandbox and can call one function.

The function belongs to the lab. It calls the database, a sub-agent whose stub the code
never holds. The page shows the calls of the code and the line at which it waits.
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
MAX_RUNS = 40
"""The number of runs that pages receive, the latest ones."""


@dataclass(frozen=True)
class Call:
    """A call of `customers` by the code."""

    run: str
    city: str
    answer: str | None
    """`None` while the code waits for it."""
    attempts: int
    """More than one if the server was killed during the call."""


@dataclass(frozen=True)
class CodeRun:
    """A run of code and its result, as pages show it."""

    id: str
    code: str
    starts: int
    """One, plus one for each time that the server was killed during the run."""
    printed: str = ""
    value: str | None = None
    kind: str | None = None
    """The kind of failure. `None` means no failure."""
    message: str = ""
    line: int | None = None
    status: str = "running"
    """`running`, `paused` (at a call), `done`, `refused` or `stopped`."""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class LabState:
    """The state that pages receive."""

    model: str = ""
    limits: CodeLimits = LIMITS
    escapes: tuple[Escape, ...] = ()
    runs: tuple[CodeRun, ...] = ()
    customers: tuple[Customer, ...] = ()


class Lab(ChatAgent[str, LabState]):
    """Answers questions about the customers with Python code."""

    initial_state = LabState()
    model = MODEL or Offline()
    instructions = (
        "You answer questions about customers with Python code. Run it with "
        "`run_python`. The cities are London, Milan and Rome. If the code fails, fix "
        "it and run it again. Answer in a sentence or two, based on its output."
    )
    migrations = (
        """
        CREATE TABLE code_runs (
            number  INTEGER PRIMARY KEY,
            id      TEXT NOT NULL UNIQUE,
            code    TEXT NOT NULL,
            starts  INTEGER NOT NULL DEFAULT 0,
            printed TEXT NOT NULL DEFAULT '',
            value   TEXT,
            kind    TEXT,
            message TEXT NOT NULL DEFAULT '',
            line    INTEGER,
            status  TEXT NOT NULL DEFAULT 'running'
        ) STRICT;
        CREATE TABLE calls (
            number   INTEGER PRIMARY KEY,
            run      TEXT NOT NULL,
            city     TEXT NOT NULL,
            answer   TEXT,             -- NULL while the code waits for it
            attempts INTEGER NOT NULL DEFAULT 1
        ) STRICT;
        """,
    )

    # --8<-- [start:run]
    @tool(idempotent=True)
    async def run_python(self, context: RunContext[Any], code: str) -> str:
        """Run Python. Return its output and the value of its last expression.

        There are no files, no network and no packages. The code can call
        customers(city), which returns a list of {"name", "city", "plan", "pays"}; pays
        is in euros.
        """
        return str(await self._run(context.tool_call_id or "", code))

    async def _run(self, id: str, code: str) -> CodeResult:
        self._record_start(id, code)
        functions = {"customers": self._loopback(id)}
        try:
            result = await run_code(code, functions, limits=LIMITS)
        except asyncio.CancelledError:
            self._set_status(id, "stopped")
            raise
        self._record_result(id, result)
        return result

    def _loopback(self, id: str) -> Callable[[str], Coroutine[Any, Any, Any]]:
        """Return the only function of the code. It calls the database for the code."""

        async def customers(city: str) -> list[Customer]:
            self._record_call(id, city)
            database = await self.sub_agent(CustomerDatabase, "customers")
            rows = await database.in_city(city)
            self._record_answer(id, f"{len(rows)} found")
            return rows

        return customers

    # --8<-- [end:run]
    @expose
    async def attempt(self, id: str, code: str) -> None:
        """Run code from the page. The id is an idempotency key."""
        if not code.strip() or len(code) > 10_000:
            text = f"Code must have 1 to 10,000 characters, got {len(code.strip()):,}."
            raise Refused(text)
        self.start_fiber(id, self.run_attempt, id, code)

    async def run_attempt(self, id: str, code: str) -> None:
        await self._run(id, code)

    def _record_start(self, id: str, code: str) -> None:
        insert = "INSERT OR IGNORE INTO code_runs (id, code) VALUES (?, ?)"
        self.sql(insert, id, code)
        self.sql("UPDATE code_runs SET starts = starts + 1 WHERE id = ?", id)
        self._set_status(id, "running")

    def _record_call(self, id: str, city: str) -> None:
        """Record that the code waits for a call. After a crash it is the same call."""
        repeated = self.sql(
            "UPDATE calls SET attempts = attempts + 1"
            " WHERE run = ? AND answer IS NULL RETURNING number",
            id,
        )
        if not repeated:
            self.sql("INSERT INTO calls (run, city) VALUES (?, ?)", id, city)
        self._set_status(id, "paused")

    def _record_answer(self, id: str, answer: str) -> None:
        update = "UPDATE calls SET answer = ? WHERE run = ? AND answer IS NULL"
        self.sql(update, answer, id)
        self._set_status(id, "running")

    def _set_status(self, id: str, status: str) -> None:
        self.sql("UPDATE code_runs SET status = ? WHERE id = ?", status, id)
        self._publish()

    def _record_result(self, id: str, result: CodeResult) -> None:
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
        self._publish()

    def _publish(self) -> None:
        """Send the latest runs with their calls to the pages."""
        calls: dict[str, list[Call]] = defaultdict(list)
        query = "SELECT run, city, answer, attempts FROM calls ORDER BY number"
        for call in self.sql(query).into(Call):
            calls[call.run].append(call)
        latest = (
            "SELECT id, code, starts, printed, value, kind, message, line, status "
            "FROM code_runs ORDER BY number DESC LIMIT ?"
        )
        runs = [
            replace(run, calls=tuple(calls[run.id]), line=run.line or waiting_line(run))
            for run in self.sql(latest, MAX_RUNS).into(CodeRun)
        ]
        self.set_state(replace(self.state, runs=tuple(reversed(runs))))

    async def on_start(self) -> None:
        database = await self.sub_agent(CustomerDatabase, "customers")
        customers = tuple(await database.all_customers())
        model = MODEL or "offline script"
        self.set_state(LabState(model, LIMITS, ESCAPES, customers=customers))
        self._publish()

    async def page_state(self) -> LabState:
        """Return the state that pages receive."""
        return self.state

    async def on_before_sub_agent(
        self, request: HTTPConnection, child: PathSegment
    ) -> Response | None:
        """Reject clients that try to connect to the database."""
        return PlainTextResponse("The database is private.", 403)

    def is_readonly(self, connection: Connection) -> bool:
        return True


def waiting_line(run: CodeRun) -> int | None:
    """Return the line at which the code waits, if only one line has a call."""
    if run.status != "paused":
        return None
    lines = [
        number
        for number, line in enumerate(run.code.splitlines(), 1)
        if re.search(r"\bcustomers\s*\(", line)
    ]
    return lines[0] if len(lines) == 1 else None
