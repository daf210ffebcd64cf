"""Lives of an agent: its start comes before anything else, sleep loses nothing, and what is over can do nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from tests.conformance.worlds import Branch, Probe, Run
from tests.machine import patience

from sapwood import Agent, NotFound, SapwoodError, Unavailable
from sapwood.errors import StartCycle, UsageError

pytestmark = pytest.mark.core("cluster")


class Starter(Agent):
    """Does in its start what the test put into the deps."""

    deps: dict[str, Callable[[Any], Coroutine[Any, Any, None]]]

    async def on_start(self) -> None:
        self.ready = False
        begin = self.deps.get(self.name)
        if begin is not None:
            await begin(self)
        self.ready = True

    async def is_ready(self) -> bool:
        return self.ready

    async def ask_child(self, name: str) -> bool:
        return await (await self.sub_agent(Starter, name)).is_ready()

    async def ask_root(self, name: str) -> bool:
        return await (await self.get_agent(Starter, name)).is_ready()


@pytest.mark.promise("A-27")
async def test_nothing_is_delivered_before_on_start_has_ended(run: Run, probe: Probe) -> None:
    async def slowly(agent: Starter) -> None:
        probe.log.append("starting")
        await probe.go.wait()

    async with run(Starter, deps={"s": slowly}) as world:
        asking = asyncio.create_task(world.get_agent(Starter, "s"))
        also_asking = asyncio.create_task(world.get_agent(Starter, "s"))
        await probe.seen("starting")
        assert not asking.done()

        probe.go.set()

        assert await (await asking).is_ready()
        assert await (await also_asking).is_ready()
        assert probe.log == ["starting"]


async def test_a_call_that_comes_from_an_agent_s_own_start_is_delivered_without_waiting(run: Run) -> None:
    seen: list[object] = []

    async def with_child(agent: Starter) -> None:
        seen.append(("from child", await (await agent.sub_agent(Starter, "child")).is_ready()))

    async def ask_back(agent: Starter) -> None:
        parent = await agent.parent_agent(Starter)
        seen.append(("from parent", await parent.is_ready()))

    async with run(Starter, deps={"root": with_child, "child": ask_back}) as world:
        async with asyncio.timeout(patience()):
            root = await world.get_agent(Starter, "root")

        assert seen == [("from parent", False), ("from child", True)]
        assert await root.is_ready()


async def test_an_agent_may_call_itself_in_its_start(run: Run) -> None:
    async def ask_self(agent: Starter) -> None:
        assert await (await agent.get_agent(Starter, agent.name)).is_ready() is False

    async with run(Starter, deps={"s": ask_self}) as world, asyncio.timeout(patience()):
        assert await (await world.get_agent(Starter, "s")).is_ready()


async def test_roots_that_start_each_other_in_one_chain_are_served(run: Run) -> None:
    async def ask_b(agent: Starter) -> None:
        await agent.ask_root("b")

    async def ask_a(agent: Starter) -> None:
        await agent.ask_root("a")

    async with run(Starter, deps={"a": ask_b, "b": ask_a}) as world, asyncio.timeout(patience()):
        assert await (await world.get_agent(Starter, "a")).is_ready()
        assert await (await world.get_agent(Starter, "b")).is_ready()


async def test_agents_that_wait_for_each_other_s_start_are_refused_naming_the_chain(run: Run) -> None:
    started = {"a": asyncio.Event(), "b": asyncio.Event(), "c": asyncio.Event()}

    def asks(next_: str) -> Callable[[Starter], Coroutine[Any, Any, None]]:
        async def begin(agent: Starter) -> None:
            started[agent.name].set()
            await asyncio.gather(*(event.wait() for event in started.values()))
            await agent.ask_root(next_)

        return begin

    async with run(Starter, deps={"a": asks("b"), "b": asks("c"), "c": asks("a")}) as world:
        async with asyncio.timeout(patience()):
            outcomes = await asyncio.gather(*(world.get_agent(Starter, name) for name in "abc"), return_exceptions=True)

        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert failures
        assert all(isinstance(failure, StartCycle) for failure in failures)
        for name in "abc":
            assert f"Starter:{name}" in str(failures[0])
        assert "Move one of the calls out of on_start" in str(failures[0])


async def test_a_start_may_wait_for_another_start_where_there_is_no_circle(run: Run) -> None:
    both = asyncio.Barrier(2)

    async def wait_for_child(agent: Starter) -> None:
        await both.wait()
        await agent.ask_child("child")

    async def wait_for_root(agent: Starter) -> None:
        await both.wait()
        await agent.ask_root("root")

    async with run(Starter, deps={"root": wait_for_child, "other": wait_for_root}) as world:
        async with asyncio.timeout(patience()):
            root, other = await asyncio.gather(world.get_agent(Starter, "root"), world.get_agent(Starter, "other"))

        assert await root.is_ready()
        assert await other.is_ready()


async def test_a_start_that_fails_is_tried_again_by_the_next_caller(run: Run) -> None:
    tries: list[int] = []

    async def fail_once(agent: Starter) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("first try")

    async with run(Starter, deps={"s": fail_once}) as world:
        with pytest.raises(ValueError, match="first try"):
            await world.get_agent(Starter, "s")

        assert await (await world.get_agent(Starter, "s")).is_ready()


async def test_the_log_says_in_plain_text_which_agent_failed_to_start(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(agent: Starter) -> None:
        raise OSError("no network")

    async with run(Starter, deps={"c": fail}) as world:
        with pytest.raises(OSError, match="no network"):
            await (await world.get_agent(Starter, "s")).ask_child("c")

    assert "agent failed to start: Starter:s/Starter:c: OSError: no network" in caplog.messages


async def test_everybody_who_waited_for_a_start_that_failed_learns_why(run: Run, probe: Probe) -> None:
    async def fail(agent: Starter) -> None:
        await probe.go.wait()
        raise ValueError("no")

    async with run(Starter, deps={"s": fail}) as world:
        asking = [asyncio.create_task(world.get_agent(Starter, "s")) for _ in range(3)]
        await asyncio.sleep(0)
        probe.go.set()

        outcomes = await asyncio.gather(*asking, return_exceptions=True)

        assert [type(outcome).__mro__.count(ValueError) for outcome in outcomes] == [1, 1, 1]


async def test_a_caller_that_gives_up_does_not_stop_a_start_that_others_wait_for(run: Run, probe: Probe) -> None:
    async def slowly(agent: Starter) -> None:
        probe.log.append("starting")
        await probe.go.wait()

    async with run(Starter, deps={"s": slowly}) as world:
        impatient = asyncio.create_task(world.get_agent(Starter, "s"))
        patient = asyncio.create_task(world.get_agent(Starter, "s"))
        await probe.seen("starting")

        impatient.cancel()
        await asyncio.sleep(0)
        probe.go.set()

        assert await (await patient).is_ready()
        assert probe.log == ["starting"]


async def test_an_idle_agent_sleeps_and_its_stub_wakes_it_with_its_data(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b")
        leaf = await world.get_agent(Branch, "r", sub=[(Branch, "a"), (Branch, "b")])
        await leaf.note("kept")

        world.sleep()

        assert await leaf.notes() == ["kept"]
        assert await root.child_names() == ["a"]


async def test_an_agent_with_a_call_under_way_does_not_sleep_nor_do_those_above_it(run: Run, probe: Probe) -> None:
    class Busy(Agent):
        deps: Probe

        async def on_start(self) -> None:
            self.deps.log.append(f"start {self.name}")

        async def work(self) -> str:
            self.deps.log.append("working")
            await self.deps.go.wait()
            return "done"

    class Boss(Agent):
        deps: Probe

        async def on_start(self) -> None:
            self.deps.log.append(f"start {self.name}")

        async def make(self) -> None:
            await self.sub_agent(Busy, "busy")

    async with run(Boss, deps=probe) as world:
        boss = await world.get_agent(Boss, "boss")
        await boss.make()
        busy = await world.get_agent(Boss, "boss", sub=[(Busy, "busy")])
        call = asyncio.create_task(busy.work())
        await probe.seen("working")

        world.sleep()
        probe.go.set()

        assert await call == "done"
        assert probe.log == ["start boss", "start busy", "working"]


async def test_a_crash_loses_nothing_that_was_acknowledged(run: Run) -> None:
    async with run(Branch) as world:
        for n in range(5):
            root = await world.get_agent(Branch, "r")
            assert await root.note(str(n)) == n + 1
            assert await root.note_below("a", str(n)) == n + 1
            await world.crash()

        root = await world.get_agent(Branch, "r")
        assert await root.notes() == list("01234")


class Ghost(Agent[dict[str, int]]):
    """Leaves itself behind in the deps, so that a test can use it after its life."""

    initial_state = {"n": 0}  # noqa: RUF012
    deps: list[Any]

    async def appear(self) -> None:
        child = await self.sub_agent(Branch, "child")
        self.set_state({"n": 1})
        self.deps[:] = [self, child]

    async def make(self) -> None:
        await (await self.sub_agent(Ghost, "inner")).appear()

    async def abort(self) -> None:
        self.children.abort(Ghost, "inner", "over")

    async def delete(self) -> None:
        await self.children.delete(Ghost, "inner")


USES: dict[str, Callable[[Any], Any]] = {
    "sql": lambda ghost: ghost.sql("SELECT 1"),
    "transaction": lambda ghost: ghost.transaction(),
    "state": lambda ghost: ghost.state,
    "set_state": lambda ghost: ghost.set_state({"n": 2}),
    "has_sub_agent": lambda ghost: ghost.children.has(Branch, "child"),
    "list_sub_agents": lambda ghost: ghost.children.list(),
    "sub_agent_status": lambda ghost: ghost.children.status(Branch, "child"),
    "abort_sub_agent": lambda ghost: ghost.children.abort(Branch, "child"),
    "sub_agent": lambda ghost: ghost.sub_agent(Branch, "other"),
    "delete_sub_agent": lambda ghost: ghost.children.delete(Branch, "child"),
    "subtree": lambda ghost: ghost.children.subtree(),
    "parent_agent": lambda ghost: ghost.parent_agent(Ghost),
    "ancestor": lambda ghost: ghost.ancestor(Ghost),
    "root_agent": lambda ghost: ghost.root_agent(Ghost),
    "get_agent": lambda ghost: ghost.get_agent(Ghost, "g"),
    "destroy": lambda ghost: ghost.destroy(),
    "durable": lambda ghost: ghost.flush(),
    "read_sql": lambda ghost: ghost.read_sql("SELECT 1"),
}


async def used(ghost: Any, use: Callable[[Any], Any]) -> None:
    result = use(ghost)
    if asyncio.iscoroutine(result):
        await result


@pytest.mark.parametrize("end", ["abort", "delete", "sleep", "crash"])
async def test_everything_used_through_a_life_that_is_over_raises(run: Run, end: str) -> None:
    left: list[Any] = []
    async with run(Ghost, deps=left) as world:
        root = await world.get_agent(Ghost, "g")
        await root.make()
        ghost, _ = left

        if end == "sleep":
            world.sleep()
        elif end == "crash":
            await world.crash()
        else:
            await getattr(root, end)()

        expected = {"abort": SapwoodError, "delete": NotFound, "sleep": Unavailable, "crash": Unavailable}[end]
        for use in USES.values():
            with pytest.raises(expected):
                await used(ghost, use)


async def test_a_stub_held_by_a_life_that_is_over_cannot_be_used_from_there(run: Run, probe: Probe) -> None:
    class Zombie(Agent):
        deps: Probe

        async def linger(self) -> None:
            child = await self.sub_agent(Branch, "child")
            self.deps.log.append("waiting")
            try:
                await self.deps.go.wait()
            except asyncio.CancelledError:
                try:
                    await child.note("from beyond")
                except SapwoodError as error:
                    self.deps.log.append(f"refused: {error}")
                raise

    class Grave(Agent):
        async def work(self) -> None:
            await (await self.sub_agent(Zombie, "z")).linger()

        async def abort(self) -> None:
            self.children.abort(Zombie, "z", "over")

        async def make(self) -> None:
            await self.sub_agent(Zombie, "z")

    async with run(Grave, deps=probe) as world:
        grave = await world.get_agent(Grave, "g")
        call = asyncio.create_task(grave.work())
        await probe.seen("waiting")

        await grave.abort()

        with pytest.raises(SapwoodError, match="over"):
            await call
        await probe.seen("refused: over")
        await grave.make()
        way: list[tuple[type[Agent], str]] = [(Zombie, "z"), (Branch, "child")]
        child = cast(Branch, await world.get_agent(Grave, "g", sub=way))
        assert await child.notes() == []


async def test_a_stopped_app_says_so(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        app = world.app

    with pytest.raises(Unavailable, match="not running"):
        await root.notes()
    with pytest.raises(UsageError, match="not running"):
        await app.get_agent(Branch, "r")


async def test_an_app_cannot_be_started_twice(run: Run) -> None:
    async with run(Branch) as world:
        with pytest.raises(UsageError, match="already running"):
            await world.app.__aenter__()

        assert await (await world.get_agent(Branch, "r")).notes() == []


async def test_calls_under_way_when_the_app_stops_are_cancelled_and_told(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        call = asyncio.create_task(root.hang())
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        await world.restart()

        with pytest.raises(Unavailable):
            await call


class Plain(Agent):
    async def tables(self) -> list[str]:
        return [str(row["name"]) for row in self.sql("SELECT name FROM sqlite_master WHERE type = 'table'")]

    async def grow(self, depth: int) -> list[list[str]]:
        """Return the tables of a chain of sub-agents that do nothing else, the last one first."""
        below = await (await self.sub_agent(Plain, "p")).grow(depth - 1) if depth else []
        return [*below, await self.tables()]


@pytest.mark.promise("A-24")
async def test_what_an_agent_does_not_use_leaves_no_table_and_no_task(run: Run) -> None:
    async with run(Plain) as world:
        plain = await world.get_agent(Plain, "p")
        tasks = len(asyncio.all_tasks())

        last, *above = await plain.grow(3)
        await world.settled()

        children = {"sapwood_children", "sapwood_children_count", "sqlite_sequence"}
        assert last == ["sapwood_migrations"]
        more = [set(one) - {"sapwood_migrations", *children} for one in above]
        assert more == [set(), set(), {"sapwood_ledger"}]  # the root counts the agents of its tree
        assert len(asyncio.all_tasks()) <= tasks
