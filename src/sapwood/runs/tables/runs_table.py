"""The runs that an agent has started, and how each ended: the table in its own database."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol

import msgspec

from sapwood.address import PathSegment
from sapwood.clock import Clock
from sapwood.errors import OverLimit, UsageError
from sapwood.kernel.marshal.agent_class import AgentClass, resolve
from sapwood.kernel.marshal.call import current
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.tables.runnable import O_co
from sapwood.runs.tables.work_column import stored_work, work_of
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

RUNS = Schema("sapwood.runs", "runs")
CLEARED = Schema("sapwood.runs", "cleared")
ALL = (
    "SELECT number, id, work, tool_call, type, name, status, input, output, summary, error, reason, still_running,"
    " cancelled, position, display, options, usage, seq, delivered, trace, deadline_at, started_at, ended_at, mode,"
    " remote, created_by, bytes, pinned FROM sapwood_runs "
)
OPEN = ("queued", "running")
HARD = ("completed", "failed", "cancelled")
"""How runs end for good; one that was interrupted may still be completed."""

Status = Literal["queued", "running", "completed", "failed", "cancelled", "interrupted"]
Mode = Literal["ephemeral", "persistent"]
TERMINATED = "terminated"
"""Why runs are cancelled whose sub-agent is not to be used any more."""

REFUSED = "refused"
"""What is noted of runs that did not begin because there were too many."""

LONGEST_TEXT = 200
MOST_ITEMS = 20
DEEPEST = 4


class WorkOwner(Protocol):
    """The agent whose turns, runs and fibers start runs: whether each may continue."""

    def goes_on(self, work: WorkId) -> bool: ...

    def has_completed(self, work: WorkId) -> bool: ...

    def why_stopped(self, work: WorkId | None) -> str: ...


class RunRow(NamedTuple):
    """One run, as it is stored."""

    number: int
    id: str
    work: str | None
    tool_call: str | None
    type: str
    name: str
    status: str
    input: str
    output: str | None
    summary: str | None
    error: str | None
    reason: str | None
    still_running: int
    cancelled: str | None
    position: int
    display: str | None
    options: str
    usage: str
    seq: int
    delivered: int
    trace: str | None
    deadline_at: float | None
    started_at: float
    ended_at: float | None
    mode: str
    remote: str | None
    created_by: str | None
    bytes: int
    pinned: int

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def work_id(self) -> WorkId | None:
        """The turn, run or fiber that it is part of."""
        return None if self.work is None else work_of(self.work)

    @property
    def asked(self) -> dict[str, Any]:
        """What else was asked of it."""
        return msgspec.json.decode(self.options) if self.options != "{}" else {}

    @property
    def detached(self) -> dict[str, Any] | None:
        """How to report a run that no caller waits for."""
        return self.asked.get("detached")

    @property
    def may_pass(self) -> bool:
        """Whether what went wrong may go well another time: also if there were only too many others."""
        return self.reason is not None and (self.reason != OverLimit.code or self.asked.get(REFUSED, False))

    @property
    def said(self) -> int | None:
        """How many of its chunks are sent once it has ended. `None` means all.

        A run that was cancelled before its sub-agent was awake again may be closed by the sub-agent later. That
        close belongs to the sub-agent's own conversation, and is not sent after the end.
        """
        return self.seq - 1 if self.status in HARD else None

    def is_wanted_by(self, caller: WorkOwner) -> bool:
        """Return whether its caller wants it to continue: neither it nor what it is part of was cancelled.

        One that was given up may outlast what it was part of, if that completed.
        """
        if self.cancelled is not None:
            return False
        work = self.work_id
        if work is None or self.detached is not None or caller.goes_on(work):
            return True
        return self.status == "interrupted" and caller.has_completed(work)

    def why_unwanted_by(self, caller: WorkOwner) -> str:
        """Return the reason why its caller does not want it to continue."""
        own = self.cancelled or (self.reason if self.status in HARD else None)
        return own or caller.why_stopped(self.work_id)


@dataclass(frozen=True, slots=True)
class Run(Generic[O_co]):
    """One execution of an agent by another agent, its caller.

    `Run[Verdict]` is a run whose `output` is a `Verdict`.
    """

    id: str
    """The id of the run. Running it again with the same id returns the same run."""
    agent: PathSegment
    """Type and name of the sub-agent that executes it."""
    status: Status
    """`queued`, `running`, `completed`, `failed`, `cancelled` or `interrupted`."""
    input: Any
    """A preview of the input. Long strings, long lists and deep levels are cut; `full_input` returns all of it."""
    if TYPE_CHECKING:
        output: O_co = None  # type: ignore[assignment]
        """The output, if the run completed; otherwise `None`.

        It has the type that the class declares: as result of `on_run`, or in the brackets of `ChatAgent[…]`. Where none
        is declared or known, it is the JSON value.
        """
    else:
        output: O_co | None = None  # so that a copy of one without an output fits
    summary: str = ""
    """The output as text."""
    error: str | None = None
    """The error message, if the run did not complete."""
    reason: str | None = None
    """Why it was cancelled or interrupted, or the code of a transient error: `timed-out`, `over_limit` and others."""
    still_running: bool = False
    """Whether the sub-agent may still be working, although the run was interrupted."""
    tool_call: str | None = None
    """The id of the tool call that started it; `None` if code started it."""
    order: int = 0
    """Its position among the runs of the same tool call, or of the runs that were started together."""
    mode: Mode = "ephemeral"
    """`ephemeral` if the sub-agent was created for this run, `persistent` if it executes several runs in turn."""
    usage: Any = None
    """Requests, tokens and cost, by model."""
    started_at: datetime | None = None
    """When it was started."""
    ended_at: datetime | None = None
    """When it ended; `None` if it is unfinished."""
    remote: Any = None
    """For a remote run: `url`, `session` and, from `runs.get`, `seq`: the number of chunks received so far."""
    bytes: int = 0
    """Disk space of its sub-agent and everything below it, measured at the end of the run and by retention sweeps."""
    pinned: bool = False
    """Whether it is kept until `runs.unpin`, regardless of `run_retention`."""
    progress: Any = None
    """The last reported progress. Only from `runs.get`, not from `runs.list`."""
    milestones: tuple[Any, ...] = ()
    """The milestones that it has reached. Only from `runs.get`, not from `runs.list`."""

    @property
    def ok(self) -> bool:
        """Whether the run completed."""
        return self.status == "completed"

    @property
    def retryable(self) -> bool:
        """Whether running it again with the same id may succeed."""
        return self.status == "interrupted"

    @property
    def is_over(self) -> bool:
        """Whether the run has ended or was interrupted."""
        return self.status not in OPEN

    async def result(self) -> Run[O_co]:
        """Wait for the end of the run, and return the run as it ended. Call it in the agent that started the run.

        Failures are returned, not raised: check `ok`. A run that times out is returned with the status
        `interrupted`, and may still end. Cancelling the caller, or a `deadline`, ends the wait and not the run.
        Raises `Refused` if this agent has no such run, or if the run is cleared before it ends.
        """
        return await _caller("result")._sapwood_run_result(self)

    async def full_input(self) -> Any:
        """Return the whole input of the run. Call it in the agent that started the run.

        Raises `Refused` if this agent has no such run, if the run was cleared, or if its sub-agent never started or
        was deleted: only the sub-agent stores the whole input.
        """
        return await _caller("full_input")._sapwood_full_input(self)

    def failure(self) -> dict[str, Any]:
        """Return the failure of a run that did not complete, as the model receives it."""
        return failure(
            self.agent.type, self.status, error=self.error, reason=self.reason, still_running=self.still_running
        )


def _caller(method: str) -> Any:
    """Return the agent whose code asks for more about a run."""
    call = current.get()
    if call is None:
        raise UsageError(f"run.{method}() must be called in the agent that started the run.")
    return call.actor.agent


def failure(
    agent: str, status: str, *, error: str | None, reason: str | None, still_running: bool = False
) -> dict[str, Any]:
    """Return the failure of a run that did not complete, as the model receives it."""
    told: dict[str, Any] = {
        "ok": False,
        "status": status,
        "error": error or reason or f"{agent} did not complete.",
        "retryable": status == "interrupted",
    }
    if reason is not None:
        told["reason"] = reason
    if still_running:
        told["childStillRunning"] = True
    return told


def pin_runs_of(database: Database, types: Sequence[str], name: str) -> bool:
    """Pin the runs that a sub-agent executes, or has executed. Returns `False` if none had to be pinned."""
    if not (database.exists and database.has(RUNS)):
        return False
    marks = ", ".join("?" for _ in types)
    pinned = database.execute(
        f"UPDATE sapwood_runs SET pinned = 1 WHERE name = ? AND type IN ({marks}) AND NOT pinned RETURNING 1",  # noqa: S608 - ours
        name,
        *types,
    )
    return bool(pinned)


def types_of(type_: str, kinds: Mapping[str, AgentClass]) -> tuple[str, ...]:
    """Return what the class of an agent of this type is called, and was: it may have been renamed."""
    try:
        kind = kinds.get(type_) or resolve(type_)
    except UsageError:  # it is no more
        return (type_,)
    return kind.type_ids


def parent_run(row: RunRow) -> str | None:
    """Return the run in which a run was given."""
    return row.asked.get("within")


def given_with(row: RunRow) -> dict[str, Any]:
    """Return what to report of how a run was started."""
    told: dict[str, Any] = {"input": msgspec.json.decode(row.input), "order": row.position}
    if row.tool_call is not None:
        told["toolCallId"] = row.tool_call
    if row.display is not None:
        told["display"] = msgspec.json.decode(row.display)
    return told


class RunsTable:
    """The runs that one agent has given. Reads never create the table; writes belong to the open slice."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._db = database
        self._clock = clock

    @property
    def exists(self) -> bool:
        return self._db.exists and self._db.has(RUNS)

    def find(self, where: str, *arguments: Any) -> list[RunRow]:
        return [RunRow(*row) for row in self._db.execute(ALL + where, *arguments)] if self.exists else []

    def get(self, id: str) -> RunRow | None:
        rows = self.find("WHERE id = ?", id)
        return rows[0] if rows else None

    def all(self) -> list[RunRow]:
        return self.find("ORDER BY number")

    def of_child(self, name: str) -> list[RunRow]:
        """Return the runs of the persistent sub-agent of this name, oldest first."""
        return self.find("WHERE mode = 'persistent' AND name = ? ORDER BY number", name)

    def last_of_children(self) -> list[RunRow]:
        """Return the last run of each persistent sub-agent, in the order they were made."""
        last: dict[tuple[str, str], RunRow] = {}
        for row in self.find("WHERE mode = 'persistent' ORDER BY number"):
            last[row.type, row.name] = row
        return [*last.values()]

    def open(self) -> list[RunRow]:
        return self.find("WHERE status IN ('queued', 'running') ORDER BY number")

    def open_in(self, work: WorkId) -> list[RunRow]:
        """Return the unfinished runs that are part of this."""
        return self.find("WHERE status IN ('queued', 'running') AND work = ? ORDER BY number", stored_work(work))

    def not_over_in(self, work: WorkId) -> list[RunRow]:
        """Return the same, with those that were given up and may still end."""
        return self.find(
            "WHERE status NOT IN ('completed', 'failed', 'cancelled') AND work = ? ORDER BY number", stored_work(work)
        )

    def release_interrupted(self, work: WorkId) -> None:
        """Let the runs that this has given up be part of nothing from here on."""
        if self.exists:
            self._db.execute(
                "UPDATE sapwood_runs SET work = NULL WHERE status = 'interrupted' AND work = ?", stored_work(work)
            )

    def last_ends_in(self, work: WorkId) -> tuple[float, float]:
        """Return when a run that is part of this last ended or was given up, and when one did that spoke; 0 if none."""
        if not self.exists:
            return 0.0, 0.0
        ((last, spoken),) = self._db.execute(
            "SELECT max(ended_at), max(ended_at) FILTER (WHERE seq > 1) FROM sapwood_runs WHERE work = ?",
            stored_work(work),
        )
        return last or 0.0, spoken or 0.0

    def count_open(self) -> int:
        if not self.exists:
            return 0
        rows = self._db.execute("SELECT count(*) FROM sapwood_runs WHERE status IN ('queued', 'running')")
        return rows[0][0]

    def add(self, id: str, agent: PathSegment, input: Any, **more: Any) -> RunRow:
        """Store a run that is about to start."""
        self._db.ensure(RUNS)
        columns = {
            "id": id,
            "type": agent.type,
            "name": agent.name,
            "status": "queued",
            "input": msgspec.json.encode(preview(input)).decode(),
            "started_at": self._clock.now(),
            **more,
        }
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        self._db.execute(f"INSERT INTO sapwood_runs ({names}) VALUES ({marks})", *columns.values())  # noqa: S608 - ours
        row = self.get(id)
        assert row is not None
        return row

    def set(self, id: str, **news: Any) -> None:
        """Change columns of a run."""
        columns = ", ".join(f"{name} = ?" for name in news)
        self._db.execute(f"UPDATE sapwood_runs SET {columns} WHERE id = ?", *news.values(), id)  # noqa: S608 - ours

    def end(self, id: str, status: str, **news: Any) -> bool:
        """Note how a run ended; the first end counts, unless it was only given up. Return whether it was noted."""
        row = self.get(id)
        is_known = row is not None and (row.status, row.reason) == (status, news.get("reason"))
        if row is None or row.status in HARD or is_known:
            return False
        cleared = {"error": None, "reason": None, "still_running": 0}
        self.set(id, status=status, ended_at=self._clock.now(), **{**cleared, **news})
        return True

    def times_cleared(self, id: str) -> int:
        """Return how often a run of another server with this id was cleared."""
        if not self._db.has(CLEARED):
            return 0
        rows = self._db.execute("SELECT clears FROM sapwood_cleared_runs WHERE run = ?", _digest(id))
        return rows[0][0] if rows else 0

    def count_cleared(self, id: str) -> None:
        """Count that a run of another server with this id is cleared."""
        self._db.ensure(CLEARED)
        self._db.execute(
            "INSERT INTO sapwood_cleared_runs VALUES (?, 1) ON CONFLICT (run) DO UPDATE SET clears = clears + 1",
            _digest(id),
        )

    def remove(self, ids: Sequence[str]) -> None:
        for id in ids:
            self._db.execute("DELETE FROM sapwood_runs WHERE id = ?", id)


def shown(row: RunRow) -> Run[Any]:
    """Return a run as it is told to clients and models: its output is a JSON value."""
    return Run(
        id=row.id,
        agent=PathSegment(row.type, row.name),
        status=row.status,  # pyright: ignore[reportArgumentType]
        input=msgspec.json.decode(row.input),
        output=None if row.output is None else msgspec.json.decode(row.output),
        summary=row.summary or "",
        error=row.error,
        reason=row.reason,
        still_running=bool(row.still_running),
        tool_call=row.tool_call,
        order=row.position,
        mode=row.mode,  # pyright: ignore[reportArgumentType]
        usage=msgspec.json.decode(row.usage),
        started_at=_time(row.started_at),
        ended_at=None if row.ended_at is None else _time(row.ended_at),
        remote=None if row.remote is None else msgspec.json.decode(row.remote),
        bytes=row.bytes,
        pinned=bool(row.pinned),
    )


def _digest(id: str) -> int:
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:8], signed=True)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def preview(value: Any, depth: int = 0) -> Any:
    """Return what may be shown of an input: long texts, long lists and what lies deep are left out."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else value[: LONGEST_TEXT - 1] + "…"
    if isinstance(value, dict | list) and depth >= DEEPEST:
        return "…"
    if isinstance(value, dict):
        items = list(value.items())[:MOST_ITEMS]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return {str(key)[:LONGEST_TEXT]: preview(one, depth + 1) for key, one in items}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, list):
        return [preview(one, depth + 1) for one in value[:MOST_ITEMS]]  # pyright: ignore[reportUnknownVariableType]
    return value
