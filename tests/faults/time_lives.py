"""Kills one process after the other while they wait for the clock, and checks that every alarm fires.

    python -m tests.faults.time_lives --level process --lives 200 --seed 7

As in `lives`, but what clients wish for is to come later. Between two lives of a folder
the wall clock may be set back an hour or forward a day. The last life of a folder is
calm: nobody asks for anything, the clock has passed every time anybody named, and
everything that was promised has to happen by itself.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sys
import time
from random import Random

import msgspec
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
    settings_of,
    wait,
)
from tests.faults.time_checker import read_folder
from tests.faults.time_model import Model
from tests.faults.time_workload import TREES, WORLD, Trunk, WallClock, everybody, work
from tests.machine import patience

from sapwood import App, Settings
from sapwood.address import Address
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.runtimes.local import LocalRuntime

BEGINNING = 1_800_000_000.0
HOUR, DAY = 3600.0, 86400.0
PATIENCE = patience(8.0)
"""Seconds in which everything that is owed has to happen."""
CALM_RATE = 30.0
"""How fast the clock goes in the last life: the waits of fibers that were interrupted again and again are long."""
CALM = 10_000_000
"""The number of a calm life in the journals."""


class Calm(msgspec.Struct):
    """What the last life of a folder says."""

    missing: list[int]
    """What was owed and did not happen by itself."""
    problems: list[str]


def live(place: Place, life: int, image: int, death: Death, random: Random, first_reply: int, clock: WallClock) -> None:
    """Run the workload until death. Never returns."""
    how = mortal(place, life, image, death, random, first_reply)
    settings = settings_of(place, image, random)
    complain(_but_dead_letters)
    WORLD.journal = Journal(place.journal(life), how.replied)
    WORLD.numbers = itertools.count(life * NUMBERS_PER_LIFE + 1)
    WORLD.clock = clock
    WORLD.random = Random(random.random())

    async def run() -> None:
        app = App(agents=[Trunk], settings=settings, runtime=Runtime(settings, how, clock))
        async with app:
            await work(app, random, death.favour)

    asyncio.run(run())


def _but_dead_letters(kind: str, text: str) -> None:
    if "is now a dead letter" not in text:
        WORLD.note(kind, text)


async def run_out(place: Place, image: int, clock: WallClock, owed: set[int]) -> Calm:
    """Let everything happen that is to come, and first what is owed, without asking for it."""
    settings = Settings(data=place.data(image), durability=place.level, slow_after=10.0)
    calm = Calm([], [])
    async with App(agents=[Trunk], settings=settings, runtime=LocalRuntime(settings, clock=clock)) as app:
        end = time.monotonic() + PATIENCE
        while not owed <= WORLD.settled and time.monotonic() < end:  # noqa: ASYNC110 - many may be the last
            await asyncio.sleep(0.002)
        calm.missing = sorted(owed - WORLD.settled)
        left = 1
        end = time.monotonic() + PATIENCE
        while left and time.monotonic() < end:
            left = 0
            for tree in TREES:
                if tree_folder(place.data(image), Address.root_of("Trunk", tree)).exists():
                    async for agent in everybody(app, tree):
                        left += await agent.hush()
            await asyncio.sleep(0.005)
        if left:
            calm.problems.append(f"{left} calls and fibers do not come to an end")
        # What is over is taken out of the indexes a moment later.
        for _ in range(3):
            await asyncio.sleep(0.01)
            app.node.sleep()
    return calm


class TimeRunner(Runner):
    """Runs lives whose clock jumps, and a calm one at the end of each folder."""

    def begin(self, place: Place) -> None:
        self._wishes = Model()
        self._now = self._latest = BEGINNING
        self._was_cut = False

    def live(self, place: Place, life: int, image: int, death: Death, random: Random, first_reply: int) -> None:
        live(place, life, image, death, random, first_reply, WallClock(self._now, 1.0))

    def check(self, place: Place, life: int, image: int, death: Death) -> tuple[int, list[str]]:
        model = self._wishes
        self._was_cut |= death.power
        replies = model.add(life, read(place.journal(life)))
        copy = place.home / "copy"
        shutil.copytree(place.data(image), copy)
        problems = model.problems() + read_folder(copy).problems(model.promised() if self._was_cut else None)
        if not problems:
            shutil.rmtree(copy)
        self._latest = max(self._latest, self._now)
        self._now = self._jump(Random(f"{self._seed} clock {life}"))
        return replies, problems

    def _jump(self, random: Random) -> float:
        """Return what the wall clock says when the next life begins; often it is about to strike a minute."""
        after = self._now + 0.5 + random.choice((0.0, 0.0, 0.0, -HOUR, -HOUR, DAY, DAY))
        return after if random.random() < 0.5 else after - after % 60 + 60 - random.random() * 0.2

    def end(self, place: Place, image: int) -> list[str]:
        model, answer = self._wishes, place.home / "calm"
        copy = place.home / "before-calm"
        shutil.copytree(place.data(image), copy)
        owed = model.owed(read_folder(copy))
        began = self._latest + 2 * DAY

        def run() -> None:
            complain(_but_dead_letters)
            WORLD.journal = Journal(place.journal(CALM), lambda: None)
            WORLD.numbers = itertools.count(CALM * NUMBERS_PER_LIFE)
            WORLD.clock = WallClock(began, CALM_RATE)
            WORLD.calm = True
            answer.write_bytes(msgspec.json.encode(asyncio.run(run_out(place, image, WORLD.clock, owed))))

        status = wait(fork(run, place.home / "calm-stderr"))
        if status != 0 or not answer.exists():
            return [f"the calm life died: {(place.home / 'calm-stderr').read_text()}"]
        calm = msgspec.json.decode(answer.read_bytes(), type=Calm)
        model.add(CALM, read(place.journal(CALM)))
        folder = read_folder(place.data(image))
        problems = [f"{model.wishes[number]} did not happen by itself" for number in calm.missing]
        return (
            problems
            + calm.problems
            + model.problems()
            + model.check_end(folder, began)
            + folder.leftovers(was_cut=self._was_cut)
        )


if __name__ == "__main__":
    sys.exit(main(TimeRunner, __doc__))
