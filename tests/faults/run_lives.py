"""Kills one process after the other while agents use agents, and checks that no run is lost, or done twice.

    python -m tests.faults.run_lives --level process --lives 200 --seed 7

As in `chat_lives`, but the agents have helpers, and those have theirs. The last life of a
folder is calm: every run, turn and fiber has to come to its end, and whoever comes then is
told of all of them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import msgspec
from tests.faults import chat_rules
from tests.faults.chat_lives import BEGINNING, CALM, LONGEST_CALM, MINUTE, PATIENCE, Watched, hurry
from tests.faults.journal import Journal, read
from tests.faults.lives import (
    NUMBERS_PER_LIFE,
    Death,
    Place,
    Runner,
    Runtime,
    complain,
    fork,
    main,
    mortal,
    points_of,
    settings_of,
    wait,
)
from tests.faults.run_checker import Left, read_folder
from tests.faults.run_model import Model
from tests.faults.run_workload import WORLD, Chief, Tab, sub_of, work
from tests.faults.run_workload import Path as Where
from tests.faults.time_workload import WallClock

from sapwood import App, Settings
from sapwood.errors import NotFound
from sapwood.runtimes.local import LocalRuntime

TREES = ("ash", "fir")
CALM_RATE = 30.0
LONG = 1_000_000.0
KINDS = "btpPzqhhgGiDcCff"
"""Of what kind the last thing is that some lives note down."""


def live(
    place: Place,
    life: int,
    image: int,
    death: Death,
    random: Random,
    first_reply: int,
    trees: Sequence[str],
    now: float,
) -> None:
    """Have agents use agents until death. Never returns."""
    how = mortal(place, life, image, death, random, first_reply)
    # Sometimes a run that goes on after a crash is given up at once, and repaired when it ends.
    silence = random.choice((LONG, LONG, 0.02))
    settings = dataclasses.replace(settings_of(place, image, random), run_silence=silence)
    hurry(random)
    complain(WORLD.note)
    watched = death.point == "committed" and random.random() < 0.7
    path = place.journal(life)
    WORLD.journal = Watched(path, how, random, KINDS) if watched else Journal(path, how.replied)
    WORLD.numbers = itertools.count(life * NUMBERS_PER_LIFE + 1)
    WORLD.clock = WallClock(now, random.choice((1.0, 20.0)))
    WORLD.random = Random(random.random())

    async def run() -> None:
        app = App(agents=[Chief], settings=settings, runtime=Runtime(settings, how.points, how.below, WORLD.clock))
        async with app:
            await work(app, random, trees)

    asyncio.run(run())


async def run_out(place: Place, image: int, trees: Sequence[str]) -> list[str]:
    """Let everything come to its end; return what does not."""
    settings = Settings(data=place.data(image), durability=place.level, slow_slice=10.0, run_silence=LONG)
    app = App(agents=[Chief], settings=settings, runtime=LocalRuntime(settings, clock=WORLD.clock))
    async with app:
        since, before = time.monotonic(), list[str]()
        while True:
            now, givers = await _open_ones(app, trees)
            if not now or time.monotonic() > since + PATIENCE:
                break
            if now != before:
                since, before = time.monotonic(), now
            await asyncio.sleep(0.03)
        if not now:
            await _replay(app, givers)
    return [f"{one} does not come to an end" for one in now]


async def _open_ones(app: App, trees: Sequence[str]) -> tuple[list[str], list[tuple[str, Where, set[str]]]]:
    """Return what is not over yet in these trees, and who has given which runs."""
    found: list[str] = []
    givers: list[tuple[str, Where, set[str]]] = []
    for tree in trees:
        left: list[Where] = [()]
        while left:
            path = left.pop()
            try:
                agent: Any = await app.get_agent(Chief, tree, sub=sub_of(path))
            except NotFound:  # it was never begun, or will be soon
                continue
            found += [f"{tree} {path}: {what}" for what in await agent.still_open()]
            given = await agent.given()
            if given:
                givers.append((tree, path, {id for id, _, _ in given}))
            left += [(*path, (kind, id)) for id, kind, _ in given]
    return found, givers


async def _replay(app: App, givers: Sequence[tuple[str, Where, set[str]]]) -> None:
    """Have somebody come, everywhere, now that everything is over."""
    for tree, path, runs in givers:
        tab = Tab(app, tree, path, at_the_end=True)
        await tab.until(lambda tab=tab, runs=runs: tab.ended >= runs, PATIENCE)
        await tab.close()


async def _as_sent(folder: dict[str, Left]) -> list[str]:
    """Return what providers would refuse of what they would be sent."""
    return [
        f"{left.place}: {problem}"
        for left in folder.values()
        if left.history
        for problem in await chat_rules.as_sent(left.history)
    ]


async def warm_up() -> None:
    """Have some runs: what they import and compile is there for every life that is forked from here."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data=Path(folder), slow_slice=10.0)
        async with App(agents=[Chief], settings=settings) as app:
            root, tab = await app.get_agent(Chief, "warm"), Tab(app, "warm")
            for kind in ("Digger", "Porter", "Clerk"):
                await root.give(kind, f"warm-{kind}", None)
            for _ in range(5):
                turn = tab.speak()
                await tab.until(lambda turn=turn: turn in tab.done, 2.0)
            await tab.close()


class RunRunner(Runner):
    """Runs lives of agents that use agents, and a calm one at the end of each folder."""

    longest = 0.8
    patience = 2.0
    nth: ClassVar = {"committed": 150, "create": 12, "sync": 150, "make_folder": 1}

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        asyncio.run(warm_up())

    def points_of(self, level: str) -> list[str]:
        """Nothing is removed or renamed here; most that happens is a commit."""
        rare = [point for point in points_of(level) if point.endswith(("create", "make_folder"))]
        often = [point for point in points_of(level) if point.endswith(("sync", "committed"))]
        return [step for point in rare for step in (*often, "committed", "committed", point)]

    def begin(self, place: Place) -> None:
        self._runs = Model()
        self._now = BEGINNING
        self._trees = TREES[: 1 + (Random(place.home.name.rpartition("-")[0]).random() < 0.3)]

    def live(self, place: Place, life: int, image: int, death: Death, random: Random, first_reply: int) -> None:
        live(place, life, image, death, random, first_reply, self._trees, self._now)

    def check(self, place: Place, life: int, image: int, death: Death) -> tuple[int, list[str]]:
        replies = self._runs.add(life, read(place.journal(life)))
        copy = place.home / "copy"
        shutil.copytree(place.data(image), copy)
        problems = self._runs.check(read_folder(copy), was_cut=death.power)
        if not problems:
            shutil.rmtree(copy)
        self._now += 5 * MINUTE
        return replies, problems

    def end(self, place: Place, image: int) -> list[str]:
        answer, copy = place.home / "calm", place.home / "before-calm"
        shutil.copytree(place.data(image), copy)
        trees = sorted({left.address.root.name for left in read_folder(copy).values()})

        def run() -> None:
            complain(WORLD.note)
            hurry(Random(place.home.name))
            WORLD.calm = True
            WORLD.journal = Journal(place.journal(CALM), lambda: None)
            WORLD.numbers = itertools.count(CALM * NUMBERS_PER_LIFE)
            WORLD.clock = WallClock(self._now, CALM_RATE)
            answer.write_bytes(msgspec.json.encode(asyncio.run(run_out(place, image, trees))))

        status = wait(fork(run, place.home / "calm-stderr"), LONGEST_CALM)
        if status != 0 or not answer.exists():
            return [f"the calm life died: {(place.home / 'calm-stderr').read_text()}"]
        self._runs.add(CALM, read(place.journal(CALM)))
        folder = read_folder(place.data(image))
        return [
            *msgspec.json.decode(answer.read_bytes(), type=list[str]),
            *self._runs.check(folder, is_end=True),
            *asyncio.run(_as_sent(folder)),
        ]


if __name__ == "__main__":
    sys.exit(main(RunRunner, __doc__))
