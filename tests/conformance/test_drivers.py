"""Something outside says when the steps of turns and runs begin; all else stays with the agents."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.machine import patience

from sapwood import App, ChatAgent
from sapwood.kernel.node.driver_mark import has_noted_driver
from sapwood.kernel.node.node import Node
from sapwood.runs.execution.driver import DrivenWork, NodeDriver
from sapwood.testing import ScriptedModel, running, text

if TYPE_CHECKING:
    from sapwood.web.asgi_types import ASGI


class HandPace:
    """Lets a step begin when the test says so."""

    def __init__(self, part: DrivenWork) -> None:
        self.part = part
        self.told: list[tuple[str, bool]] = []
        self.asks: Future[None] | None = None

    def asked(self) -> Future[None] | None:
        self.asks = asyncio.get_running_loop().create_future()
        return self.asks

    def stepped(self, status: str, *, waits: bool = False, reason: str | None = None) -> bool:
        self.told.append((status, waits))
        return False

    def go(self) -> None:
        assert self.asks is not None
        self.asks.set_result(None)


class HandDriver:
    """Drives by the hand of a test."""

    path = "/_hand/"

    def __init__(self) -> None:
        self.paces: list[HandPace] = []
        self.ended: list[tuple[str, str]] = []
        self.changed = asyncio.Event()

    async def start(self, node: Node) -> None:
        node.shared(NodeDriver).driver = self

    async def stop(self) -> None:
        pass

    @property
    def door(self) -> ASGI:
        raise NotImplementedError

    @contextmanager
    def pacing(self, part: DrivenWork) -> Generator[HandPace, None, None]:
        self.paces.append(HandPace(part))
        self.changed.set()
        yield self.paces[-1]

    async def over(self, part: DrivenWork, status: str, reason: str | None = None) -> None:
        self.ended.append((part.id, status))

    async def paced(self, n: int) -> HandPace:
        """Return the nth that was paced, once it is."""
        async with asyncio.timeout(patience()):
            while len(self.paces) < n:
                self.changed.clear()
                await self.changed.wait()
        return self.paces[n - 1]


class HandTalker(ChatAgent):
    """Says one thing."""

    model = ScriptedModel(text("hello"), each=True)


async def test_the_data_folder_says_whether_its_app_has_a_driver() -> None:
    async with running(App(agents=[HandTalker], driver=HandDriver())) as world:
        await world.restart()
        assert has_noted_driver(world.data)
        await world.app.__aexit__()
        world._given = App(agents=[HandTalker])  # pyright: ignore[reportPrivateUsage]
        await world.start()
        assert not has_noted_driver(world.data)


async def test_a_turn_that_was_stopped_before_a_crash_ends_though_nobody_asks_for_a_step() -> None:
    driver = HandDriver()
    async with running(App(agents=[HandTalker], driver=driver)) as world:
        agent = await world.get_agent(HandTalker, "t")
        answer = asyncio.create_task(agent.send("hi"))
        pace = await driver.paced(1)
        await agent.turns.cancel()
        await world.crash()
        answer.cancel()
        agent = await world.get_agent(HandTalker, "t")

        turn = await asyncio.wait_for(agent.turns.wait(pace.part.id), patience())

    assert turn.status == "cancelled"
    assert driver.ended == [(pace.part.id, "cancelled")]
