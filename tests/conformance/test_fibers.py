"""Fibers: functions with a row of their own, started once, asked for, cancelled, resolved and forgotten."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from tests.conformance.works import Bench, Reading, Worker, stored, worker
from tests.conformance.worlds import Run, until
from tests.machine import patience

from sapwood import Agent, SapwoodError, agent
from sapwood.errors import FiberFailed, UsageError

pytestmark = pytest.mark.storage

DAY = timedelta(days=1)


def waits(bench: Bench) -> Any:
    """Return work that stashes where it is and then waits for the test."""

    async def wait(me: Worker) -> str:
        await me.checkpoint("waiting")
        await bench.go.wait()
        return "done"

    return wait


async def state(bench: Bench, agent: Worker, key: str) -> str | None:
    fiber = await bench.within(agent, lambda me: me.fibers.get(key))
    return None if fiber is None else fiber.status


@pytest.mark.promise("A-59")
async def test_a_fiber_has_a_row_in_its_own_agent_s_database_while_it_runs(run: Run, bench: Bench, depth: int) -> None:
    async def look(me: Worker) -> list[Any]:
        return [[fiber.name, fiber.status] for fiber in me.fibers.list()]

    async with run(Worker, deps=bench) as world:
        here = await worker(world, depth)
        bench.works["look"] = look

        run_rows = await bench.within(here, lambda me: me.fibers.run("looking", look, me))
        started = await bench.within(here, lambda me: me.start_fiber("key", me.work, "look"))
        started_rows = await bench.within(here, lambda me: me.fibers.result("key"))

        assert run_rows == [["looking", "running"]]
        assert started_rows == [["key", "running"]]
        assert (started.status, started.name, started.key) == ("running", "key", "key")
        assert [fiber.status for fiber in await bench.within(here, lambda me: me.fibers.list())] == ["completed"]
        if depth:
            above = await worker(world, depth - 1)
            assert await bench.within(above, lambda me: me.fibers.list()) == []


async def test_a_fiber_s_row_is_kept_before_its_function_runs(run: Run, bench: Bench, depth: int) -> None:
    async with run(Worker, deps=bench) as world:
        here = await worker(world, depth)
        bench.works["crash"] = lambda me: asyncio.get_running_loop().create_future()
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "crash"))
        await bench.seen("crash begins")

        await world.crash()
        await until(lambda: len(bench.log) == 2)

        assert [(address.count("/"), fiber.key) for address, fiber in bench.recovered] == [(depth, "key")]


@pytest.mark.promise("CF-192")
async def test_each_stash_goes_to_its_own_fiber(run: Run, bench: Bench) -> None:
    async def keep(me: Worker, number: int) -> Any:
        for turn in range(5):
            await me.checkpoint([number, turn])
            await asyncio.sleep(0)
        return me.fibers.current.checkpoint

    async with run(Worker, deps=bench) as world:
        here = await worker(world)
        for number in range(4, 8):
            bench.works[str(number)] = lambda me, number=number: keep(me, number)
            await bench.within(here, lambda me, number=number: me.start_fiber(f"f{number}", me.work, str(number)))

        mine = await bench.within(
            here, lambda me: asyncio.gather(*(me.fibers.run(f"f{n}", keep, me, n) for n in range(4)))
        )
        started = [await bench.within(here, lambda me, n=n: me.fibers.result(f"f{n}")) for n in range(4, 8)]

        assert mine == [[n, 4] for n in range(4)]
        assert started == [[n, 4] for n in range(4, 8)]


async def test_a_fiber_inside_a_fiber_has_its_own_stash(run: Run, bench: Bench) -> None:
    async def inner(me: Worker) -> Any:
        await me.checkpoint("inner")
        return me.fibers.current.checkpoint

    async def outer(me: Worker) -> Any:
        await me.checkpoint("outer")
        return await me.fibers.run("inner", inner, me), me.fibers.current.checkpoint

    async with run(Worker, deps=bench) as world:
        here = await worker(world)

        assert await bench.within(here, lambda me: me.fibers.run("outer", outer, me)) == ("inner", "outer")


async def test_what_belongs_into_a_fiber_is_refused_outside_of_one(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        here = await worker(world)

        with pytest.raises(UsageError, match="must be called in a fiber"):
            await bench.within(here, lambda me: me.checkpoint(1))
        with pytest.raises(UsageError, match="must be called in a fiber"):
            await bench.within(here, lambda me: me.fibers.current)


async def test_a_child_that_a_fiber_calls_is_not_in_the_fiber(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        child = await worker(world, 1)
        bench.acts["checkpoint"] = lambda me: me.checkpoint(1)

        with pytest.raises(UsageError, match="must be called in a fiber"):
            await bench.within(await worker(world), lambda me: me.fibers.run("asking", child.act, "checkpoint"))


async def test_run_fiber_returns_what_the_function_returns_and_leaves_no_row(run: Run, bench: Bench) -> None:
    reading = Reading(datetime(2026, 1, 1, tzinfo=UTC), (1,))

    async def give(me: Worker) -> Reading:
        return reading

    async with run(Worker, deps=bench) as world:
        here = await worker(world)

        assert await bench.within(here, lambda me: me.fibers.run("giving", give, me)) is reading
        assert await bench.within(here, lambda me: me.fibers.run("a lambda", lambda: me.note("x"))) == 1
        assert await bench.within(here, lambda me: me.fibers.run("a method", me.note, "y")) == 2
        assert await bench.within(here, lambda me: me.fibers.list()) == []


async def test_run_fiber_raises_what_the_function_raises_and_leaves_no_row(run: Run, bench: Bench) -> None:
    async def fail(me: Worker) -> None:
        await me.checkpoint(1)
        raise LookupError("nowhere")

    async with run(Worker, deps=bench) as world:
        here = await worker(world)

        with pytest.raises(LookupError, match="nowhere"):
            await bench.within(here, lambda me: me.fibers.run("failing", fail, me))

        assert await bench.within(here, lambda me: me.fibers.list()) == []
        await world.crash()
        await world.settled()
        assert bench.recovered == []


async def test_run_fiber_ends_with_the_call_that_runs_it(run: Run, bench: Bench, depth: int) -> None:
    async def linger(me: Worker) -> None:
        bench.log.append("lingering")
        try:
            await bench.go.wait()
        finally:
            bench.log.append("left")

    async with run(Worker, deps=bench) as world:
        here = await worker(world, depth)
        call = asyncio.create_task(bench.within(here, lambda me: me.fibers.run("lingering", linger, me)))
        await bench.seen("lingering")

        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

        assert bench.log == ["lingering", "left"]
        assert await bench.within(here, lambda me: me.fibers.list()) == []
        await world.crash()
        await world.settled()
        assert bench.recovered == []


@pytest.mark.parametrize("how", ["cancel", "resolve"])
async def test_run_fiber_goes_on_when_its_fiber_is_cancelled_or_resolved(run: Run, bench: Bench, how: str) -> None:
    async def wait(me: Worker) -> None:
        bench.log.append("waiting")
        await bench.go.wait()

    async def act(me: Worker) -> str:
        try:
            return f"returned {await me.fibers.run('waiting', wait, me)}"
        except FiberFailed as error:
            await asyncio.sleep(0)
            return str(error)

    async def end(me: Worker) -> bool:
        (fiber,) = me.fibers.list()
        return me.fibers.cancel(fiber.id) if how == "cancel" else me.fibers.resolve(fiber.id, 7)

    async with run(Worker, deps=bench) as world:
        here = await worker(world)
        call = asyncio.create_task(bench.within(here, act))
        await bench.seen("waiting")

        assert await bench.within(here, end)

        async with asyncio.timeout(patience()):
            assert await call == {"cancel": "The fiber 'waiting' was cancelled.", "resolve": "returned 7"}[how]
        assert await bench.within(here, lambda me: me.fibers.list()) == []


@pytest.mark.promise("CF-193")
async def test_a_fiber_is_started_once_under_its_key(run: Run, bench: Bench, depth: int) -> None:
    bench.works["wait"] = waits(bench)
    async with run(Worker, deps=bench) as world:
        here = await worker(world, depth)
        first = await bench.within(here, lambda me: me.start_fiber("key", me.work, "wait"))
        await bench.seen("wait begins")

        again = await bench.within(here, lambda me: me.start_fiber("key", me.work, "something else"))
        joined = [asyncio.create_task(bench.within(here, lambda me: me.fibers.result("key"))) for _ in range(3)]
        await asyncio.sleep(0)
        bench.go.set()

        assert again.id == first.id
        assert await asyncio.gather(*joined) == ["done"] * 3
        assert bench.log == ["wait begins", "wait ends"]
        over = await bench.within(here, lambda me: me.start_fiber("key", me.work, "wait"))
        assert (over.id, over.status, over.output, over.is_over) == (first.id, "completed", "done", True)
        assert bench.log == ["wait begins", "wait ends"]


async def test_a_fiber_waits_for_its_own_result_in_its_agent_and_nowhere_else(run: Run, bench: Bench) -> None:
    bench.works["wait"] = waits(bench)

    def fail(me: Worker) -> None:
        raise ValueError("it went wrong")

    bench.works["fail"] = fail
    async with run(Worker, deps=bench) as world:
        here, below = await worker(world), await worker(world, 1)
        fiber = await bench.within(here, lambda me: me.start_fiber("key", me.work, "wait"))
        bench.go.set()

        assert await bench.within(here, lambda me: me.start_fiber("key", me.work, "wait").result()) == "done"
        assert await bench.within(here, lambda me: fiber.result()) == "done"
        with pytest.raises(FiberFailed, match="it went wrong"):
            await bench.within(here, lambda me: me.start_fiber("bad", me.work, "fail").result())
        with pytest.raises(FiberFailed, match="has no fiber"):
            await bench.within(below, lambda me: fiber.result())
        with pytest.raises(UsageError, match="in the agent that has the fiber"):
            await fiber.result()
        await world.crash()
        here = await worker(world)
        assert await bench.within(here, lambda me: fiber.result()) == "done"


async def test_a_key_belongs_to_one_agent(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        parent, child = await worker(world), await worker(world, 1)
        bench.works["where"] = lambda me: me.name
        for one in (parent, child):
            await bench.within(one, lambda me: me.start_fiber("key", me.work, "where"))

        results = [await bench.within(one, lambda me: me.fibers.result("key")) for one in (parent, child)]
        ids = [(await bench.within(one, lambda me: me.fibers.get("key"))).id for one in (parent, child)]

        assert results == ["root", "level 1"]
        assert await bench.within(parent, lambda me: me.fibers.get(ids[1])) is None


async def test_a_result_has_the_type_the_method_declares(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        here = await worker(world)
        await bench.within(here, lambda me: me.start_fiber("key", me.read))

        first = await bench.within(here, lambda me: me.fibers.result("key"))
        await world.crash()
        later = await bench.within(await worker(world), lambda me: me.fibers.result("key"))

        assert first == later == Reading(datetime(2026, 3, 29, 1, 30, tzinfo=UTC), (1, 2))


async def test_whoever_waits_for_a_fiber_that_failed_learns_why(run: Run, bench: Bench) -> None:
    async def fail(me: Worker) -> None:
        await bench.go.wait()
        raise LookupError("nowhere")

    bench.works["fail"] = fail
    async with run(Worker, deps=bench) as world:
        here = await worker(world)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "fail"))
        waiting = asyncio.create_task(bench.within(here, lambda me: me.fibers.result("key")))
        await bench.seen("fail begins")
        bench.go.set()

        with pytest.raises(FiberFailed, match="LookupError: nowhere"):
            await waiting

        fiber = await bench.within(here, lambda me: me.fibers.get("key"))
        assert (fiber.status, fiber.error, fiber.ended_at) == ("failed", "LookupError: nowhere", world.clock.time())


async def test_a_fiber_nobody_started_has_no_result(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        here = await worker(world)

        with pytest.raises(FiberFailed, match="has no fiber 'key'"):
            await bench.within(here, lambda me: me.fibers.result("key"))
        assert await bench.within(here, lambda me: me.fibers.get("key")) is None
        assert await bench.within(here, lambda me: me.fibers.list()) == []
        assert not await bench.within(here, lambda me: me.fibers.cancel("key"))
        assert not await bench.within(here, lambda me: me.fibers.resolve("key"))
        assert await bench.within(here, lambda me: me.fibers.delete()) == 0


@pytest.mark.parametrize("bad", ["", None, 7])
async def test_a_key_is_a_text(run: Run, bench: Bench, bad: Any) -> None:
    async with run(Worker, deps=bench) as world:
        with pytest.raises(UsageError, match="the key must be a non-empty string"):
            await bench.within(await worker(world), lambda me: me.start_fiber(bad, me.work, "x"))


async def test_only_a_method_of_the_agent_can_be_started(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        here = await worker(world)

        with pytest.raises(UsageError, match="expects a method of this agent"):
            await bench.within(here, lambda me: me.start_fiber("key", lambda: None))
        with pytest.raises(SapwoodError, match="work"):
            await bench.within(here, lambda me: me.start_fiber("key", cast(Any, me.work), 7))


@pytest.mark.promise("CF-193")
async def test_a_running_fiber_is_cancelled_for_good(run: Run, bench: Bench, depth: int) -> None:
    async def linger(me: Worker) -> None:
        try:
            await bench.go.wait()
        finally:
            bench.log.append("left")

    bench.works["linger"] = linger
    async with run(Worker, deps=bench) as world:
        here = await worker(world, depth)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "linger"))
        await bench.seen("linger begins")
        waiting = asyncio.create_task(bench.within(here, lambda me: me.fibers.result("key")))
        await asyncio.sleep(0)

        assert await bench.within(here, lambda me: me.fibers.cancel("key"))

        with pytest.raises(FiberFailed, match="cancelled"):
            await waiting
        await bench.seen("left")
        assert not await bench.within(here, lambda me: me.fibers.cancel("key"))
        await world.crash()
        await world.clock.advance(DAY)
        assert bench.recovered == []
        assert await state(bench, await worker(world, depth), "key") == "cancelled"


async def test_a_sleeping_fiber_is_cancelled_without_being_woken(run: Run, bench: Bench, depth: int) -> None:
    async with run(Worker, deps=bench) as world:
        here = await worker(world, depth)
        bench.works["sleep"] = lambda me: me.sleep_until(world.clock.time() + DAY)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "sleep"))
        await world.settled()
        assert await state(bench, here, "key") == "waiting"
        waiting = asyncio.create_task(bench.within(here, lambda me: me.fibers.result("key")))
        await asyncio.sleep(0)

        assert await bench.within(here, lambda me: me.fibers.cancel("key"))

        with pytest.raises(FiberFailed, match="cancelled"):
            await waiting
        await world.clock.advance(2 * DAY)
        assert bench.log == ["sleep begins"]


async def test_a_fiber_cancelled_before_it_begins_never_runs(run: Run, bench: Bench) -> None:
    async def both(me: Worker) -> None:
        me.start_fiber("key", me.work, "nothing")
        assert me.fibers.cancel("key")

    async with run(Worker, deps=bench) as world:
        here = await worker(world)

        await bench.within(here, both)
        async with asyncio.timeout(patience()):
            with pytest.raises(FiberFailed, match="cancelled"):
                await bench.within(here, lambda me: me.fibers.result("key"))

        await world.settled()
        assert bench.log == []
        world.sleep()
        assert not world.node.trees
        assert await bench.within(here, lambda me: me.fibers.delete("key")) == 1


async def test_whoever_waits_for_a_fiber_that_is_cancelled_before_it_begins_is_told(run: Run, bench: Bench) -> None:
    async def both(me: Worker) -> tuple[Any, ...]:
        me.start_fiber("key", me.work, "nothing")
        waiting = asyncio.ensure_future(me.fibers.result("key"))
        asyncio.get_running_loop().call_soon(me.fibers.cancel, "key")
        return await asyncio.gather(waiting, return_exceptions=True)

    async with run(Worker, deps=bench) as world:
        async with asyncio.timeout(patience()):
            (error,) = await bench.within(await worker(world), both)

        assert isinstance(error, FiberFailed)


@pytest.mark.parametrize("then", ["return", "raise", "sleep"])
async def test_a_fiber_that_cancels_itself_is_cancelled_whatever_it_does_next(
    run: Run, bench: Bench, tmp_path: Path, then: str
) -> None:
    async with run(Worker, deps=bench, data=tmp_path) as world:

        async def cancel(me: Worker) -> None:
            assert me.fibers.cancel("key")
            await me.step("after", me.note, "after")
            if then == "raise":
                raise LookupError
            if then == "sleep":
                await me.sleep_until(world.clock.time() + DAY)

        bench.works["cancel"] = cancel
        here = await worker(world)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "cancel"))
        await world.settled()

        assert await state(bench, here, "key") == "cancelled"
        await world.crash()
        await world.clock.advance(2 * DAY)
        assert bench.log.count("cancel begins") == 1
        assert bench.recovered == []
    assert stored(tmp_path, "sapwood_steps") == []


async def test_a_fiber_that_swallows_its_cancellation_is_cancelled_all_the_same(run: Run, bench: Bench) -> None:
    async def stay(me: Worker) -> str:
        try:
            await bench.go.wait()
        except asyncio.CancelledError:
            return "still here"
        return "done"

    bench.works["stay"] = stay
    async with run(Worker, deps=bench) as world:
        here = await worker(world)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "stay"))
        await bench.seen("stay begins")

        await bench.within(here, lambda me: me.fibers.cancel("key"))
        await bench.seen("stay ends")

        assert await state(bench, here, "key") == "cancelled"


async def test_a_fiber_whose_own_work_is_cancelled_inside_it_fails(run: Run, bench: Bench) -> None:
    async def trip(me: Worker) -> None:
        inner = asyncio.ensure_future(bench.go.wait())
        inner.cancel()
        await inner

    bench.works["trip"] = trip
    async with run(Worker, deps=bench) as world:
        here = await worker(world)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "trip"))

        with pytest.raises(FiberFailed, match="A task inside the method was cancelled"):
            await bench.within(here, lambda me: me.fibers.result("key"))


@pytest.mark.promise("CF-193")
async def test_a_fiber_is_resolved_from_outside(run: Run, bench: Bench, depth: int) -> None:
    bench.works["wait"] = waits(bench)
    async with run(Worker, deps=bench) as world:
        here = await worker(world, depth)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "wait"))
        waiting = asyncio.create_task(bench.within(here, lambda me: me.fibers.result("key")))
        await bench.seen("wait begins")

        assert await bench.within(here, lambda me: me.fibers.resolve("key", {"answer": 42}))

        assert await waiting == {"answer": 42}
        assert not await bench.within(here, lambda me: me.fibers.resolve("key", 0))
        assert bench.log == ["wait begins"]


async def test_a_fiber_that_resolves_itself_has_that_result(run: Run, bench: Bench) -> None:
    async def resolve(me: Worker) -> str:
        assert me.fibers.resolve(me.fibers.current.id, "mine")
        return "not this"

    bench.works["resolve"] = resolve
    async with run(Worker, deps=bench) as world:
        here = await worker(world)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "resolve"))

        assert await bench.within(here, lambda me: me.fibers.result("key")) == "mine"
        await bench.seen("resolve ends")
        assert await bench.within(here, lambda me: me.fibers.result("key")) == "mine"


@pytest.mark.promise("CF-193")
async def test_fibers_are_listed_by_status_and_forgotten_when_over(run: Run, bench: Bench) -> None:
    async def fail(me: Worker) -> None:
        raise LookupError

    bench.works.update(wait=waits(bench), fail=fail, note=lambda me: me.note("x"))
    async with run(Worker, deps=bench) as world:
        here = await worker(world)
        for what in ("note", "fail", "wait"):
            await bench.within(here, lambda me, what=what: me.start_fiber(what, me.work, what))
        await world.settled()

        async def listed(me: Worker) -> Any:
            every = ("completed", "failed", "running", "cancelled")
            return {status: [fiber.key for fiber in me.fibers.list(status)] for status in every}

        assert await bench.within(here, listed) == {
            "completed": ["note"],
            "failed": ["fail"],
            "running": ["wait"],
            "cancelled": [],
        }
        assert [fiber.key for fiber in await bench.within(here, lambda me: me.fibers.list(limit=2))] == ["note", "fail"]
        assert await bench.within(here, lambda me: me.fibers.delete("wait")) == 0
        assert await bench.within(here, lambda me: me.fibers.delete(status="failed")) == 1
        assert await bench.within(here, lambda me: me.fibers.delete()) == 1
        assert [fiber.key for fiber in await bench.within(here, lambda me: me.fibers.list())] == ["wait"]


async def test_a_key_can_be_used_anew_once_its_fiber_is_forgotten(run: Run, bench: Bench) -> None:
    bench.works["note"] = lambda me: me.note("x")
    async with run(Worker, deps=bench) as world:
        here = await worker(world)
        for times in (1, 2):
            await bench.within(here, lambda me: me.start_fiber("key", me.work, "note"))
            assert await bench.within(here, lambda me: me.fibers.result("key")) == times

            assert await bench.within(here, lambda me: me.fibers.delete("key")) == 1


async def test_a_fiber_whose_start_is_undone_never_runs(run: Run, bench: Bench) -> None:
    async def undo(me: Worker) -> None:
        with contextlib.suppress(LookupError), me.transaction():
            me.start_fiber("undone", me.work, "undone")
            raise LookupError
        me.start_fiber("kept", me.work, "kept")

    bench.works["kept"] = lambda me: asyncio.sleep(0)
    async with run(Worker, deps=bench) as world:
        here = await worker(world)

        await bench.within(here, undo)
        await bench.within(here, lambda me: me.fibers.result("kept"))
        await world.settled()

        assert bench.log == ["kept begins", "kept ends"]
        assert await state(bench, here, "undone") is None


@pytest.mark.promise("CF-52")
async def test_an_agent_with_a_running_fiber_does_not_sleep(run: Run, bench: Bench, depth: int) -> None:
    bench.works["wait"] = waits(bench)
    async with run(Worker, deps=bench) as world:
        here = await worker(world, depth)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "wait"))
        await bench.seen("wait begins")
        await asyncio.sleep(0.05)

        world.sleep()
        bench.go.set()

        assert await bench.within(here, lambda me: me.fibers.result("key")) == "done"
        assert bench.recovered == []


@pytest.mark.slow
async def test_fibers_of_a_child_run_during_read_sql_of_the_root(run: Run, bench: Bench) -> None:
    async def count(me: Worker) -> int:
        bench.log.append("counting")
        sql = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < ?) SELECT count(*) FROM c"
        return (await me.read_sql(sql, 3_000_000)).scalar(int)

    bench.works["x"] = lambda _: "done"
    async with run(Worker, deps=bench) as world:
        root, child = await worker(world), await worker(world, 1)
        await child.note("kept")
        counting = asyncio.create_task(bench.within(root, count))
        await bench.seen("counting")
        await asyncio.sleep(0.02)

        await bench.within(child, lambda me: me.start_fiber("key", me.work, "x"))

        assert await bench.within(child, lambda me: me.fibers.result("key")) == "done"
        assert await child.note("still alive") == 2
        assert not counting.done()
        assert await counting == 3_000_000


class FiberTicket(Agent):
    """What a program knew before a deploy."""

    deps: Bench

    async def handle(self, number: int) -> None:
        self.deps.log.append("handling")
        await self.deps.go.wait()

    async def start(self) -> None:
        self.start_fiber("key", self.handle, 7)


def deployed(kind: str) -> type[Agent]:
    if kind == "the method is gone":

        @agent(type="FiberTicket")
        class Gone(Agent):
            async def status(self) -> tuple[str, str | None]:
                fiber = self.fibers.get("key")
                assert fiber is not None
                return fiber.status, fiber.error

        return Gone

    @agent(type="FiberTicket")
    class Other(Agent):
        async def handle(self, number: dict[str, str]) -> None:
            raise AssertionError("It does not fit.")

        async def status(self) -> tuple[str, str | None]:
            fiber = self.fibers.get("key")
            assert fiber is not None
            return fiber.status, fiber.error

    return Other


@pytest.mark.parametrize("kind", ["the method is gone", "the arguments changed"])
async def test_a_fiber_that_no_longer_fits_the_program_fails_and_says_so(
    run: Run, bench: Bench, tmp_path: Path, kind: str
) -> None:
    async with run(FiberTicket, deps=bench, data=tmp_path) as world:
        await (await world.get_agent(FiberTicket, "t")).start()
        await bench.seen("handling")
        await world.node.die()

    new = deployed(kind)
    async with run(new, data=tmp_path) as world:
        await world.settled()
        ticket: Any = await world.get_agent(new, "t")

        status, error = await ticket.status()

        assert status == "failed"
        assert "no longer matches the program" in error


async def test_a_fiber_that_failed_is_resumed_and_does_no_completed_step_again(run: Run, bench: Bench) -> None:
    paid: list[int] = []

    async def pay_and_ship(me: Worker) -> str:
        await me.step("pay", lambda: paid.append(1))
        if not bench.go.is_set():
            raise ValueError("no lorry")
        return "shipped"

    async with run(Worker, deps=bench) as world:
        here = await worker(world, 1)
        bench.works["ship"] = pay_and_ship
        await bench.within(here, lambda me: me.start_fiber("order", me.work, "ship"))
        with pytest.raises(FiberFailed, match="no lorry"):
            await bench.within(here, lambda me: me.fibers.result("order"))
        await world.crash()
        bench.go.set()
        here = await worker(world, 1)

        resumed = await bench.within(here, lambda me: me.fibers.resume("order"))

        assert resumed
        assert await bench.within(here, lambda me: me.fibers.result("order")) == "shipped"
        assert paid == [1]
        assert not await bench.within(here, lambda me: me.fibers.resume("order"))
