"""Calls, streams and callbacks while the tree that they are for goes from node to node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.cluster.moving import Cluster, cluster
from tests.cluster.servers import Nats
from tests.machine import patience

from sapwood import Agent
from sapwood.address import Address
from sapwood.errors import TimedOut, Unavailable
from sapwood.kernel.marshal.call import deadline


class MovingChild(Agent):
    """Works for its parent."""

    async def double(self, number: int) -> int:
        return 2 * number


class MovingLog(Agent):
    """Keeps what it is told, in its database."""

    async def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS said (what TEXT PRIMARY KEY)")

    async def say(self, what: str) -> int:
        await asyncio.sleep(0)
        self.sql("INSERT INTO said (what) VALUES (?)", what)
        return len(what)

    async def said(self) -> list[str]:
        return [str(row["what"]) for row in self.sql("SELECT what FROM said")]

    async def count(self, to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    async def ask_back(self, ask: Callable[[str], str]) -> str:
        return await ask("how")  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]

    async def hang(self) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            CANCELLED.append(1)

    async def delegate(self) -> list[int]:
        child = await self.sub_agent(MovingChild, "child")
        found: list[int] = []
        for number in range(10):
            await asyncio.sleep(0.01)
            found.append(await child.double(number))
        return found

    async def relay(self, other: str, what: str) -> int:
        return await (await self.get_agent(MovingLog, other)).say(what)


CANCELLED: list[int] = []
ROOT = Address.root_of("MovingLog", "one")


@pytest.fixture
async def two(one_nats: Nats, tmp_path: Path) -> AsyncGenerator[Cluster, None]:
    async with cluster(one_nats.urls, tmp_path, ["a", "b"], [MovingLog]) as made:
        yield made


async def test_no_call_fails_and_none_is_made_twice_while_a_tree_moves(two: Cluster) -> None:
    stubs = [await app.get_agent(MovingLog, "one") for app in two.apps.values()]
    stop = False
    said: list[str] = []

    async def talk(who: int) -> None:
        number = 0
        while not stop:
            number += 1
            what = f"{who}-{number}"
            assert await stubs[who % 2].say(what) == len(what)
            said.append(what)

    talking = [asyncio.create_task(talk(who)) for who in range(6)]
    for turn in range(100):
        await asyncio.sleep(0.005)
        await two.move(ROOT, "b" if turn % 2 == 0 else "a")
    stop = True
    await asyncio.gather(*talking)
    assert sorted(await stubs[0].said()) == sorted(said)
    assert sorted(await stubs[1].said()) == sorted(said)
    assert len(said) > 100
    assert two.owners.wrong, "nobody ever asked the wrong node"


async def test_what_runs_when_a_tree_leaves_goes_on_with_its_own_sub_agents(two: Cluster) -> None:
    stub = await two.apps["b"].get_agent(MovingLog, "one")
    for turn in range(4):
        working = asyncio.create_task(stub.delegate())
        await asyncio.sleep(0.05)
        await two.move(ROOT, "b" if turn % 2 == 0 else "a")
        assert await working == [2 * number for number in range(10)]


async def test_agents_call_each_other_while_both_move(two: Cluster) -> None:
    stubs = [await app.get_agent(MovingLog, "caller") for app in two.apps.values()]
    other = Address.root_of("MovingLog", "caller")
    said: list[str] = []
    stop = False

    async def talk(who: int) -> None:
        number = 0
        while not stop:
            number += 1
            await stubs[who].relay("one", f"{who}-{number}")
            said.append(f"{who}-{number}")

    talking = [asyncio.create_task(talk(who)) for who in (0, 1)]
    for turn in range(30):
        await asyncio.sleep(0.01)
        await two.move((ROOT, other)[turn % 2], "ab"[turn // 2 % 2])
    stop = True
    await asyncio.gather(*talking)
    heard = await (await two.apps["a"].get_agent(MovingLog, "one")).said()
    assert sorted(heard) == sorted(said)


async def test_streams_begin_wherever_the_tree_is(two: Cluster) -> None:
    stubs = [await app.get_agent(MovingLog, "one") for app in two.apps.values()]
    for turn in range(20):
        streams = [stub.count(20) for stub in stubs]  # made before it moves, read after
        await two.move(ROOT, "b" if turn % 2 == 0 else "a")
        for stream in streams:
            assert [item async for item in stream] == list(range(20))


async def test_callbacks_are_called_back_from_wherever_the_tree_is(two: Cluster) -> None:
    stubs = [await app.get_agent(MovingLog, "one") for app in two.apps.values()]
    for turn in range(10):
        calls = [stub.ask_back(lambda what, who=who: f"{what} {who}") for who, stub in enumerate(stubs)]
        await two.move(ROOT, "b" if turn % 2 == 0 else "a")
        assert await asyncio.gather(*calls) == ["how 0", "how 1"]


async def test_a_call_waits_for_a_tree_that_nobody_runs_until_its_deadline(two: Cluster) -> None:
    stub = await two.apps["b"].get_agent(MovingLog, "one")
    for shard in list(two.owners.of):
        two.owners.of[shard] = None
    with pytest.raises(TimedOut), deadline(0.3):
        await stub.say("late")

    async def back() -> None:
        await asyncio.sleep(0.2)
        for shard in list(two.owners.of):
            two.owners.of[shard] = "a"

    task = asyncio.create_task(back())
    with deadline(5):
        assert await stub.say("in time") == 7
    await task
    assert await stub.said() == ["in time"]


async def test_a_cancelled_call_ends_where_the_tree_is(two: Cluster) -> None:
    CANCELLED.clear()
    stub = await two.apps["a"].get_agent(MovingLog, "one")
    await two.move(ROOT, "b")
    call = asyncio.create_task(stub.hang())
    await asyncio.sleep(0.2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert CANCELLED == [1]


async def test_what_may_have_begun_is_not_begun_again(two: Cluster) -> None:
    stub = await two.apps["b"].get_agent(MovingLog, "one")
    call = asyncio.create_task(stub.hang())
    await asyncio.sleep(0.2)
    await two.die("a", "b")
    with pytest.raises(Unavailable):
        await asyncio.wait_for(call, patience())
    assert await stub.say("after") == 5
    assert await stub.said() == ["after"]


async def test_a_node_that_is_gone_is_noticed_at_once_when_it_is_asked(two: Cluster) -> None:
    stub = await two.apps["b"].get_agent(MovingLog, "one")
    await stub.say("before")
    await two.die("a", "b")
    async with asyncio.timeout(patience(5)):
        assert await stub.say("after") == 5
    assert sorted(await stub.said()) == ["after", "before"]
