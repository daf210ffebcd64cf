"""What must be true of a cluster that was broken, said of what clients saw and what was left. It asks nobody.

A list that is only ever written at its end tells the order of all that was done to it: who wrote the n-th item was
there between a reader that saw fewer and one that saw n. So every answer has one place in that
order, and whatever was answered before something else was asked for has to stand before it.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from tests.faults.cluster.app import STEPS
from tests.faults.cluster.history import Act, History, Kept, Written

from sapwood.kernel.log.records import ChainBroken, chained
from sapwood.kernel.ports.log import Record

WINDOW = 0.0
"""Seconds that a read may be behind what was acknowledged before it was asked for.

None: a reply leaves only while the node's lease is valid by its own clock, and nobody takes a shard before that lease
and a margin have passed. What is left is clocks that run at rates differing by more than margin / lease, a sixth."""
TICK = 0.001
FINISHED = "completed"


def check(history: History, window: float = WINDOW) -> list[str]:
    """Return a sentence for everything that must not be."""
    problems: list[str] = []
    by_list: dict[str, list[Act]] = defaultdict(list)
    for act in history.acts:
        by_list[act.where].append(act)
    for where in sorted({*by_list, *history.kept}):
        acts, kept = by_list[where], history.kept.get(where)
        if kept is None:
            problems.append(f"nobody could say at the end what is in {where}")
            continue
        problems += check_items(where, acts, kept.items)
        problems += check_order(where, acts, kept.items, window)
        problems += check_writers(where, kept.items)
        problems += check_alarms(where, acts, kept)
        problems += check_fibers(where, acts, kept)
    return problems + check_runs(history.acts)


def check_items(where: str, acts: Sequence[Act], items: Sequence[Written]) -> list[str]:
    """Every acknowledged item is there once, at the place that its writer was told; nothing is there twice."""
    problems: list[str] = []
    appends = {act.item: act for act in acts if act.kind == "append"}
    places: dict[str, int] = {}
    for place, one in enumerate(items, 1):
        places.setdefault(one.item, place)
        if one.item not in appends:
            problems.append(f"{one.item} is in {where}, where nobody put it")
    for item, times in Counter(one.item for one in items).items():
        if times > 1:
            problems.append(f"{item} is in {where} {times} times")
    for act in appends.values():
        if not act.is_answered:
            continue
        if act.item not in places:
            problems.append(f"{act.item} was acknowledged through {act.node} and is not in {where}")
        elif places[act.item] != act.length:
            said = f"said to be item {act.length} of {where} and is item {places[act.item]}"
            problems.append(f"{act.item} was {said}")
    return problems


def check_order(where: str, acts: Sequence[Act], items: Sequence[Written], window: float) -> list[str]:
    """All that was answered fits into one order, which is that of real time."""
    problems: list[str] = []
    places = {one.item: place for place, one in enumerate(items, 1)}
    placed: list[tuple[Act, int]] = []
    for act in acts:
        if act.kind == "append" and act.item in places:
            placed.append((act, 2 * places[act.item] - 1))
        elif act.kind == "read" and act.is_answered:
            there = items[act.length - 1].item if 0 < act.length <= len(items) else ""
            if act.length > len(items) or there != act.last:
                seen = f"{act.length} items, the last {act.last!r}"
                problems.append(f"{where} was read through {act.node} as what it never was: {seen}")
            else:
                placed.append((act, 2 * act.length))
    answered = [(act, rank) for act, rank in placed if act.is_answered]
    appends = [(act, rank) for act, rank in placed if act.kind == "append"]
    for first, second in _reversed(answered, appends, 0.0):
        problems.append(f"in {where} {_told(second)} is before {_told(first)}, which had been answered before")
    reads = [(act, rank) for act, rank in placed if act.kind == "read"]
    for first, second in _reversed(answered, reads, window):
        late = second.begin - first.end
        problems.append(f"{_told(second)} is older than {_told(first)} of {where}, answered {late:.3f} s before")
    return problems


def _reversed(
    firsts: Iterable[tuple[Act, int]], seconds: Iterable[tuple[Act, int]], window: float
) -> list[tuple[Act, Act]]:
    """Return who stands before somebody that was answered earlier than it was asked for, with one of those."""
    found: list[tuple[Act, Act]] = []
    ended = [(act.end + window, number, act, rank) for number, (act, rank) in enumerate(firsts)]
    heapq.heapify(ended)
    highest: tuple[Act, int] | None = None
    for act, rank in sorted(seconds, key=lambda one: one[0].begin):
        while ended and ended[0][0] < act.begin:
            _, _, first, its = heapq.heappop(ended)
            if highest is None or its > highest[1]:
                highest = (first, its)
        if highest is not None and rank < highest[1]:
            found.append((highest[0], act))
    return found


def _told(act: Act) -> str:
    if act.kind == "append":
        return f"{act.item} (through {act.node})"
    return f"a read of {act.length} items through {act.node}"


def check_writers(where: str, items: Sequence[Written]) -> list[str]:
    """Ownerships follow each other, and each is of one process: nothing was written by one that had lost it."""
    problems: list[str] = []
    owners: dict[int, str] = {}
    before = 0
    for one in items:
        if not one.epoch:
            continue
        if one.epoch < before:
            fenced = f"in ownership {one.epoch}, after items of ownership {before}"
            problems.append(f"{one.item} of {where} was written by {one.writer} {fenced}")
        before = max(before, one.epoch)
        if owners.setdefault(one.epoch, one.writer) != one.writer:
            both = f"{owners[one.epoch]} and {one.writer}"
            problems.append(f"ownership {one.epoch} of {where} was used by {both}")
    return problems


def check_alarms(where: str, acts: Sequence[Act], kept: Kept) -> list[str]:
    """What was planned rang once, and not too early."""
    problems = [
        f"{act.item} was planned through {act.node} and {where} knows nothing of it"
        for act in acts
        if act.kind == "plan" and act.is_answered and act.item not in kept.due
    ]
    times = Counter(item for item, _ in kept.rung)
    problems += [f"{item} of {where} rang {times[item]} times" for item in kept.due if times[item] != 1]
    for item, at in kept.rung:
        if item not in kept.due:
            problems.append(f"{item} of {where} rang, and was not planned")
        elif at < kept.due[item] - TICK:
            problems.append(f"{item} of {where} rang {kept.due[item] - at:.3f} s too early")
    return problems


def check_fibers(where: str, acts: Sequence[Act], kept: Kept) -> list[str]:
    """What was begun was finished, and no step of it was done twice."""
    problems: list[str] = []
    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    for fiber, step, what in kept.dug:
        found[fiber, step].add(what)
    for (fiber, step), whats in found.items():
        if len(whats) > 1:
            problems.append(f"step {step} of {fiber} in {where} was completed, and ran again")
    begun = {act.item for act in acts if act.kind == "dig" and act.is_answered}
    for fiber in sorted(begun | {*kept.fibers} | {fiber for fiber, _, _ in kept.dug}):
        done = [step for step in range(STEPS) if (fiber, step) in found]
        if len(done) != STEPS or kept.fibers.get(fiber, FINISHED) != FINISHED:
            how = kept.fibers.get(fiber, "not known")
            problems.append(f"{fiber} of {where} was begun and did {len(done)} of {STEPS} steps; it is {how}")
    return problems


def check_runs(acts: Iterable[Act]) -> list[str]:
    """A run has one output, whoever asks and how often; and its end was reached once."""
    problems: list[str] = []
    outputs: dict[str, set[str]] = defaultdict(set)
    for act in acts:
        if act.kind == "carry":
            outputs[act.item] |= {act.last} if act.is_answered else set()
    for run, answers in sorted(outputs.items()):
        if not answers:
            problems.append(f"{run} was begun, and nobody heard how it ended")
        if len(answers) > 1:
            problems.append(f"{run} ended in {len(answers)} ways: {sorted(answers)}")
        wrong = [answer for answer in answers if not answer.startswith(f"{run} ") or not answer.endswith(" 1")]
        problems += [f"{run} ended with {answer!r}" for answer in wrong]
    return problems


def check_chain(tree: str, records: Iterable[Record]) -> list[str]:
    """Every message of a tree follows the one before it, and none is of an owner before the last."""
    try:
        chained(records)
    except ChainBroken as error:
        return [f"the chain of {tree} is broken: {error}"]
    return []
