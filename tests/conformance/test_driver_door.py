"""What workers ask the app's agents for, and nobody else: it is answered whether or not Temporal can be reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

pytest.importorskip("temporalio")

import httpx2
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, NotFound, agent_tool
from sapwood.drivers.temporal import TemporalDriver
from sapwood.errors import UsageError
from sapwood.testing import ScriptedModel, World, call, running, text

pytestmark = pytest.mark.core("workers")

NOWHERE = "127.0.0.1:1"
TOKEN = "only-for-tests"


class DoorHelper(ChatAgent):
    """Says one thing."""

    model = ScriptedModel(text("helped"), each=True)


class DoorDigger(Agent):
    """Digs for ever."""

    async def on_run(self, input: str) -> None:
        await asyncio.Event().wait()


class DoorBoss(ChatAgent):
    """Has others work."""

    concurrency = "queue"
    model = ScriptedModel(call("door_helper", id="h", message="help"), text("done"), each=True)
    tools = (agent_tool(DoorHelper),)

    async def dig(self) -> None:
        await self.run_agent(DoorDigger, "deep", run_id="dug")

    async def stop_digging(self) -> None:
        self.children.abort(DoorDigger, "dug", "enough")


class Worker:
    """Asks as workers do."""

    def __init__(self, world: World, driver: TemporalDriver) -> None:
        self.world = world
        self.driver = driver
        transport = httpx2.ASGITransport(self._app)
        self._http = httpx2.AsyncClient(transport=transport, base_url="http://app/_driver/")

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await self.world.app(scope, receive, send)

    async def ask(self, what: str, address: str, id: str, *, token: str = TOKEN, **more: Any) -> httpx2.Response:
        asked = {"address": address, "id": id, **more}
        return await self._http.post(what, json=asked, headers={"authorization": f"Bearer {token}"})

    async def last(self, what: str, address: str, id: str, **more: Any) -> Any:
        """Return the last line of an answer."""
        response = await self.ask(what, address, id, **more)
        assert response.is_success, response.text
        return [httpx2.Response(200, text=line).json() for line in response.text.splitlines()][-1]


@asynccontextmanager
async def asking(patience: float = 10.0) -> AsyncGenerator[Worker, None]:
    driver = TemporalDriver(NOWHERE, token=TOKEN, patience=patience)
    async with running(App(agents=[DoorBoss], driver=driver)) as world:
        yield Worker(world, driver)


async def until(look: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    async with asyncio.timeout(patience()):
        while await look() != wanted:  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.005)


def status_at(worker: Worker, address: str, id: str) -> Callable[[], Awaitable[int]]:
    async def look() -> int:
        return (await worker.ask("look", address, id)).status_code

    return look


async def test_only_whoever_has_the_token_is_answered() -> None:
    async with asking() as worker:
        boss = await worker.world.get_agent(DoorBoss, "b")
        await boss.conversation.clear()

        assert (await worker.ask("look", "DoorBoss:b", "t", token="another")).status_code == 401
        assert (await worker.ask("look", "DoorBoss:b", "t")).json()["code"] == "not_found"
        assert (await worker.ask("rest", "DoorBoss:b", "t")).status_code == 404


async def test_nothing_is_made_by_asking_for_it() -> None:
    async with asking() as worker:
        for what in ("look", "step", "stop"):
            for address in ("DoorBoss:nobody", "DoorBoss:nobody/DoorHelper:h", "Unheard:of"):
                assert (await worker.ask(what, address, "t")).json()["code"] == "not_found"

        assert not worker.world.node.trees
        assert not list((worker.world.data / "trees").iterdir())


async def test_a_turn_that_waits_its_turn_is_not_asked_for_again_and_again() -> None:
    async with asking() as worker:
        boss = await worker.world.get_agent(DoorBoss, "b")
        turns = [asyncio.create_task(boss.send("hi")) for _ in range(2)]
        await asyncio.sleep(0)
        first, second = [turn["id"] for turn in (await boss.conversation.export())["turns"]]

        assert await worker.last("look", "DoorBoss:b", second) == {"status": "queued", "waits": True, "reason": None}

        for id in (second, first):
            assert await worker.last("stop", "DoorBoss:b", id)
        assert {(await turn).status for turn in turns} == {"cancelled"}


async def test_a_run_of_a_sub_agent_that_was_aborted_is_over() -> None:
    async with asking() as worker:
        boss = await worker.world.get_agent(DoorBoss, "b")
        digging = asyncio.create_task(boss.dig())
        child = "DoorBoss:b/DoorDigger:dug"
        await until(status_at(worker, child, "dug"), 200)
        await boss.stop_digging()
        await digging

        for what in ("look", "step", "stop"):
            assert await worker.last(what, child, "dug", reason="") == {
                "status": "cancelled",
                "waits": False,
                "reason": None,
            }


async def test_a_turn_can_be_stopped_that_was_a_run_once() -> None:
    async with asking() as worker:
        boss = await worker.world.get_agent(DoorBoss, "b")
        answer = asyncio.create_task(boss.send("hi"))
        await asyncio.sleep(0)
        (turn,) = [turn["id"] for turn in (await boss.conversation.export())["turns"]]
        child, run = "DoorBoss:b/DoorHelper:agent-tool%3Ah", "agent-tool:h"
        assert (await worker.last("step", "DoorBoss:b", turn, step=1))["waits"]
        await until(status_at(worker, child, run), 200)
        assert (await worker.last("step", child, run, step=1))["status"] == "completed"
        helper = await worker.world.get_agent(DoorBoss, "b", sub=((DoorHelper, run),))
        more = asyncio.create_task(helper.turns.continue_last())
        await until(lambda: worker.last("look", child, run), {"status": "running", "waits": False, "reason": None})

        await worker.last("stop", child, run, reason="enough")

        assert (await asyncio.wait_for(more, patience())).status == "cancelled"
        await worker.last("stop", "DoorBoss:b", turn)
        await answer


async def test_two_apps_cannot_share_a_driver() -> None:
    async with asking() as worker:
        boss = await worker.world.get_agent(DoorBoss, "b")

        with pytest.raises(UsageError, match="Create one per app"):
            async with running(App(agents=[DoorBoss], driver=worker.driver)):
                pass

        answer = asyncio.create_task(boss.send("hi"))
        await asyncio.sleep(0)
        (turn,) = [turn["id"] for turn in (await boss.conversation.export())["turns"]]
        assert (await worker.last("step", "DoorBoss:b", turn, step=1))["waits"]
        await worker.last("stop", "DoorBoss:b", turn)
        assert (await answer).status == "cancelled"


async def test_an_agent_whose_turn_is_over_does_not_stay_awake_until_temporal_is_back() -> None:
    async with asking(patience=0.1) as worker:
        boss = await worker.world.get_agent(DoorBoss, "b")
        answer = asyncio.create_task(boss.send("hi"))
        await asyncio.sleep(0)
        assert await boss.turns.cancel()
        assert (await answer).status == "cancelled"
        (tree,) = worker.world.node.trees.values()

        async def is_idle() -> bool:
            return all(actor.is_idle for actor in tree.actors.values())

        await until(is_idle, wanted=True)


class DoorLate(ChatAgent):
    """Cannot start now and then."""

    trouble: ClassVar[Exception | None] = None

    async def on_start(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    async def exist(self) -> None:
        self.sql("CREATE TABLE things (id)")


@pytest.mark.parametrize("trouble", [ValueError("what she said"), NotFound("somebody else is not there")])
async def test_an_agent_that_cannot_start_is_asked_again_and_what_went_wrong_is_not_told(trouble: Exception) -> None:
    driver = TemporalDriver(NOWHERE, token=TOKEN)
    DoorLate.trouble = None
    async with running(App(agents=[DoorLate], driver=driver)) as world:
        worker = Worker(world, driver)
        await (await world.get_agent(DoorLate, "l")).exist()
        world.node.sleep()
        DoorLate.trouble = trouble

        for what in ("look", "step", "stop"):
            answer = await worker.ask(what, "DoorLate:l", "t")

            assert answer.status_code == 503
            assert str(trouble) not in answer.text
