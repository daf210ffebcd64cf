"""Any agent can be run: a method does it, is begun again after a crash, and ends as a value."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from tests.conformance.errands import (
    BOSS,
    Bench,
    Digger,
    again,
    bodies,
    boss,
    check_sequence,
    frames,
    joined_later,
    over,
    running,
    text,
    told_end,
    told_text,
    working,
)
from tests.conformance.worlds import asleep, happens

from sapwood import Agent, Every, Refused
from sapwood.errors import InvalidArguments
from sapwood.kernel.marshal.disclosure import for_clients
from sapwood.runs.execution.executor import RunExecutor


@dataclass(frozen=True)
class Order:
    """What a typed worker is given."""

    what: str
    count: int = 1


class TypedWorker(Agent):
    """One that says what it wants to be given."""

    async def on_run(self, input: Order) -> Order:
        assert isinstance(input, Order)
        return Order(input.what.upper(), input.count + 1)


class TellingWorker(Agent):
    """One that says what it does while it does it."""

    deps: Bench

    async def on_run(self, input: str) -> AsyncIterator[Any]:
        self.deps.log.append("begun")
        yield "once "
        yield {"type": "data-note", "data": {"about": input}}
        yield "upon a time"
        if input == "fail":
            raise ValueError("no more")
        if input == "wait":
            await self.deps.go.wait()


class SteppingWorker(Agent):
    """One whose work has parts that happen once."""

    deps: Bench

    async def on_run(self, input: str) -> str:
        first = await self.step("first", self.part, "first")
        await self.deps.go.wait()
        return f"{first} {await self.step('second', self.part, 'second')}"

    async def part(self, name: str) -> str:
        self.deps.log.append(name)
        return name


@pytest.mark.promise("A-107", "A-114", "A-117", "A-118", "A-172")
async def test_a_run_is_done_by_a_sub_agent_of_its_own_and_comes_back_as_a_value(level: str) -> None:
    async with working(boss(), durability=level) as (_, agent, bench):
        run = await agent.give({"dig": 3}, run_id="r1")

        assert (run.id, run.status, run.ok, run.is_over) == ("r1", "completed", True, True)
        assert run.output == {"did": {"dig": 3}}
        assert run.agent.type == "Digger"
        assert run.agent.name == "r1"
        assert run.tool_call is None
        assert run.started_at is not None
        assert run.ended_at is not None
        assert bench.log == ["begun {'dig': 3}"]
        assert await agent.child_names() == ["r1"]
        assert await agent.hooks() == [("start", "r1", "queued"), ("finish", "r1", "completed")]


@pytest.mark.promise("A-107", "A-118")
async def test_a_run_that_fails_is_a_value_that_says_why_and_is_not_retryable() -> None:
    async with working(boss()) as (_, agent, _):
        run = await agent.give("fail")

        assert (run.status, run.ok, run.retryable) == ("failed", False, False)
        assert "it went wrong" in (run.error or "")
        assert run.failure() == {"ok": False, "status": "failed", "error": run.error, "retryable": False}


@pytest.mark.promise("A-208", "CF-81", "CF-82")
async def test_asking_for_a_run_again_returns_what_it_became_and_does_not_run_it_again(level: str) -> None:
    async with working(cls := boss(), durability=level) as (one, agent, bench):
        first = await agent.give("once", run_id="r1")
        second = await agent.give("something else", run_id="r1")
        await one.world.crash()
        third = await (await again(one, cls)).give("once", run_id="r1")

        assert first == second == third
        assert bench.log == ["begun once"]


async def test_asking_for_a_run_that_goes_on_attaches_to_it() -> None:
    async with working(boss()) as (_, agent, bench):
        asking = [asyncio.create_task(agent.give("wait", run_id="r1")) for _ in range(3)]
        await bench.seen("begun wait")
        bench.go.set()

        first, *others = await asyncio.gather(*asking)

        assert first.ok
        assert others == [first, first]
        assert bench.log == ["begun wait"]


async def test_the_input_arrives_as_what_the_method_is_annotated_with() -> None:
    async with working(boss(TypedWorker)) as (_, agent, _):
        run = await agent.give(Order("bread", 2))

        assert run.output == {"what": "BREAD", "count": 3}
        assert run.input == {"what": "bread", "count": 2}


async def test_an_input_that_does_not_fit_is_the_error_of_the_run() -> None:
    async with working(boss(TypedWorker)) as (_, agent, _):
        run = await agent.give({"count": "many"})

        assert run.status == "failed"
        assert "count" in (run.error or "")


async def test_an_input_that_no_json_can_say_is_refused_before_anything_is_stored() -> None:
    class OddBoss(Agent):
        async def give_odd(self) -> None:
            await self.run_agent(Digger, object())

        async def give_large(self) -> None:
            await self.run_agent(Digger, {"counts": [1, 1 << 64]})

        async def count(self) -> int:
            return len(self.runs.list())

    async with working(type("Boss", (OddBoss,), {})) as (_, agent, _):
        with pytest.raises(InvalidArguments, match=r"The input of a run cannot be stored: .* of type object"):
            await agent.give_odd()
        with pytest.raises(InvalidArguments, match=r"`counts\[1\]` in it is an integer of more than 64 bits"):
            await agent.give_large()

        assert await agent.count() == 0


class LargeNumbers(Agent):
    """Returns, yields or reports an integer of more than 64 bits."""

    async def on_run(self, input: str) -> AsyncIterator[Any]:
        if input == "progress":
            self.report_progress(0.5, data={"count": -(1 << 63) - 1})
        yield {"type": "data-total", "data": {"rows": [1, 1 << 64]}}


class LargeResult(Agent):
    async def on_run(self, input: int) -> Any:
        return {"small": (1 << 64) - 1, "text": str(1 << 64), "sums": [{"total": -(1 << input)}]}


@pytest.mark.parametrize(
    ("worker", "input", "says"),
    [
        (LargeResult, 64, "The result of LargeResult.on_run() cannot be stored: `sums[0].total` in it is an "),
        (LargeNumbers, "chunk", "A chunk of the run 'r1' cannot be stored: `data.rows[1]` in it is an "),
        (LargeNumbers, "progress", "The progress of the run 'r1' cannot be stored: `data.count` in it is an "),
    ],
)
async def test_an_integer_of_more_than_64_bits_is_refused_where_it_would_be_stored(
    worker: type, input: Any, says: str
) -> None:
    async with working(boss(worker)) as (_, agent, _):
        run = await agent.give(input, run_id="r1")

        assert run.status == "failed"
        assert f"{says}integer of more than 64 bits. Use a string." in (run.error or "")


async def test_an_integer_of_64_bits_is_a_result() -> None:
    async with working(boss(LargeResult)) as (_, agent, _):
        run = await agent.give(63)

        assert run.output == {"small": (1 << 64) - 1, "text": str(1 << 64), "sums": [{"total": -(1 << 63)}]}


async def test_a_result_that_no_json_can_say_is_the_error_of_the_run() -> None:
    class OddWorker(Agent):
        async def on_run(self, input: Any) -> Any:
            return object()

    async with working(boss(OddWorker)) as (_, agent, _):
        assert (await agent.give()).status == "failed"


async def test_an_agent_that_has_no_way_to_be_run_says_how_to_have_one() -> None:
    class Idler(Agent): ...

    async with working(boss(Idler)) as (_, agent, _):
        run = await agent.give("work", run_id="r1")

        assert run.status == "failed"
        assert "on_run" in (run.error or "")


async def test_what_a_generator_yields_is_told_as_it_is_said_and_its_text_is_the_result() -> None:
    async with working(boss(TellingWorker)) as (one, agent, bench):
        client = await one.join(BOSS)
        giving = asyncio.create_task(agent.give("wait", run_id="r1"))

        await told_text(client, "r1", "once upon a time")
        assert not giving.done()
        bench.go.set()
        run = await giving

        await told_end(client, "r1")
        assert (run.output, run.summary) == ("once upon a time", "once upon a time")
        assert [body["type"] for body in bodies(client, "r1")] == [
            "text-start",
            "text-delta",
            "data-note",
            "text-delta",
            "text-end",
        ]
        check_sequence(frames(client, "r1"))
        await joined_later(one, BOSS, client, "r1")


async def test_what_a_generator_had_said_when_it_failed_is_kept() -> None:
    async with working(boss(TellingWorker)) as (one, agent, _):
        client = await one.join(BOSS)
        run = await agent.give("fail", run_id="r1")

        end = await told_end(client, "r1")
        assert (run.status, end["event"]["kind"]) == ("failed", "error")
        assert "no more" in run.error
        assert end["event"]["error"] == for_clients(run.error)
        assert text(client, "r1") == "once upon a time"
        check_sequence(frames(client, "r1"))
        await joined_later(one, BOSS, client, "r1")


async def test_after_a_crash_a_run_goes_on_by_itself_and_what_a_step_did_is_not_done_again(level: str) -> None:
    async with working(cls := boss(SteppingWorker), durability=level) as (one, agent, bench):
        giving = asyncio.create_task(agent.give("work", run_id="r1"))
        await bench.seen("first")
        await one.world.crash()
        await asyncio.gather(giving, return_exceptions=True)
        bench.go.set()

        run = await over(await again(one, cls), "r1")

        assert run.output == "first second"
        assert bench.log == ["first", "second"]


@pytest.mark.promise("CF-90")
async def test_after_a_crash_a_generator_is_begun_again_and_its_numbers_go_on(level: str) -> None:
    async with working(cls := boss(TellingWorker), durability=level) as (one, agent, bench):
        client = await one.join(BOSS)
        giving = asyncio.create_task(agent.give("wait", run_id="r1"))
        await told_text(client, "r1", "once upon a time")
        await one.world.crash()
        await asyncio.gather(giving, return_exceptions=True)
        bench.go.set()

        run = await over(await again(one, cls), "r1")

        late = await one.join(BOSS)
        await told_end(late, "r1")
        assert run.output == "once upon a time"
        assert bench.log == ["begun", "begun"]
        check_sequence(frames(late, "r1"))
        seen = frames(client, "r1")
        assert [frame["event"] for frame in frames(late, "r1")][: len(seen)] == [frame["event"] for frame in seen]


@pytest.mark.promise("A-113")
async def test_a_run_id_belongs_to_one_class() -> None:
    class TwoWays(boss()):
        async def give_typed(self) -> None:
            await self.run_agent(TypedWorker, Order("x"), run_id="r1")

    async with working(type("Boss", (TwoWays,), {})) as (_, agent, _):
        await agent.give("once", run_id="r1")

        with pytest.raises(Refused, match="TypedWorker"):
            await agent.give_typed()


@pytest.mark.promise("A-61")
async def test_a_run_cannot_change_its_callers_state() -> None:
    class StatefulWorker(Agent[int]):
        initial_state = 0

        async def on_run(self, input: int) -> int:
            self.set_state(input)
            return self.state

    class StatefulBoss(Agent[int]):
        initial_state = 7

        async def give(self) -> tuple[Any, int]:
            given = [1]
            run = await self.run_agent(StatefulWorker, 42)
            assert given == [1]
            return run.output, self.state

    async with working(type("Boss", (StatefulBoss,), {})) as (_, agent, _):
        assert await agent.give() == (42, 7)


async def test_a_run_that_takes_longer_than_it_may_is_stopped_and_failed() -> None:
    async with working(boss()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give("wait", run_id="r1", timeout=60.0))
        await bench.seen("begun wait")
        await one.world.clock.advance(59)
        assert not giving.done()
        await one.world.clock.advance(2)

        run = await giving

        assert (run.status, run.reason, run.retryable) == ("failed", "timed-out", False)
        assert "60" in (run.error or "")
        assert "cut" in bench.log


@pytest.mark.promise("CF-105")
async def test_the_time_a_run_may_take_counts_through_a_crash() -> None:
    async with working(cls := boss()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give("wait", run_id="r1", timeout=60.0))
        await bench.seen("begun wait")
        await one.world.clock.advance(50)
        await one.world.crash()
        await asyncio.gather(giving, return_exceptions=True)
        await bench.seen("begun wait", 2)
        await one.world.clock.advance(11)

        assert (await over(await again(one, cls), "r1")).reason == "timed-out"


@pytest.mark.promise("B-34")
async def test_whoever_stops_waiting_for_a_run_stops_it_unless_they_said_otherwise() -> None:
    class Leaving(boss()):
        async def leave(self, id: str, *, go_on: bool) -> None:
            await self.run_agent(Digger, "wait", run_id=id, on_disconnect="continue" if go_on else "cancel")

    async with working(type("Boss", (Leaving,), {})) as (_, agent, bench):
        leaving = [
            asyncio.create_task(agent.leave("stops", go_on=False)),
            asyncio.create_task(agent.leave("goes on", go_on=True)),
        ]
        await bench.seen("begun wait", 2)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)

        stopped = await over(agent, "stops")
        assert (stopped.status, stopped.reason) == ("cancelled", "caller-cancelled")
        assert (await running(agent, "goes on")).status == "running"
        bench.go.set()
        assert (await over(agent, "goes on")).ok


async def test_a_sub_agent_that_cannot_start_fails_its_run_and_is_not_left_behind() -> None:
    class BrokenWorker(Digger):
        async def on_start(self) -> None:
            raise ValueError("cannot start")

    async with working(boss(BrokenWorker)) as (_, agent, _):
        run = await agent.give("work", run_id="r1")

        assert run.status == "failed"
        assert "cannot start" in (run.error or "")
        assert await agent.child_names() == []


async def test_a_sub_agent_that_does_not_get_to_its_feet_can_be_cancelled_and_timed_out() -> None:
    class SleepyWorker(Digger):
        async def on_start(self) -> None:
            self.deps.log.append("starting")
            await asyncio.get_running_loop().create_future()

    async with working(boss(SleepyWorker)) as (one, agent, bench):
        slow = asyncio.create_task(agent.give("work", run_id="slow", timeout=60.0))
        stopped = asyncio.create_task(agent.give("work", run_id="stopped"))
        await bench.seen("starting", 2)
        await agent.stop("stopped", "no longer needed")
        await one.world.clock.advance(61)

        assert ((await stopped).status, (await stopped).reason) == ("cancelled", "no longer needed")
        assert ((await slow).status, (await slow).reason) == ("failed", "timed-out")


async def test_an_aborted_sub_agent_aborts_its_run_with_the_reason() -> None:
    async with working(boss(TellingWorker)) as (one, agent, _):
        client = await one.join(BOSS)
        giving = asyncio.create_task(agent.give("wait", run_id="r1"))
        await told_text(client, "r1", "once upon a time")

        await agent.abort("r1", "too loud")
        run = await giving

        assert run.status == "cancelled"
        assert "too loud" in (run.reason or "")
        await told_end(client, "r1")
        check_sequence(frames(client, "r1"))
        await joined_later(one, BOSS, client, "r1")


@pytest.mark.promise("A-97")
async def test_an_aborted_run_does_not_go_on_when_its_sub_agent_is_woken() -> None:
    async with working(cls := boss()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give("wait", run_id="r1"))
        await bench.seen("begun wait")
        await agent.abort("r1", "too loud")
        assert (await giving).status == "cancelled"

        bench.log.clear()
        await one.world.restart()
        await one.world.get_agent(cls, "b", sub=[(Digger, "r1")])
        await one.world.settled()

        assert bench.log == []
        assert (await (await again(one, cls)).one("r1")).status == "cancelled"


@pytest.mark.slow
async def test_a_deleted_sub_agent_fails_its_run_and_is_not_made_again() -> None:
    async with working(boss(TellingWorker)) as (one, agent, bench):
        client = await one.join(BOSS)
        giving = asyncio.create_task(agent.give("wait", run_id="r1"))
        await told_text(client, "r1", "once upon a time")

        await agent.delete("r1")
        run = await giving

        assert run.status == "failed"
        assert "deleted" in (run.error or "")
        assert await agent.child_names() == []
        assert bench.log == ["begun"]
        end = await told_end(client, "r1")
        assert end["sequence"] == len(frames(client, "r1")) - 1


async def test_progress_outside_of_a_run_is_told_to_nobody() -> None:
    class Loner(Agent):
        async def tell(self) -> bool:
            return self.report_progress(0.5)

    async with working(type("Boss", (Loner,), {})) as (_, agent, _):
        assert await agent.tell() is False


async def test_hooks_that_raise_disturb_no_run() -> None:
    class Grumpy(boss()):
        async def on_run_start(self, run: Any) -> None:
            raise ValueError("not now")

        async def on_run_finish(self, run: Any) -> None:
            raise ValueError("not then")

    async with working(type("Boss", (Grumpy,), {})) as (_, agent, _):
        assert (await agent.give("one", run_id="r1")).ok
        assert (await agent.give("two", run_id="r2")).ok


@pytest.mark.promise("CF-87")
async def test_a_finished_run_leaves_nothing_in_memory() -> None:
    async with working(boss(TellingWorker)) as (one, agent, _):
        for at in range(3):
            await agent.give("work", run_id=f"r{at}")
        (tree,) = one.world.node.trees.values()
        served = [actor.of(RunExecutor) for actor in tree.actors.values()]
        assert not any(found for one in served for found in (one.last_heard, one.told, one.away, one.when_resting))
        awake = weakref.WeakSet(tree.actors.values())
        assert awake
        del served
        del agent, tree
        await asleep(one.world)

        def is_forgotten() -> bool:
            gc.collect()
            return not awake

        await happens(is_forgotten)  # a timer may hold an agent for a moment


async def test_what_a_worker_raised_is_in_the_log_with_where_it_was_raised(caplog: pytest.LogCaptureFixture) -> None:
    class Clumsy(Agent):
        async def on_run(self, input: str) -> str:
            raise ValueError("stones do not get soft")

    async with working(boss(Clumsy)) as (_, agent, _):
        assert (await agent.give("cook", run_id="r1")).status == "failed"

    (said,) = [one for one in caplog.records if "on_run failed" in one.message]
    assert said.exc_info is not None
    assert said.exc_info[0] is ValueError


async def test_a_schedule_that_repeats_gives_new_runs_each_time_and_the_same_when_it_is_tried_again(level: str) -> None:
    class Ticking(boss()):
        async def start(self) -> None:
            self.schedule(Every(timedelta(seconds=10)), self.tick)

        async def tick(self) -> None:
            await self.run_agent(Digger, "dig")
            await self.run_agent(Digger, "wait")

    cls = type("Boss", (Ticking,), {})
    async with working(cls, durability=level) as (one, agent, bench):
        bench.go.set()
        await agent.start()
        await one.world.clock.advance(10)
        await bench.seen("begun wait")
        assert bench.log == ["begun dig", "begun wait"]
        await one.world.settled()
        bench.go.clear()
        await one.world.clock.advance(10)
        await bench.seen("begun wait", 2)
        await one.world.crash()
        bench.go.set()
        agent = await again(one, cls)
        runs = [(await over(agent, run.id)).status for run in await agent.all_runs()]

        assert runs == ["completed"] * 4
        assert bench.log.count("begun dig") == 2
