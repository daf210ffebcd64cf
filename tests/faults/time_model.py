"""What must have come of every wish of a folder, by the journals of all lives it had.

w  wished      number, kind, tree, lineage, due, more   just before the statements
k  first due   number, due                               as the agent was told
a  reply       numbers                                   acknowledged: wishes, cancellations, deletions
s  seen        pending, done                             a reply showed these
c  cancel      number, wish                              just before it is cancelled or replaced
r  once more   wish                                      it is to be called once more, for a reason of its own
x  deletion    number, tree, lineage                     just before an agent is deleted
b  begun       wish, wall clock, more                    first thing in a called method
z  ended       wish                                      last thing in it
f  step        wish, name                                first thing in the function of a step
g  stepped     wish, name, value                         step() has returned
h  stored     wish, value                               checkpoint() has returned
e  error       text                                      nothing that the workload expects
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.faults.time_checker import EARLIER, Folder, Happened, Left
from tests.faults.time_workload import FAILING, FIBERS, ONCE, REPEATING


@dataclass(slots=True, eq=False)
class Wish:
    """One call to come, or one fiber."""

    number: int
    kind: str
    tree: str
    lineage: tuple[str, ...]
    due: float
    life: int
    lane: str | None
    interval: float | None
    promised: str = ""
    """How somebody outside came to know of it; empty: nobody does."""
    cancelled: bool = False
    """Somebody tried to cancel it."""
    replayed: bool = False
    gone: str = ""
    """What was acknowledged after which it may not begin."""
    stepped: dict[str, Any] = field(default_factory=dict[str, Any])
    """The steps that are completed, with what they returned."""
    stored: Any = None
    shown_done: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.number} of {self.lineage[-1]} in {self.tree} (life {self.life})"


@dataclass(frozen=True, slots=True)
class Deletion:
    number: int
    tree: str
    stem: str
    life: int

    def takes(self, wish: Wish) -> bool:
        """Return whether it removes what was wished; no stem is used twice, but by a root that is made again."""
        before = wish.number < self.number or (wish.life == self.life and self.stem != "root")
        return before and wish.tree == self.tree and self.stem in wish.lineage


@dataclass(slots=True)
class Running:
    """What runs in one life."""

    life: int
    calls: Counter[int] = field(default_factory=Counter[int])
    """How many calls of each wish."""
    lanes: dict[tuple[str, str, str], int] = field(default_factory=dict[tuple[str, str, str], int])
    """Which wish of each lane began last."""


class Model:
    """What one folder owes."""

    def __init__(self) -> None:
        self.wishes: dict[int, Wish] = {}
        self._deletions: list[Deletion] = []
        self._by_number: dict[int, Wish | Deletion] = {}
        """What a cancellation or a deletion is about, by its own number."""
        self._problems: list[str] = []

    def add(self, life: int, lines: list[list[Any]]) -> int:
        """Take in what a life wrote down; return how many replies it gave."""
        running = Running(life)
        for kind, *rest in lines:
            match kind:
                case "w" | "k" | "c" | "r" | "x":
                    self._asked(life, kind, rest)
                case "a":
                    for number in rest[0]:
                        self._acknowledged(number)
                case "s":
                    pending, done = rest
                    for number in pending:
                        self._promise(number, "seen")
                    for number in done:
                        self.wishes[number].shown_done = True
                case "b":
                    number, at, more = rest
                    self._begun(self.wishes[number], at, more, running)
                    running.calls[number] += 1
                case "z":
                    running.calls[rest[0]] -= 1
                case "f" | "g" | "h":
                    number, *what = rest
                    self._stepped(life, kind, self.wishes[number], what)
                case _:
                    self._problems.append(f"in life {life}: {rest[0]}")
        return sum(kind == "a" for kind, *_ in lines)

    def _asked(self, life: int, kind: str, rest: list[Any]) -> None:
        match kind:
            case "w":
                number, what, tree, lineage, due, more = rest
                wish = Wish(number, what, tree, tuple(lineage), due, life, more.get("lane"), more.get("interval"))
                self.wishes[number] = wish
            case "k":
                self.wishes[rest[0]].due = rest[1]
            case "c":
                number, about = rest
                self.wishes[about].cancelled = True
                self._by_number[number] = self.wishes[about]
            case "r":
                self.wishes[rest[0]].replayed = True
            case _:
                number, tree, lineage = rest
                deletion = Deletion(number, tree, lineage[-1], life)
                self._deletions.append(deletion)
                self._by_number[number] = deletion

    def _stepped(self, life: int, kind: str, wish: Wish, what: list[Any]) -> None:
        if kind == "h":
            (wish.stored,) = what
        elif kind == "f":
            (name,) = what
            if name in wish.stepped:
                self._problems.append(f"the step {name!r} of {wish} was completed, and ran again (life {life})")
        else:
            name, value = what
            if wish.stepped.setdefault(name, value) != value:
                self._problems.append(f"the step {name!r} of {wish} returned {wish.stepped[name]}, then {value}")

    def _acknowledged(self, number: int) -> None:
        about = self._by_number.get(number)
        if about is None:
            self._promise(number, "acknowledged")
        elif isinstance(about, Wish):
            if not about.replayed:
                about.gone = about.gone or f"its cancellation {number}"
        else:
            for wish in self.wishes.values():
                if about.takes(wish):
                    wish.gone = wish.gone or f"the deletion {number} of {about.stem}"

    def _promise(self, number: int, how: str) -> None:
        wish = self.wishes[number]
        wish.promised = wish.promised or how

    def _begun(self, wish: Wish, at: float, more: dict[str, Any], running: Running) -> None:
        life = running.life
        if wish.kind == "run":
            self._promise(wish.number, "begun")
        if at < wish.due - EARLIER and not wish.replayed and wish.lane is None:
            self._problems.append(f"{wish} was due at {wish.due} and began at {at}, too early (life {life})")
        if wish.gone:
            self._problems.append(f"{wish} began in life {life} after {wish.gone} was acknowledged")
        if running.calls[wish.number] and not wish.replayed and wish.kind not in FIBERS:
            self._problems.append(f"{wish} was begun while it ran (life {life})")
        if wish.stored is not None and more.get("checkpoint") != wish.stored:
            self._problems.append(f"{wish} had stored {wish.stored}, and found {more.get('checkpoint')} (life {life})")
        if wish.lane is not None and not wish.replayed:
            self._next_in_lane(wish, wish.lane, running)

    def _next_in_lane(self, wish: Wish, name: str, running: Running) -> None:
        lane = (wish.tree, wish.lineage[-1], name)
        last = self.wishes.get(running.lanes.get(lane, 0))
        running.lanes[lane] = wish.number
        if last is None or last.replayed or last.cancelled or last.gone:
            return
        if last.number > wish.number:
            self._problems.append(f"{wish} began after {last}, which is behind it in its lane (life {running.life})")
        elif last is not wish and running.calls[last.number]:
            self._problems.append(f"{wish} began while {last} ran, in the same lane (life {running.life})")

    def _may_be_gone(self, wish: Wish) -> bool:
        return wish.cancelled or bool(wish.gone) or any(deletion.takes(wish) for deletion in self._deletions)

    def promised(self) -> set[int]:
        """Return the wishes that somebody was told of and nobody took back."""
        return {number for number, wish in self.wishes.items() if wish.promised and not self._may_be_gone(wish)}

    def owed(self, folder: Folder) -> set[int]:
        """Return the wishes that have to come true by themselves, from what this folder holds on."""
        agents = {(agent.tree, agent.stem): agent for agent in folder.agents}
        left: set[int] = set()
        for number in self.promised():
            wish = self.wishes[number]
            agent = agents.get((wish.tree, wish.lineage[-1]))
            if agent is None or wish.kind in REPEATING or not _is_over(wish, agent):
                left.add(number)
        return left

    def problems(self) -> list[str]:
        """Return what is wrong by the journals alone."""
        problems, self._problems = self._problems, []
        return problems

    def check_end(self, folder: Folder, calm: float) -> list[str]:
        """Return what is wrong after everything has run out; `calm`: when the last life began."""
        problems: list[str] = []
        agents = {(agent.tree, agent.stem): agent for agent in folder.agents}
        done: dict[int, list[Happened]] = defaultdict(list)
        for agent in folder.agents:
            for row in agent.happened:
                if row.what == "done":
                    done[row.number].append(row)
        for wish in self.wishes.values():
            problems += _too_often(wish, done[wish.number])
            for row in done[wish.number]:
                if row.made is not None and not self._may_be_gone(wish):
                    self._promise(row.made, "made by what happened")
        for wish in self.wishes.values():
            if not self._may_be_gone(wish):
                agent = agents.get((wish.tree, wish.lineage[-1]))
                problems += _too_rarely(wish, done[wish.number], agent, calm)
                problems += [] if agent is None else _wrong_letters(wish, done[wish.number], agent)
        for agent in folder.agents:
            problems += self._out_of_order(agent)
        return problems

    def _out_of_order(self, agent: Left) -> list[str]:
        last: dict[str, int] = {}
        problems: list[str] = []
        for row in agent.happened:
            wish = self.wishes[row.number]
            if row.what != "done" or wish.lane is None or wish.replayed:
                continue
            if last.get(wish.lane, 0) > row.number and not self.wishes[last[wish.lane]].cancelled:
                problems.append(f"{wish} happened after {last[wish.lane]}, which is behind it in its lane")
            last[wish.lane] = row.number
        return problems


def _is_over(wish: Wish, agent: Left) -> bool:
    if wish.kind in ("fiber_work", "long_fiber"):
        return agent.fibers.get(wish.number) == "completed"
    if wish.kind == "poor_fiber":
        return agent.fibers.get(wish.number) == "failed"
    if wish.kind in FAILING:
        return wish.number in agent.letters
    done = any(row.number == wish.number and row.what == "done" for row in agent.happened)
    return done or (wish.kind == "shaky" and wish.number in agent.letters)


def _too_often(wish: Wish, done: list[Happened]) -> list[str]:
    if wish.kind in (*ONCE, "shaky") and len(done) > 1 and not wish.replayed:
        return [f"{wish} happened {len(done)} times"]
    if wish.kind == "broken" and done:
        return [f"{wish} raised, and what it wrote is there"]
    return _out_of_step(wish, done)


def _too_rarely(wish: Wish, done: list[Happened], agent: Left | None, calm: float) -> list[str]:
    if wish.shown_done and not done:
        return [f"{wish} was shown as done, and is not"]
    if wish.promised and (agent is None or not _is_over(wish, agent)):
        return [f"{wish} was {wish.promised}, and never happened"]
    if wish.promised and wish.interval is not None and not any(row.at >= calm for row in done):
        return [f"{wish} does not repeat any more"]
    return []


def _wrong_letters(wish: Wish, done: list[Happened], agent: Left) -> list[str]:
    code = agent.letters.get(wish.number)
    if code is None:
        return []
    if wish.kind not in ("broken", "shaky") or code != "crashed":
        return [f"{wish} is a dead letter: {code}"]
    if wish.kind == "shaky" and done and not wish.replayed:
        return [f"{wish} happened, and is a dead letter"]
    return []


def _out_of_step(wish: Wish, done: list[Happened]) -> list[str]:
    """Return where a repeating call came twice in one interval, or before its first."""
    if wish.interval is None:
        return []
    last = -1
    for row in done:
        cell = int((row.at - wish.due + EARLIER) // wish.interval)
        if cell < 0:
            return [f"{wish} happened at {row.at}, before its first time {wish.due}"]
        if cell <= last:
            return [f"{wish} happened twice in one interval, at {row.at}"]
        last = cell
    return []
