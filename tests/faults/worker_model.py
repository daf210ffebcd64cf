"""What must be true of workers that were killed: of what they left, and of what others noticed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.faults.worker_clients import Record
from tests.faults.worker_server import SILENCE
from tests.faults.worker_workload import STEPS, answer_to
from tests.machine import patience

SOON = patience(5.0)
"""Seconds in which whoever needs only workers that live is answered, on a machine whose cores are all busy."""
BACK = patience(15.0)
"""Seconds in which a worker that was killed answers again."""
AFTERWARDS = 0.5
"""Seconds after which what a death did to others is over."""
TICK = 0.001
MAY_FAIL = re.compile(
    r"Unavailable|exited during the request|does not answer|is not running|shutting down|the app stops"
    r"|503\b|ConnectionClosed|IncompleteRead|ConnectionReset|BrokenPipe|ConnectionRefused|InvalidMessage|TimeoutError"
)
"""What may be said to those who needed somebody that was killed."""
MAY_FAIL_AT_THE_END = re.compile(f"{MAY_FAIL.pattern}|500: ")
"""What may be said to those who waited for such a one until the server had ended."""


@dataclass(slots=True)
class Blow:
    """Something that was done to a worker, or to all."""

    what: str
    worker: int | None
    """None: all of them."""
    process: int | None
    begin: float
    end: float = float("inf")
    """When it was over, if not before that another process answered for the worker."""

    def over(self, first_seen: Mapping[int, float], workers: Mapping[int, int]) -> float:
        """Return when it was over; `first_seen`: when each process answered first, `workers`: which number it had."""
        if self.worker is None:
            return self.end
        others = [one for one in first_seen if one != self.process and workers.get(one) == self.worker]
        return min([self.end, *(first_seen[one] for one in others if first_seen[one] > self.begin)])


def noticed(record: Record, blows: list[Blow], workers: Mapping[int, int], end: float) -> tuple[list[str], float]:
    """Return what clients noticed that they should not have, and the longest that one of those waited for an answer.

    `workers`: which number each process had. Also a connection that is kept stays open between two requests:
    whose worker answered the last one on it, and died then, has nothing to do with the next.
    """
    problems: list[str] = []
    longest = 0.0
    times: list[tuple[Blow, float]] = []
    for blow in blows:
        over = min(blow.over(record.first_seen, workers), end)
        if over - blow.begin > BACK + SILENCE:
            problems.append(f"worker {blow.worker} came back {over - blow.begin:.1f} s after it was {blow.what}")
        times.append((blow, over))
    for act in record.acts:
        seconds = act.end - act.begin
        hurt = [blow for blow, over in times if blow.begin <= act.end and over + AFTERWARDS >= act.begin]
        reasons = [blow for blow in hurt if act.holder is None or blow.worker in (None, act.holder, *act.needs)]
        told = f"{act.what} through worker {act.holder} of {sorted(act.needs)}"
        if reasons:
            may_fail = MAY_FAIL_AT_THE_END if any(blow.worker is None for blow in reasons) else MAY_FAIL
            if act.problem is not None and not may_fail.search(act.problem):
                problems.append(f"{told} failed with {act.problem}")
            continue
        longest = max(longest, seconds)
        if act.problem is not None or seconds > SOON:
            before = [
                f"{blow.what} {blow.worker} ({blow.begin - act.begin:.2f} to {over - act.begin:.2f} s)"
                for blow, over in times
                if act.begin - 10 < blow.begin < act.end
            ]
            what = act.problem or f"took {seconds:.1f} s"
            problems.append(f"somebody noticed who should not have: {told} {what}; before it: {', '.join(before)}")
    return problems, longest


def list_is_right(record: Record, path: str, kept: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a list."""
    problems: list[str] = []
    items = [item for item, _ in kept["items"]]
    where = {item: number for number, item in enumerate(items)}
    problems += [f"{item} is there {times} times" for item, times in Counter(items).items() if times > 1]
    problems += [f"{item} of another agent is in {path}" for item in items if item not in record.tried[path]]
    for who, told in record.kept[path].items():
        problems += [f"{item} was acknowledged, and is gone" for item in told if item not in where]
        order = [where[item] for item in told if item in where]
        if order != sorted(order):
            problems.append(f"what {who} wrote to {path} is there in another order")
    if kept["state"] != len(items):
        problems.append(f"{path} has {len(items)} items, and its state says {kept['state']}")
    problems += one_after_the_other(path, [process for _, process in kept["items"]])
    rung = Counter(item for item, _, _ in kept["rung"])
    problems += [f"the alarm of {item} rang {rung[item]} times" for item in items if rung[item] != 1]
    problems += [f"the alarm of {item} rang too early" for item, due, when in kept["rung"] if when < due - TICK]
    problems += steps_are_right(record, path, kept)
    return problems


def one_after_the_other(path: str, processes: list[int]) -> list[str]:
    """An agent has one process after the other, and none comes back."""
    turns = [one for number, one in enumerate(processes) if number == 0 or processes[number - 1] != one]
    return [f"two processes ran {path} at once"] if len(turns) != len({*turns}) else []


def steps_are_right(record: Record, path: str, kept: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    found: dict[tuple[str, int], set[str]] = {}
    for fiber, step, what in kept["dug"]:
        found.setdefault((fiber, step), set()).add(what)
    problems += [
        f"step {step} of {fiber} was completed, and ran again" for (fiber, step), all in found.items() if len(all) > 1
    ]
    for fiber in record.dug[path]:
        if kept["fibers"].get(fiber) != "completed":
            problems.append(f"the fiber {fiber} of {path} was begun, and is {kept['fibers'].get(fiber)}")
        elif any((fiber, step) not in found for step in range(STEPS)):
            problems.append(f"the fiber {fiber} of {path} is over, and left something out")
    return problems


def is_quiet(record: Record, path: str, kept: Mapping[str, Any]) -> bool:
    """Whether all that is due in a list has happened."""
    rung = {item for item, _, _ in kept["rung"]}
    return all(item in rung for item, _ in kept["items"]) and all(
        kept["fibers"].get(fiber) == "completed" for fiber in record.dug[path]
    )


def runs_are_right(record: Record) -> list[str]:
    return [
        f"the run {run} was answered with {len(answers)} different answers"
        for run, answers in record.carried.items()
        if len(answers) != 1
    ] + [
        f"the run {run} was answered with {answer}"
        for run, answers in record.carried.items()
        for answer in answers
        if not answer.startswith(f"{run} ")
    ]


def shoots_are_right(record: Record, path: str, below: Iterable[str]) -> list[str]:
    """Whatever was deleted is gone, and whatever was not is there."""
    there = {*below}
    problems: list[str] = []
    for name in record.planted[path]:
        told = record.cut.get(name)
        if told and name in there:
            problems.append(f"{name} of {path} was deleted, and is there")
        if told is None and name not in there:
            problems.append(f"{name} of {path} was not deleted, and is gone")
    return problems


def talk_is_right(record: Record, talk: str, said: list[tuple[str, str]]) -> list[str]:
    """Every question that was taken is there once, and its answer follows, once."""
    problems: list[str] = []
    for question, was_taken in record.asked[talk].items():
        questions = said.count(("user", question))
        answers = said.count(("assistant", answer_to(question)))
        if questions > 1 or answers > 1:
            problems.append(f"{question} is there {questions} times, and its answer {answers} times")
        elif was_taken and not questions:
            problems.append(f"{question} was taken, and is gone")
        elif questions != answers:
            problems.append(f"{question} is not answered, or not as it should be: {said[-2:]}")
    return problems
