"""Findings of the probes that shaped the kernel, each as a promise that a simpler kernel would break.

Where it is short, the simpler kernel is here too, to show that the assertion would catch it.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar

import pytest
from tests.machine import patience

from sapwood import Agent, App, Unavailable, current_agent
from sapwood.errors import Aborted, ForbiddenSql, UsageError
from sapwood.testing import World, running

COUNT = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < ?) SELECT count(*) FROM c"


class Log:
    """Seen by the test and by its agents alike."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.go = asyncio.Event()

    def say(self, line: str) -> None:
        self.lines.append(line)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("It did not happen.")


# order: a tree's commits follow the order of its writes


class Writer(Agent):
    migrations = ("CREATE TABLE t (v INTEGER) STRICT",)

    async def put(self, value: int) -> None:
        self.sql("INSERT INTO t VALUES (?)", value)

    async def put_and_tell(self, value: int) -> None:
        self.sql("INSERT INTO t VALUES (?)", value)
        parent = await self.parent_agent(Asker)
        await parent.put(value + 1)
        self.sql("INSERT INTO t VALUES (?)", value + 2)

    async def values(self) -> list[int]:
        return [int(str(row["v"])) for row in self.sql("SELECT v FROM t")]


class Asker(Agent):
    migrations = Writer.migrations

    async def put(self, value: int) -> None:
        self.sql("INSERT INTO t VALUES (?)", value)

    async def work(self) -> None:
        child = await self.sub_agent(Writer, "c")
        other = await self.sub_agent(Writer, "d")
        self.sql("INSERT INTO t VALUES (1)")
        await child.put(2)
        self.sql("INSERT INTO t VALUES (3)")
        await child.put_and_tell(4)
        self.sql("INSERT INTO t VALUES (7)")
        # Two at once: neither waits for the other, and still no write overtakes an earlier one.
        await asyncio.gather(child.put(8), other.put(9))
        self.sql("INSERT INTO t VALUES (10)")

    async def values(self) -> list[int]:
        found = [int(str(row["v"])) for row in self.sql("SELECT v FROM t")]
        for name in ("c", "d"):
            if self.children.has(Writer, name):
                found += await (await self.sub_agent(Writer, name)).values()
        return sorted(found)


@pytest.mark.slow
async def test_a_crash_between_two_commits_of_a_tree_keeps_a_prefix_of_its_writes() -> None:
    lengths: set[int] = set()
    for nth in range(1, 40):
        async with running(App(agents=[Asker])) as world:
            asker = await world.get_agent(Asker, "a")
            world.crash_at("committed", nth)
            try:
                await asker.work()
            except Unavailable:
                pass
            else:
                break
            await world.crash()
            values = await (await world.get_agent(Asker, "a")).values()

            assert values == list(range(1, len(values) + 1))
            lengths.add(len(values))
    assert lengths >= set(range(1, 10))


async def test_a_place_that_was_never_passed_does_not_spoil_the_end_of_a_test() -> None:
    async with running(App(agents=[Asker])) as world:
        await (await world.get_agent(Asker, "a")).put(1)

        world.crash_at("before create")  # as the end passes it


async def test_committing_each_agent_at_its_own_end_would_not_keep_a_prefix() -> None:
    landed: list[list[int]] = []

    class Naive:
        def __init__(self) -> None:
            self.open: list[int] = []

        def put(self, value: int) -> None:
            if not self.open:
                asyncio.get_running_loop().call_soon(self.commit)
            self.open.append(value)

        def commit(self) -> None:
            landed.append(self.open)
            self.open = []

    parent, child = Naive(), Naive()
    parent.put(1)
    child.put(2)
    parent.put(3)
    await asyncio.sleep(0)

    assert landed[0] == [1, 3]  # a crash now keeps 3 and loses 2


# abort: what is aborted stops, and nobody else is hit


class Bottom(Agent):
    deps: Log

    async def hang(self) -> None:
        self.deps.say("bottom hangs")
        await asyncio.sleep(3600)


class Middle(Agent):
    deps: Log

    async def fan_out(self) -> str:
        bottom = await self.sub_agent(Bottom, "c")
        try:
            await asyncio.gather(bottom.hang(), bottom.hang())
        except Exception as error:  # noqa: BLE001 - what a user might well write
            self.deps.say(f"middle caught {type(error).__name__}")
        await asyncio.sleep(0.02)
        self.deps.say("middle ran on")
        return "middle answered"

    async def ask_one(self) -> str:
        bottom = await self.sub_agent(Bottom, "c")
        try:
            await bottom.hang()
        except Exception as error:  # noqa: BLE001
            self.deps.say(f"middle caught {type(error).__name__}")
        await asyncio.sleep(0.02)
        self.deps.say("middle ran on")
        return "middle answered"

    async def get_me_aborted(self) -> str:
        parent = await self.parent_agent(Top)
        await parent.abort_it()
        self.deps.say("middle ran on")
        return "middle answered"


class Top(Agent):
    deps: Log

    async def ask(self, method: str) -> str:
        middle = await self.sub_agent(Middle, "b")
        try:
            return str(await getattr(middle, method)())
        except Aborted as error:
            answer = f"top got Aborted({error.reason})"
        # A cancellation that was meant for somebody else would strike here.
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        return f"{answer}, and lives"

    async def abort_it(self) -> str:
        self.children.abort(Middle, "b", "enough")
        await asyncio.sleep(0.01)
        self.deps.say("the ancestor's own method went on")
        return "aborted"


@pytest.mark.parametrize("method", ["fan_out", "ask_one"])
async def test_an_aborted_agent_stops_whatever_it_catches(method: str) -> None:
    log = Log()
    async with running(App(agents=[Top], deps=log)) as world:
        top = await world.get_agent(Top, "a")
        asking = asyncio.create_task(top.ask(method))
        await until(lambda: "bottom hangs" in log.lines)

        await top.abort_it()
        answer = await asking

        await asyncio.sleep(0.05)
        assert answer == "top got Aborted(enough), and lives"
        assert [line for line in log.lines if line.startswith("middle")] == []


async def test_an_ancestor_that_aborts_its_caller_goes_on_and_nobody_is_cancelled_by_mistake() -> None:
    log = Log()
    async with running(App(agents=[Top], deps=log)) as world:
        top = await world.get_agent(Top, "a")

        answer = await top.ask("get_me_aborted")
        await until(lambda: bool(log.lines))

        assert answer == "top got Aborted(enough), and lives"
        assert log.lines == ["the ancestor's own method went on"]


async def test_awaiting_the_callee_in_the_callers_task_would_let_an_aborted_agent_run_on() -> None:
    log: list[str] = []

    async def bottom() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()  # pyright: ignore[reportOptionalMemberAccess]
            raise Aborted("enough") from None  # the innermost of the aborted translates it

    async def middle() -> None:
        try:
            await bottom()
        except Exception:  # noqa: BLE001
            log.append("middle caught it as an ordinary exception, and runs on")

    task = asyncio.create_task(middle())
    await asyncio.sleep(0)
    task.cancel()
    await task

    assert log == ["middle caught it as an ordinary exception, and runs on"]


# gen: a stream runs in a task of its own agent, and is closed there

inside: ContextVar[str] = ContextVar("inside", default="outside")


class Source(Agent):
    deps: Log

    async def items(self) -> AsyncIterator[int]:
        token = inside.set("the generator")
        task = asyncio.current_task()
        try:
            for number in range(100):
                yield number
        finally:
            same = asyncio.current_task() is task
            inside.reset(token)  # fails in any other context
            self.deps.say(f"closed in its own task: {same}")

    async def slow_items(self) -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.sleep(3600)
        finally:
            self.deps.say("closed while it waited")


class Drain(Agent):
    deps: Log

    async def read_one(self, how: str) -> str:
        source = await self.sub_agent(Source, "s")
        async for _ in source.items():
            seen = f"{inside.get()}, {type(current_agent()).__name__}"
            if how == "break":
                return seen
        return "never"

    async def read_and_abort(self, method: str) -> str:
        source = await self.sub_agent(Source, "s")
        stream = getattr(source, method)()
        got = [await anext(stream)]
        self.children.abort(Source, "s", "enough")
        try:
            async for item in stream:
                got.append(item)  # noqa: PERF401 - it counts what came before the abort
        except Aborted as error:
            return f"Aborted({error.reason}) after {len(got)} of 100"
        return "read all"


@pytest.mark.slow
async def test_what_a_generator_sets_in_its_context_does_not_leak_between_its_items() -> None:
    log = Log()
    async with running(App(agents=[Drain], deps=log)) as world:
        drain = await world.get_agent(Drain, "a")

        assert await drain.read_one("break") == "outside, Drain"

        gc.collect()
        await until(lambda: bool(log.lines))
        assert log.lines == ["closed in its own task: True"]


async def test_a_generator_parked_at_a_yield_is_closed_by_an_abort() -> None:
    log = Log()
    async with running(App(agents=[Drain], deps=log)) as world:
        drain = await world.get_agent(Drain, "a")

        answer = await drain.read_and_abort("items")

        await until(lambda: bool(log.lines))
        assert answer.startswith("Aborted(enough) after")
        assert "after 100" not in answer
        assert log.lines == ["closed in its own task: True"]


async def test_a_generator_that_waits_for_something_is_closed_by_an_abort() -> None:
    log = Log()
    async with running(App(agents=[Drain], deps=log)) as world:
        drain = await world.get_agent(Drain, "a")

        assert await drain.read_and_abort("slow_items") == "Aborted(enough) after 1 of 100"

        await until(lambda: bool(log.lines))
        assert log.lines == ["closed while it waited"]


async def test_a_generator_read_in_the_callers_task_would_leak_its_context() -> None:
    async def items() -> AsyncIterator[int]:
        inside.set("the generator")
        yield 1

    stream = items()
    await anext(stream)

    assert inside.get() == "the generator"
    inside.set("outside")
    async for _ in stream:
        pass


# start: a call that descends from an agent's own start is delivered without waiting for it


class Nursling(Agent):
    async def on_start(self) -> None:
        parent = await self.parent_agent(Nurse)
        self.config = await parent.config()

    async def hello(self) -> str:
        return f"with {self.config}"


class Nurse(Agent):
    async def on_start(self) -> None:
        child = await self.sub_agent(Nursling, "n")
        self.greeting = await child.hello()

    async def config(self) -> str:
        return "milk"

    async def greet(self) -> str:
        return self.greeting


async def test_a_child_may_call_its_parent_while_both_start() -> None:
    async with running(App(agents=[Nurse])) as world:
        nurse = await asyncio.wait_for(world.get_agent(Nurse, "a"), patience())

        assert await nurse.greet() == "with milk"


# slices: what SQLite does behind our back


class Ledger(Agent):
    migrations = (
        "CREATE TABLE t (k UNIQUE)",
        "CREATE TABLE p (id INTEGER PRIMARY KEY);CREATE TABLE f (p REFERENCES p (id) DEFERRABLE INITIALLY DEFERRED)",
    )

    async def put_and_wait(self, key: str) -> str:
        self.sql("INSERT INTO t VALUES (?)", key)
        await asyncio.sleep(0)
        return "kept"

    async def put(self, key: str) -> str:
        self.sql("INSERT INTO t VALUES (?)", key)
        return "kept"

    async def roll_back(self, key: str) -> str:
        self.sql("INSERT INTO t VALUES (?)", key)
        self.sql("INSERT OR ROLLBACK INTO t VALUES (?)", key)
        return "unreachable"

    async def owe(self) -> str:
        self.sql("INSERT INTO t VALUES ('beside')")
        self.sql("INSERT INTO f VALUES (99)")
        return "kept"

    async def hold_block(self) -> str:
        try:
            with self.transaction():
                self.sql("INSERT INTO t VALUES ('in the block')")
                await asyncio.sleep(0.01)
                raise ValueError
        except ValueError:
            return "undone"

    async def commit(self) -> None:
        self.sql("INSERT INTO t VALUES ('before')")
        self.sql("COMMIT")

    async def keys(self) -> list[str]:
        return [str(row["k"]) for row in self.sql("SELECT k FROM t")]


async def test_a_transaction_that_sqlite_rolled_back_fails_every_call_that_had_written_in_it() -> None:
    async with running(App(agents=[Ledger])) as world:
        ledger = await world.get_agent(Ledger, "a")
        assert await ledger.put("first") == "kept"

        answers = await asyncio.gather(
            ledger.put_and_wait("call 1"), ledger.roll_back("call 2"), return_exceptions=True
        )

        assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
        assert await ledger.keys() == ["first"]
        assert await ledger.put("later") == "kept"


async def test_a_commit_that_fails_after_the_method_returned_is_not_answered_with_its_result() -> None:
    async with running(App(agents=[Ledger])) as world:
        ledger = await world.get_agent(Ledger, "a")

        with pytest.raises(Unavailable):
            await ledger.owe()

        assert await ledger.keys() == []


async def test_a_block_held_over_an_await_takes_nobody_elses_writes_with_it() -> None:
    async with running(App(agents=[Ledger])) as world:
        ledger = await world.get_agent(Ledger, "a")

        answers = await asyncio.gather(ledger.hold_block(), ledger.put("of another call"), return_exceptions=True)

        assert answers == ["undone", "kept"]
        assert await ledger.keys() == ["of another call"]


async def test_a_user_cannot_commit() -> None:
    async with running(App(agents=[Ledger])) as world:
        ledger = await world.get_agent(Ledger, "a")

        with pytest.raises(ForbiddenSql):
            await ledger.commit()

        assert await ledger.keys() == ["before"]


# rollgate and disk: nothing leaves before what was committed before it is on the disk


class Counter(Agent):
    migrations = ("CREATE TABLE c (v INTEGER) STRICT; INSERT INTO c VALUES (0)",)

    async def add(self) -> int:
        return self.sql("UPDATE c SET v = v + 1 RETURNING v").scalar(int)

    async def read(self) -> int:
        return self.sql("SELECT v FROM c").scalar(int)


def hold_next_sync(world: World) -> threading.Event:
    """Let the next sync wait until the event is set."""
    let = threading.Event()
    world.points.arm("before sync", 1, lambda: assert_true(let.wait(10)))
    return let


def assert_true(value: bool) -> None:
    assert value


async def test_a_reader_waits_for_a_write_that_is_not_on_the_disk_yet() -> None:
    async with running(App(agents=[Counter]), durability="disk") as world:
        counter = await world.get_agent(Counter, "a")
        other = await world.get_agent(Counter, "b")
        assert await counter.add() == 1
        assert await other.add() == 1
        let = hold_next_sync(world)

        writer = asyncio.create_task(counter.add())
        await until(lambda: world.points.passed["before sync"] > world.points.passed["after sync"])
        reader = asyncio.create_task(counter.read())
        done, _ = await asyncio.wait({reader, writer}, timeout=0.05)

        assert done == set()
        assert await other.read() == 1  # nothing of it is unflushed: it does not wait
        let.set()
        assert (await reader, await writer) == (2, 2)


async def test_one_durable_call_after_the_other_costs_one_sync_each() -> None:
    async with running(App(agents=[Counter]), durability="disk") as world:
        counter = await world.get_agent(Counter, "a")
        await counter.add()
        syncs, commits = world.points.passed["before sync"], world.points.passed["committed"]

        for _ in range(50):
            await counter.add()

        assert world.points.passed["committed"] - commits == 50
        assert world.points.passed["before sync"] - syncs == 50


async def test_durable_calls_in_flight_together_share_their_syncs() -> None:
    async with running(App(agents=[Counter]), durability="disk") as world:
        counter = await world.get_agent(Counter, "a")
        await counter.add()
        syncs = world.points.passed["before sync"]

        for _ in range(10):
            await asyncio.gather(*(counter.add() for _ in range(64)))

        assert await counter.read() == 641
        assert world.points.passed["before sync"] - syncs <= 40  # for 640 calls


async def test_a_disk_that_takes_its_time_does_not_stop_the_loop() -> None:
    async with running(App(agents=[Counter]), durability="disk") as world:
        counter, other = await world.get_agent(Counter, "a"), await world.get_agent(Counter, "b")
        await counter.add()
        await other.add()
        let = hold_next_sync(world)
        slow = asyncio.create_task(counter.add())
        await asyncio.sleep(0.01)

        async with asyncio.timeout(patience()):
            for _ in range(20):
                await other.add()

        assert not slow.done()
        let.set()
        await slow


async def test_a_process_of_usage_errors_is_refused_in_a_block() -> None:
    class Maker(Agent):
        async def make(self) -> None:
            with self.transaction():
                await self.sub_agent(Writer, "c")

    async with running(App(agents=[Maker])) as world:
        maker = await world.get_agent(Maker, "a")

        with pytest.raises(UsageError, match="cannot be rolled back"):
            await maker.make()
