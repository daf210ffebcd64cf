"""What must be true of a folder after its process died, by the journals of all lives it had."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import msgspec


class Seen(msgspec.Struct):
    """One agent, as the checker found it."""

    where: str
    ids: list[int]
    state: int
    last_with_state: int


class SeenTree(msgspec.Struct):
    """One tree, as the checker found it."""

    epoch: int = 0
    """0: there is none."""
    agents: dict[str, Seen] = {}
    """By file stem; an agent that has no row any more has no entry."""


class Report(msgspec.Struct):
    """What a checker says about a folder."""

    trees: dict[str, SeenTree]
    problems: list[str]
    """Things that are wrong whatever happened before."""


@dataclass(slots=True, eq=False)
class Event:
    """Something a tree was asked to write."""

    kind: str
    """written, created, deleted, destroyed"""
    tree: str
    epoch: int
    lineage: tuple[str, ...]
    numbers: list[int]
    life: int
    acknowledged: str = ""
    """How somebody outside came to know of it; empty: nobody does."""
    undone: bool = False
    lost: bool = False
    """It was not there after a crash, and may never come back."""

    def __str__(self) -> str:
        what = {
            "written": f"the write {self.numbers} in {self.lineage[-1]}",
            "created": f"the creation of {self.lineage[-1]}",
            "deleted": f"the deletion {self.numbers} of {self.lineage[-1]}",
            "destroyed": f"the destruction {self.numbers}",
        }[self.kind]
        return f"{what} of tree {self.tree} (life {self.life})"


class Model:
    """What one folder must hold."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        """Whether no write of a tree may be there without all earlier ones; otherwise this holds within each file."""
        self._events: list[Event] = []
        self._of: dict[int, Event] = {}
        self._deletions: dict[tuple[str, int, str], list[Event]] = defaultdict(list)
        self._existed: set[tuple[str, int, str]] = set()
        """Agents that were there at some time, for certain."""
        self._problems: list[str] = []

    def add(self, life: int, lines: list[list[Any]]) -> int:
        """Take in what a life wrote down; return how many replies it gave."""
        replies = 0
        for kind, *rest in lines:
            match kind:
                case "w":
                    tree, epoch, lineage, ids, _ = rest
                    self._take(Event("written", tree, epoch, tuple(lineage), ids, life))
                case "c":
                    tree, epoch, lineage = rest
                    self._take(Event("created", tree, epoch, tuple(lineage), [], life, acknowledged="acknowledged"))
                    self._existed.update((tree, epoch, stem) for stem in lineage)
                case "x":
                    number, tree, epoch, lineage = rest
                    self._take(Event("deleted", tree, epoch, tuple(lineage), [number], life))
                case "d":
                    number, tree, epoch = rest
                    self._take(Event("destroyed", tree, epoch, ("root",), [number], life))
                case "u":
                    self._take(Event("written", "", 0, ("",), rest[0], life, undone=True))
                case "n":
                    for number in rest[0]:
                        self._of[number].undone = True
                case "a":
                    replies += 1
                    self._known(rest[0], "acknowledged")
                case "s":
                    self._known(rest[0], "seen")
                case _:
                    self._problems.append(f"in life {life} a client met an error: {rest[0]}")
        return replies

    def _take(self, event: Event) -> None:
        self._events.append(event)
        for number in event.numbers:
            self._of[number] = event
        if event.kind in ("deleted", "destroyed"):
            self._deletions[(event.tree, event.epoch, event.lineage[-1])].append(event)

    def _deleted(self, event: Event) -> bool:
        """Return whether something was asked that removes it: a deletion of its agent, or of one above."""
        return any(
            other is not event and not other.lost
            for stem in event.lineage
            for other in self._deletions.get((event.tree, event.epoch, stem), ())
        )

    def _known(self, numbers: list[int], how: str) -> None:
        for number in numbers:
            event = self._of.get(number)
            if event is None:
                self._problems.append(f"a reply showed {number}, which nobody wrote")
            elif event.undone:
                self._problems.append(f"a reply showed {number}, which was rolled back")
            elif event.lost:
                self._problems.append(f"a reply showed {event}, which a crash had undone")
            else:
                event.acknowledged = event.acknowledged or how
                self._existed.update((event.tree, event.epoch, stem) for stem in event.lineage)

    def check(self, report: Report) -> list[str]:
        """Return what is wrong, one sentence each; remember what a crash undid."""
        problems, self._problems = self._problems + report.problems, []
        present: dict[Event, bool] = {}
        for event in self._events:
            if event.undone:
                continue
            tree = report.trees.get(event.tree, SeenTree())
            there = self._is_there(event, tree, problems)
            if there is not None:
                present[event] = there
                if there and event.lost and event.kind == "written":
                    problems.append(f"{event} was gone after an earlier crash, and is back")
                if not there and event.acknowledged and not event.lost:
                    problems.append(f"{event} was {event.acknowledged}, and is gone")
        problems += self._out_of_order(present)
        problems += self._strangers(report)
        self._existed.update((tree, seen.epoch, stem) for tree, seen in report.trees.items() for stem in seen.agents)
        for event, there in present.items():
            event.lost = event.lost or not there
        return problems

    def _is_there(self, event: Event, tree: SeenTree, problems: list[str]) -> bool | None:
        """Return whether it happened; None if it was deleted since."""
        stem = event.lineage[-1]
        if event.kind == "destroyed":
            return tree.epoch != event.epoch
        if event.kind == "deleted":
            if tree.epoch != event.epoch:
                return None if self._deleted(event) else False
            return stem not in tree.agents
        if tree.epoch != event.epoch or stem not in tree.agents:
            return None if self._deleted(event) else False
        if event.kind == "created":
            return True
        found = set(tree.agents[stem].ids).intersection(event.numbers)
        if found and len(found) < len(event.numbers):
            problems.append(f"of {event}, one slice, only {sorted(found)} are there")
        return bool(found)

    def _out_of_order(self, present: dict[Event, bool]) -> list[str]:
        problems: list[str] = []
        missing: dict[tuple[object, ...], Event] = {}
        for event, there in present.items():
            if event.lost or event.kind == "created" or (not self._ordered and event.kind != "written"):
                continue
            if event.kind == "deleted" and (event.tree, event.epoch, event.lineage[-1]) not in self._existed:
                continue  # perhaps the same slice made it, so that it never was there
            scope = (event.tree, event.epoch) if self._ordered else (event.tree, event.epoch, event.lineage[-1])
            if not there:
                missing.setdefault(scope, event)
            elif scope in missing:
                problems.append(f"{event} is there, and {missing.pop(scope)}, which was earlier, is not")
        return problems

    def _strangers(self, report: Report) -> list[str]:
        problems: list[str] = []
        for tree, seen in report.trees.items():
            for stem, agent in seen.agents.items():
                for number in agent.ids:
                    event = self._of.get(number)
                    if event is None or event.undone:
                        problems.append(f"{agent.where} holds {number}, which was never written or was rolled back")
                    elif (event.tree, event.lineage[-1]) != (tree, stem):
                        problems.append(f"{agent.where} holds {number}, which was written by {event.lineage[-1]}")
                if agent.state != agent.last_with_state:
                    problems.append(
                        f"{agent.where} has the state {agent.state}, and the slice that set it last wrote "
                        f"{agent.last_with_state}"
                    )
        return problems
