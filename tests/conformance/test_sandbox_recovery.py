"""Code that a model wrote, through crashes: it goes on where it called, and no answered call is made again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.conformance.chats import Talking
from tests.conformance.served import served
from tests.conformance.works import Bench, Worker, stored, worker
from tests.conformance.worlds import Run, until

from sapwood import After, Agent, App, Limits, SapwoodError, tool
from sapwood.errors import FiberFailed, ForbiddenSql
from sapwood.sandbox import CodeResult, run_code
from sapwood.storage.engine import CHECKED
from sapwood.testing import ScriptedModel, World, call, text

SECOND = timedelta(seconds=1)
ONE_LEVEL = pytest.mark.parametrize("level", ["process"], indirect=True)
"""For what does not depend on how durable a commit is."""
THREE = """
print("first")
a = ask("a")
print("second")
b = ask("b")
print("third")
[a, b, ask("c")]
"""
DONE = CodeResult(["A", "B", "C"], "first\nsecond\nthird\n", None, 3)


def asking(bench: Bench) -> Any:
    """Return a host function that says what it was asked."""

    async def ask(what: str) -> str:
        bench.log.append(f"asked {what}")
        if f"hold {what}" in bench.log:
            await bench.go.wait()
        return what.upper()

    return ask


async def begun(bench: Bench, world: World, way: str, what: str) -> None:
    """Begin work in one of the ways that survive a crash."""
    ways: dict[str, Any] = {
        "fiber": lambda me: me.start_fiber(what, me.work, what),
        "schedule": lambda me: me.schedule(After(timedelta(0), key=what), me.work, what),
        "queue": lambda me: me.enqueue(me.work, what),
    }
    await bench.within(await worker(world), ways[way])


@pytest.mark.parametrize("way", ["fiber", "schedule", "queue"])
async def test_code_goes_on_where_it_called_and_answered_calls_are_not_made_again(
    run: Run, bench: Bench, way: str
) -> None:
    results: list[CodeResult] = []

    async def code(me: Worker) -> None:
        results.append(await run_code(THREE, {"ask": asking(bench)}))

    bench.works["code"] = code
    bench.log.append("hold b")
    async with run(Worker, deps=bench) as world:
        await begun(bench, world, way, "code")
        await bench.seen("asked b")

        for lives in (2, 3):
            await world.crash()
            await world.clock.advance(2 * SECOND)
            await until(lambda lives=lives: bench.log.count("asked b") == lives)
        bench.go.set()
        await bench.seen("code ends")

        assert bench.log.count("asked a") == bench.log.count("asked c") == 1
        assert results == [DONE]
    assert stored(world.data, "sapwood_steps") == []


@asynccontextmanager
async def killed(run: Run, bench: Bench, nth: int) -> AsyncGenerator[tuple[World, bool], None]:
    """Begin `code`, be killed at the n-th commit, live again until it ends; yield the world, and whether it died."""
    async with run(Worker, deps=bench) as world:
        assert await (await worker(world)).notes() == []
        before = world.points.passed["committed"]
        world.crash_at("committed", nth)
        with suppress(SapwoodError):
            await begun(bench, world, "fiber", "code")
            await until(lambda: "code ends" in bench.log or world.points.ended)
        reached = world.points.passed["committed"] >= before + nth
        await world.crash()
        await world.clock.advance(2 * SECOND)
        if await bench.within(await worker(world), lambda me: me.fibers.get("code")) is None:
            await begun(bench, world, "fiber", "code")  # it had not been kept, and nobody was told that it was
        await bench.seen("code ends")
        yield world, reached


@pytest.mark.slow
async def test_killed_at_any_commit_it_ends_as_if_nothing_had_happened(run: Run) -> None:
    """A call may be made twice if nobody knows whether it was answered, but never one that was."""
    for nth in count(1):
        bench, results = Bench(), list[CodeResult]()

        async def code(me: Worker, bench: Bench = bench, results: list[CodeResult] = results) -> None:
            results.append(await run_code(THREE, {"ask": asking(bench)}))

        bench.works["code"] = code
        async with killed(run, bench, nth) as (_, reached):
            asked = [bench.log.count(f"asked {one}") for one in "abc"]

            assert set(map(str, results)) == {str(DONE)}
            assert asked in ([1, 1, 1], [2, 1, 1], [1, 2, 1], [1, 1, 2])
            if not reached:
                break
    assert nth > 6  # before and after each call, at least


@ONE_LEVEL
async def test_a_call_is_made_again_with_what_the_code_had_made_up_for_it(run: Run, bench: Bench) -> None:
    """It is not run again up to there: what it had drawn, it has drawn."""
    drawn: list[float] = []
    results: list[CodeResult] = []

    async def book(ticket: float) -> str:
        drawn.append(ticket)
        await bench.go.wait()
        return "booked"

    async def code(me: Worker) -> None:
        results.append(
            await run_code("import random\nticket = random.random()\n[book(ticket), ticket]", {"book": book})
        )

    bench.works["code"] = code
    async with run(Worker, deps=bench) as world:
        await begun(bench, world, "fiber", "code")
        await until(lambda: len(drawn) == 1)

        await world.crash()
        await world.clock.advance(2 * SECOND)
        await until(lambda: len(drawn) == 2)
        bench.go.set()
        await bench.seen("code ends")

        assert drawn[0] == drawn[1]
        assert results[0].value == ["booked", drawn[0]]


@pytest.mark.slow
@ONE_LEVEL
async def test_what_a_plain_function_writes_is_written_once_wherever_the_process_dies(run: Run) -> None:
    """It awaits nothing, so what it wrote and that it was called are kept together."""

    async def code(me: Worker) -> None:
        def note(text: str) -> int:
            me.sql("INSERT INTO notes VALUES (?)", text)
            return me.sql("SELECT count(*) FROM notes").scalar(int)

        await run_code("[note('a'), note('b')]", {"note": note})

    for nth in count(1):
        async with killed(run, Bench(works={"code": code}), nth) as (world, reached):
            assert await (await worker(world)).notes() == ["a", "b"]
            if not reached:
                break
    assert nth > 4


@ONE_LEVEL
async def test_a_server_that_is_stopped_in_between_makes_no_difference(run: Run, bench: Bench) -> None:
    """A function in another agent, which is stopped with it: that is no answer, and the call is made again."""

    async def code(me: Worker) -> str:
        helper = await me.sub_agent(Worker, "helper")
        return str(await run_code("work('slow')", {"work": helper.work}))

    async def slow(me: Worker) -> str:
        await bench.go.wait()
        return "done"

    bench.works |= {"code": code, "slow": slow}
    async with run(Worker, deps=bench) as world:
        await begun(bench, world, "fiber", "code")
        await bench.seen("slow begins")

        await world.restart()
        bench.go.set()
        await world.clock.advance(2 * SECOND)
        agent = await worker(world)

        assert await bench.within(agent, lambda me: me.fibers.result("code")) == "=> 'done'"
        assert bench.log.count("slow begins") == 2


@ONE_LEVEL
async def test_what_code_holds_when_it_calls_may_be_as_much_as_can_be_kept(run: Run, bench: Bench) -> None:
    results: list[CodeResult] = []

    async def code(me: Worker) -> None:
        results.append(await run_code("x = 'y' * 100_000\nask('a')", {"ask": asking(bench)}))

    bench.works["code"] = code
    async with run(Worker, deps=bench, limits=Limits(payload_bytes=50_000)) as world:
        await begun(bench, world, "fiber", "code")
        await bench.seen("code ends")

        assert "asked a" not in bench.log
        assert "The code holds too much state to be stored" in str(results[0])


@ONE_LEVEL
async def test_two_runs_of_one_work_are_told_from_each_other(run: Run, bench: Bench) -> None:
    results: list[list[CodeResult]] = []

    async def code(me: Worker) -> None:
        both = [run_code(f"ask('{one}') + '{one}'", {"ask": asking(bench)}) for one in "ab"]
        results.append([*await asyncio.gather(*both), await run_code("ask('c')", {"ask": asking(bench)})])

    bench.works["code"] = code
    bench.log.append("hold c")
    async with run(Worker, deps=bench) as world:
        await begun(bench, world, "fiber", "code")
        await bench.seen("asked c")

        await world.crash()
        bench.go.set()
        await world.clock.advance(2 * SECOND)
        await bench.seen("code ends")

        assert [[one.value for one in each] for each in results] == [["Aa", "Bb", "C"]]
        assert [bench.log.count(f"asked {one}") for one in "abc"] == [1, 1, 2]


@ONE_LEVEL
async def test_what_functions_begin_is_found_again_as_if_all_of_them_had_been_called(run: Run, bench: Bench) -> None:
    """Code that a function has run, and a sleep in one, are numbered; answered calls are skipped, their numbers not."""
    results: list[CodeResult] = []

    async def code(me: Worker) -> None:
        async def deeper(what: str) -> str:
            await me.sleep_until(datetime.fromtimestamp(0, UTC))
            return (await run_code(f"ask('{what}') + '!'", {"ask": asking(bench)})).value

        results.append(await run_code("[deeper('a'), deeper('b'), deeper('c')]", {"deeper": deeper}))

    bench.works["code"] = code
    bench.log.append("hold b")
    async with run(Worker, deps=bench) as world:
        await begun(bench, world, "fiber", "code")
        await bench.seen("asked b")

        await world.crash()
        bench.go.set()
        await world.clock.advance(2 * SECOND)
        await bench.seen("code ends")

        assert results[0].value == ["A!", "B!", "C!"]
        assert [bench.log.count(f"asked {one}") for one in "abc"] == [1, 2, 1]


@ONE_LEVEL
async def test_other_code_in_the_same_place_is_refused_after_a_crash(run: Run, bench: Bench) -> None:
    lives: list[int] = []

    async def code(me: Worker) -> None:
        lives.append(1)
        await run_code(f"ask('b') + {len(lives)}", {"ask": asking(bench)})

    bench.works["code"] = code
    bench.log.append("hold b")
    async with run(Worker, deps=bench) as world:
        await begun(bench, world, "fiber", "code")
        await bench.seen("asked b")

        await world.crash()
        await world.clock.advance(2 * SECOND)
        agent = await worker(world)

        with pytest.raises(FiberFailed, match="got different code after a restart"):
            await bench.within(agent, lambda me: me.fibers.result("code"))


@ONE_LEVEL
@pytest.mark.parametrize("damage", [b"\xc1", b"\x80", b""])
async def test_a_snapshot_is_not_forged_by_the_agent_and_a_damaged_one_is_said_to_be(
    run: Run, bench: Bench, damage: bytes
) -> None:
    """All that goes into a resume is in a table that no statement of the agent's own may write."""

    async def code(me: Worker) -> None:
        await run_code("ask('b')", {"ask": asking(bench)})

    bench.works["code"] = code
    bench.log.append("hold b")
    async with run(Worker, deps=bench) as world:
        await begun(bench, world, "fiber", "code")
        await bench.seen("asked b")
        with pytest.raises(ForbiddenSql):
            await bench.within(await worker(world), lambda me: me.sql("UPDATE sapwood_steps SET result = x'00'"))
        with pytest.raises(ForbiddenSql):
            await bench.within(await worker(world), lambda me: me.sql("DELETE FROM sapwood_steps"))

        world.points.ended = True
        await world.node.die()
        await world.app.__aexit__()
        overwrite(world.data, damage)  # while no process has the tree open
        await world.start()
        bench.go.set()
        await world.clock.advance(2 * SECOND)
        agent = await worker(world)

        with pytest.raises(FiberFailed, match="cannot be decoded"):
            await bench.within(agent, lambda me: me.fibers.result("code"))


def overwrite(data: Path, with_: bytes) -> None:
    """Write this over what the steps of all agents returned."""
    for file in (data / "trees").glob("*/*.db"):
        with closing(apsw.Connection(str(file), vfs=CHECKED)) as database:
            database.execute("UPDATE sapwood_steps SET result = ?", [with_])


class Analyst(Talking):
    """A chat whose model may run code."""

    deps: Bench

    @tool(idempotent=True)
    async def run_python(self, code: str) -> str:
        """Run Python."""
        return str(await run_code(code, {"ask": asking(self.deps)}))


async def test_code_that_a_model_has_run_goes_on_after_a_crash_and_the_model_reads_what_became_of_it(
    level: str, bench: Bench
) -> None:
    model = ScriptedModel(call("run_python", id="c1", code=THREE), text("Done."))
    cls = type("Analyst", (Analyst,), {"model": model})
    bench.log.append("hold b")
    async with served(App(agents=[cls], deps=bench), durability=level) as one:
        agent: Any = await one.world.get_agent(cls, "a")
        sending = asyncio.create_task(agent.send("go"))
        await bench.seen("asked b")

        await one.world.crash()
        await asyncio.gather(sending, return_exceptions=True)
        bench.go.set()
        agent = await one.world.get_agent(cls, "a")
        await one.world.clock.advance(2 * SECOND)
        await until(lambda: len(model.asked) == 2)

        assert [bench.log.count(f"asked {one}") for one in "abc"] == [1, 2, 1]
        returned = [part for message in model.asked[-1] for part in message.parts if part.part_kind == "tool-return"]
        assert [part.content for part in returned] == [str(DONE)]
    assert stored(one.world.data, "sapwood_steps") == []


class Deputy(Agent):
    """Does what another agent's code has it do."""

    deps: Bench

    async def on_run(self, input: str) -> str:
        self.deps.log.append(f"run {input}")
        if input == "b":
            await self.deps.go.wait()
        return input.upper()


class Chief(Talking):
    """A chat whose model may run code that gives runs."""

    deps: Bench

    @tool(idempotent=True)
    async def run_python(self, code: str) -> str:
        """Run Python."""

        async def have_done(what: str) -> str:
            return (await self.run_agent(Deputy, what)).output

        return str(await run_code(code, {"have_done": have_done}))


@ONE_LEVEL
async def test_runs_that_code_gives_are_its_own_after_a_crash(level: str, bench: Bench) -> None:
    model = ScriptedModel(call("run_python", id="c1", code="[have_done(x) for x in 'abc']"), text("Done."))
    cls = type("Chief", (Chief,), {"model": model})
    async with served(App(agents=[cls], deps=bench), durability=level) as one:
        agent: Any = await one.world.get_agent(cls, "a")
        sending = asyncio.create_task(agent.send("go"))
        await bench.seen("run b")

        await one.world.crash()
        await asyncio.gather(sending, return_exceptions=True)
        bench.go.set()
        await one.world.clock.advance(2 * SECOND)
        await until(lambda: len(model.asked) == 2)

        returned = [part for message in model.asked[-1] for part in message.parts if part.part_kind == "tool-return"]
        assert [part.content for part in returned] == ["=> ['A', 'B', 'C']"]
        assert bench.log.count("run a") == bench.log.count("run c") == 1
