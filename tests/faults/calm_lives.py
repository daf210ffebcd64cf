"""What lives share in which agents talk, or use each other: they hurry, and the last one of a folder is calm.

In the calm life nothing is killed, and everything that was begun has to come to its end.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from tests.faults import chat_rules
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
    mortal,
    points_of,
    settings_of,
    wait,
)
from tests.faults.time_workload import WallClock

from sapwood import Agent, App, Settings
from sapwood.runtimes.local import LocalRuntime
from sapwood.timings import DEFAULTS, Timings

BEGINNING = 1_800_000_000.0
MINUTE = 60.0
PATIENCE = 15.0
"""Seconds in which something has to happen, as long as anything is open."""
LONGEST_CALM = 300.0
CALM_RATE = 30.0
NEVER = 1_000_000_000
CALM = 10_000_000
"""The number of a calm life in the journals."""


def shortened(timings: Timings, random: Random) -> Timings:
    """Return timings with shorter delays in a turn: more happens in a life."""
    return replace(
        timings, chunk_flush_delay=random.choice((0.001, 0.005, 0.03)), turn_end_delay=random.choice((0.002, 0.03))
    )


class Watched(Journal):
    """A journal that has the process die just after something was noted down: at one of the next commits."""

    def __init__(self, path: Path, how: Mortal, random: Random, kinds: str) -> None:
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


class CalmRunner(Runner):
    """Runs such lives, and a calm one at the end of each folder."""

    longest = 0.8
    world: Any
    """What the agents of a life know of it."""
    root: type[Agent[Any]]
    kinds: str
    """Of what kind the last thing is that some lives note down."""
    watched: float
    """How many of those lives there are, of all that die at a commit."""
    more_commits = 1
    """How much more often a life dies at a commit than where something is created."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        asyncio.run(self.warm_up())

    @abstractmethod
    async def warm_up(self) -> None:
        """Do a little of everything: what it imports and compiles is there for every life that is forked from here."""

    @abstractmethod
    def model(self) -> Any:
        """Return what is to know all that happens in a folder."""

    @abstractmethod
    def where(self, place: Place) -> Any:
        """Return where something happens in a folder."""

    @abstractmethod
    def read(self, folder: Path) -> Mapping[str, Any]:
        """Return what is left in a folder, by agent."""

    @abstractmethod
    def where_in(self, left: Mapping[str, Any]) -> Any:
        """Return where something has happened that left this."""

    @abstractmethod
    def said(self, left: Any) -> list[Any]:
        """Return what the model of an agent was told and has said."""

    @abstractmethod
    async def work(self, app: App, random: Random, where: Any) -> None:
        """Have the agents do something until death."""

    @abstractmethod
    async def run_out(self, app: App, where: Any) -> list[str]:
        """Let everything come to its end; return what does not."""

    def settings(self, place: Place, image: int, random: Random) -> Settings:
        return settings_of(place, image, random)

    def rate(self, random: Random) -> float:
        """Return how fast the clock of a life goes."""
        return 1.0

    def calm_settings(self, place: Place, image: int) -> Settings:
        return Settings(data=place.data(image), durability=place.level, slow_after=10.0, sql_timeout=30.0)

    def points_of(self, level: str) -> list[str]:
        """Nothing is removed or renamed here; most that happens is a commit."""
        rare = [point for point in points_of(level) if point.endswith(("create", "make_folder"))]
        often = [point for point in points_of(level) if point.endswith(("sync", "committed"))]
        return [step for point in rare for step in (*often, *["committed"] * self.more_commits, point)]

    def begin(self, place: Place) -> None:
        self._known = self.model()
        self._now = BEGINNING
        self._places = self.where(place)

    def live(self, place: Place, life: int, image: int, death: Death, random: Random, first_reply: int) -> None:
        """Have the agents do something until death. Never returns."""
        world, path = self.world, place.journal(life)
        how = mortal(place, life, image, death, random, first_reply)
        settings = self.settings(place, image, random)
        how = replace(how, timings=shortened(how.timings, random))
        complain(world.note)
        watched = death.point == "committed" and random.random() < self.watched
        world.journal = Watched(path, how, random, self.kinds) if watched else Journal(path, how.replied)
        world.numbers = itertools.count(life * NUMBERS_PER_LIFE + 1)
        world.clock = WallClock(self._now, self.rate(random))
        world.random = Random(random.random())

        async def run() -> None:
            runtime = Runtime(settings, how, world.clock)
            async with App(agents=[self.root], settings=settings, runtime=runtime) as app:
                await self.work(app, random, self._places)

        asyncio.run(run())

    def check(self, place: Place, life: int, image: int, death: Death) -> tuple[int, list[str]]:
        replies = self._known.add(life, read(place.journal(life)))
        copy = place.home / "copy"
        shutil.copytree(place.data(image), copy)
        problems = self._known.check(self.read(copy), was_cut=death.power)
        if not problems:
            shutil.rmtree(copy)
        self._now += 5 * MINUTE
        return replies, problems

    def end(self, place: Place, image: int) -> list[str]:
        answer, copy, world = place.home / "calm", place.home / "before-calm", self.world
        shutil.copytree(place.data(image), copy)
        where = self.where_in(self.read(copy))

        async def run_out() -> list[str]:
            settings = self.calm_settings(place, image)
            timings = shortened(DEFAULTS, Random(place.home.name))
            runtime = LocalRuntime(settings, clock=world.clock, timings=timings)
            async with App(agents=[self.root], settings=settings, runtime=runtime) as app:
                return await self.run_out(app, where)

        def run() -> None:
            complain(world.note)
            world.calm = True
            world.journal = Journal(place.journal(CALM), lambda: None)
            world.numbers = itertools.count(CALM * NUMBERS_PER_LIFE)
            world.clock = WallClock(self._now, CALM_RATE)
            answer.write_bytes(msgspec.json.encode(asyncio.run(run_out())))

        status = wait(fork(run, place.home / "calm-stderr"), LONGEST_CALM)
        if status != 0 or not answer.exists():
            return [f"the calm life died: {(place.home / 'calm-stderr').read_text()}"]
        self._known.add(CALM, read(place.journal(CALM)))
        folder = self.read(place.data(image))
        return [
            *msgspec.json.decode(answer.read_bytes(), type=list[str]),
            *self._known.check(folder, is_end=True),
            *asyncio.run(as_sent({left.place: self.said(left) for left in folder.values()})),
        ]


async def as_sent(said: Mapping[str, list[Any]]) -> list[str]:
    """Return what providers would refuse of what they would be sent."""
    return [
        f"{place}: {problem}"
        for place, history in said.items()
        if history
        for problem in await chat_rules.as_sent(history)
    ]
