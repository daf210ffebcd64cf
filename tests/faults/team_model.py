"""What must have come of the work of teams in a folder, besides what must have come of every run.

s  shared     place, key                      a client was told that some work is shared out
w  came to    place, key, runs                code of the agent was, and the disk has it: id, status and input of each
n  shown      place, gauge, number            a client was told that a gauge shows this
r  answer     tool call, kind                 just before somebody answers who was asked: approved or denied
R  answered   tool call, kind, tool           that was acknowledged
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import apsw
import msgspec
from tests.faults.reading import has
from tests.faults.run_checker import Left
from tests.faults.run_model import Model
from tests.faults.team_questions import CAREFUL
from tests.faults.team_workload import COMPANIONS, SHARED, shares

from sapwood.address import Address
from sapwood.runs.dispatch.results import TOLD_GIVEN_UP
from sapwood.runs.tables.runs_table import HARD, TERMINATED, RunRow

BY_RULE = ("failed-with", "quorum-with", "no-quorum-after", "lost-to")
WELL = ("quorum-with", "lost-to")
ALLOWED = {
    "settle": (),
    "map": (),
    "fail-fast": ("failed-with",),
    "quorum": ("quorum-with", "no-quorum-after"),
    "race": ("lost-to",),
}


@dataclass(slots=True)
class TeamLeft(Left):
    """What is left of one agent of a team."""

    shares: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """The work it shares out: how that stands, and what went wrong."""
    shown: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """What it was told that its gauges show."""
    number: int | None = None
    """What it shows, if it is one."""
    index: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """At a root: what everybody below it waits for, as far as it knows."""

    def asks(self) -> set[str]:
        """Return the tool calls that wait for a person."""
        waiting = {turn.number for turn in self.turns if turn.status == "waiting"}
        return {call.id for call in self.calls if call.turn in waiting and call.answerer == "approval" and call.is_open}

    def read(self, database: apsw.Connection) -> None:
        Left.read(self, database)
        if has(database, "sapwood_fibers"):
            rows = database.execute("SELECT key, status, error FROM sapwood_fibers WHERE method = 'share_out'")
            self.shares = {str(key): (str(status), str(error)) for key, status, error in rows}
        if has(database, "shown"):
            for gauge, number in database.execute("SELECT gauge, number FROM shown ORDER BY rowid"):
                self.shown[str(gauge)].append(int(str(number)))
        if has(database, "sapwood_state"):
            for (value,) in database.execute("SELECT value FROM sapwood_state"):
                self.number = msgspec.json.decode(str(value))["number"]
        if has(database, "sapwood_questions"):
            for owner, body in database.execute("SELECT owner, body FROM sapwood_questions"):
                self.index[str(owner)] = {question["id"] for question in msgspec.json.decode(str(body))}

    def companions(self) -> list[tuple[str, str, Any]]:
        """Return what the model was told of its children: the call, the tool, and what it returned."""
        return [
            (part.tool_call_id, part.tool_name, part.content)
            for message in self.history
            for part in message.parts
            if part.part_kind == "tool-return" and part.outcome == "success" and part.tool_name in COMPANIONS
        ]

    def shared(self, tools: Mapping[str, str]) -> dict[str, dict[int, list[RunRow]]]:
        """Return the runs that work was shared out to: by the work and their place, one after the other."""
        found: dict[str, dict[int, list[RunRow]]] = defaultdict(lambda: defaultdict(list))
        for row in sorted(self.given.values(), key=lambda row: row.number):
            key, _, at = str(msgspec.json.decode(row.input)).rpartition(".")
            if at.isdigit() and (key.startswith(SHARED) or tools.get(key) == "share_with_others"):
                found[key][int(at)].append(row)
        return found


class TeamModel(Model):
    """Judges a folder of teams."""

    def __init__(self) -> None:
        super().__init__()
        self._tools: dict[str, str] = {}
        """By tool call: what was called."""
        self._shared: set[tuple[str, str]] = set()
        self._came_to: dict[tuple[str, str, str], tuple[str, str]] = {}
        """By place, work and input: the run and its status that the work came to."""
        self._winners: dict[tuple[str, str], str] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._answers: dict[str, set[str]] = defaultdict(set[str])
        """By tool call: what anybody has tried to answer."""
        self._answered: dict[str, tuple[str, str]] = {}
        """By tool call: what was answered, and the tool."""
        self._waited: dict[str, tuple[set[str], set[tuple[str, str]]]] = {}
        """By who asked when the last life ended: the tool calls, and the runs above it that went on."""

    def _tool(self, key: str, name: str, part_of: list[str]) -> None:
        self._tools[key] = name
        if name in CAREFUL and "approved" not in self._answers[key]:
            self._problem(f"{key} ({name}) is called, and nobody has allowed it")
        if name in CAREFUL and self._answered.get(key, ("",))[0] == "denied":
            self._problem(f"{key} ({name}) was denied, and is called")
        if name == CAREFUL[0]:
            self._runs(key, name, part_of, once=True)
        else:
            super()._tool(key, name, part_of)

    def _answers_for(self, key: str, kind: str) -> None:
        self._answers[key].add(kind)

    def _is_answered(self, key: str, kind: str, tool: str) -> None:
        if key in self._answered:
            self._problem(f"{key} was answered ({self._answered[key][0]}), and is again ({kind})")
        self._answered[key] = (kind, tool)

    def _shares(self, place: str, key: str) -> None:
        self._shared.add((place, key))

    def _comes_to(self, place: str, key: str, runs: list[list[Any]]) -> None:
        way, branches, _ = shares(key)
        if way == "race":
            ((id, status, _),) = runs
            if status == "completed" and self._winners.setdefault((place, key), id) != id:
                self._problem(f"{place}: {self._winners[place, key]} has won {key}, and now {id}")
            return
        if [input for *_, input in runs] != [branch.input for branch in branches]:
            self._problem(f"{place}: {key} came to {runs}, in another order than it was given")
        for id, status, input in runs:
            before = self._came_to.get((place, key, input))
            if before is not None and before[1] in HARD and before != (id, status):
                self._problem(f"{place}: {input} came to {before}, and now to {id, status}")
            self._came_to[place, key, input] = (id, status)

    def _shows(self, place: str, gauge: str, number: int) -> None:
        self._numbers[place, gauge] = max(number, self._numbers.get((place, gauge), 0))

    def _check_return(self, left: Left, key: str, value: Any) -> None:
        assert isinstance(left, TeamLeft)
        if not any(call == key for call, _, _ in left.companions()):
            super()._check_return(left, key, value)

    def check(self, folder: Mapping[str, Left], *, was_cut: bool = False, is_end: bool = False) -> list[str]:
        if was_cut:
            self._waited.clear()
        return super().check(folder, was_cut=was_cut, is_end=is_end)

    def _check_more(self, left: Left, folder: Mapping[str, Left], *, is_end: bool) -> None:
        assert isinstance(left, TeamLeft)
        self._check_asked(left, folder, is_end=is_end)
        for key, runs in left.shared(self._tools).items():
            self._check_shared(left.place, key, runs)
        self._check_shown(left, folder, is_end=is_end)
        for call, tool, value in left.companions():
            self._check_companion(left, folder, call, tool, value, is_end=is_end)
        for place, key in self._shared:
            if place == left.place:
                self._check_acknowledged(left, key, is_end=is_end)

    def _check_shared(self, place: str, key: str, runs: Mapping[int, list[RunRow]]) -> None:
        """Every branch is given once, in its place, and what decided is what the others say."""
        way, branches, how = shares(key)
        first = [runs[at][0] for at in sorted(runs)]
        if [row.number for row in first] != sorted(row.number for row in first):
            self._problem(f"{place}: the branches of {key} were given in another order: {first}")
        for at, rows in runs.items():
            self._check_attempts(place, rows, branches[at] if at < len(branches) else None, at)
        rows = [row for attempts in runs.values() for row in attempts]
        reasons = {row.cancelled for row in rows if _rule(row) in BY_RULE}
        if len(reasons) > 1:
            self._problem(f"{place}: {key} was decided as {reasons}")
        for row in rows:
            if (row.reason or "").partition(" ")[0] in BY_RULE and row.cancelled != row.reason:
                self._problem(f"{place}: {row.id} is aborted by {row.reason}, and was cancelled by {row.cancelled}")
        for reason in reasons:
            why, _, other = str(reason).partition(" ")
            decisive = next((row for row in rows if row.id == other), None)
            if why not in ALLOWED[way] or decisive is None:
                self._problem(f"{place}: {key} ({way}) was decided by {reason}")
            elif (decisive.status == "completed") != (why in WELL) and decisive.cancelled is None:
                self._problem(f"{place}: {key} was decided by {reason}, which is {decisive.status}")
            ended_well = sum(row.status == "completed" and _rule(row) not in BY_RULE for row in rows)
            if why == "quorum-with" and ended_well < how["quorum"]:
                self._problem(f"{place}: {key} was decided by {reason}, and {ended_well} have ended well")

    def _check_attempts(self, place: str, rows: list[RunRow], branch: Any, at: int) -> None:
        if branch is None or any(row.type != branch.cls.__name__ for row in rows):
            self._problem(f"{place}: {rows[0].id} was never to be given")
            return
        ids = [row.id for row in rows]
        if ids != [ids[0], *(f"{ids[0]}~{nth}" for nth in range(2, len(ids) + 1))]:
            self._problem(f"{place}: the branch {branch.input} was given as {ids}")
        if len(ids) > (branch.retry.max_attempts if branch.retry is not None else 1):
            self._problem(f"{place}: the branch {branch.input} was tried {len(ids)} times")
        for row in rows[:-1]:
            if row.status != "failed" or row.reason is None or row.cancelled is not None:
                self._problem(f"{place}: {row.id} is {row.status} ({row.reason}), and was tried again")

    def _check_acknowledged(self, left: TeamLeft, key: str, *, is_end: bool) -> None:
        status, error = left.shares.get(key, ("gone", ""))
        is_cancelled = f"{left.place} {key}" in self._cancelled
        if status in ("gone", "failed") or (is_cancelled and status != "cancelled"):
            self._problem(f"{left.place}: {key} was acknowledged, and is {status} ({error})")
        if is_end and status not in ("completed", "cancelled"):
            self._problem(f"{left.place}: {key} is still {status}")
        if is_end and status == "completed":
            runs, (_, branches, _) = left.shared(self._tools)[key], shares(key)
            if len(runs) < len(branches):
                self._problem(f"{left.place}: {key} is completed, and {len(branches) - len(runs)} were never given")

    def _check_shown(self, left: TeamLeft, folder: Mapping[str, Left], *, is_end: bool) -> None:
        for gauge, numbers in left.shown.items():
            once = [*dict.fromkeys(numbers)] if gauge.startswith("Slow") else numbers
            if sorted(set(once)) != once:
                self._problem(f"{left.place}: {gauge} was told as {numbers}")
        for (place, gauge), number in self._numbers.items():
            if place != left.place:
                continue
            kind, _, name = gauge.partition(" ")
            child = folder.get(str(left.address.child(kind, name)))
            shown = child.number if isinstance(child, TeamLeft) else None
            if shown is None or shown < number:
                self._problem(f"{place}: {gauge} showed {number}, and shows {shown}")
            if is_end and left.shown[gauge][-1:] != [shown]:
                self._problem(f"{place}: {gauge} shows {shown}, and {left.shown[gauge]} was told")

    def _check_asked(self, left: TeamLeft, folder: Mapping[str, Left], *, is_end: bool) -> None:
        """Who was answered does not wait, the root knows who does, and nobody gave them up meanwhile."""
        asks, root = left.asks(), folder[str(left.address.root)]
        assert isinstance(root, TeamLeft)
        if answered := asks & self._answered.keys():
            self._problem(f"{left.place}: {answered} are answered, and it still waits")
        known = root.index.get(left.place, set[str]())
        if left is not root and not asks <= known:
            self._problem(f"{left.place}: it asks {asks}, and its root knows of {known}")
        if is_end and left is not root and known - asks:
            self._problem(f"{left.place}: it asks {asks}, and its root still knows of {known}")
        above = _above(left, folder) if asks else []
        before, going_on = self._waited.pop(left.place, (set[str](), set[tuple[str, str]]()))
        for place, row in above:
            if row.status == "interrupted" and before == asks and (place, row.id) in going_on:
                self._problem(f"{place}: {row.id} is interrupted ({row.reason}), because {left.place} waits")
        if asks:
            self._waited[left.place] = asks, {(place, row.id) for place, row in above if row.status == "running"}
        if is_end:
            self._check_allowed(left, folder)

    def _check_allowed(self, left: TeamLeft, folder: Mapping[str, Left]) -> None:
        """What was allowed was done, unless somebody has stopped it."""
        called = {
            part.tool_call_id
            for message in left.history
            for part in message.parts
            if part.part_kind == "tool-call" and part.tool_name in CAREFUL
        }
        if not called:
            return
        (turn,) = left.turns
        if turn.status != "completed" and not _is_stopped(left, folder):
            self._problem(f"{left.place}: {turn.id} is {turn.status} ({turn.error}), and nobody has stopped it")
        for key in called:
            kind, tool = self._answered.get(key, ("", ""))
            if (kind, tool) == ("approved", CAREFUL[1]) and turn.status == "completed" and not self._ran[key]:
                self._problem(f"{left.place}: {key} ({tool}) was approved, and was never called")

    def _check_companion(
        self, left: TeamLeft, folder: Mapping[str, Left], call: str, tool: str, value: Any, *, is_end: bool
    ) -> None:
        """What the model was told of a child is so."""
        where = f"{left.place}: the model is told {value!r} by {tool} {call}"
        if tool in ("list_children", "get_child_status"):
            return
        rows = [row for row in left.given.values() if row.mode == "persistent" and row.name == value["name"]]
        given = left.given.get(f"agent-tool:{call}")
        if tool in ("spawn_agent", "wait_for_result") and "result" in value:
            done = [row for row in (rows if given is None else [given]) if row.status == "completed"]
            if not any(_result(row) == value["result"] for row in done):
                self._problem(f"{where}, and there is no such result")
        elif tool == "spawn_agent" or value.get("delivered") == "task":
            if given is None:
                self._problem(f"{where}, and there is no such run")
        elif value.get("delivered") == "joined" and is_end:
            child = folder.get(str(left.address.child(rows[0].type, rows[0].name)))
            heard = [one for one in child.messages if one["id"].endswith(f":{call}")] if child is not None else []
            if len(heard) != 1:
                self._problem(f"{where}, and it was heard {len(heard)} times")
        elif tool == "terminate_child" and (
            any(row.is_open for row in rows) or not any(row.cancelled == TERMINATED for row in rows)
        ):
            self._problem(f"{where}, and its runs are {[(row.id, row.status, row.cancelled) for row in rows]}")


def _above(left: Left, folder: Mapping[str, Left]) -> list[tuple[str, RunRow]]:
    """Return the runs that an agent works for: who has given each, and the run."""
    found: list[tuple[str, RunRow]] = []
    address = left.address
    while len(address.segments) > 1:
        step, address = address.segments[-1], Address(address.segments[:-1])
        row = folder[str(address)].given.get(step.name)
        if row is None:
            break
        found.append((str(address), row))
    return found


def _is_stopped(left: Left, folder: Mapping[str, Left]) -> bool:
    """Return whether anything was cancelled that an agent works for, or was given up and ended without it."""
    rows, root = _above(left, folder), folder[str(left.address.root)]
    turn = next((turn for turn in root.turns if rows and turn.id == rows[-1][1].work), None)
    if turn is not None and turn.status == "cancelled":
        return True
    return any(row.cancelled is not None or row.delivered & TOLD_GIVEN_UP for _, row in rows)


def _rule(row: RunRow) -> str:
    return (row.cancelled or "").partition(" ")[0]


def _result(row: RunRow) -> Any:
    output = None if row.output is None else msgspec.json.decode(row.output)
    return row.summary if output is None else output


TeamModel.readers = {
    **Model.readers,
    "t": TeamModel._tool,
    "s": TeamModel._shares,
    "w": TeamModel._comes_to,
    "n": TeamModel._shows,
    "r": TeamModel._answers_for,
    "R": TeamModel._is_answered,
}
