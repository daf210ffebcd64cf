"""Kills one process after the other while agents talk, and checks that no conversation suffers.

    python -m tests.faults.chat_lives --level process --lives 200 --seed 7

As in `lives`, but the agents are in the middle of answers, and their clients listen. The
last life of a folder is calm: whoever is asked for something answers, and every turn has to
come to its end.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.faults.calm_lives import PATIENCE, CalmRunner
from tests.faults.chat_checker import Left, read_folder
from tests.faults.chat_model import Model
from tests.faults.chat_workload import WORLD, Salon, Tab, Talker, places, work
from tests.faults.chat_workload import Place as Conversation
from tests.faults.lives import Place, main

from sapwood import App, Settings


class ChatRunner(CalmRunner):
    """Runs lives of conversations, and a calm one at the end of each folder."""

    patience = 3.0
    nth: ClassVar = {"committed": 90, "create": 3, "sync": 90, "make_folder": 1}
    world = WORLD
    root = Salon
    kinds = "qtzzrcs"
    watched = 0.6

    async def warm_up(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            settings = Settings(data=Path(folder), slow_after=10.0)
            async with App(agents=[Salon], settings=settings) as app:
                where = Conversation("warm", (("Merged", "m"),))
                agent, tab = await where.agent(app), Tab(app, where)
                for _ in range(10):
                    await tab.until_done(tab.speak(), 2.0)
                    for id, name in await agent.open_calls():
                        tab.answer(id, name)
                await agent.turns.cancel()
                await tab.close()

    def model(self) -> Model:
        return Model()

    def where(self, place: Place) -> Sequence[Conversation]:
        return places(Random(f"{self._seed} {place.home.name.rpartition('-')[0]}"))

    def read(self, folder: Path) -> Mapping[str, Left]:
        return read_folder(folder)

    def where_in(self, left: Mapping[str, Left]) -> Sequence[Conversation]:
        return [Conversation.at(one.address) for one in left.values()]

    def said(self, left: Left) -> list[Any]:
        return [message for _, message in left.history]

    async def work(self, app: App, random: Random, where: Sequence[Conversation]) -> None:
        await work(app, random, where)

    async def run_out(self, app: App, where: Sequence[Conversation]) -> list[str]:
        """Let every turn come to its end, by itself, or when everybody has answered; return what does not."""
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


if __name__ == "__main__":
    sys.exit(main(ChatRunner, __doc__))
