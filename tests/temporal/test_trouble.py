"""Temporal drives on, and stops nothing, whatever happens to workers, servers and the lines between them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.temporal.cluster import Driven, Temporal, driven

from sapwood import ChatAgent
from sapwood.drivers.temporal.worker import work
from sapwood.testing import ScriptedModel, text


class TroubledTalker(ChatAgent):
    """Says one thing, when it may."""


@pytest.fixture
def gate() -> asyncio.Event:
    """What says that it may."""
    gate = asyncio.Event()
    TroubledTalker.model = ScriptedModel(text("hello", gate=gate), each=True)
    return gate


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(30):
        while not (found := await look()):  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.02)
    return found


@asynccontextmanager
async def working(one: Driven) -> AsyncGenerator[None, None]:
    """Work in this process, which takes no time to start."""
    ended = asyncio.Event()
    task = asyncio.create_task(work(one.driver, f"http://127.0.0.1:{one.one.site.port}", ended))
    try:
        yield
    finally:
        ended.set()
        await task


async def attempt(one: Driven, workflow: str) -> int:
    """Return which attempt at a step is under way; 0: none."""
    found = (await one.client.get_workflow_handle(workflow).describe()).raw_description.pending_activities
    return max((activity.attempt for activity in found if activity.HasField("last_started_time")), default=0)


async def test_a_worker_that_was_away_for_a_while_stops_no_turn(
    temporal: Temporal, tmp_path: Path, gate: asyncio.Event
) -> None:
    async with driven(temporal, tmp_path, TroubledTalker) as one:
        agent = await one.world.get_agent(TroubledTalker, "t")
        answer = asyncio.create_task(agent.send("hi"))
        (id,) = await one.begun()
        away = one.workers[0]
        await until(lambda: attempt(one, id))
        away.tell(signal.SIGSTOP)
        async with working(one):
            await until(lambda: _is(attempt(one, id), 2))
            away.tell(signal.SIGCONT)

            await until(lambda: _has(away.log(), "CancelledError"))
            gate.set()

            assert (await answer).text == "hello"


async def test_a_turn_is_stopped_whose_workflow_is_terminated(
    temporal: Temporal, tmp_path: Path, gate: asyncio.Event
) -> None:
    async with driven(temporal, tmp_path, TroubledTalker, workers=0) as one, working(one):
        agent = await one.world.get_agent(TroubledTalker, "t")
        answer = asyncio.create_task(agent.send("hi"))
        (id,) = await one.begun()
        await until(lambda: attempt(one, id))

        await one.client.get_workflow_handle(id).terminate("enough")

        assert (await answer).status == "aborted"


async def _is(found: Awaitable[int], wanted: int) -> bool:
    return await found == wanted


async def _has(text: str, wanted: str) -> bool:
    return wanted in text
