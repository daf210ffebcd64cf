"""The queue: calls of the agent itself, as soon as those before them are done; durable, in order, queue by queue."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest
from tests.conformance.planners import AT_ONCE, NAMES, Planner, found, planner
from tests.conformance.worlds import Probe, Run, happens
from tests.machine import patience

from sapwood import Agent, App, Retry, Settings, Unavailable
from sapwood.errors import InvalidArguments, UsageError

DEPTHS = pytest.mark.parametrize("depth", range(4))


@pytest.mark.promise("A-24", "CF-190")
@DEPTHS
async def test_queued_calls_happen_one_after_the_other_in_the_agent_that_queued_them(
    run: Run, probe: Probe, depth: int
) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, depth)
        for number in range(5):
            await owner.put(str(number))

        await world.clock.advance(0)

        assert await owner.notes() == ["0", "1", "2", "3", "4"]
        assert await owner.queued() == []
        assert [note for above in range(depth) for note in await (await found(world, above)).notes()] == []


@DEPTHS
async def test_what_is_queued_is_done_also_if_the_process_died_meanwhile(run: Run, probe: Probe, depth: int) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, depth)
        for number in range(3):
            await owner.put(str(number), method="slowly")
        await world.clock.advance(0)
        await world.crash()
        probe.go.set()

        await world.clock.advance(0)

        assert await (await found(world, depth)).notes() == ["0", "1", "2"]
        name = ("root", *NAMES)[depth]
        assert probe.log.count(f"{name} begins 0") == 2
        assert probe.log.count(f"{name} begins 1") == 1


async def test_a_call_waits_until_the_one_before_it_is_over(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world)
        await owner.put("first", method="slowly")
        await owner.put("second")

        await world.clock.advance(timedelta(hours=1))
        assert await owner.notes() == []
        assert await owner.queued() == ["first", "second"]
        probe.go.set()
        await world.clock.advance(0)

        assert await owner.notes() == ["first", "second"]


@pytest.mark.promise("CF-190")
async def test_a_lane_waits_for_nothing_in_another(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 1)
        await owner.put("stuck", queue="a", method="slowly")
        await owner.put("behind it", queue="a")
        await owner.put("in b", queue="b")
        await owner.put("in none")

        await world.clock.advance(0)

        assert await owner.notes() == ["in b", "in none"]
        assert await owner.queued() == await owner.queued("a") == ["stuck", "behind it"]
        assert await owner.queued("b") == await owner.queued("") == []


@pytest.mark.promise("CF-190")
async def test_a_failing_call_is_tried_again_in_its_place_and_given_up_so_that_the_next_can_come(
    run: Run, probe: Probe
) -> None:
    retry = Retry(max_attempts=3, initial_delay=timedelta(seconds=10), max_delay=timedelta(seconds=10))
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 2)
        await owner.put("bad", method="fail", retry=retry)
        await owner.put("good")
        await owner.put("elsewhere", queue="x")

        await world.clock.advance(0)
        assert await owner.notes() == ["elsewhere"]
        assert await owner.queued() == ["bad", "good"]
        await world.clock.advance(timedelta(seconds=20))

        assert probe.log.count("grandchild tries bad") == 3
        assert await owner.notes() == ["elsewhere", "good"]
        assert await owner.dead() == [("bad", "crashed", 3, 1)]
        assert await owner.queued() == []


async def test_a_call_that_was_taken_out_is_not_made_and_those_behind_it_move_up(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 1)
        waits = Retry(max_attempts=2, initial_delay=timedelta(hours=1), max_delay=timedelta(hours=1))
        head = await owner.put("head", method="fail", retry=waits)
        middle = await owner.put("middle")
        await owner.put("last")
        await world.clock.advance(0)
        assert await owner.notes() == []

        assert await owner.take_out(middle)
        assert await owner.take_out(head)
        assert [await owner.take_out(one) for one in (head, middle, "", "nobody")] == [False] * 4
        await world.clock.advance(0)

        assert await owner.notes() == ["last"]
        await world.clock.advance(timedelta(hours=2))
        assert probe.log.count("child tries head") == 1


async def test_taking_out_the_call_that_runs_lets_it_end_before_the_next_begins(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world)
        first = await owner.put("first", method="slowly")
        await owner.put("second")
        await world.clock.advance(0)

        assert await owner.take_out(first)
        await owner.put("third")
        await world.clock.advance(timedelta(seconds=1))
        assert await owner.notes() == []
        probe.go.set()
        await world.clock.advance(0)

        assert await owner.notes() == ["first", "second", "third"]
        assert probe.log.count("root begins first") == 1


async def test_a_lane_goes_on_if_the_process_dies_after_its_running_call_was_taken_out(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world)
        first = await owner.put("first", method="slowly")
        await owner.put("second")
        await world.clock.advance(0)
        await owner.take_out(first)
        await world.crash()

        await world.clock.advance(0)

        assert await (await found(world)).notes() == ["second"]


async def test_nobody_takes_calls_out_of_the_queue_of_another(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        child, root = await planner(world, 1), await planner(world)
        await child.put("running", method="slowly")
        queued = await child.put("mine")
        scheduled = await child.after(100, "scheduled")
        await root.put("running", method="slowly")
        await root.put("other")

        assert not await root.take_out(queued)
        assert not await child.take_out(scheduled)
        assert not await child.cancel(queued)
        assert await root.queued() == ["running", "other"]
        probe.go.set()
        await world.clock.advance(0)

        assert await child.notes() == ["running", "mine"]


async def test_a_method_without_awaits_happens_exactly_once_however_often_the_process_dies(
    run: Run, probe: Probe
) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world)
        for number in range(10):
            await owner.put(str(number))
        for nth in range(1, 8):
            world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                await world.clock.advance(0)
            await world.crash()

        await world.clock.advance(0)

        assert await (await found(world)).notes() == [str(number) for number in range(10)]


@pytest.mark.slow
async def test_a_thousand_queued_calls_keep_their_order(run: Run, probe: Probe) -> None:
    async with run(Line, deps=probe) as world:
        line = await world.get_agent(Line, "l")
        await line.fill(1000)

        async with asyncio.timeout(patience()):
            await happens(lambda: len(probe.log) >= 1000)
        await world.settled()

        assert probe.log == [str(number) for number in range(1000)]
        assert await line.left() == 0


class Line(Agent):
    deps: Probe

    async def fill(self, count: int) -> None:
        for number in range(count):
            self.enqueue(self.say, number)

    async def say(self, number: int) -> None:
        self.deps.log.append(str(number))

    async def left(self) -> int:
        return len(self.queues.list())

    async def refill(self, number: int) -> None:
        """Queue what comes after, from within the queue."""
        self.deps.log.append(str(number))
        if number < 5:
            self.enqueue(self.refill, number + 1)
            await asyncio.sleep(0)

    async def wrong(self, which: str) -> None:
        match which:
            case "retry":
                self.queues.default.with_retry(3).add(self.say, 1)  # pyright: ignore[reportArgumentType]
            case "attempts":
                self.queues.default.with_retry(Retry(max_attempts=0)).add(self.say, 1)
            case "key":
                self.queues[7].add(self.say, 1)  # pyright: ignore[reportArgumentType]
            case "arguments":
                self.enqueue(self.say)  # pyright: ignore[reportCallIssue]
            case "method":
                self.enqueue(print, "x")
            case _:
                raise AssertionError(which)


async def test_a_queued_call_may_queue_its_successor(run: Run, probe: Probe) -> None:
    async with run(Line, deps=probe) as world:
        line = await world.get_agent(Line, "l")
        await line.refill(1)

        await world.clock.advance(0)

        assert probe.log == ["1", "2", "3", "4", "5"]
        assert await line.left() == 0


@pytest.mark.promise("CF-190")
@pytest.mark.parametrize(
    ("which", "error", "message"),
    [
        ("retry", UsageError, r"with_retry\(\) takes a Retry, got 3"),
        ("attempts", UsageError, "must be an int of at least 1"),
        ("key", UsageError, "The name of a queue must be a string, got 7"),
        ("arguments", InvalidArguments, "say.*missing a required argument"),
        ("method", UsageError, r"queue\(\) expects a method of this agent"),
    ],
)
async def test_what_could_not_be_queued_is_refused_at_once(
    run: Run, probe: Probe, which: str, error: type[Exception], message: str
) -> None:
    async with run(Line, deps=probe) as world:
        line = await world.get_agent(Line, "l")

        with pytest.raises(error, match=message):
            await line.wrong(which)

        assert await line.left() == 0


@pytest.mark.promise("CF-190")
async def test_how_often_to_try_is_stored_with_the_call(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world)
        await owner.put("first", method="slowly")
        await owner.put("bad", method="fail", retry=AT_ONCE)
        await world.crash()
        probe.go.set()

        await world.clock.advance(0)

        assert await (await found(world)).dead() == [("bad", "crashed", 3, 1)]


async def test_in_real_time_the_queue_is_done_at_once(tmp_path: Any, probe: Probe) -> None:
    settings = Settings(data=tmp_path, durability="disk")
    async with App(agents=[Planner], deps=probe, settings=settings) as app, asyncio.timeout(patience()):
        owner = await app.get_agent(Planner, "root")
        for number in range(5):
            await owner.put(str(number))
        await happens(lambda: "root: 4" in probe.log)
        assert await owner.notes() == ["0", "1", "2", "3", "4"]
