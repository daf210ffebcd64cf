"""Promises 4, 6 and 8, for runs that another server does, while both servers are killed again and again."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest
from tests.conformance.errands import bodies, check_sequence, frames, over, told_end
from tests.conformance.far import NEAR, Both, both
from tests.faults.running import LIVES
from tests.machine import patience

from sapwood import Run, Unavailable

WORLDS = max(LIVES // 20, 3)
"""Pairs of servers of each level."""
RUNS = 4
LONG = 1e9
NEVER_BEGUN = "remote_lost"
KILLS = 5
"""How often one of the two is killed, in each pair."""


@pytest.mark.parametrize("level", ["process", "disk"])
async def test_whichever_server_is_killed_remote_runs_end_once_and_both_know_the_same_of_them(level: str) -> None:
    for seed in range(WORLDS):
        await _live(Random(f"{level} {seed}"), level, f"seed {seed}")


async def _live(random: Random, level: str, seed: str) -> None:
    async with both(level=level, run_idle_timeout=LONG) as two:
        wanted = {f"r{at}": random.randint(1, 150) for at in range(RUNS)}
        stopped: set[str] = set()
        giving = [asyncio.create_task(_give(two, id, count)) for id, count in wanted.items()]
        for _ in range(KILLS):
            await asyncio.sleep(random.random() * 0.1)
            if random.random() < 0.2:
                stopped |= await _stop(two, random.choice(sorted(wanted)))
            await _kill(two, random)
        # Calm from here on: time passes, and who had given a run that was not kept gives it again.
        passing = asyncio.create_task(_pass_time(two))
        await asyncio.gather(*giving)
        ended = [await _give(two, id, count) for id, count in wanted.items()]

        client = await two.near.join(NEAR)
        for run in ended:
            assert run is not None, seed
            await _check(two, client, run, wanted[run.id], seed, was_stopped=run.id in stopped)
        passing.cancel()


async def _pass_time(two: Both) -> None:
    """Have the clocks of both go on: who was killed often waits before it begins again."""
    while True:
        await asyncio.sleep(0.01)
        for one in (two.near, two.far):
            await one.world.clock.advance(60)


async def _give(two: Both, id: str, count: int) -> Run | None:
    try:
        await (await two.desk()).give("FarCounter", count, id)
        return await over(await two.desk(), id)
    except Unavailable:
        return None


async def _stop(two: Both, id: str) -> set[str]:
    try:
        return {id} if await (await two.desk()).stop(id) else set()
    except Unavailable:
        return {id}  # perhaps


async def _kill(two: Both, random: Random) -> None:
    """Kill one of the servers, or both: now, or at one of its next commits."""
    killed = random.choice(([two.near], [two.far], [two.near, two.far]))
    for one in killed:
        if random.random() < 0.5:
            one.world.crash_at("committed", random.randint(1, 20))
            for _ in range(100):
                if one.world.points.ended:
                    break
                await asyncio.sleep(0.001)
    for one in killed:
        await one.world.crash()


async def _check(two: Both, client: Any, run: Run, count: int, seed: str, *, was_stopped: bool) -> None:
    where = f"{seed}, {run.id}: {run.status} {run.reason} {run.error}"
    assert run.status == "completed" or (run.status == "cancelled" and was_stopped), where
    await told_end(client, run.id)
    check_sequence(frames(client, run.id))
    heard = [body["data"] for body in bodies(client, run.id)]
    there = await _there(two, run)
    stream = (await two.ask(run, "/stream")).text.split("\n")
    told = [json.loads(line.removeprefix("data: "))["data"] for line in stream if "data-count" in line]
    assert told == list(range(len(told))), where
    if run.ok:
        assert (heard, told, there) == (list(range(count)), heard, "completed"), where
    else:
        assert heard == told[: len(heard)], where
        assert there in ("cancelled", "completed", NEVER_BEGUN), where
        assert not heard or there != NEVER_BEGUN, where


async def _there(two: Both, run: Run) -> str:
    """Return how a run ended on the far server, once it has."""
    async with asyncio.timeout(patience()):
        while (state := (await two.ask(run)).json()).get("status") == "running":  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
    return state.get("status") or state["code"]
