"""Compares what a workload was told with what the agents report, and returns a sentence for each broken promise."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.blackbox.history import Place
from tests.blackbox.registers import check_register
from tests.blackbox.workload import ACCOUNTS, DEPOSIT, DEPTH, Workload
from tests.machine import patience

from sapwood.errors import SapwoodError

POLL = 0.2
ENDED = ("completed", "failed", "cancelled", "interrupted")


class Checker:
    """Reads every agent of a workload that has stopped."""

    def __init__(self, workload: Workload, effects: Path) -> None:
        self.violations: list[str] = []
        self.latest_ring = 0.0
        """Seconds that the latest scheduled call came after it was due."""
        self._workload = workload
        self._history = workload.history
        self._effects = effects

    async def check(self) -> list[str]:
        """Return the violations: what clients saw themselves, and what the agents lack or have too much of."""
        self.violations = list(self._history.violations)
        for place in list(self._history.appends):
            await self._check_list(place)
        for root in list(self._history.deep_appends):
            await self._check_deep(root)
        for root in list(self._history.payments):
            await self._check_money(root)
        for place in list(self._history.rings):
            await self._check_rings(place)
        for root, queue in list(self._history.numbers):
            await self._check_queue(root, queue)
        for root in list(self._history.fibers):
            await self._check_fibers(root)
        for root in list(self._history.runs):
            await self._check_runs(root)
        for root in sorted({call.root for call in self._history.registers}):
            calls = [call for call in self._history.registers if call.root == root]
            self.violations += [f"{root}: {found}" for found in check_register(calls)]
        return self.violations

    def _blame(self, place: Place | str, text: str) -> None:
        where = place if isinstance(place, str) else "/".join([place[0], *place[1]])
        self.violations.append(f"{where}: {text}")

    async def _read(self, place: Place, method: str, *arguments: int, until: Callable[[Any], bool] = bool) -> Any:
        """Return the report of an agent, as soon as it says that it is done."""
        end, last = time.monotonic() + patience(30.0), "no answer"
        while time.monotonic() < end:
            try:
                async with self._workload.connect(place) as agent:
                    found = await getattr(agent.stub, method)(*arguments)
                if until(found):
                    return found
                last = "it is not done"
            except (SapwoodError, OSError) as error:
                last = f"{type(error).__name__}: {error}"
            await asyncio.sleep(POLL)
        self._blame(place, f"{method} cannot be read: {last}")
        return None

    async def _check_list(self, place: Place) -> None:
        appends, members = self._history.appends[place], self._history.members[place]
        if (content := await self._read(place, "content")) is None:
            return
        self._check_slices(place, content)
        numbers = {id: number for number, id in content["items"]}
        for id, number in appends.answered.items():
            if id not in numbers:
                self._blame(place, f"append {id} was acknowledged, and is gone")
            elif numbers[id] != number:
                self._blame(place, f"append {id} was acknowledged as {number}, and is {numbers[id]}")
        self._compare(place, "append", set(appends.sent), set(), set(numbers))
        self._compare(place, "member", set(members.sent), set(members.answered), set(content["members"]))

    def _check_slices(self, place: Place | str, content: dict[str, Any]) -> None:
        """An item, its counter and the state are written in one slice."""
        ids = [id for _, id in content["items"]]
        if len(ids) != len(set(ids)):
            self._blame(place, "an item is there twice")
        if content["counters"].get("items", 0) != len(ids):
            self._blame(place, f"a slice is torn: {len(ids)} items, counters {content['counters']}")
        if content["state"] != [len(ids), ids[-1] if ids else ""]:
            self._blame(place, f"a slice is torn: {len(ids)} items, state {content['state']}")

    def _compare(self, place: Place | str, kind: str, sent: set[Any], answered: set[Any], found: set[Any]) -> None:
        if lost := answered - found:
            self._blame(place, f"{len(lost)} of kind {kind} were acknowledged, and are gone: {sorted(lost)[:3]}")
        if strange := found - sent:
            self._blame(place, f"{len(strange)} of kind {kind} were never sent: {sorted(strange)[:3]}")

    async def _check_deep(self, root: str) -> None:
        calls = self._history.deep_appends[root]
        if (contents := await self._read((root, ()), "content_deep", DEPTH)) is None:
            return
        for level, content in enumerate(contents):
            self._check_slices(f"{root}, level {level}", content)
        levels = [{id for _, id in content["items"]} for content in contents]
        for level, ids in enumerate(levels):
            self._compare(f"{root}, level {level}", "deep append", set(calls.sent), set(calls.answered), ids)
        for level, (above, below) in enumerate(itertools.pairwise(levels)):
            if below - above:
                self._blame(root, f"level {level + 1} has {len(below - above)} items that its parent lacks")

    async def _check_money(self, root: str) -> None:
        """Money may be lost between two agents only by a payment that was not acknowledged, and is never created."""
        payments, place = self._history.payments[root], (root, ())
        if (content := await self._read(place, "content")) is None or not content["accounts"]:
            return
        if (purse := await self._read(place, "content_of_purse")) is None:
            return
        received = sum(purse["accounts"].values())
        gone = len(ACCOUNTS) * DEPOSIT - sum(content["accounts"].values()) - received
        unknown = sum(amount for id, amount in payments.sent.items() if id not in payments.answered)
        if any(amount < 0 for amount in content["accounts"].values()):
            self._blame(root, f"an account is overdrawn: {content['accounts']}")
        if not 0 <= gone <= unknown:
            self._blame(root, f"{gone} of the money is gone, and {unknown} of it was not acknowledged")
        if received < sum(payments.answered.values()):
            self._blame(root, "an acknowledged payment did not arrive")

    async def _check_rings(self, place: Place) -> None:
        calls = self._history.rings[place]
        found = await self._read(place, "schedule_report", until=lambda report: not report["left"])
        if found is None:
            return
        wanted, dead = found["wanted"], set(found["dead"])
        self._compare(place, "schedule", set(calls.sent), set(calls.answered), set(wanted))
        times = Counter(id for id, _, _ in found["rings"])
        for id in wanted:
            if not times[id] and id not in dead:
                self._blame(place, f"schedule {id} never came")
            if times[id] > 1 and not calls.sent[id]:
                self._blame(place, f"schedule {id} without awaits took effect {times[id]} times")
        for id, due, at in found["rings"]:
            self.latest_ring = max(self.latest_ring, at - due)
            if id not in wanted:
                self._blame(place, f"schedule {id} came without a request")
            if at < due:
                self._blame(place, f"schedule {id} came {due - at:.3f} s early")

    async def _check_queue(self, root: str, queue: str) -> None:
        calls, place = self._history.numbers[root, queue], (root, ())
        found = await self._read(place, "queue_report", until=lambda report: not report["left"])
        if found is None:
            return
        numbers = [number for name, number in found["taken"] if name == queue]
        self._compare(f"{root} {queue}", "queued call", set(calls.sent), set(calls.answered), set(numbers))
        if numbers != sorted(set(numbers)):
            self._blame(f"{root} {queue}", "a queued call came out of order, or twice")

    async def _check_fibers(self, root: str) -> None:
        calls, place = self._history.fibers[root], (root, ())
        found = await self._read(
            place, "fiber_report", until=lambda report: all(fiber[0] in ENDED for fiber in report["fibers"].values())
        )
        if found is None:
            return
        fibers: dict[str, tuple[str, Any, Any]] = found["fibers"]
        self._compare(root, "fiber", set(calls.sent), set(calls.answered), set(fibers))
        times = Counter((key, step) for key, step in found["steps"])
        for (key, step), count in times.items():
            if count > 1:
                self._blame(root, f"step {step} of fiber {key} took effect {count} times")
        began, ended = self._outside_steps()
        for key, (status, tokens, error) in fibers.items():
            if status != "completed":
                self._blame(root, f"fiber {key} ended as {status}: {error}")
                continue
            for step, token in enumerate(tokens):
                if times[key, step] != 1:
                    self._blame(root, f"step {step} of the completed fiber {key} is not in the database")
                if began[key, step][-1:] != [token]:
                    self._blame(root, f"step {step} of fiber {key} had finished, and began again outside")
                if token not in ended[key, step]:
                    self._blame(root, f"the result of step {step} of fiber {key} is of an attempt that did not end")

    def _outside_steps(self) -> tuple[dict[tuple[str, int], list[str]], dict[tuple[str, int], list[str]]]:
        """Return the tokens of the attempts that began, and of those that ended, by fiber and step, in order."""
        began, ended = defaultdict[tuple[str, int], list[str]](list), defaultdict[tuple[str, int], list[str]](list)
        for words in self._effect_words():
            if len(words) == 4 and words[0] in ("step-began", "step-ended"):
                (began if words[0] == "step-began" else ended)[words[1], int(words[2])].append(words[3])
        return began, ended

    def _effect_words(self) -> list[list[str]]:
        return [line.split() for line in self._effects.read_text().splitlines()] if self._effects.exists() else []

    async def _check_runs(self, root: str) -> None:
        calls = self._history.runs[root]
        found = await self._read(
            (root, ()), "run_report", until=lambda report: all(run[0] in ENDED for run in report.values())
        )
        if found is None:
            return
        tokens = {words[1]: words[2] for words in self._effect_words() if len(words) == 3 and words[0] == "run-began"}
        self._compare(root, "run", set(calls.sent), set(calls.answered), set(found))
        for id, output in calls.answered.items():
            if id in found and found[id][:2] != ["completed", output]:
                self._blame(root, f"run {id} was completed with {output}, and is now {found[id]}")
            if tokens.get(id) != output:
                self._blame(root, f"the step of run {id} had finished, and began again outside")
