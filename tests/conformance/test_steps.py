"""Durable steps: a function runs once, however often the work it is part of is begun again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel
from tests.conformance.works import Bench, Reading, Worker, stored, taken, worker
from tests.conformance.worlds import Run, until

from sapwood import After, Limits, OverLimit, Retry, SapwoodError, StepOptions, current_step_key
from sapwood.errors import FiberFailed, UsageError
from sapwood.testing import World

pytestmark = pytest.mark.storage

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)

Begin = Callable[[Worker, str], object]

WAYS: dict[str, Begin] = {
    "fiber": lambda me, what: me.start_fiber(what, me.work, what),
    "schedule": lambda me, what: me.schedule(After(timedelta(0), key=what), me.work, what),
    "queue": lambda me, what: me.enqueue(me.work, what),
}
"""The ways to begin work that survives a crash."""


class Invoice(BaseModel):
    """A pydantic model, as a step may return one."""

    total: Decimal
    due: datetime


def counted(bench: Bench, name: str, value: object = None) -> Callable[[], Any]:
    """Return a function that says when it runs."""

    async def count() -> Any:
        bench.log.append(name)
        return value

    return count


@pytest.mark.parametrize("way", WAYS)
async def test_a_step_that_completed_is_not_run_again_after_a_crash(
    run: Run, bench: Bench, depth: int, way: str
) -> None:
    results: list[Any] = []

    async def two(me: Worker) -> None:
        first = await me.step("first", counted(bench, "first", 1))
        bench.log.append("pause")
        await me.step("pause", bench.go.wait)
        results.append((first, await me.step("second", counted(bench, "second", 2))))

    bench.works["two"] = two
    async with run(Worker, deps=bench) as world:
        await bench.within(await worker(world, depth), lambda me: WAYS[way](me, "two"))
        await bench.seen("pause")

        for lives in (2, 3):
            await world.crash()
            await world.clock.advance(2 * SECOND)
            await until(lambda lives=lives: bench.log.count("pause") == lives)
        bench.go.set()
        await bench.seen("two ends")

        assert bench.log.count("first") == 1
        assert results == [(1, 2)]


@pytest.mark.parametrize("way", ["schedule", "queue"])
async def test_a_method_that_is_tried_again_keeps_the_steps_it_completed(run: Run, bench: Bench, way: str) -> None:
    async def trouble(me: Worker) -> None:
        await me.step("first", counted(bench, "first"))
        await me.step("sync", lambda: bench.log.append("sync"))
        if bench.log.count("trouble begins") < 3:
            raise LookupError("not yet")
        await me.step("second", counted(bench, "second"))

    bench.works["trouble"] = trouble
    async with run(Worker, deps=bench) as world:
        await bench.within(await worker(world), lambda me: WAYS[way](me, "trouble"))
        await world.clock.advance(20 * SECOND)

        assert bench.log.count("trouble begins") == 3
        assert [entry for entry in bench.log if entry in ("first", "sync", "second")] == ["first", "sync", "second"]


@pytest.mark.parametrize("way", WAYS)
async def test_nothing_is_left_of_steps_when_their_work_is_over(
    run: Run, bench: Bench, tmp_path: Path, way: str
) -> None:
    async def two(me: Worker) -> None:
        await me.step("first", counted(bench, "first"))
        await me.sleep_until(world.clock.time() - SECOND)

    bench.works["two"] = two
    async with run(Worker, deps=bench, data=tmp_path) as world:
        await bench.within(await worker(world), lambda me: WAYS[way](me, "two"))
        await world.clock.advance(SECOND)
        await bench.seen("two ends")
    assert stored(tmp_path, "sapwood_steps") == []


async def test_a_repeating_schedule_takes_its_steps_anew_every_time(run: Run, bench: Bench) -> None:
    async def act(me: Worker) -> None:
        await me.step("first", counted(bench, "first"))

    bench.works["act"] = act
    async with run(Worker, deps=bench) as world:
        from sapwood import Every

        await bench.within(await worker(world), lambda me: me.schedule(Every(10 * SECOND), me.work, "act"))
        await world.clock.advance(35 * SECOND)

        assert bench.log.count("act begins") == bench.log.count("first") == 3


async def test_a_step_in_run_fiber_is_remembered_while_the_fiber_lives(run: Run, bench: Bench) -> None:
    bench.works["both"] = lambda me: me.fibers.run("inner", me.work, "inner")

    async def inner(me: Worker) -> None:
        await me.step("first", counted(bench, "first"))
        await bench.go.wait()

    bench.works["inner"] = inner
    async with run(Worker, deps=bench) as world:
        call = asyncio.create_task((await worker(world)).work("both"))
        await bench.seen("first")

        await world.crash()
        await until(lambda: bench.log.count("inner begins") == 2)
        bench.go.set()
        await bench.seen("inner ends")

        assert bench.log.count("first") == 1
        with pytest.raises(SapwoodError):
            await call


async def test_a_step_outside_of_work_that_is_begun_again_is_refused(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        here = await worker(world)

        with pytest.raises(UsageError, match="must be called in a fiber, or in a method that was scheduled"):
            await bench.within(here, lambda me: me.step("x", counted(bench, "x")))
        with pytest.raises(UsageError, match="must be called in a fiber, or in a method that was scheduled"):
            await bench.within(here, lambda me: me.sleep_until(world.clock.time()))
        assert bench.log == []


async def test_a_name_is_used_once_in_its_work(run: Run, bench: Bench) -> None:
    async def twice(me: Worker) -> None:
        await me.step("same", counted(bench, "one"))
        await me.step("same", counted(bench, "two"))

    bench.works["twice"] = twice
    async with run(Worker, deps=bench) as world:
        here = await worker(world)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "twice"))

        with pytest.raises(FiberFailed, match="Two steps have the name 'same'"):
            await bench.within(here, lambda me: me.fibers.result("key"))
        assert bench.log == ["twice begins", "one"]


@pytest.mark.parametrize(
    "bad",
    [
        lambda: StepOptions(""),
        lambda: StepOptions("x", retry=3),  # pyright: ignore[reportArgumentType]
        lambda: StepOptions("x", timeout=3),  # pyright: ignore[reportArgumentType]
    ],
)
def test_options_that_mean_nothing_are_refused(bad: Callable[[], StepOptions]) -> None:
    with pytest.raises(UsageError):
        bad()


async def test_a_step_is_tried_as_often_as_it_says(run: Run, bench: Bench) -> None:
    async def flaky() -> str:
        bench.log.append("try")
        if bench.log.count("try") < 3:
            raise ConnectionError("again")
        return "there"

    soon = Retry(max_attempts=3, initial_delay=timedelta(milliseconds=1), max_delay=timedelta(milliseconds=2))
    bench.works["flaky"] = lambda me: me.step(StepOptions("flaky", retry=soon), flaky)
    async with run(Worker, deps=bench) as world:
        here = await worker(world)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "flaky"))

        assert await bench.within(here, lambda me: me.fibers.result("key")) == "there"
        assert bench.log.count("try") == 3


async def test_a_step_that_fails_to_the_end_fails_its_work_and_is_not_remembered(run: Run, bench: Bench) -> None:
    async def broken() -> None:
        bench.log.append("try")
        raise ConnectionError("gone")

    async def act(me: Worker) -> str:
        soon = Retry(max_attempts=2, initial_delay=timedelta(milliseconds=1), max_delay=timedelta(milliseconds=2))
        try:
            await me.step(StepOptions("broken", retry=soon), broken)
        except ConnectionError as error:
            return f"caught {error}"
        return "not reached"

    bench.works["act"] = act
    async with run(Worker, deps=bench) as world:
        here = await worker(world)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "act"))

        assert await bench.within(here, lambda me: me.fibers.result("key")) == "caught gone"
        assert bench.log.count("try") == 2


async def test_an_attempt_that_takes_too_long_is_ended_and_tried_again(run: Run, bench: Bench) -> None:
    async def slow() -> str:
        bench.log.append("try")
        if bench.log.count("try") == 1:
            await bench.go.wait()
        return "in time"

    options = StepOptions(
        "slow", timeout=timedelta(milliseconds=20), retry=Retry(max_attempts=2, initial_delay=timedelta(milliseconds=1))
    )
    bench.works["slow"] = lambda me: me.step(options, slow)
    async with run(Worker, deps=bench) as world:
        here = await worker(world)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "slow"))

        assert await bench.within(here, lambda me: me.fibers.result("key")) == "in time"
        assert bench.log.count("try") == 2


async def test_what_a_step_returns_is_limited(run: Run, bench: Bench) -> None:
    async def act(me: Worker) -> str:
        with pytest.raises(OverLimit, match="must have at most") as refused:
            await me.step("large", lambda: b"x" * 2000)
        assert refused.value.limit == "payload_bytes"
        return await me.step("small", lambda: "fits")

    bench.works["act"] = act
    async with run(Worker, deps=bench, limits=Limits(payload_bytes=1000)) as world:
        here = await worker(world)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "act"))

        assert await bench.within(here, lambda me: me.fibers.result("key")) == "fits"


def invoice() -> Invoice:
    return Invoice(total=Decimal("12.50"), due=datetime(2026, 1, 1, tzinfo=UTC))


def moment() -> datetime:
    return datetime(2026, 10, 25, 2, 30, tzinfo=UTC)


def nothing() -> None:
    return None


def many() -> tuple[set[int], dict[str, Decimal], bytes]:
    return {1, 2}, {"a": Decimal("0.1")}, b"\x00"


async def test_a_result_is_the_same_the_first_time_and_whenever_it_is_remembered(run: Run, bench: Bench) -> None:
    seen: list[list[Any]] = []

    async def act(me: Worker) -> None:
        results: list[Any] = [
            await me.step("dataclass", taken, bench),
            await me.step("pydantic", invoice),
            await me.step("datetime", moment),
            await me.step("none", nothing),
            await me.step("many", many),
            await me.step("method", cast(Noting, me).read_notes),
            await me.step("lambda", lambda: [1, "two"]),
        ]
        seen.append(results)
        await bench.go.wait()

    bench.works["act"] = act
    async with run(Noting, deps=bench) as world:
        noting = await world.get_agent(Noting, "n")
        await noting.note("a")
        await bench.within(noting, lambda me: me.start_fiber("key", me.work, "act"))
        await until(lambda: len(seen) == 1)

        await world.crash()
        await until(lambda: len(seen) == 2)

        first, replayed = seen
        assert first == replayed
        assert [type(result) for result in first] == [type(result) for result in replayed]
        assert first == [
            Reading(datetime(2026, 3, 29, 1, 30, tzinfo=UTC), (1, 2)),
            invoice(),
            moment(),
            None,
            many(),
            ("a",),
            [1, "two"],
        ]
        assert bench.log.count("reading") == 1


class Noting(Worker):
    """A worker with a method of its own that is a step."""

    async def read_notes(self) -> tuple[str, ...]:
        return tuple(await self.notes())


async def test_steps_may_run_side_by_side(run: Run, bench: Bench) -> None:
    async def act(me: Worker) -> list[int]:
        numbers = await asyncio.gather(*(me.step(f"n{n}", counted(bench, f"n{n}", n)) for n in range(10)))
        await bench.go.wait()
        return numbers

    bench.works["act"] = act
    async with run(Worker, deps=bench) as world:
        await bench.within(await worker(world), lambda me: me.start_fiber("key", me.work, "act"))
        await bench.seen("n9")
        await world.settled()

        await world.crash()
        bench.go.set()
        result = await bench.within(await worker(world), lambda me: me.fibers.result("key"))

        assert result == list(range(10))
        assert sorted(entry for entry in bench.log if entry.startswith("n")) == [f"n{n}" for n in range(10)]


async def test_a_step_may_be_a_call_to_a_child(run: Run, bench: Bench) -> None:
    async def act(me: Worker) -> int:
        child = await me.sub_agent(Worker, "level 1")
        count = await me.step("note", child.note, "once")
        await bench.go.wait()
        return count

    bench.works["act"] = act
    async with run(Worker, deps=bench) as world:
        child = await worker(world, 1)
        await bench.within(await worker(world), lambda me: me.start_fiber("key", me.work, "act"))
        await world.settled()
        assert await child.notes() == ["once"]

        await world.crash()
        bench.go.set()
        result = await bench.within(await worker(world), lambda me: me.fibers.result("key"))

        assert result == 1
        assert await (await worker(world, 1)).notes() == ["once"]


async def test_a_child_that_work_calls_has_no_steps_of_that_work(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        child = await worker(world, 1)
        bench.acts["step"] = lambda me: me.step("x", counted(bench, "x"))
        here = await worker(world)
        bench.works["act"] = lambda me: child.act("step")
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "act"))

        with pytest.raises(FiberFailed, match="must be called in a fiber"):
            await bench.within(here, lambda me: me.fibers.result("key"))


async def begun(world: World, bench: Bench, depth: int, length: timedelta) -> Worker:
    """Start a fiber that sleeps this long, from the first time it is begun."""

    async def sleep(me: Worker) -> str:
        await me.step("before", counted(bench, "before"))
        await me.sleep_until(world.clock.time() + length)
        return await me.step("after", counted(bench, "after", world.clock.time().isoformat()))

    bench.works["sleep"] = sleep
    here = await worker(world, depth)
    await bench.within(here, lambda me: me.start_fiber("key", me.work, "sleep"))
    await world.settled()
    return here


@pytest.mark.parametrize("length", [30 * SECOND, DAY], ids=["in memory", "parked"])
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("depth", [0, 3])
async def test_a_sleep_ends_at_the_time_that_was_given_first(
    run: Run, bench: Bench, depth: int, length: timedelta, crash: bool
) -> None:
    async with run(Worker, deps=bench) as world:
        await begun(world, bench, depth, length)
        end = world.clock.time() + length

        await world.clock.advance(length / 2)
        if crash:
            await world.crash()
            await world.settled()
        await world.clock.advance(length / 2 - SECOND)
        assert "after" not in bench.log
        await world.clock.advance(SECOND)

        result = await bench.within(await worker(world, depth), lambda me: me.fibers.result("key"))
        assert datetime.fromisoformat(result) == end
        assert (bench.log.count("before"), bench.log.count("after")) == (1, 1)


async def test_a_fiber_that_sleeps_long_keeps_nobody_awake(run: Run, bench: Bench, depth: int) -> None:
    async with run(Worker, deps=bench) as world:
        here = await begun(world, bench, depth, DAY)
        fiber = await bench.within(here, lambda me: me.fibers.get("key"))
        await world.settled()

        world.sleep()

        assert fiber.status == "waiting"
        assert not world.node.trees
        await world.clock.advance(DAY)
        assert bench.log[-1] == "sleep ends"
        assert bench.recovered == []


async def test_a_fiber_that_sleeps_briefly_stays_in_memory(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        here = await begun(world, bench, 0, 30 * SECOND)

        world.sleep()
        fiber = await bench.within(here, lambda me: me.fibers.get("key"))
        await world.clock.advance(30 * SECOND)

        assert fiber.status == "running"
        assert bench.log == ["sleep begins", "before", "after", "sleep ends"]


async def test_a_long_sleep_beside_other_work_does_not_end_that_work(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:

        async def both(me: Worker) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(me.sleep_until(world.clock.time() + DAY))
                group.create_task(me.step("wait", bench.go.wait))

        bench.works["both"] = both
        here = await worker(world)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "both"))
        await world.settled()
        bench.go.set()
        await world.clock.advance(DAY)

        assert bench.log == ["both begins", "both ends"]


async def test_each_sleep_of_one_fiber_has_its_own_time(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        begin = world.clock.time()

        async def sleep(me: Worker) -> None:
            for days in (1, 2, 3):
                await me.sleep_until(begin + days * DAY)
                await me.step(f"day {days}", counted(bench, f"day {days} {(world.clock.time() - begin).days}"))

        bench.works["sleep"] = sleep
        await bench.within(await worker(world), lambda me: me.start_fiber("key", me.work, "sleep"))
        await world.clock.advance(1.5 * DAY)
        await world.crash()
        await world.clock.advance(2 * DAY)

        assert [entry for entry in bench.log if entry.startswith("day")] == ["day 1 1", "day 2 2", "day 3 3"]
        assert bench.log[-1] == "sleep ends"


async def test_a_time_without_a_zone_is_refused(run: Run, bench: Bench) -> None:
    bench.works["sleep"] = lambda me: me.sleep_until(datetime(2027, 1, 1))  # noqa: DTZ001 - that is the point
    async with run(Worker, deps=bench) as world:
        here = await worker(world)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "sleep"))

        with pytest.raises(FiberFailed, match="time zone"):
            await bench.within(here, lambda me: me.fibers.result("key"))


async def test_a_scheduled_method_may_sleep(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        begin = world.clock.time()
        bench.works["sleep"] = lambda me: me.sleep_until(begin + DAY)
        await bench.within(await worker(world), lambda me: me.schedule(SECOND, me.work, "sleep"))
        await world.clock.advance(10 * SECOND)

        await world.crash()
        await world.clock.advance(DAY - 11 * SECOND)
        assert "sleep ends" not in bench.log
        await world.clock.advance(SECOND)

        assert bench.log[-1] == "sleep ends"


@pytest.mark.parametrize("way", WAYS)
async def test_a_step_has_one_key_in_every_attempt_and_life_and_no_other_step_has_it(
    run: Run, bench: Bench, depth: int, way: str
) -> None:
    keys: list[str] = []

    async def fail() -> None:
        keys.append(current_step_key())
        if len(keys) == 1:
            raise ConnectionError("try again")
        if len(keys) == 2:
            await bench.go.wait()

    async def other() -> None:
        keys.append(current_step_key())

    async def two(me: Worker) -> None:
        with pytest.raises(UsageError, match="must be called in a step or in a tool"):
            current_step_key()
        await me.step(StepOptions("pay", retry=Retry(max_attempts=2, initial_delay=SECOND / 100)), fail)
        await me.step("other", other)

    bench.works["two"] = two
    async with run(Worker, deps=bench) as world:
        agent = await worker(world, depth)
        await bench.within(agent, lambda me: WAYS[way](me, "two"))
        await until(lambda: len(keys) == 2)
        await world.crash()
        bench.go.set()
        await until(lambda: len(keys) == 4)

    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert all(len(key) == 32 for key in keys)


async def test_two_fibers_and_two_agents_have_steps_with_different_keys(run: Run, bench: Bench) -> None:
    keys: list[str] = []

    async def note() -> None:
        keys.append(current_step_key())

    bench.works |= dict.fromkeys(("one", "two"), lambda me: me.step("same", note))
    async with run(Worker, deps=bench) as world:
        for depth in (0, 1):
            agent = await worker(world, depth)
            await bench.within(agent, lambda me: (WAYS["fiber"](me, "one"), WAYS["queue"](me, "two")))
        await until(lambda: len(keys) == 4)

    assert len(set(keys)) == 4
