"""Clients of a cluster that is being broken: each speaks with one node for a while, then with another.

Nobody asks for the same thing twice, but for what promises to be done once however often it is asked for. So what
was not answered is there once, or not at all.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.faults.cluster.app import Ledger, Line, Page
from tests.faults.cluster.history import Act, History, Kept, Written

from sapwood.client import connect
from sapwood.errors import SapwoodError

PATIENCE = 60.0
"""Seconds in which a cluster that was healed answers everybody."""
CALL = 20.0
"""Seconds that a client waits for an answer: longer than a lease and its margin, so that some outlive a node."""
REACHED = 3.0
"""Seconds after which a client goes to another node, if this one is not reached."""
SESSION = 25
"""Calls that a client makes through one node, at most."""
WATCH = 150
"""As many of a client that only reads: it stays while its node is cut off."""
AT_ONCE = 6
"""How many lists are looked at together at the end."""
QUIET = 0.3
THE_END = "the end"
"""Through whom what is left was asked for."""
LEVELS = ((), ((Page, "p"),), ((Page, "p"), (Line, "l")))
"""The agents below a root whose lists are written."""


@dataclass(frozen=True, slots=True)
class Place:
    """One list."""

    root: str
    depth: int

    @property
    def path(self) -> str:
        return f"/agents/ledger/{self.root}" + "/sub/page/p" * (self.depth > 0) + "/sub/line/l" * (self.depth > 1)


def places(mark: str, roots: int = 6) -> list[Place]:
    """Return lists of all depths below new roots."""
    return [
        Place(f"{mark}-{number}", depth) for number in range(roots) for depth in ((0, 1, 2) if number % 2 else (0,))
    ]


@dataclass
class Round:
    """All clients of some lists, and what they saw."""

    mark: str
    urls: Callable[[], dict[str, str]]
    """The nodes that clients know of, and where they are."""
    random: Random
    history: History = field(default_factory=History)
    places: list[Place] = field(default_factory=list[Place])
    runs: dict[str, str] = field(default_factory=dict[str, str])
    """All runs, and of which root they are."""
    is_over: bool = False
    hung: Callable[[str], None] = lambda url: None
    """Told of a node that did not answer although all is well."""
    pause: float = 0.05
    """Seconds between two calls of one client, at most."""
    _numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.places = self.places or places(self.mark)

    def name(self, kind: str) -> str:
        return f"{kind}{next(self._numbers)}"

    async def client(self) -> None:
        """Be one client, until all is over."""
        while not self.is_over:
            node, url = self.random.choice([*self.urls().items()])
            place = self.random.choice(self.places)
            try:
                async with self._connected(url, place, timeout=REACHED) as stub:
                    only_reads = _only_read(node, place)
                    for _ in range(self.random.randint(1, WATCH if only_reads else SESSION)):
                        if self.is_over or not await self._act(node, place, stub):
                            break
                        await asyncio.sleep(self.random.random() * self.pause * (4 if only_reads else 1))
            except (SapwoodError, OSError):
                pass
            await asyncio.sleep(self.random.random() * 0.1)

    @asynccontextmanager
    async def _connected(self, url: str, place: Place, timeout: float = CALL) -> AsyncIterator[Any]:
        sub = LEVELS[place.depth]
        # It is not this that bounds a call but what is around it: a client gives up connecting sooner than a call.
        async with asyncio.timeout(timeout) as limit:
            try:
                async with connect(url, Ledger, place.root, sub=sub, timeout=CALL, delay=lambda _: 0.2) as remote:
                    limit.reschedule(None)
                    yield remote.stub
            except TimeoutError as error:
                raise OSError(f"{url} was not reached") from error

    async def stay(self, node: str, place: Place, kind: str) -> None:
        """Ask one node for one thing again and again, until all is over."""
        url = self.urls()[node]
        while not self.is_over:
            try:
                async with self._connected(url, place, timeout=REACHED) as stub:
                    while not self.is_over and await self._act(node, place, stub, kind):  # noqa: ASYNC110
                        await asyncio.sleep(self.random.random() * self.pause)
            except (SapwoodError, OSError):
                pass
            await asyncio.sleep(0.1)

    async def owner(self, place: Place) -> str:
        """Write to a list; return which node did."""
        node, url = self.random.choice([*self.urls().items()])
        async with self._connected(url, place) as stub:
            await self._act(node, place, stub, "append")
            kept = await stub.items(0)
        return str(kept[-1][1]).partition("/")[0]

    async def _act(self, node: str, place: Place, stub: Any, kind: str = "") -> bool:
        """Ask for something; return whether it was answered."""
        choices: list[tuple[int, str]] = [(12, "append"), (2, "append_slowly"), (6, "read"), (1, "plan"), (1, "dig")]
        if place.depth == 0:
            choices.append((1, "carry"))
        if _only_read(node, place):
            choices = [(1, "read")]
        if not kind:
            ((_, kind),) = self.random.choices(choices, [weight for weight, _ in choices])
        act = Act(kind.partition("_")[0], place.path, "", time.monotonic(), node)
        if kind != "read":
            act.item = f"{self.mark}-{self.name(kind[0])}"
        self.history.acts.append(act)
        try:
            async with asyncio.timeout(CALL):
                await self._ask(kind, place, act, stub)
        except (SapwoodError, OSError) as error:
            act.problem = f"{type(error).__name__}: {error}"
            return False
        act.end = time.monotonic()
        return True

    async def _ask(self, kind: str, place: Place, act: Act, stub: Any) -> None:
        match kind:
            case "append":
                act.length = await stub.append(act.item)
            case "append_slowly":
                act.length = await stub.append_slowly(act.item, self.random.random() * 0.5)
            case "read":
                act.length, act.last = await stub.read()
            case "plan":
                await stub.plan(act.item, self.random.choice((0.2, 2.0, 8.0)) * self.random.random())
            case "dig":
                await stub.dig(act.item)
            case _:
                if self.runs and self.random.random() < 0.3:  # ask once more
                    old = [run for run, root in self.runs.items() if root == place.root]
                    act.item = self.random.choice(old) if old else act.item
                self.runs.setdefault(act.item, place.root)
                act.last = await stub.carry(act.item)

    async def look(self) -> None:
        """Ask every list what it remembers, and every run how it ended, as soon as nothing is under way any more."""
        self.history.kept.clear()
        by_root: dict[str, list[str]] = {}
        for run, root in self.runs.items():
            by_root.setdefault(root, []).append(run)
        turns = asyncio.Semaphore(AT_ONCE)

        async def look_at(place: Place) -> None:
            async with turns:
                if (kept := await self._insist(lambda url: self._look_at(url, place))) is not None:
                    self.history.kept[place.path] = kept

        async def hear_of(place: Place, run: str) -> None:
            async with turns:
                act = Act("carry", place.path, run, time.monotonic(), THE_END)
                answer = await self._insist(lambda url: self._carry(url, place, run))
                if answer is not None:
                    act.end, act.last = time.monotonic(), answer
                self.history.acts.append(act)

        await asyncio.gather(*map(look_at, self.places))
        await asyncio.gather(*(hear_of(Place(root, 0), run) for root, runs in by_root.items() for run in runs))

    async def _insist(self, ask: Callable[[str], Any]) -> Any:
        """Return what any node answers, in the time that everything is to be well again in; None: nobody did."""
        until = time.monotonic() + PATIENCE
        while True:
            _, url = self.random.choice([*self.urls().items()])
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + max(until - time.monotonic(), 1)):
                    return await ask(url)
            except (SapwoodError, OSError, TimeoutError) as error:
                if isinstance(error, (TimeoutError, OSError)):
                    self.hung(url)
                if time.monotonic() > until:
                    return None
                await asyncio.sleep(0.2)

    async def _carry(self, url: str, place: Place, run: str) -> str:
        async with self._connected(url, place) as stub:
            return await stub.carry(run)

    async def _look_at(self, url: str, place: Place) -> Kept:
        until = time.monotonic() + PATIENCE / 2
        async with self._connected(url, place) as stub:
            while True:
                kept = await _kept(stub)
                if _is_quiet(kept) or time.monotonic() > until:
                    return kept
                await asyncio.sleep(QUIET)


def _only_read(node: str, place: Place) -> bool:
    """Return whether a tree is only read through a node.

    What is written at a node that is cut off waits, and so does every read behind it: an old state is only told by
    a node that nobody writes at.
    """
    return (int(node[1:]) + int(place.root.rpartition("-")[2])) % 3 == 0


async def _kept(stub: Any) -> Kept:
    items: list[Written] = []
    while page := await stub.items(len(items)):
        items += [Written(item, writer, epoch) for item, writer, epoch in page]
    rest = await stub.rest()
    return Kept(
        items,
        dict(rest["due"]),
        [(item, at) for item, at in rest["rung"]],
        [(fiber, step, found) for fiber, step, found in rest["dug"]],
        rest["fibers"],
    )


def _is_quiet(kept: Kept) -> bool:
    """Return whether all that was planned has rung, and all fibers have ended."""
    return {*kept.due} <= {item for item, _ in kept.rung} and {*kept.fibers.values()} <= {"completed"}


def counted(acts: Sequence[Act]) -> dict[str, Any]:
    """Return how often what was asked for, how often it was not answered, and the longest anybody waited."""
    answered = [act for act in acts if act.is_answered]
    times = sorted(act.end - act.begin for act in answered)
    return {
        "asked": len(acts),
        "answered": len(answered),
        "p50": round(times[len(times) // 2], 4) if times else None,
        "p99": round(times[len(times) * 99 // 100], 4) if times else None,
        "longest answer": round(times[-1], 3) if times else None,
    }


def availability(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return how much of the time in which a cluster was broken somebody was answered."""
    answering = total = 0
    longest = 0.0
    for one in rounds:
        acts = [act for act in one.history.acts if act.node != THE_END]
        ends = sorted(act.end for act in acts if act.is_answered)
        answering += len({int(end) for end in ends})
        total += int(max(ends) - min(act.begin for act in acts)) + 1 if ends else 0
        longest = max([longest, *(after - before for before, after in itertools.pairwise(ends))])
    return {
        "seconds in which somebody was answered": answering,
        "of seconds": total,
        "longest time in which nobody was answered": round(longest, 3),
    }
