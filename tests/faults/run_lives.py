"""Kills one process after the other while agents use agents, and checks that no run is lost, or done twice.

    python -m tests.faults.run_lives --level process --lives 200 --seed 7

As in `chat_lives`, but the agents have helpers, and those have theirs. The last life of a
folder is calm: every run, turn and fiber has to come to its end, and whoever comes then is
told of all of them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.faults.calm_lives import PATIENCE, CalmRunner
from tests.faults.lives import Place, main
from tests.faults.run_checker import Left, read_folder
from tests.faults.run_model import Model
from tests.faults.run_workload import WORLD, Chief, Person, Tab, sub_of, work
from tests.faults.run_workload import Path as Where

from sapwood import App, Settings
from sapwood.errors import NotFound

TREES = ("ash", "fir")
LONG = 1_000_000.0


class RunRunner(CalmRunner):
    """Runs lives of agents that use agents, and a calm one at the end of each folder."""

    patience = 2.0
    nth: ClassVar = {"committed": 150, "create": 12, "sync": 150, "make_folder": 1}
    world = WORLD
    root: type[Chief] = Chief
    person: type[Person] = Person
    kinds = "btpPzqhhgGiDcCff"
    watched = 0.7
    more_commits = 2

    async def warm_up(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            settings = Settings(data=Path(folder), slow_after=10.0)
            async with App(agents=[self.root], settings=settings) as app:
                root, tab = await app.get_agent(self.root, "warm"), Tab(app, "warm")
                for kind in ("Digger", "Porter", "Clerk"):
                    await root.give(kind, f"warm-{kind}", None)
                for _ in range(5):
                    turn = tab.speak()
                    await tab.until(lambda turn=turn: turn in tab.done, 2.0)
                await tab.close()

    def model(self) -> Model:
        return Model()

    def where(self, place: Place) -> Sequence[str]:
        return TREES[: 1 + (Random(place.home.name.rpartition("-")[0]).random() < 0.3)]

    def read(self, folder: Path) -> Mapping[str, Left]:
        return read_folder(folder, Left)

    def where_in(self, left: Mapping[str, Left]) -> Sequence[str]:
        return sorted({one.address.root.name for one in left.values()})

    def said(self, left: Left) -> list[Any]:
        return [*left.history]

    def settings(self, place: Place, image: int, random: Random) -> Settings:
        # Sometimes a run that goes on after a crash is given up at once, and repaired when it ends.
        silence = random.choice((LONG, LONG, 0.02))
        return dataclasses.replace(super().settings(place, image, random), run_idle_timeout=silence)

    def rate(self, random: Random) -> float:
        return random.choice((1.0, 20.0))

    def calm_settings(self, place: Place, image: int) -> Settings:
        return dataclasses.replace(super().calm_settings(place, image), run_idle_timeout=LONG)

    async def work(self, app: App, random: Random, where: Sequence[str]) -> None:
        await work(app, random, where, self.person)

    async def run_out(self, app: App, where: Sequence[str]) -> list[str]:
        since, before = time.monotonic(), list[str]()
        while True:
            now, givers = await _open_ones(app, where)
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
                agent: Any = await app.get_agent(WORLD.root, tree, sub=sub_of(path))
            except NotFound:  # it was never begun, or will be soon
                continue
            found += [f"{tree} {path}: {what}" for what in await agent.still_open()]
            given = await agent.given()
            if given:
                givers.append((tree, path, {id for id, *_ in given}))
            left += dict.fromkeys((*path, (kind, name)) for _, kind, name, _ in given)
    return found, givers


async def _replay(app: App, givers: Sequence[tuple[str, Where, set[str]]]) -> None:
    """Have somebody come, everywhere, now that everything is over."""
    for tree, path, runs in givers:
        tab = Tab(app, tree, path, at_the_end=True)
        await tab.until(lambda tab=tab, runs=runs: tab.ended >= runs, PATIENCE)
        await tab.close()


if __name__ == "__main__":
    sys.exit(main(RunRunner, __doc__))
