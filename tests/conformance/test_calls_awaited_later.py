"""A call is made in one moment and awaited in another, and the agent may have slept or woken between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.conformance.runtimes import running
from tests.machine import patience

from sapwood import Agent, App, TimedOut, current_agent, deadline
from sapwood.kernel.marshal.call import current

pytestmark = pytest.mark.core("workers", "cluster")


class Echo(Agent):
    async def echo(self, number: int) -> int:
        return number


class Relay(Agent):
    async def relay(self, number: int) -> int:
        return await (await self.sub_agent(Echo, "e")).echo(number)

    async def is_current(self) -> bool:
        return current_agent() is self

    async def call_back(self, number: int) -> int:
        async def back(number: int) -> int:
            return number

        return await (await self.sub_agent(Caller, "c")).call(back, number)

    async def starting(self) -> int:
        async def on_start(number: int) -> int:
            call = current.get()
            return len(call.starting()) if call is not None else -1

        return await (await self.sub_agent(Caller, "c")).call(on_start, 0)


class Caller(Agent):
    async def call(self, function: Callable[[int], Awaitable[int]], number: int) -> int:
        return await function(number)

    async def slow(self) -> None:
        await asyncio.sleep(1)

    async def slowly(self) -> AsyncIterator[int]:
        for number in range(100):
            yield number
            await asyncio.sleep(0.02)


class Sleepy(Agent):
    async def on_start(self) -> None:
        await asyncio.sleep(0.5)

    async def ping(self) -> None:
        pass


async def test_two_calls_made_at_once_to_a_sleeping_agent_run_in_the_one_that_woke() -> None:
    async with running(App(agents=[Relay])) as world:
        relay = await world.get_agent(Relay, "r")
        await relay.relay(0)

        world.sleep()
        assert await asyncio.gather(relay.relay(1), relay.relay(2)) == [1, 2]
        world.sleep()
        assert await asyncio.gather(relay.is_current(), relay.is_current()) == [True, True]
        world.sleep()
        assert await asyncio.gather(relay.call_back(3), relay.call_back(4)) == [3, 4]


async def test_a_stubs_method_can_be_a_callback() -> None:
    async with running(App(agents=[Caller, Echo])) as world:
        caller, echo = await world.get_agent(Caller, "c"), await world.get_agent(Echo, "e")

        assert await caller.call(echo.echo, 7) == 7


async def test_a_deadline_holds_for_calls_and_streams_made_before_it() -> None:
    async with running(App(agents=[Caller])) as world:
        caller = await world.get_agent(Caller, "c")
        calls, stream = [caller.slow(), caller.slow()], caller.slowly()

        with pytest.raises(TimedOut), deadline(0.05):
            await asyncio.gather(*calls)
        with pytest.raises(TimedOut), deadline(0.05):
            [number async for number in stream]


async def test_the_deadline_of_a_call_made_in_its_block_and_awaited_behind_it_holds_while_the_agent_wakes() -> None:
    async with asyncio.timeout(patience()), running(App(agents=[Sleepy])) as world:
        sleepy = await world.get_agent(Sleepy, "s")
        world.sleep()
        with deadline(0.05):
            call = sleepy.ping()

        with pytest.raises(TimedOut):
            await call


async def test_a_callback_that_is_called_on_start_starts_nobody() -> None:
    async with running(App(agents=[Relay])) as world:
        relay = await world.get_agent(Relay, "r")

        assert await relay.starting() == 0
