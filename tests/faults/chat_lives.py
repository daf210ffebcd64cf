"""Kills one process after the other while agents talk, and checks that no conversation suffers.

    python -m tests.faults.chat_lives --level process --lives 200 --seed 7

As in `lives`, but the agents are in the middle of answers, and their clients listen. The
last life of a folder is calm: whoever is asked for something answers, and every turn has to
come to its end.
"""

from __future__ import annotations

import asyncio
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
from tests.faults.chat_checker import Left, read_folder
from tests.faults.chat_model import Model
from tests.faults.chat_workload import WORLD, Salon, Tab, Talker, places, work
from tests.faults.chat_workload import Place as Conversation
from tests.faults.journal import Journal, read
from tests.faults.lives import (
    NUMBERS_PER_LIFE,
    Death,
    Mortal,
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
from tests.faults.time_workload import WallClock

from sapwood import App, Settings
from sapwood.chat import ending, stream
from sapwood.runtimes.local import LocalRuntime

BEGINNING = 1_800_000_000.0
MINUTE = 60.0
PATIENCE = 15.0
"""Seconds in which something has to happen, as long as a turn is open."""
LONGEST_CALM = 300.0
CALM_RATE = 30.0
NEVER = 1_000_000_000
CALM = 10_000_000
"""The number of a calm life in the journals."""


def hurry(random: Random) -> None:
    """Have what waits for a moment wait for a shorter one: more happens in a life."""
    stream.GATHERED = random.choice((0.001, 0.005, 0.03))
    ending.SETTLED = random.choice((0.002, 0.03))


class Watched(Journal):
    """A journal that has the process die just after something was noted down: at one of the next commits."""

    def __init__(self, path: Path, how: Mortal, random: Random, kinds: str = "qtzzrcs") -> None:
        super().__init__(path, how.replied)
        self._how = how
        self._kind = random.choice(kinds)
        self._left = random.randint(1, 6)
        self._commits = random.randint(1, 5)
        how.points.arm("committed", NEVER, how.die)

    def write(self, *line: object) -> None:
        super().write(*line)
        self._left -= line[0] == self._kind
        if not self._left:
            self._left = -1
            self._how.points.arm("committed", self._commits, self._how.die)


def live(
    place: Place,
    life: int,
    image: int,
    death: Death,
    random: Random,
    first_reply: int,
    where: Sequence[Conversation],
    now: float,
) -> None:
    """Have people talk until death. Never returns."""
    how = mortal(place, life, image, death, random, first_reply)
    settings = settings_of(place, image, random)
    hurry(random)
    complain(WORLD.note)
    watched = death.point == "committed" and random.random() < 0.6
    path = place.journal(life)
    WORLD.journal = Watched(path, how, random) if watched else Journal(path, how.replied)
    WORLD.numbers = itertools.count(life * NUMBERS_PER_LIFE + 1)
    WORLD.clock = WallClock(now, 1.0)
    WORLD.random = Random(random.random())

    async def run() -> None:
        app = App(agents=[Salon], settings=settings, runtime=Runtime(settings, how.points, how.below, WORLD.clock))
        async with app:
            await work(app, random, where)

    asyncio.run(run())


async def run_out(place: Place, image: int, where: Sequence[Conversation]) -> list[str]:
    """Let every turn come to its end, by itself, or when everybody has answered; return what does not."""
    settings = Settings(data=place.data(image), durability=place.level, slow_slice=10.0, sql_timeout=30.0)
    app = App(agents=[Salon], settings=settings, runtime=LocalRuntime(settings, clock=WORLD.clock))
    async with app:
        agents = [await one.agent(app) for one in where]
        tabs = [Tab(app, one) for one in where]
        for tab in tabs:
            await tab.resume()
        since, before, is_open = time.monotonic(), 0, True
        while is_open and time.monotonic() < since + PATIENCE:
            is_open = False
            heard = sum(len(tab.frames) for tab in tabs)
            if heard > before:
                since, before = time.monotonic(), heard
            for agent, tab in zip(agents, tabs, strict=True):
                statuses = await agent.open_turns()
                is_open |= bool(statuses)
                if "waiting" in statuses and "running" not in statuses:
                    await _settle(agent, tab)
            await asyncio.sleep(0.01)
        problems = [f"{address} does not come to an end" for address in await _open_ones(agents, tabs)]
        for tab in tabs:
            await tab.close()
    return problems


async def _settle(agent: Talker, tab: Tab) -> None:
    """Have a turn that waits not wait any longer."""
    for id, name in await agent.open_calls():
        tab.answer(id, name)
    if not await agent.open_calls():
        tab.speak()  # all is answered, and nobody wanted it to go on
    await asyncio.sleep(0.02)


async def _open_ones(agents: Sequence[Talker], tabs: Sequence[Tab]) -> list[str]:
    return [
        f"{tab.place}: {statuses}"
        for agent, tab in zip(agents, tabs, strict=True)
        if (statuses := await agent.open_turns())
    ]


async def _as_sent(folder: dict[str, Left]) -> list[str]:
    """Return what providers would refuse of what they would be sent."""
    return [
        f"{left.place}: {problem}"
        for left in folder.values()
        for problem in await chat_rules.as_sent([message for _, message in left.history])
    ]


async def warm_up() -> None:
    """Have one conversation: what it imports and compiles is there for every life that is forked from here."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data=Path(folder), slow_slice=10.0)
        async with App(agents=[Salon], settings=settings) as app:
            where = Conversation("warm", (("Merged", "m"),))
            agent, tab = await where.agent(app), Tab(app, where)
            for _ in range(10):
                await tab.until_done(tab.speak(), 2.0)
                for id, name in await agent.open_calls():
                    tab.answer(id, name)
            await agent.cancel_turn()
            await tab.close()


class ChatRunner(Runner):
    """Runs lives of conversations, and a calm one at the end of each folder."""

    longest = 0.8
    patience = 3.0
    nth: ClassVar = {"committed": 90, "create": 3, "sync": 90, "make_folder": 1}

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        asyncio.run(warm_up())

    def points_of(self, level: str) -> list[str]:
        """Nothing is removed or renamed here; most that happens in a conversation is a commit."""
        rare = [point for point in points_of(level) if point.endswith(("create", "make_folder"))]
        often = [point for point in points_of(level) if point.endswith(("sync", "committed"))]
        return [step for point in rare for step in (*often, "committed", point)]

    def begin(self, place: Place) -> None:
        self._talks = Model()
        self._now = BEGINNING
        self._conversations = places(Random(f"{self._seed} {place.home.name.rpartition('-')[0]}"))

    def live(self, place: Place, life: int, image: int, death: Death, random: Random, first_reply: int) -> None:
        live(place, life, image, death, random, first_reply, self._conversations, self._now)

    def check(self, place: Place, life: int, image: int, death: Death) -> tuple[int, list[str]]:
        replies = self._talks.add(life, read(place.journal(life)))
        copy = place.home / "copy"
        shutil.copytree(place.data(image), copy)
        problems = self._talks.check(read_folder(copy), was_cut=death.power)
        if not problems:
            shutil.rmtree(copy)
        self._now += 5 * MINUTE
        return replies, problems

    def end(self, place: Place, image: int) -> list[str]:
        answer, copy = place.home / "calm", place.home / "before-calm"
        shutil.copytree(place.data(image), copy)
        where = [Conversation.at(left.address) for left in read_folder(copy).values()]

        def run() -> None:
            complain(WORLD.note)
            hurry(Random(place.home.name))
            WORLD.calm = True
            WORLD.journal = Journal(place.journal(CALM), lambda: None)
            WORLD.numbers = itertools.count(CALM * NUMBERS_PER_LIFE)
            WORLD.clock = WallClock(self._now, CALM_RATE)
            answer.write_bytes(msgspec.json.encode(asyncio.run(run_out(place, image, where))))

        status = wait(fork(run, place.home / "calm-stderr"), LONGEST_CALM)
        if status != 0 or not answer.exists():
            return [f"the calm life died: {(place.home / 'calm-stderr').read_text()}"]
        self._talks.add(CALM, read(place.journal(CALM)))
        folder = read_folder(place.data(image))
        return [
            *msgspec.json.decode(answer.read_bytes(), type=list[str]),
            *self._talks.check(folder, is_end=True),
            *asyncio.run(_as_sent(folder)),
        ]


if __name__ == "__main__":
    sys.exit(main(ChatRunner, __doc__))
