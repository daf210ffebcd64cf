"""Recovery: what the end of a process interrupted is taken up again, by itself, and harms nobody beside it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from tests.cases import slow
from tests.conformance.works import Bench, Worker, worker
from tests.conformance.worlds import Run, until
from tests.machine import patience

from sapwood import Agent, NotFound, SapwoodError
from sapwood.errors import FiberFailed
from sapwood.testing import World
from sapwood.types import Address, Fiber

pytestmark = pytest.mark.storage

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)


def counts(bench: Bench) -> Callable[[Worker], Awaitable[str]]:
    """Return work that goes on counting from where it was, and waits for the test at two."""

    async def count(me: Worker) -> str:
        for number in range(me.fibers.current.checkpoint or 0, 4):
            if number == 2:
                bench.log.append("at two")
                await bench.go.wait()
            bench.log.append(str(number))
            await me.checkpoint(number + 1)
        return "counted"

    return count


def numbers(bench: Bench) -> str:
    return "".join(entry for entry in bench.log if entry.isdecimal())


async def waiting(world: World, bench: Bench, depth: int = 0, *, key: str = "key") -> Worker:
    """Start a fiber that waits for the test, and return its agent."""
    bench.works.setdefault("count", counts(bench))
    here = await worker(world, depth)
    before = bench.log.count("at two")
    await bench.within(here, lambda me: me.start_fiber(key, me.work, "count"))
    await until(lambda: bench.log.count("at two") == before + 1)
    return here


async def fiber_of(world: World, bench: Bench, depth: int = 0, key: str = "key") -> Fiber:
    return await bench.within(await worker(world, depth), lambda me: me.fibers.get(key))


@pytest.mark.promise("A-59", "A-95", "CF-53")
@pytest.mark.parametrize("end", ["crash", "restart"])
async def test_an_interrupted_fiber_goes_on_in_its_own_agent_with_its_stash(
    run: Run, bench: Bench, depth: int, end: str
) -> None:
    async with run(Worker, deps=bench) as world:
        await waiting(world, bench, depth)

        await (world.crash() if end == "crash" else world.restart())
        await until(lambda: bench.log.count("at two") == 2)
        bench.go.set()
        result = await bench.within(await worker(world, depth), lambda me: me.fibers.result("key"))

        assert result == "counted"
        assert numbers(bench) == "0123"
        ((address, fiber),) = bench.recovered
        assert address.count("/") == depth
        assert (fiber.checkpoint, fiber.status, fiber.recoveries, fiber.key) == (2, "running", 1, "key")


async def test_a_method_in_run_fiber_goes_on_without_its_caller(run: Run, bench: Bench, depth: int) -> None:
    bench.works["count"] = counts(bench)
    async with run(Worker, deps=bench) as world:
        here = await worker(world, depth)
        call = asyncio.create_task(bench.within(here, lambda me: me.fibers.run("counting", me.work, "count")))
        await bench.seen("at two")

        await world.crash()
        bench.go.set()
        await bench.seen("count ends")
        await world.settled()

        assert numbers(bench) == "0123"
        assert await bench.within(await worker(world, depth), lambda me: me.fibers.list()) == []
        await asyncio.gather(call, return_exceptions=True)


@pytest.mark.promise("CF-53")
async def test_a_function_that_is_no_method_is_the_hook_s_to_take_up(run: Run, bench: Bench, depth: int) -> None:
    async def hook(me: Worker, fiber: Fiber) -> None:
        if fiber.key is None:
            me.start_fiber(f"rest of {fiber.name}", me.work, "rest")
            bench.log.append(f"hook found {fiber.checkpoint}")

    async def closure(me: Worker) -> None:
        await me.checkpoint("half")
        bench.log.append("half done")
        await bench.go.wait()

    bench.hook = hook
    bench.works["rest"] = lambda me: "rested"
    async with run(Worker, deps=bench) as world:
        here = await worker(world, depth)
        call = asyncio.create_task(bench.within(here, lambda me: me.fibers.run("job", lambda: closure(me))))
        await bench.seen("half done")

        await world.crash()
        await bench.seen("rest ends")
        await world.settled()

        fibers = await bench.within(await worker(world, depth), lambda me: me.fibers.list())
        assert [(fiber.key, fiber.output) for fiber in fibers] == [("rest of job", "rested")]
        assert bench.log.count("hook found half") == 1
        await asyncio.gather(call, return_exceptions=True)


@pytest.mark.promise("CF-192")
async def test_each_interrupted_fiber_is_recovered_exactly_once(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        for depth in (0, 1, 2):
            for key in ("a", "b"):
                await waiting(world, bench, depth, key=key)

        await world.crash()
        await until(lambda: bench.log.count("at two") == 12)
        await world.clock.advance(DAY)

        told = [(address.count("/"), fiber.key) for address, fiber in bench.recovered]
        assert sorted(told) == [(depth, key) for depth in (0, 1, 2) for key in ("a", "b")]


@pytest.mark.slow
@pytest.mark.promise("CF-57")
async def test_many_fibers_of_one_agent_are_all_recovered(run: Run, bench: Bench) -> None:
    bench.works["wait"] = lambda me: bench.go.wait()
    async with run(Worker, deps=bench) as world:
        here = await worker(world, 1)

        def start(me: Worker) -> None:
            for number in range(250):
                me.start_fiber(f"f{number}", me.work, "wait")

        await bench.within(here, start)
        await until(lambda: bench.log.count("wait begins") == 250)

        await world.crash()
        await until(lambda: bench.log.count("wait begins") == 500)
        bench.go.set()
        await until(lambda: bench.log.count("wait ends") == 250)

        assert sorted(fiber.key or "" for _, fiber in bench.recovered) == sorted(f"f{n}" for n in range(250))


@pytest.mark.promise("A-95")
async def test_nobody_else_is_woken_for_a_recovery(run: Run, bench: Bench) -> None:
    bench.starts.update({name: lambda me: bench.log.append(f"start {me.name}") for name in ("root", "level 1")})
    async with run(Worker, deps=bench) as world:
        await waiting(world, bench, 2)
        await world.get_agent(Worker, "another tree")
        bench.log.clear()

        await world.crash()
        await bench.seen("at two")

        assert bench.log == ["count begins", "at two"]
        assert len(world.node.trees) == 1


@pytest.mark.promise("CF-54")
async def test_a_hook_may_resolve_the_fiber(run: Run, bench: Bench, depth: int) -> None:
    async def hook(me: Worker, fiber: Fiber) -> None:
        assert me.fibers.resolve(fiber.id, "by the hook")

    bench.hook = hook
    async with run(Worker, deps=bench) as world:
        await waiting(world, bench, depth)

        await world.crash()
        result = await bench.within(await worker(world, depth), lambda me: me.fibers.result("key"))

        assert result == "by the hook"
        await world.clock.advance(DAY)
        assert bench.log.count("count begins") == 1
        assert len(bench.recovered) == 1


@pytest.mark.promise("CF-54")
async def test_a_hook_may_cancel_the_fiber(run: Run, bench: Bench, depth: int) -> None:
    async def hook(me: Worker, fiber: Fiber) -> None:
        assert me.fibers.cancel(fiber.id)

    bench.hook = hook
    async with run(Worker, deps=bench) as world:
        await waiting(world, bench, depth)

        await world.crash()
        with pytest.raises(FiberFailed, match="cancelled"):
            await bench.within(await worker(world, depth), lambda me: me.fibers.result("key"))

        await world.clock.advance(DAY)
        assert bench.log.count("count begins") == 1
        assert len(bench.recovered) == 1


@pytest.mark.promise("CF-54")
async def test_a_hook_may_schedule_what_is_left_in_its_own_agent(run: Run, bench: Bench, depth: int) -> None:
    async def hook(me: Worker, fiber: Fiber) -> None:
        me.schedule(SECOND, me.note, f"from {fiber.checkpoint}")
        me.fibers.cancel(fiber.id)

    bench.hook = hook
    async with run(Worker, deps=bench) as world:
        await waiting(world, bench, depth)

        await world.crash()
        await world.clock.advance(2 * SECOND)

        assert await (await worker(world, depth)).notes() == ["from 2"]


@pytest.mark.promise("CF-54", "CF-192")
@pytest.mark.parametrize("depth", [0, 3])
async def test_a_hook_that_raises_is_asked_again_later_and_later(run: Run, bench: Bench, depth: int) -> None:
    at: list[float] = []

    async def hook(me: Worker, fiber: Fiber) -> None:
        at.append(world.clock.now() - begin)
        if len(at) < 5:
            raise LookupError("not yet")

    bench.hook = hook
    async with run(Worker, deps=bench) as world:
        await waiting(world, bench, depth)
        begin = world.clock.now()
        bench.go.set()

        await world.crash()
        await world.settled()
        for _ in range(20):
            await world.clock.advance(SECOND)

        waits = [later - earlier for earlier, later in itertools.pairwise(at)]
        assert at[0] == 0
        assert all(2**n / 2 <= wait <= 2**n for n, wait in enumerate(waits))
        assert len(waits) == 4
        assert [fiber.recoveries for _, fiber in bench.recovered] == [1, 2, 3, 4, 5]
        assert bench.log.count("count begins") == 2


async def test_a_hook_that_hangs_is_ended_and_asked_again(run: Run, bench: Bench, depth: int) -> None:
    async def hook(me: Worker, fiber: Fiber) -> None:
        if len(bench.recovered) == 1:
            await me.hang()

    bench.hook = hook
    async with run(Worker, deps=bench, recovery_timeout=0.05) as world:
        await waiting(world, bench, depth)

        await world.crash()
        await until(lambda: len(bench.recovered) == 1)
        await asyncio.sleep(0.1)
        fiber = await fiber_of(world, bench, depth)
        await world.clock.advance(SECOND)

        assert fiber.error == "on_fiber_recovered exceeded recovery_timeout"
        assert len(bench.recovered) == 2
        assert bench.log.count("count begins") == 2


@pytest.mark.parametrize("how", ["something inside is cancelled", "a BaseException", "a long sleep"])
async def test_a_hook_may_end_in_any_way_and_is_asked_again(run: Run, bench: Bench, how: str) -> None:
    async def hook(me: Worker, fiber: Fiber) -> None:
        if len(bench.recovered) > 1:
            return
        if how == "a BaseException":
            raise BaseException("odd")
        if how == "a long sleep":
            await me.sleep_until(world.clock.time() + DAY)
        inner = asyncio.ensure_future(bench.go.wait())
        inner.cancel()
        await inner

    bench.hook = hook
    async with run(Worker, deps=bench, recovery_timeout=0.05) as world:
        await waiting(world, bench)

        await world.crash()
        await asyncio.sleep(0.1)
        await world.clock.advance(SECOND)

        assert len(bench.recovered) == 2
        assert bench.log.count("count begins") == 2


async def test_the_steps_of_a_hook_are_not_those_of_the_fiber(run: Run, bench: Bench) -> None:
    async def hook(me: Worker, fiber: Fiber) -> None:
        assert await me.step("same", lambda: "the hook's") == "the hook's"
        await me.sleep_until(world.clock.time())

    async def act(me: Worker) -> str:
        await me.sleep_until(end)
        await bench.go.wait()
        return await me.step("same", lambda: "the fiber's")

    bench.hook = hook
    bench.works["act"] = act
    async with run(Worker, deps=bench) as world:
        end = world.clock.time() + 10 * SECOND
        await bench.within(await worker(world), lambda me: me.start_fiber("key", me.work, "act"))
        await world.clock.advance(11 * SECOND)

        await world.crash()
        bench.go.set()
        async with asyncio.timeout(patience()):
            result = await bench.within(await worker(world), lambda me: me.fibers.result("key"))

        assert result == "the fiber's"


async def test_a_hook_that_stashes_and_raises_makes_no_progress(run: Run, bench: Bench) -> None:
    async def hook(me: Worker, fiber: Fiber) -> None:
        await me.checkpoint("by the hook")
        raise LookupError

    bench.hook = hook
    async with run(Worker, deps=bench) as world:
        await waiting(world, bench)

        await world.crash()
        await world.clock.advance(10 * SECOND)

        assert [fiber.recoveries for _, fiber in bench.recovered[:4]] == [1, 2, 3, 4]
        assert [fiber.checkpoint for _, fiber in bench.recovered[:2]] == [2, "by the hook"]


@pytest.mark.slow
@pytest.mark.promise("CF-192")
async def test_a_poisoned_fiber_is_given_up_in_the_end(run: Run, bench: Bench) -> None:
    async def hook(me: Worker, fiber: Fiber) -> None:
        raise LookupError("poisoned")

    bench.hook = hook
    async with run(Worker, deps=bench) as world:
        await waiting(world, bench, 1)

        await world.crash()
        await world.clock.advance(DAY)

        assert len(bench.recovered) == 100
        fiber = await fiber_of(world, bench, 1)
        assert fiber.status == "failed"
        assert fiber.error is not None
        assert "recovered 100 times without progress; last error: LookupError: poisoned" in fiber.error
        assert world.node.alarms.stored(Address.root_of("Worker", "root")) is None


async def test_a_fiber_of_which_the_process_dies_is_given_up_after_five_deaths(run: Run, bench: Bench) -> None:
    bench.works["deadly"] = lambda me: bench.go.wait()
    async with run(Worker, deps=bench) as world:
        await bench.within(await worker(world), lambda me: me.start_fiber("key", me.work, "deadly"))
        await bench.seen("deadly begins")

        for _ in range(8):
            await world.crash()
            await world.clock.advance(300 * SECOND)

        assert bench.log.count("deadly begins") == 6
        fiber = await fiber_of(world, bench)
        assert fiber.status == "failed"
        assert "the process ended 5 times" in (fiber.error or "")


@pytest.mark.parametrize("progress", ["checkpoint", "step"])
@pytest.mark.parametrize("depth", [3, *slow([0])])
async def test_a_fiber_that_gets_further_is_recovered_as_if_for_the_first_time(
    run: Run, bench: Bench, depth: int, progress: str
) -> None:
    async def act(me: Worker) -> None:
        turn = bench.log.count("act begins")
        if progress == "checkpoint":
            await me.checkpoint(turn)
        else:
            await me.step(f"turn {turn}", lambda: turn)
        bench.log.append("further")
        await bench.go.wait()

    bench.works["act"] = act
    async with run(Worker, deps=bench) as world:
        await bench.within(await worker(world, depth), lambda me: me.start_fiber("key", me.work, "act"))
        await bench.seen("further")

        for lives in range(2, 9):
            await world.crash()
            await until(lambda lives=lives: bench.log.count("further") == lives)

        assert [fiber.recoveries for _, fiber in bench.recovered] == [1] * 7


async def test_a_fiber_that_dies_after_a_long_sleep_is_recovered_and_counted(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:

        async def act(me: Worker) -> None:
            await me.sleep_until(end)
            bench.log.append("deadly")
            await bench.go.wait()

        end = world.clock.time() + DAY
        bench.works["act"] = act
        await bench.within(await worker(world, 1), lambda me: me.start_fiber("key", me.work, "act"))
        await world.clock.advance(DAY)
        await bench.seen("deadly")
        assert (await fiber_of(world, bench, 1)).status == "running"

        for _ in range(8):
            await world.crash()
            await world.clock.advance(300 * SECOND)

        assert bench.log.count("deadly") == 6
        assert [fiber.recoveries for _, fiber in bench.recovered] == [1, 2, 3, 4, 5]
        assert (await fiber_of(world, bench, 1)).status == "failed"


async def test_an_owner_that_cannot_start_holds_up_nobody_and_is_tried_again(
    run: Run, bench: Bench, depth: int
) -> None:
    async with run(Worker, deps=bench) as world:
        for level in range(4):
            await waiting(world, bench, level)

        async def fail(me: Worker) -> None:
            bench.log.append("cannot start")
            raise LookupError("no start")

        name = "root" if depth == 0 else f"level {depth}"
        bench.starts[name] = fail
        await world.crash()
        await world.settled()

        others = {level for level in range(4) if level != depth}
        assert {address.count("/") for address, _ in bench.recovered} == others
        assert "cannot start" in bench.log
        del bench.starts[name]
        await world.clock.advance(10 * SECOND)
        assert {address.count("/") for address, _ in bench.recovered} == {0, 1, 2, 3}
        assert len(bench.recovered) == 4


@pytest.mark.parametrize("depth", [0, 2])
async def test_an_owner_whose_start_says_not_found_is_not_forgotten(run: Run, bench: Bench, depth: int) -> None:
    async with run(Worker, deps=bench) as world:
        await waiting(world, bench, depth)

        async def fail(me: Worker) -> None:
            raise NotFound("what I need is not there yet")

        name = "root" if depth == 0 else f"level {depth}"
        bench.starts[name] = fail
        await world.crash()
        await world.clock.advance(10 * SECOND)
        assert bench.recovered == []
        del bench.starts[name]
        await world.clock.advance(20 * SECOND)

        assert len(bench.recovered) == 1


async def test_a_root_that_cannot_start_does_not_delay_those_below_it(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        await waiting(world, bench)
        end = world.clock.time() + 100.5 * SECOND
        bench.works["sleep"] = lambda me: me.sleep_until(end)
        await bench.within(await worker(world, 1), lambda me: me.start_fiber("key", me.work, "sleep"))
        await world.settled()

        async def fail(me: Worker) -> None:
            bench.log.append("cannot start")
            raise LookupError("no start")

        bench.starts["root"] = fail
        await world.crash()
        await world.clock.advance(100.5 * SECOND)

        assert bench.log[-1] == "sleep ends"
        # After 1, 2, 4 … seconds, not every second.
        assert bench.log.count("cannot start") == 7


async def test_an_aborted_agent_s_fiber_goes_on_when_the_agent_is_asked_for_again(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        await waiting(world, bench, 2)
        root = await worker(world)

        await bench.within(root, lambda me: me.children.abort(Worker, "level 1", "over"))
        await world.clock.advance(200 * SECOND)
        assert bench.recovered == []
        await worker(world, 2)
        await world.settled()

        assert len(bench.recovered) == 1
        assert bench.log.count("count begins") == 2


@pytest.mark.parametrize("fails_in_between", [False, True])
async def test_an_aborted_agent_in_run_fiber_is_recovered_too(run: Run, bench: Bench, fails_in_between: bool) -> None:
    bench.works["count"] = counts(bench)
    async with run(Worker, deps=bench) as world:
        root, child = await worker(world), await worker(world, 1)
        call = asyncio.create_task(bench.within(child, lambda me: me.fibers.run("counting", me.work, "count")))
        await bench.seen("at two")

        await bench.within(root, lambda me: me.children.abort(Worker, "level 1", "over"))
        if fails_in_between:
            await world.clock.advance(30 * SECOND)
        await worker(world, 1)
        await world.clock.advance(SECOND)

        assert len(bench.recovered) == 1
        await asyncio.gather(call, return_exceptions=True)


async def test_an_agent_put_to_sleep_and_woken_by_a_call_is_told_once(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        await waiting(world, bench, 1)

        await world.crash()
        child = await worker(world, 1)
        await asyncio.gather(*(child.notes() for _ in range(3)))
        await until(lambda: bench.log.count("at two") == 2)
        await world.clock.advance(DAY)

        assert len(bench.recovered) == 1


async def gone(world: World, bench: Bench, end: Callable[[], Awaitable[object]]) -> None:
    """End an agent with running fibers by `end`; nothing of them may be left."""
    await end()
    await world.settled()
    await asyncio.sleep(0.02)
    await world.clock.advance(10 * SECOND)
    await world.crash()
    await world.clock.advance(DAY)
    assert bench.recovered == []
    assert bench.log.count("count begins") == 2
    assert world.node.alarms.stored(Address.root_of("Worker", "root")) is None


@pytest.mark.promise("A-99", "CF-23")
async def test_no_recovery_is_routed_to_a_deleted_agent(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        await waiting(world, bench, 1)
        await waiting(world, bench, 2)
        root = await worker(world)

        await gone(world, bench, lambda: bench.within(root, lambda me: me.children.delete(Worker, "level 1")))

        assert await bench.within(await worker(world, 2), lambda me: me.fibers.list()) == []


@pytest.mark.promise("A-99", "CF-23", "CF-55")
async def test_no_recovery_is_routed_to_an_agent_deleted_before_it_could_be_recovered(run: Run, bench: Bench) -> None:
    async def hook(me: Worker, fiber: Fiber) -> None:
        raise LookupError("not yet")

    bench.hook = hook
    async with run(Worker, deps=bench) as world:
        await waiting(world, bench, 2)
        await world.crash()
        await world.settled()
        asked = len(bench.recovered)

        await bench.within(await worker(world), lambda me: me.children.delete(Worker, "level 1"))
        await world.clock.advance(DAY)
        await world.crash()
        await world.clock.advance(DAY)

        assert len(bench.recovered) == asked


@pytest.mark.promise("A-99", "CF-24")
async def test_a_child_that_destroys_itself_leaves_no_recovery_and_no_schedule(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        child = await waiting(world, bench, 1)
        await waiting(world, bench, 2)
        await bench.within(child, lambda me: me.schedule(5 * SECOND, me.work, "never"))

        async def end() -> None:
            await bench.within(child, lambda me: me.destroy())

        await gone(world, bench, end)

        assert "never begins" not in bench.log
        assert not await bench.within(await worker(world), lambda me: me.children.has(Worker, "level 1"))


@pytest.mark.promise("A-99")
async def test_a_root_that_destroys_itself_leaves_no_recovery(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        root = await waiting(world, bench)
        await waiting(world, bench, 2)

        async def end() -> None:
            await bench.within(root, lambda me: me.destroy())

        await gone(world, bench, end)


async def test_no_fiber_begins_in_a_tree_whose_root_has_destroyed_itself(run: Run, bench: Bench) -> None:
    gone, begun = asyncio.Event(), asyncio.Event()

    async def begin_afterwards(me: Worker) -> None:
        begun.set()
        await gone.wait()
        me.start_fiber("late", me.work, "late")
        await asyncio.Event().wait()

    async def leave(me: Worker) -> None:
        await me.destroy()
        gone.set()
        await asyncio.sleep(0.05)

    async with run(Worker, deps=bench) as world:
        root, child = await worker(world), await worker(world, 1)
        ending = asyncio.create_task(bench.within(child, begin_afterwards))
        await begun.wait()

        await bench.within(root, leave)

        with pytest.raises(NotFound):
            await ending
        assert "late begins" not in bench.log


@pytest.mark.promise("A-95", "CF-52", "CF-55")
async def test_the_tree_s_index_knows_of_a_fiber_exactly_while_there_is_one(run: Run, bench: Bench, depth: int) -> None:
    address = Address.root_of("Worker", "root")
    async with run(Worker, deps=bench) as world:
        here = await waiting(world, bench, depth)
        held = world.node.alarms.stored(address)

        bench.go.set()
        await bench.within(here, lambda me: me.fibers.result("key"))
        await world.settled()

        assert held == (world.clock.now(), 0)
        assert world.node.alarms.stored(address) is None
        await world.crash()
        await world.settled()
        assert not world.node.trees


@pytest.mark.slow
@pytest.mark.promise("B-19", "CF-55")
async def test_a_crash_at_any_commit_of_a_fiber_s_life_loses_nothing_and_repeats_no_step(
    run: Run, bench: Bench
) -> None:
    async def act(me: Worker) -> None:
        await me.step("one", lambda: bench.log.append("one"))
        bench.log.append("one is kept")
        await me.checkpoint(1)
        await me.step("two", lambda: None)
        await me.note("done")

    nth, passed = 0, True
    while passed:
        nth += 1
        bench.log.clear()
        bench.works["act"] = act
        async with run(Worker, deps=bench) as world:
            child = await worker(world, 1)
            before = world.points.passed["committed"]
            world.crash_at("committed", nth)
            started = False
            with contextlib.suppress(SapwoodError):
                await bench.within(child, lambda me: me.start_fiber("key", me.work, "act"))
                started = True
            with contextlib.suppress(SapwoodError):
                await bench.within(child, lambda me: me.fibers.result("key"))
            await world.settled()
            passed = world.points.passed["committed"] >= before + nth

            await world.crash()
            await world.clock.advance(2 * SECOND)

            fiber = await fiber_of(world, bench, 1)
            notes = await (await worker(world, 1)).notes()
            if started or fiber is not None:
                assert (fiber.status, notes) == ("completed", ["done"])
            else:
                assert notes == []
            if "one is kept" in bench.log:
                assert "one" not in bench.log[bench.log.index("one is kept") :]
            assert world.node.alarms.stored(Address.root_of("Worker", "root")) is None
    assert nth > 5


@pytest.mark.promise("A-39")
async def test_an_agent_knows_who_it_is_when_an_alarm_wakes_it_after_a_restart(
    run: Run, bench: Bench, depth: int
) -> None:
    async def tell(me: Worker) -> None:
        bench.log.append(f"{me.name} | {me.address} | {len(me.address.segments)} | {len(me.address.segments[:-1])}")
        await bench.go.wait()

    bench.works["tell"] = tell
    async with run(Worker, deps=bench) as world:
        here = await worker(world, depth)
        await bench.within(here, lambda me: me.start_fiber("key", me.work, "tell"))
        await bench.within(here, lambda me: me.schedule(DAY, me.work, "tell"))
        await until(lambda: len(bench.log) == 2)
        who = bench.log[1]

        await world.crash()
        await until(lambda: bench.log.count(who) == 2)
        await world.crash()
        await world.clock.advance(DAY)

        assert bench.log.count(who) == 4
        assert who.endswith(f"| {depth + 1} | {depth}")


class Board(Agent[dict[str, int]]):
    """An agent that has something of everything."""

    initial_state: ClassVar[dict[str, int]] = {"moves": 0}
    deps: Bench

    async def play(self) -> None:
        self.set_state({"moves": 7})
        self.schedule(DAY, self.tick)
        self.enqueue(self.tick)
        self.start_fiber("game", self.game)

    async def tick(self) -> None:
        self.deps.log.append("tick")
        await self.deps.go.wait()

    async def game(self) -> None:
        self.deps.log.append("game")
        await self.deps.go.wait()

    async def kept(self) -> tuple[dict[str, int], int, int, int]:
        return self.state, len(self.schedules.list()), len(self.queues.list()), len(self.fibers.list("running"))


@pytest.mark.promise("CF-195")
async def test_after_a_crash_state_schedules_queue_and_fibers_are_there_again(run: Run, bench: Bench) -> None:
    async with run(Board, deps=bench) as world:
        await (await world.get_agent(Board, "b")).play()
        await until(lambda: sorted(bench.log) == ["game", "tick"])

        await world.crash()
        await until(lambda: sorted(bench.log) == ["game", "game", "tick", "tick"])

        assert await (await world.get_agent(Board, "b")).kept() == ({"moves": 7}, 1, 1, 1)
        bench.go.set()
        await world.clock.advance(DAY)
        assert await (await world.get_agent(Board, "b")).kept() == ({"moves": 7}, 0, 0, 0)


async def test_a_stop_is_not_held_up_by_hooks_that_hang(run: Run, bench: Bench) -> None:
    bench.hook = lambda me, fiber: me.hang()
    async with run(Worker, deps=bench, recovery_timeout=3600) as world:
        await waiting(world, bench, 1)
        await world.crash()
        await until(lambda: len(bench.recovered) == 1)

        async with asyncio.timeout(patience()):
            await world.restart()
        await until(lambda: len(bench.recovered) == 1)


@pytest.mark.promise("CF-193")
async def test_waiting_for_a_fiber_of_another_life_gets_its_result(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        await waiting(world, bench, 1)

        await world.crash()
        result: asyncio.Task[Any] = asyncio.create_task(
            bench.within(await worker(world, 1), lambda me: me.fibers.result("key"))
        )
        await until(lambda: bench.log.count("at two") == 2)
        bench.go.set()

        assert await result == "counted"
