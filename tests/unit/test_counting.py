"""What waits in a node is counted where it waits, and nobody is woken by it."""

from __future__ import annotations

import asyncio
import threading
from asyncio import Event, Future
from collections.abc import Callable, MutableMapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.machine import patience
from tests.unit.test_gate import HeldFiles
from tests.unit.test_workers_transport import pair, some_turns

from sapwood import Agent, App, Settings
from sapwood.kernel.ports.transport import Exchange
from sapwood.runtimes.local import LocalRuntime
from sapwood.runtimes.workers.link import WINDOW
from sapwood.settings import Durability
from sapwood.testing import running
from sapwood.timings import Timings
from sapwood.web.socket_writer import SocketWriter
from sapwood.web.stats import QUEUES, busiest, counted


class Holding:
    """What agents of a test wait for."""

    def __init__(self) -> None:
        self.let = Event()
        self.thread = threading.Event()
        self.begun = 0


class CountedClerk(Agent):
    deps: Holding

    async def on_start(self) -> None:
        self.deps.begun += 1
        if self.name == "slow":
            await self.deps.let.wait()

    async def wait(self) -> None:
        await self.deps.let.wait()

    async def nothing(self) -> None:
        pass

    async def plan(self, count: int, queue: str = "") -> None:
        for _ in range(count):
            self.queues[queue].add(self.wait)

    async def later(self, seconds: float) -> None:
        self.schedule(timedelta(seconds=seconds), self.nothing)

    async def in_threads(self, count: int) -> None:
        let = self.deps.thread
        await asyncio.gather(*(self.in_thread(wait_for, id(let)) for _ in range(count)))

    async def write(self) -> None:
        self.schedule(timedelta(hours=1), self.nothing)


EVENTS: dict[int, threading.Event] = {}


def wait_for(event: int) -> None:
    assert EVENTS[event].wait(10)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patience()):
        while not condition():  # noqa: ASYNC110 - whatever it is, it has no event
            await asyncio.sleep(0.005)


def app(holding: Holding) -> App:
    return App(agents=[CountedClerk], deps=holding)


async def test_a_node_that_does_nothing_has_nothing_waiting() -> None:
    async with running(app(Holding())) as world:
        found = counted(world.app.node)

    assert found.waiting == dict.fromkeys(QUEUES, 0)
    assert (found.worker, found.pool, found.restarts, found.trees, found.calls_done) == ("", "", 0, 0, 0)
    assert found.ready
    assert found.memory > 0


async def test_stored_calls_that_wait_are_counted_lane_by_queue_and_their_tree_is_due() -> None:
    holding = Holding()
    async with running(app(holding)) as world:
        clerk = await world.get_agent(CountedClerk, "a")
        await clerk.plan(5)
        await clerk.plan(3, "mail")
        await clerk.later(3600)  # not due yet
        await (await world.get_agent(CountedClerk, "b")).nothing()

        one, other = sorted(busiest(world.app.node, 10), key=lambda busy: busy.address)

        assert (one.address, one.queued, one.more, one.agents) == ("CountedClerk:a", 8, False, 1)
        assert (other.address, other.queued) == ("CountedClerk:b", 0)
        assert counted(world.app.node).waiting["due"] == 1
        holding.let.set()


async def test_long_queues_are_counted_only_so_far_and_it_is_said_that_there_is_more() -> None:
    holding = Holding()
    async with running(app(holding), timings=Timings(counted_calls=10, counted_agents=1)) as world:
        for name in ("a", "b"):
            await (await world.get_agent(CountedClerk, name)).plan(30)

        found = sorted((one.queued, one.more) for one in busiest(world.app.node, 10))

        assert found == [(0, True), (10, True)]
        holding.let.set()


async def test_agents_that_are_being_woken_are_counted_until_they_have_started() -> None:
    holding = Holding()
    holding.let.set()
    async with running(app(holding)) as world:
        await (await world.get_agent(CountedClerk, "slow")).later(10)
        world.app.node.sleep()
        holding.let.clear()

        advancing = asyncio.ensure_future(world.clock.advance(timedelta(seconds=20)))
        await until(lambda: holding.begun == 2)

        assert counted(world.app.node).waiting["waking"] == 1
        holding.let.set()
        await advancing
        await until(lambda: counted(world.app.node).waiting["waking"] == 0)


async def test_work_that_waits_for_a_thread_is_counted_and_what_runs_is_not() -> None:
    holding = Holding()
    EVENTS[id(holding.thread)] = holding.thread
    async with running(app(holding), threads=2) as world:
        clerk = await world.get_agent(CountedClerk, "a")
        working = asyncio.ensure_future(clerk.in_threads(5))
        await until(lambda: counted(world.app.node).waiting["threads"] == 3)

        holding.thread.set()
        await working
        assert counted(world.app.node).waiting["threads"] == 0


async def test_replies_that_wait_for_the_disk_are_counted(tmp_path: Path) -> None:
    files = HeldFiles()
    settings = Settings(data=str(tmp_path), durability=Durability.DISK)
    runtime = LocalRuntime(settings, files=files)
    async with App(agents=[CountedClerk], deps=Holding(), settings=settings, runtime=runtime) as one:
        clerk = await one.get_agent(CountedClerk, "a")
        files.let.clear()
        writing = [asyncio.ensure_future(clerk.write()) for _ in range(3)]
        await until(lambda: counted(one.node).waiting["disk"] > 0)

        files.let.set()
        await asyncio.gather(*writing)
        await until(lambda: counted(one.node).waiting["disk"] == 0)


async def test_bytes_that_a_client_does_not_read_are_counted() -> None:
    reads: Future[None] = asyncio.get_running_loop().create_future()

    async def send(message: MutableMapping[str, Any]) -> None:
        await reads

    wire = SocketWriter(send, 1_000_000)
    for number in range(3):
        wire.send(number, "x" * 1000)

    assert 3000 <= wire.unsent < 4000
    reads.set_result(None)
    await until(lambda: wire.unsent == 0)


async def test_exchanges_whose_other_end_takes_nothing_are_counted(tmp_path: Path) -> None:
    talks: list[Exchange] = []
    async with pair(tmp_path, lambda message, exchange: talks.append(exchange)) as two:
        exchange = await two.one.open("2", "ask", b"")
        idle = await two.one.open("2", "ask", b"")
        assert two.one.held_up == 0

        assert exchange.send(bytes(WINDOW)) is not None
        await some_turns()

        assert two.one.held_up == 1
        await until(lambda: len(talks) == 2)
        assert await talks[0].receive() == bytes(WINDOW)
        await until(lambda: two.one.held_up == 0)
        idle.drop()
        for talk in talks:
            talk.end()


async def test_how_many_calls_end_is_counted_from_one_look_to_the_next() -> None:
    async with running(app(Holding())) as world:
        clerk = await world.get_agent(CountedClerk, "a")
        (first,) = busiest(world.app.node, 10)
        for _ in range(50):
            await clerk.nothing()
        before = counted(world.app.node).calls_done

        (second,) = busiest(world.app.node, 10)
        (third,) = busiest(world.app.node, 10)

        assert first.per_second is None
        assert second.per_second is not None
        assert second.per_second > 0
        assert third.per_second == 0
        assert before >= 50
