"""The app of the black-box tests: agents that write, call, wait and act, and report what they hold.

It is served by `sapwood serve`, in a process of its own. What its agents do outside their databases is written to
the file that `BLACKBOX_EFFECTS` names, one line for each act. They keep all runs, or the last `BLACKBOX_RETAINED_RUNS`.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sapwood import After, Agent, App, Retention, expose

EFFECTS = os.environ.get("BLACKBOX_EFFECTS", os.devnull)
RETAINED_RUNS = os.environ.get("BLACKBOX_RETAINED_RUNS")
TABLES = (
    "CREATE TABLE items (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL) STRICT",
    "CREATE TABLE members (id TEXT PRIMARY KEY) STRICT",
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT",
    "CREATE TABLE wanted (id TEXT NOT NULL, due REAL NOT NULL) STRICT",
    "CREATE TABLE rings (id TEXT NOT NULL, due REAL NOT NULL, at REAL NOT NULL) STRICT",
    "CREATE TABLE taken (n INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, number INTEGER NOT NULL) STRICT",
    "CREATE TABLE steps (fiber TEXT NOT NULL, step INTEGER NOT NULL) STRICT",
    "CREATE TABLE accounts (name TEXT PRIMARY KEY, amount INTEGER NOT NULL) STRICT",
    "CREATE TABLE register (value TEXT NOT NULL) STRICT",
)
DEEP = "deep"
"""The name of the child at each level that `append_deep` writes to."""
PURSE = "purse"
"""The child that `pay_child` pays, and its account."""


def record_effect(line: str) -> None:
    """Append a line to the file of outside acts, whole, also when several processes write."""
    descriptor = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Written:
    """The state: how many items there are, and the last one."""

    count: int = 0
    last: str = ""


class Base(Agent[Written]):
    """What roots, their children and the agents of runs can do."""

    initial_state = Written()
    migrations = TABLES
    create_from_url = True
    run_retention = Retention(count=int(RETAINED_RUNS)) if RETAINED_RUNS else Retention()

    # Lists, sets, counters: one slice writes an item, its counter and the state.

    @expose
    async def append(self, id: str) -> int:
        return self._append(id)

    def _append(self, id: str) -> int:
        number = self.sql("INSERT INTO items (id) VALUES (?) RETURNING n", id).scalar(int)
        self.sql("INSERT INTO counters VALUES ('items', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1")
        self.set_state(Written(self.state.count + 1, id))
        return number

    @expose
    async def add_member(self, id: str) -> None:
        self.sql("INSERT OR IGNORE INTO members VALUES (?)", id)

    @expose
    async def content(self) -> dict[str, Any]:
        return {
            "items": [[row["n"], row["id"]] for row in self.sql("SELECT n, id FROM items ORDER BY n")],
            "members": [row["id"] for row in self.sql("SELECT id FROM members")],
            "counters": {row["name"]: row["value"] for row in self.sql("SELECT name, value FROM counters")},
            "accounts": {row["name"]: row["amount"] for row in self.sql("SELECT name, amount FROM accounts")},
            "state": [self.state.count, self.state.last],
        }

    # Trees: the parent commits first, then its child.

    @expose
    async def append_deep(self, id: str, depth: int) -> None:
        self._append(id)
        if depth > 0:
            child = await self.sub_agent(Node, DEEP)
            await child.append_deep(id, depth - 1)

    @expose
    async def content_deep(self, depth: int) -> list[Any]:
        own = await self.content()
        if depth == 0:
            return [own]
        child = await self.sub_agent(Node, DEEP)
        return [own, *await child.content_deep(depth - 1)]

    # Money: inside one agent, and from a parent to its child.

    @expose
    async def open_accounts(self, names: list[str], amount: int) -> None:
        for name in names:
            self.sql("INSERT OR IGNORE INTO accounts VALUES (?, ?)", name, amount)

    @expose
    async def transfer(self, payer: str, payee: str, amount: int) -> bool:
        return self._take(payer, amount) and self._give(payee, amount)

    @expose
    async def pay_child(self, payer: str, amount: int) -> bool:
        child = await self.sub_agent(Node, PURSE)
        if not self._take(payer, amount):
            return False
        await child.credit(amount)
        return True

    @expose
    async def credit(self, amount: int) -> None:
        self.sql("INSERT OR IGNORE INTO accounts VALUES (?, 0)", PURSE)
        self._give(PURSE, amount)

    @expose
    async def content_of_purse(self) -> dict[str, Any]:
        child = await self.sub_agent(Node, PURSE)
        return await child.content()

    def _take(self, payer: str, amount: int) -> bool:
        sql = "UPDATE accounts SET amount = amount - :a WHERE name = :n AND amount >= :a RETURNING amount"
        return self.sql(sql, a=amount, n=payer).first() is not None

    def _give(self, payee: str, amount: int) -> bool:
        self.sql("UPDATE accounts SET amount = amount + ? WHERE name = ?", amount, payee)
        return True

    # Schedules: a method without awaits takes effect once, one with awaits at least once.

    @expose
    async def ring_later(self, id: str, seconds: float, outside: bool) -> None:
        due = time.time() + seconds
        self.sql("INSERT INTO wanted VALUES (?, ?)", id, due)
        method = self.ring_outside if outside else self.ring
        self.schedule(After(delay=timedelta(seconds=seconds), key=id), method, id, due)

    async def ring(self, id: str, due: float) -> None:
        self.sql("INSERT INTO rings VALUES (?, ?, ?)", id, due, time.time())

    async def ring_outside(self, id: str, due: float) -> None:
        record_effect(f"ring {id}")
        await asyncio.sleep(0.002)
        await self.ring(id, due)

    @expose
    async def schedule_report(self) -> dict[str, Any]:
        return {
            "wanted": {row["id"]: row["due"] for row in self.sql("SELECT id, due FROM wanted")},
            "rings": [[row["id"], row["due"], row["at"]] for row in self.sql("SELECT * FROM rings")],
            "left": len(self.schedules.list()),
            "dead": [letter.arguments["id"] for letter in self.dead_letters.list()],
        }

    # Queues: each call once, in the order of its queue.

    @expose
    async def enqueue_number(self, queue: str, number: int) -> None:
        self.queues[queue].add(self.take_number, queue, number)

    async def take_number(self, queue: str, number: int) -> None:
        self.sql("INSERT INTO taken (queue, number) VALUES (?, ?)", queue, number)

    @expose
    async def queue_report(self) -> dict[str, Any]:
        return {
            "taken": [[row["queue"], row["number"]] for row in self.sql("SELECT queue, number FROM taken ORDER BY n")],
            "left": len(self.queues.list()),
        }

    # Fibers: steps in the database, and steps that act outside.

    @expose
    async def begin_fiber(self, key: str, steps: int) -> None:
        self.start_fiber(key, self.work, key, steps)

    async def work(self, key: str, steps: int) -> list[str]:
        tokens = list[str]()
        for number in range(steps):
            await self.step(f"inside {number}", self._step_inside, key, number)
            await asyncio.sleep(0.003)
            tokens.append(await self.step(f"outside {number}", self.step_outside, key, number))
        return tokens

    def _step_inside(self, key: str, number: int) -> None:
        self.sql("INSERT INTO steps VALUES (?, ?)", key, number)

    async def step_outside(self, key: str, number: int) -> str:
        token = uuid.uuid4().hex
        record_effect(f"step-began {key} {number} {token}")
        await asyncio.sleep(0.002)
        record_effect(f"step-ended {key} {number} {token}")
        return token

    @expose
    async def fiber_report(self) -> dict[str, Any]:
        return {
            "fibers": {one.key: [one.status, one.output, one.error] for one in self.fibers.list(limit=100_000)},
            "steps": [[row["fiber"], row["step"]] for row in self.sql("SELECT fiber, step FROM steps")],
        }

    # Runs: an id is an idempotency key.

    @expose
    async def do_run(self, run_id: str) -> list[Any]:
        run = await self.run_agent(Runner, {"id": run_id}, run_id=run_id)
        return [run.status, run.output, run.reason]

    @expose
    async def run_report(self) -> dict[str, Any]:
        return {run.id: [run.status, run.output, run.reason] for run in self.runs.list()}

    # A register: every read returns the latest write.

    @expose
    async def put(self, value: str) -> None:
        self.sql("DELETE FROM register")
        self.sql("INSERT INTO register VALUES (?)", value)

    @expose
    async def get(self) -> str:
        row = self.sql("SELECT value FROM register").first()
        return "" if row is None else str(row["value"])

    # Load.

    @expose
    async def nap(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @expose
    async def hold_memory(self, megabytes: int) -> int:
        self.held = bytearray(megabytes << 20)
        return megabytes

    async def on_request(self, request: Request) -> Response:
        if request.method == "POST":
            return JSONResponse({"n": self._append((await request.json())["id"])})
        return JSONResponse(await self.content())


class Root(Base):
    """A root."""


class Node(Base):
    """A sub-agent, at any depth."""


class Runner(Base):
    """Executes one run: a step that acts outside, then a write."""

    async def on_run(self, input: dict[str, str]) -> str:
        token = await self.step("token", self.make_token, input["id"])
        await asyncio.sleep(0.01)
        self._append(input["id"])
        return token

    async def make_token(self, id: str) -> str:
        token = uuid.uuid4().hex
        record_effect(f"run-began {id} {token}")
        return token


app = App(agents=[Root])
