"""Reads what a dead process left of runs, with nothing but SQLite, and says what is wrong with it as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from tests.faults import chat_rules
from tests.faults.reading import has, walk
from tests.faults.span_checker import Records, read_records

from sapwood.address import Address
from sapwood.chat.store.turns import ALL as ALL_TURNS
from sapwood.chat.store.turns import ALL_CALLS, ToolCall
from sapwood.chat.store.turns import TurnRow as Turn
from sapwood.kernel.node.data_folder import TREES, roots_in
from sapwood.kernel.trees.usage import ALL_BELOW, Spent
from sapwood.runs.tables import executed_runs_table, runs_table
from sapwood.runs.tables.executed_runs_table import ExecutedRunRow as Served
from sapwood.runs.tables.runs_table import HARD
from sapwood.runs.tables.runs_table import RunRow as Given

TOLD_OVER = 2
FINISHED = "_sapwood_run_finished"
BY_HOOK = ("Rover", "Hand")
"""Classes of children that work in the background: the hook `on_run_finish` reports their ends."""


def is_heard(row: Given) -> bool:
    """Return whether the workload notes the end of a run that nobody waits for."""
    detached = row.detached
    return detached is not None and (detached["on_finish"] is not None or row.type in BY_HOOK)


@dataclass(slots=True)
class Left:
    """What is left of one agent."""

    address: Address
    given: dict[str, Given] = field(default_factory=dict[str, Given])
    """The runs it has given."""
    served: dict[str, Served] = field(default_factory=dict[str, Served])
    """The runs it does for its parent."""
    chunks: dict[int, list[tuple[int, str]]] = field(default_factory=dict[int, list[tuple[int, str]]])
    """What each run or turn has streamed: numbers and chunks, in the order they are stored in."""
    turns: list[Turn] = field(default_factory=list[Turn])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    history: list[ModelMessage] = field(default_factory=list[ModelMessage])
    fibers: Counter[tuple[str, Any]] = field(default_factory=Counter[tuple[str, Any]])
    """The methods of fibers that are not over, with what each is about."""
    queued: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """The callbacks that are to come: run and status."""
    others: list[str] = field(default_factory=list[str])
    """The other calls that are to come."""
    letters: list[str] = field(default_factory=list[str])
    heard: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """The callbacks that have come: run and status."""
    steps: set[str] = field(default_factory=set[str])
    """The steps that were completed, of work that goes on."""
    account: dict[tuple[str, str], Spent] = field(default_factory=dict[tuple[str, str], Spent])
    """At a root: what was used in the whole tree, by agent and run; with all below them, by agent and `*`."""
    records: Records = field(default_factory=Records)

    @property
    def place(self) -> str:
        return str(self.address)

    def said(self, run: str) -> dict[int, str]:
        """Return the chunks of a run it does, by their numbers."""
        row = self.served.get(run)
        return {} if row is None else dict(self.chunks.get(row.stream, ()))

    def returned(self) -> dict[str, Any]:
        """Return what the model was told of each tool call that succeeded."""
        return {
            part.tool_call_id: part.content
            for message in self.history
            for part in message.parts
            if part.part_kind == "tool-return" and part.outcome == "success"
        }

    def problems(self) -> list[str]:
        """Return what can be seen to be wrong without knowing what happened."""
        found = chat_rules.broken(self.history, is_asked=False)
        ids = [message["id"] for message in self.messages]
        if len(set(ids)) < len(ids):
            found.append("a message is there twice")
        found += [f"{letter} was given up" for letter in self.letters]
        for row in self.given.values():
            if row.is_open and not self.fibers["_sapwood_follow_run", row.id]:
                found.append(f"the run {row.id} is {row.status}, and nobody follows it")
            found += self._untold(row)
        for row in self.served.values():
            found += self._undone(row)
        found += self.records.problems() + self.records.of_turns(self.turns, self.calls)
        found += self.records.of_runs(self.given.values())
        return [f"{self.place}: {problem}" for problem in found]

    def _untold(self, row: Given) -> list[str]:
        detached = msgspec.json.decode(row.options).get("detached")
        if detached is None or row.status not in HARD:
            return []
        if not row.delivered & TOLD_OVER:
            return [f"the detached run {row.id} is {row.status}, and that was not delivered"]
        if not is_heard(row):
            return []
        if not self.heard[row.id, row.status] and not self.queued[row.id, row.status]:
            return [f"the detached run {row.id} is {row.status}, and nobody will be told"]
        return []

    def _undone(self, row: Served) -> list[str]:
        found: list[str] = []
        turns = [turn for turn in self.turns if turn.run == row.id or turn.id == row.id]
        if len(turns) > 1:
            found.append(f"{len(turns)} turns do the run {row.id}")
        is_driven = bool(turns and turns[0].status in ("queued", "running", "waiting")) or bool(
            self.fibers["_sapwood_serve_run", row.id]
        )
        if row.status == "running" and not is_driven:
            found.append(f"the run {row.id} is running, and nobody does it")
        numbers = [seq for seq, _ in self.chunks.get(row.stream, ())]
        if numbers != [*range(len(numbers))]:
            found.append(f"the chunks of the run {row.id} are numbered {numbers}")
        if row.length is not None and row.length > len(numbers):
            found.append(f"the run {row.id} had {row.length} chunks, and {len(numbers)} are there")
        return found

    def read(self, database: apsw.Connection) -> None:
        """Read what is left."""
        _read(database, self)


def unaccounted(folder: Mapping[str, Left]) -> list[str]:
    """Return where the account of a tree is not what its turns have used; of an open one by a request."""
    found: list[str] = []
    for left in folder.values():
        root = folder[str(left.address.root)]
        if left is root:
            rows = [spent for (_, run), spent in root.account.items() if run != ALL_BELOW]
            if _sum(rows) != root.account.get((root.place, ALL_BELOW), Spent()):
                found.append(f"{root.place}: the account has {rows}, and the sum is another")
        turns = {"": left.turns} if left is root else {turn.run or turn.id: [turn] for turn in left.turns}
        for run, of_run in turns.items():
            used = _sum([spent for turn in of_run for spent in turn.spent().values()])
            known = root.account.get((left.place, run), Spent())
            behind = used.requests - known.requests
            if used != known and not (abs(behind) == 1 and left is not root and of_run[0].is_open):
                found.append(f"{left.place}: {run or 'its turns'} used {used}, and the account has {known}")
    return found


def _sum(spent: Sequence[Spent]) -> Spent:
    total = Spent()
    for one in spent:
        total = total.plus(one)
    return total


L = TypeVar("L", bound=Left)


def read_folder(data: Path, kind: type[L]) -> dict[str, L]:
    """Return the agents of a data folder, by address. Reading changes files: give it a copy."""
    found: dict[str, L] = {}

    def read(address: Address, stem: str, database: apsw.Connection | None) -> None:
        left = found[str(address)] = kind(address)
        if database is not None:
            left.read(database)

    for root in roots_in(data) if (data / TREES).exists() else ():
        walk(data, root, read)
    return found


def _read(database: apsw.Connection, left: Left) -> None:
    left.records = read_records(database)
    if has(database, "sapwood_runs"):
        rows = [Given(*row) for row in database.execute(runs_table.ALL)]
        left.given = {row.id: row for row in rows}
    if has(database, "sapwood_served_runs"):
        served = [Served(*row) for row in database.execute(executed_runs_table.ALL)]
        left.served = {row.id: row for row in served}
    if has(database, "sapwood_chunks"):
        for stream, first, body in database.execute("SELECT stream, first, body FROM sapwood_chunks ORDER BY 1, 2"):
            for at, chunk in enumerate(msgspec.json.decode(body, type=list[msgspec.Raw])):
                left.chunks.setdefault(stream, []).append((first + at, bytes(chunk).decode()))
    if has(database, "sapwood_turns"):
        left.turns = [Turn(*row) for row in database.execute(ALL_TURNS + "ORDER BY number")]
        left.calls = [ToolCall(*row) for row in database.execute(ALL_CALLS)]
        bodies = database.execute("SELECT body FROM sapwood_messages WHERE is_active = 1 ORDER BY position")
        left.messages = [msgspec.json.decode(body) for (body,) in bodies]
        seen = "SELECT body FROM sapwood_model_messages WHERE is_active = 1 ORDER BY coalesce(place, position)"
        rows = list(database.execute(seen))
        left.history = ModelMessagesTypeAdapter.validate_json(f"[{','.join(str(body) for (body,) in rows)}]")
    if has(database, "sapwood_spending"):
        columns = "path, run, requests, input_tokens, output_tokens, nanodollars, unpriced"
        for path, run, *spent in database.execute(f"SELECT {columns} FROM sapwood_spending"):
            before = left.account.get((str(path), str(run)), Spent())
            left.account[str(path), str(run)] = before.plus(Spent(*spent))
    if has(database, "sapwood_fibers"):
        _read_fibers(database, left)
    if has(database, "sapwood_calls"):
        for method, arguments in database.execute("SELECT method, arguments FROM sapwood_calls"):
            run = msgspec.msgpack.decode(arguments).get("run")
            if method in ("heard", "heard_slowly") or (method == FINISHED and run["agent"][0] in BY_HOOK):
                left.queued[run["id"], run["status"]] += 1
            else:
                left.others.append(str(method))
        letters = database.execute("SELECT method, error FROM sapwood_dead_letters")
        left.letters = [f"{method} ({error})" for method, error in letters]
    if has(database, "heard"):
        left.heard.update((str(run), str(status)) for run, status in database.execute("SELECT run, status FROM heard"))


def _read_fibers(database: apsw.Connection, left: Left) -> None:
    works: dict[str, tuple[str, Any]] = {}
    for number, method, arguments, due in database.execute(
        "SELECT number, method, arguments, due_at FROM sapwood_fibers"
    ):
        values = msgspec.msgpack.decode(arguments) if arguments is not None else {}
        about = values.get("run", values.get("number"))
        works[f"fiber {number}"] = str(method), about
        if due is not None:
            left.fibers[str(method), about] += 1
    if has(database, "sapwood_steps"):
        for work, name in database.execute("SELECT work, name FROM sapwood_steps"):
            method, run = works.get(str(work), ("", None))
            if method == "_sapwood_serve_run":
                left.steps.add(f"{left.place} {run} {str(name).removeprefix('dig ')}")
