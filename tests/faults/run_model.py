"""What must have come of all runs that were given in a folder, by the journals of all lives it had.

o  opened     tab, place, at the end          a client connects
f  frame      tab, frame                      it was sent this
g  give       place, run                      just before code gives a run
G  ended      place, run, status, output      a client was told how a run ended
i  inside     place, run, status, output      code of an agent was: before the disk has it
D  sent off   place, run                      a client was told that a run nobody waits for has begun
c  cancel     place, run or turn              just before it is cancelled
C  cancelled  place, run or turn              that was acknowledged
b  begun      place, run, part of                first thing in `on_run`
p  step       key, part of                    first thing in a step
P  stepped    key                             last thing in it
q  asked      place, turn, step, part of      just before the model is asked
t  tool       tool call, name, part of        first thing in a tool
z  returned   tool call, value                last thing in it
h  heard      place, run, status              first thing in a callback
a  reply      numbers                         a client heard something of a run
e  error      text                            nothing that the workload expects
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
from tests.faults.run_checker import Left, is_heard, unaccounted
from tests.faults.run_workload import ONCE

from sapwood.chat.store.turns import TurnRow as Turn
from sapwood.runs.tables.executed_runs_table import ExecutedRunRow as Served
from sapwood.runs.tables.runs_table import HARD, TERMINATED
from sapwood.runs.tables.runs_table import RunRow as Given

KINDS = {"finished": "completed", "error": "failed", "aborted": "cancelled", "interrupted": "interrupted"}
ASIDE = ("data-agent-progress", "data-agent-milestone")
"""Chunks that have no number of their own."""
NOT_BEGUN = "not-started"
ENDED = ("completed", "failed", "cancelled", "skipped")


@dataclass(slots=True)
class Told:
    """What all clients together were told of one run."""

    started: dict[str, Any] | None = None
    chunks: dict[int, str] = field(default_factory=dict[int, str])
    end: tuple[str, int] | None = None
    """How it ended for good, and the number of that."""


@dataclass(slots=True)
class Tab:
    """What one client was told."""

    place: str
    is_last: bool
    """Whether it came when everything was over."""
    last: dict[str, int] = field(default_factory=dict[str, int])
    """By run: the number that was told last."""
    chunks: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    over: dict[str, str] = field(default_factory=dict[str, str])


class Model:
    """Judges a folder."""

    readers: ClassVar[dict[str, Any]]
    """Who takes which lines of a journal."""

    def __init__(self) -> None:
        self._life = -1
        self._found: list[str] = []
        self._tabs: dict[str, Tab] = {}
        self._told: dict[tuple[str, str], Told] = defaultdict(Told)
        self._begun: dict[tuple[str, str], list[int]] = defaultdict(list[int])
        """By place and run: in which lives it has begun."""
        self._ran: dict[str, list[int]] = defaultdict(list[int])
        """By tool call, or step: in which lives it has begun."""
        self._asked: set[tuple[int, str, str, int]] = set()
        self._values: dict[str, set[str]] = defaultdict(set[str])
        self._known: dict[str, Any] = {}
        """Tool calls and steps that were over when the last life ended, with what the calls returned."""
        self._promised: dict[tuple[str, str], tuple[str, Any] | None] = {}
        """By place and run: how somebody was told it ended; None: that it has begun."""
        self._inside: set[tuple[str, str]] = set()
        """Those of them that only code of agents was told."""
        self._cancelled: set[str] = set()
        self._heard: Counter[tuple[str, str, str, int]] = Counter()
        """By place, run, status and life: how often a callback came."""
        self._given: dict[tuple[str, str], Given] = {}
        self._served: dict[tuple[str, str], Served] = {}
        self._turns: dict[tuple[str, str], Turn] = {}

    def _problem(self, text: str) -> None:
        self._found.append(text)

    def add(self, life: int, lines: list[list[Any]]) -> int:
        """Take the journal of a life; return how many replies it has."""
        self._life = life
        self._tabs = {}
        replies = 0
        for kind, *rest in lines:
            if kind == "a":
                replies += 1
            elif kind in self.readers:
                self.readers[kind](self, *rest)
        return replies

    def _error(self, text: str) -> None:
        self._problem(text)

    def _ended(self, place: str, run: str, status: str, output: Any) -> None:
        before = self._promised.get((place, run))
        if before is not None and before[0] in HARD and before != (status, output):
            self._problem(f"{place}: {run} was {before} to whoever asked, and is {status, output}")
        self._promised[place, run] = (status, output)
        self._inside.discard((place, run))

    def _ended_inside(self, place: str, run: str, status: str, output: Any) -> None:
        was_told = (place, run) in self._promised and (place, run) not in self._inside
        self._ended(place, run, status, output)
        if not was_told:
            self._inside.add((place, run))

    def _sent_off(self, place: str, run: str) -> None:
        self._promised.setdefault((place, run), None)

    def _is_cancelled(self, place: str, what: str) -> None:
        self._cancelled.add(f"{place} {what}")

    def _check_part(self, what: str, part_of: list[str]) -> None:
        for one in part_of:
            if one in self._cancelled:
                self._problem(f"{what} is part of {one}, which was cancelled, and goes on")
            if "does not know" in one:
                self._problem(f"{what}: {one}")

    def _begins(self, place: str, run: str, part_of: list[str]) -> None:
        lives = self._begun[place, run]
        if lives and lives[-1] == self._life:
            self._problem(f"{place} began its run {run} twice in life {self._life}")
        lives.append(self._life)
        row = self._served.get((place, run))
        if row is not None and row.status != "running":
            self._problem(f"{place}: {run} was over, and it began again")
        self._check_part(place, part_of)

    def _steps(self, key: str, part_of: list[str]) -> None:
        self._runs(key, "step", part_of, once=False)

    def _tool(self, key: str, name: str, part_of: list[str]) -> None:
        self._runs(key, name, part_of, once=name in ONCE)

    def _runs(self, key: str, name: str, part_of: list[str], *, once: bool) -> None:
        if key in self._known:
            self._problem(f"{key} ({name}) was completed, and ran again")
        if self._ran[key] and (once or self._ran[key][-1] == self._life):
            self._problem(f"{key} ({name}) ran in life {self._ran[key]}, and again in {self._life}")
        self._ran[key].append(self._life)
        self._check_part(key, part_of)

    def _returned(self, key: str, value: str) -> None:
        self._values[key].add(value)

    def _asks(self, place: str, turn: str, step: int, part_of: list[str]) -> None:
        row = self._turns.get((place, turn))
        if row is not None and (row.status in ENDED or step <= row.steps):
            self._problem(f"{place}: step {step} of {turn} was over, and the model was asked again")
        if (self._life, place, turn, step) in self._asked:
            self._problem(f"{place}: the model was asked twice for step {step} of {turn}")
        self._asked.add((self._life, place, turn, step))
        self._check_part(f"step {step} of {turn} of {place}", part_of)

    def _hears(self, place: str, run: str, status: str) -> None:
        self._heard[place, run, status, self._life] += 1
        if self._heard[place, run, status, self._life] > 1:
            self._problem(f"{place} was told twice that {run} is {status}, in one life")

    def _opened(self, tab: str, place: str, is_last: bool) -> None:
        self._tabs[tab] = Tab(place, is_last)

    def _frame(self, name: str, frame: dict[str, Any]) -> None:
        tab, seq, event = self._tabs[name], frame["sequence"], frame["event"]
        run, kind = event["runId"], event["kind"]
        told, where = self._told[tab.place, run], f"{tab.place}: {seq} of {run}"
        if tab.over.get(run) in HARD:
            self._problem(f"{where} came to {name} after the end")
        if (run not in tab.last) != (kind == "started"):
            self._problem(f"{where} ({kind}) came to {name} after {tab.last.get(run)}")
        if kind == "started":
            if told.started is not None and told.started != event:
                self._problem(f"{where} was {told.started}, and is {event}")
            told.started = event
            tab.last[run] = 0
        elif kind == "chunk":
            self._chunk(tab, told, seq, run, event["body"])
        else:
            self._end(tab, told, seq, run, KINDS[kind])

    def _chunk(self, tab: Tab, told: Told, seq: int, run: str, body: str) -> None:
        if json.loads(body)["type"] in ASIDE:
            return
        if told.chunks.setdefault(seq, body) != body:
            self._problem(f"{tab.place}: {seq} of {run} was {told.chunks[seq]}, and is {body}")
        if seq <= tab.last.get(run, 0):
            self._problem(f"{tab.place}: {seq} of {run} came after {tab.last[run]}")
        if seq != tab.last.get(run, 0) + 1:
            self._problem(f"{tab.place}: {seq} of {run} came after {tab.last.get(run)}: some are missing")
        tab.last[run] = seq
        tab.chunks[run].add(seq)

    def _end(self, tab: Tab, told: Told, seq: int, run: str, status: str) -> None:
        if status in HARD:
            if told.end is not None and told.end != (status, seq):
                self._problem(f"{tab.place}: {run} ended as {told.end}, and as {status, seq}")
            told.end = (status, seq)
        if seq <= tab.last.get(run, 0) and status in HARD:  # one that was given up may say more at any time
            self._problem(f"{tab.place}: the end of {run} has the number {seq}, and came after {tab.last[run]}")
        tab.over[run] = status

    def check(self, folder: Mapping[str, Left], *, was_cut: bool = False, is_end: bool = False) -> list[str]:
        """Return what is wrong with what a life left, and with what it did.

        After a loss of power only what somebody was told is sure to be there; what is, is as before.
        """
        if was_cut:
            for known in (self._known, self._given, self._served, self._turns):
                known.clear()
            for run in self._inside:
                self._promised.pop(run, None)
            self._inside.clear()
        for left in folder.values():
            self._found += left.problems()
            self._check_rows(left)
            self._check_returns(left)
            for row in left.given.values():
                child = folder.get(_child(left, row))
                self._check_both(left, row, child, is_end=is_end)
            self._check_parent(left, folder)
            if is_end:
                self._check_end(left)
            self._check_more(left, folder, is_end=is_end)
        self._found += unaccounted(folder)
        self._check_told(folder)
        if is_end:
            self._check_last(folder)
        found, self._found = self._found, []
        return found

    def _check_more(self, left: Left, folder: Mapping[str, Left], *, is_end: bool) -> None:
        """Check what else there is."""

    def _check_rows(self, left: Left) -> None:
        """What was over stays as it was."""
        place = left.place
        for known, now, over in (
            (self._given, left.given, HARD),
            (self._served, left.served, HARD),
            (self._turns, {row.id: row for row in left.turns}, ENDED),
        ):
            for (where, id), old in [*known.items()]:
                if where != place:
                    continue
                row = now.get(id)
                if row is None:
                    self._problem(f"{place}: {id} was there, and is gone")
                elif old.status in over and _essence(row) != _essence(old):
                    self._problem(f"{place}: {id} was {old}, and is {row}")
            for id, row in now.items():
                known[place, id] = row  # pyright: ignore[reportArgumentType]
        for (where, id), ended in self._promised.items():
            if where != place:
                continue
            row = left.given.get(id)
            if row is None:
                self._problem(f"{place}: the run {id} was acknowledged, and is gone")
            elif ended is not None and ended[0] in HARD and (row.status, _value(row.output)) != ended:
                self._problem(f"{place}: {id} was {ended} to whoever asked, and is stored as {row.status, row.output}")

    def _check_both(self, left: Left, row: Given, child: Left | None, *, is_end: bool) -> None:
        """The parent and the child agree."""
        theirs = child.served.get(row.id) if child is not None else None
        where = f"{left.place}: {row.id} is {row.status} ({row.reason})"
        if theirs is None:
            if row.status in ("running", "completed"):
                self._problem(f"{where}, and the child knows nothing of it")
            return
        if row.status == "queued" or row.is_open:
            return
        if row.status == "interrupted":
            if row.reason == NOT_BEGUN:
                self._problem(f"{where}, and the child has begun it")
            return
        if theirs.status == "running":
            if is_end or row.status == "completed":
                self._problem(f"{where}, and the child still runs")
            return
        if row.reason == "timed-out" and theirs.status == "cancelled":
            return
        # One that is stopped before it is awake again after a crash is over before anybody has asked what it has used.
        used = row.status == "cancelled" or row.usage == theirs.usage
        if (row.status, row.output) != (theirs.status, theirs.output) or not used:
            self._problem(f"{where} {row.output} {row.usage}, to the child {theirs}")

    def _check_parent(self, left: Left, folder: Mapping[str, Left]) -> None:
        for id in left.served:
            parent = folder.get(left.place.rpartition("/")[0])
            if parent is None or id not in parent.given:
                self._problem(f"{left.place} does the run {id}, and nobody gave it")

    def _check_returns(self, left: Left) -> None:
        """What a model was told is what tools and runs returned; what was completed is not done again."""
        self._known.update((key, None) for key in left.steps)
        for call in left.calls:
            if call.status in ("done", "failed"):
                self._known[call.id] = None
        for key, value in left.returned().items():
            self._known.setdefault(key, None)
            self._check_return(left, key, value)

    def _check_return(self, left: Left, key: str, value: Any) -> None:
        row = left.given.get(f"agent-tool:{key}")
        if row is not None:
            if row.status != "completed" or _value(row.output) != value:
                self._problem(f"{left.place}: the model is told {value!r}, and {key} is {row.status, row.output}")
        elif value not in self._values[key]:
            self._problem(f"{left.place}: the model is told {value!r}, and {key} never returned that")

    def _check_told(self, folder: Mapping[str, Left]) -> None:
        """What clients were told is stored, as they were told it."""
        for (place, run), told in self._told.items():
            left = folder.get(place)
            row = left.given.get(run) if left is not None else None
            if row is None:
                self._problem(f"{place}: clients were told of {run}, and it is gone")
                continue
            if told.end is not None and (row.status, row.seq) != told.end:
                self._problem(f"{place}: {run} ended as {told.end} to clients, and is {row.status, row.seq}")
            assert left is not None
            child = folder.get(_child(left, row))
            said = child.said(run) if child is not None else {}
            for seq, body in told.chunks.items():
                if said.get(seq - 1) != body:
                    self._problem(f"{place}: {seq} of {run} was told as {body}, and is stored as {said.get(seq - 1)}")

    def _check_end(self, left: Left) -> None:
        """Nothing goes on for ever."""
        place = left.place
        for row in left.given.values():
            if row.is_open or (row.status == "interrupted" and row.reason != NOT_BEGUN):
                self._problem(f"{place}: {row.id} is still {row.status} ({row.reason})")
            detached = msgspec.json.decode(row.options).get("detached")
            if detached is not None and row.status in HARD:
                self._check_delivered(left, row, notify=detached["notify"] and row.cancelled != TERMINATED)
        for turn in left.turns:
            if turn.is_open:
                self._problem(f"{place}: the turn {turn.id} is still {turn.status}")
        for row in left.served.values():
            if row.status == "running":
                self._problem(f"{place}: it still does {row.id}")
        if left.fibers or left.queued or left.others or left.calls:
            self._problem(f"{place}: {left.fibers}, {left.queued}, {left.others} and {left.calls} are left over")

    def _check_delivered(self, left: Left, row: Given, *, notify: bool) -> None:
        came = left.heard[row.id, row.status]
        lives = sum((place, run) == (left.place, row.id) for place, run, _, _ in self._heard)
        if (is_heard(row) and not came) or (came > 1 and lives < 2):
            self._problem(f"{left.place} was told {came} times that {row.id} is {row.status}")
        joined = sum(message["id"] == f"msg-{row.id}-{row.status}" for message in left.messages)
        if notify and joined != 1:
            self._problem(f"{left.place}: {row.id} joined the conversation {joined} times")

    def _check_last(self, folder: Mapping[str, Left]) -> None:
        """Whoever comes at the end is told of everything that anybody was ever told of, and no less than is stored."""
        for tab in self._tabs.values():
            left = folder.get(tab.place) if tab.is_last else None
            if left is None:
                continue
            for row in left.given.values():
                child = folder.get(_child(left, row))
                said = {seq + 1 for seq in child.said(row.id)} if child is not None else set[int]()
                if row.status in HARD:  # what a child does to close one that was stopped before it was awake
                    said = {seq for seq in said if seq < row.seq}
                if tab.chunks[row.id] != said or tab.over.get(row.id) != row.status:
                    self._problem(
                        f"{tab.place}: {row.id} is replayed as {sorted(tab.chunks[row.id])} {tab.over.get(row.id)},"
                        f" and has said {sorted(said)}, {row.status}"
                    )


def _essence(row: Any) -> tuple[Any, ...]:
    """Return what must not change of what is over."""
    if isinstance(row, Turn):
        return row.id, row.status, row.output, row.steps
    if isinstance(row, Given):
        return row.id, row.status, row.output, row.error, row.reason, row.seq, row.usage
    return row.id, row.status, row.output, row.error, row.reason, row.length, row.usage


def _child(left: Left, row: Given) -> str:
    """Return the address of who does a run."""
    return str(left.address.child(row.type, row.name))


def _value(output: str | None) -> Any:
    return None if output is None else msgspec.json.decode(output)


Model.readers = {
    "o": Model._opened,
    "f": Model._frame,
    "G": Model._ended,
    "i": Model._ended_inside,
    "D": Model._sent_off,
    "C": Model._is_cancelled,
    "b": Model._begins,
    "p": Model._steps,
    "q": Model._asks,
    "t": Model._tool,
    "z": Model._returned,
    "h": Model._hears,
    "e": Model._error,
}
