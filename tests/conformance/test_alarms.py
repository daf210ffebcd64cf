"""Alarms: who has to be woken is known without looking at those who sleep, and survives whatever is lost."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.planners import AT_ONCE, NAMES, Planner, address, found, planner, time_of
from tests.conformance.runtimes import running
from tests.conformance.worlds import Probe, Run, happens, until
from tests.machine import patience

from sapwood import After, Agent, App, Every, Limits, NotFound, Settings, Unavailable, agent
from sapwood.kernel.alarms.index_file import FILE
from sapwood.testing import World
from sapwood.types import Address

DEPTHS = pytest.mark.parametrize("depth", range(4))


def opened(world: World) -> list[str]:
    """Return the roots whose tree somebody has looked at in this life."""
    return sorted(root.name for root in world.node.trees)


def entries(world: World, name: str = "root") -> list[tuple[str, float]]:
    """Return what the index of a tree says: who is due, and when."""
    return world.node.loader.tree(Address.root_of("Planner", name)).alarms.due(float("inf"), (-float("inf"), ""), 100)


async def test_a_restart_opens_the_trees_that_are_due_and_no_other(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        for name in ("a", "b", "c", "d"):
            owner = await planner(world, 2, name=name)
            await owner.after({"a": 10, "b": 20, "c": 10_000, "d": 10}[name], "later")
        await (await planner(world, name="idle")).note("nothing to do")
        await world.crash()
        probe.log.clear()

        await world.clock.advance(0)
        assert opened(world) == []
        await world.clock.advance(timedelta(seconds=15))

        assert opened(world) == ["a", "d"]
        assert sorted(probe.log) == ["grandchild: later"] * 2 + ["start grandchild"] * 2
        await world.clock.advance(timedelta(seconds=5))
        assert opened(world) == ["a", "b", "d"]


@pytest.mark.promise("A-24", "B-8")
@DEPTHS
async def test_no_other_agent_is_started_for_an_alarm(run: Run, probe: Probe, depth: int) -> None:
    async with run(Planner, deps=probe) as world:
        await planner(world, 3)
        await (await found(world, depth)).after(10, "later")
        world.sleep()
        probe.log.clear()

        await world.clock.advance(timedelta(seconds=10))

        name = ("root", *NAMES)[depth]
        assert probe.log == [f"start {name}", f"{name}: later"]


@pytest.mark.promise("A-39")
@DEPTHS
async def test_an_agent_knows_who_it_is_when_an_alarm_wakes_it_after_a_restart(
    run: Run, probe: Probe, depth: int
) -> None:
    async with run(Knowing, deps=probe) as world:
        root = await world.get_agent(Knowing, "root")
        await root.plan(*NAMES[:depth])
        await world.crash()

        await world.clock.advance(timedelta(seconds=1))

        steps = [f"Knowing:{name}" for name in ("root", *NAMES)[: depth + 1]]
        assert probe.log == [f"start {steps[-1]}", f"{'/'.join(steps)}, parents {'/'.join(steps[:-1])}, Probe"]


class Knowing(Agent):
    deps: Probe

    async def on_start(self) -> None:
        if "ready" in self.deps.log:
            self.deps.log.append(f"start Knowing:{self.name}")

    async def plan(self, *below: str) -> None:
        if below:
            await (await self.sub_agent(Knowing, below[0])).plan(*below[1:])
        else:
            self.schedule(timedelta(seconds=1), self.say)
            self.deps.log[:] = ["ready"]

    async def say(self) -> None:
        parents = "/".join(f"{step.type}:{step.name}" for step in self.address.segments[:-1])
        self.deps.log.append(f"{self.address}, parents {parents}, {type(self.deps).__name__}")
        self.deps.log.remove("ready")


async def test_one_alarm_of_a_tree_wakes_whoever_of_it_is_due(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        await planner(world, 3)
        for depth, seconds in ((0, 30), (1, 10), (2, 20), (3, 10)):
            await (await found(world, depth)).after(seconds, str(depth))
        await world.clock.advance(0)
        assert [root for root, _ in node_rows(world)] == [address()]
        await world.crash()

        seen: list[list[str]] = []
        for _ in range(3):
            probe.log.clear()
            await world.clock.advance(timedelta(seconds=10))
            seen.append(sorted(entry for entry in probe.log if not entry.startswith("start")))

        assert seen == [["child: 1", "great-grandchild: 3"], ["grandchild: 2"], ["root: 0"]]


def node_rows(world: World) -> list[tuple[Address, float | None]]:
    """Return what the node's index says: which tree is due, and when."""
    found = {root: world.node.alarms.stored(root) for root in (address(name=name) for name in ("root", "a", "b"))}
    return [(root, row[0]) for root, row in found.items() if row is not None]


async def test_the_indexes_say_when_the_earliest_thing_is_due_and_nothing_once_all_is_done(
    run: Run, probe: Probe
) -> None:
    async with run(Planner, deps=probe) as world:
        child, root = await planner(world, 1), await planner(world)
        late = await child.after(100, "late")
        soon = await child.after(10, "soon")
        await root.after(50, "between")
        await world.clock.advance(0)
        assert entries(world) == [(str(address(1)), world.clock.now() + 10), (str(address()), world.clock.now() + 50)]
        assert node_rows(world) == [(address(), world.clock.now() + 10)]

        await child.cancel(soon)
        await world.clock.advance(0)
        assert entries(world) == [(str(address()), world.clock.now() + 50), (str(address(1)), world.clock.now() + 100)]
        assert node_rows(world) == [(address(), world.clock.now() + 50)]

        await child.cancel(late)
        await world.clock.advance(timedelta(seconds=50))
        assert entries(world) == []
        assert node_rows(world) == []


@pytest.mark.promise("A-93", "CF-21", "CF-22")
@pytest.mark.parametrize("awake", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_the_schedules_of_a_deleted_agent_and_of_all_below_it_never_happen(
    run: Run, probe: Probe, depth: int, awake: bool
) -> None:
    async with run(Planner, deps=probe) as world:
        await planner(world, 3)
        for each in range(4):
            one = await found(world, each)
            await one.after(10, "once")
            await one.every(10, "tick")
            await one.after(10, "x", method="slowly")
        if not awake:
            world.sleep()

        await (await found(world, depth - 1)).cut(NAMES[depth - 1])
        await world.clock.advance(timedelta(seconds=10))
        await world.crash()
        await world.clock.advance(timedelta(seconds=10))

        living = {"root", *NAMES[: depth - 1]}
        assert {entry.split()[0].rstrip(":") for entry in probe.log if entry.endswith(("once", "tick", "x"))} == living
        assert {Address.parse(owner).name for owner, _ in entries(world)} <= living
        with pytest.raises(NotFound):
            await found(world, depth)


@pytest.mark.promise("CF-24")
@pytest.mark.parametrize("depth", [1, 2])
async def test_destroy_in_a_child_clears_its_schedules_those_below_it_and_its_parent_s_entry(
    run: Run, probe: Probe, depth: int
) -> None:
    async with run(Planner, deps=probe) as world:
        await planner(world, 3)
        for each in range(4):
            await (await found(world, each)).every(10, "tick")

        await (await found(world, depth)).end()
        await until(lambda: len(entries(world)) == depth)
        await world.clock.advance(timedelta(seconds=10))

        assert {entry for entry in probe.log if "tick" in entry} == {f"{n}: tick" for n in ("root", *NAMES)[:depth]}
        with pytest.raises(NotFound):
            await found(world, depth)


async def test_an_agent_made_again_under_the_name_of_a_deleted_one_has_none_of_its_schedules(
    run: Run, probe: Probe
) -> None:
    async with run(Planner, deps=probe) as world:
        child, root = await planner(world, 1), await planner(world)
        booked = await child.after(10, "old")
        await root.cut("child")
        child = await planner(world, 1)
        await child.after(20, "new")

        assert not await child.cancel(booked)
        await world.clock.advance(timedelta(seconds=20))

        assert await child.notes() == ["new"]


@pytest.mark.promise("CF-46")
async def test_an_entry_whose_owner_is_gone_is_removed_without_harm(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        root = await planner(world, 0)
        await root.after(10, "mine")
        await world.clock.advance(0)
        tree = world.node.loader.tree(address())
        for depth in (1, 2):
            tree.alarms.earlier(address(depth), tree.root, world.clock.now() + 10, 0)

        await world.clock.advance(timedelta(seconds=10))

        assert await root.notes() == ["mine"]
        assert entries(world) == []
        assert node_rows(world) == []


@pytest.mark.promise("CF-46")
async def test_a_tree_that_is_gone_is_removed_from_the_index_of_the_node(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        world.node.alarms.earlier(address(name="a"), world.clock.now() + 10, 0)

        await world.clock.advance(timedelta(seconds=10))

        assert node_rows(world) == []


@pytest.mark.promise("B-8")
@pytest.mark.parametrize("cannot", [0, 1])
async def test_a_parent_that_cannot_start_holds_up_nobody_below_it(run: Run, probe: Probe, cannot: int) -> None:
    async with run(Planner, deps=probe) as world:
        await (await planner(world, 2)).every(10, "tick")
        probe.log.append(f"{('root', *NAMES)[cannot]} cannot start")
        await world.crash()

        await world.clock.advance(timedelta(seconds=10))
        world.sleep()
        await world.clock.advance(timedelta(seconds=10))

        assert probe.log.count("grandchild: tick") == 2


async def test_an_agent_that_cannot_start_is_tried_again_later_and_later_and_its_siblings_are_woken(
    run: Run, probe: Probe
) -> None:
    async with run(Planner, deps=probe) as world:
        root = await planner(world)
        for name in ("a", "b"):
            await root.grow(name)
            await (await world.get_agent(Planner, "root", sub=[(Planner, name)])).every(10, "tick")
        probe.log.append("a cannot start")
        await world.crash()
        before = probe.log.count("start a")

        await world.clock.advance(timedelta(seconds=10 + 60))
        tried = probe.log.count("start a") - before
        probe.log.remove("a cannot start")
        await world.clock.advance(timedelta(seconds=64))

        assert probe.log.count("b: tick") == 13
        assert tried == 6  # after 0, 1, 3, 7, 15 and 31 seconds
        assert "a: tick" in probe.log


async def test_an_agent_that_somebody_else_got_to_start_is_woken_by_its_alarm_at_once(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        await (await planner(world, 1)).after(10, "later")
        probe.log.append("child cannot start")
        await world.crash()
        await world.clock.advance(timedelta(minutes=20))
        probe.log.remove("child cannot start")

        await found(world, 1)
        await world.clock.advance(0)

        assert "child: later" in probe.log


class Lonely(Agent):
    """Looks for somebody in its on_start who is not there."""

    deps: Probe

    async def on_start(self) -> None:
        if "gone" in self.deps.log:
            await self.get_agent(Lonely, "root", sub=[(Lonely, "nobody")])
        if "own words" in self.deps.log:
            raise NotFound

    async def plan(self) -> None:
        self.schedule(timedelta(seconds=1), self.say)

    async def make(self) -> None:
        await (await self.sub_agent(Lonely, "child")).plan()

    async def say(self) -> None:
        self.deps.log.append("said")


@pytest.mark.parametrize("why", ["gone", "own words"])
async def test_an_on_start_that_does_not_find_somebody_else_loses_no_schedule(run: Run, probe: Probe, why: str) -> None:
    async with run(Lonely, deps=probe) as world:
        await (await world.get_agent(Lonely, "root")).make()
        probe.log.append(why)
        await world.crash()
        await world.clock.advance(timedelta(seconds=1))
        probe.log.clear()

        await world.clock.advance(timedelta(seconds=5))

        assert probe.log == ["said"]


class AlarmedElm(Agent):
    """Has another name tomorrow."""

    deps: Probe

    async def plan(self, child: bool) -> None:
        if child:
            await (await self.sub_agent(AlarmedTwig, "t")).plan()
        else:
            self.schedule(Every(timedelta(seconds=10), key="k"), self.say)

    async def say(self) -> None:
        self.deps.log.append(str(self.address))


class AlarmedTwig(Agent):
    deps: Probe

    async def plan(self) -> None:
        self.schedule(Every(timedelta(seconds=10), key="k"), self.say)

    async def say(self) -> None:
        self.deps.log.append(str(self.address))


@contextlib.contextmanager
def renamed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the classes known under new type ids, as after a deploy of a program with other names."""
    from sapwood.kernel.marshal.agent_class import known

    with monkeypatch.context() as changed:
        for cls, new in ((AlarmedElm, "Ulmus"), (AlarmedTwig, "Ramus")):
            kind = known(cls)
            changed.setattr(kind, "type", kind.type)
            changed.setattr(kind, "aliases", kind.aliases)
            agent(type=new, aliases=(cls.__name__,))(cls)
        yield


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("child", [False, True])
async def test_a_renamed_class_is_woken_under_its_new_name_and_loses_no_schedule(
    run: Run, probe: Probe, monkeypatch: pytest.MonkeyPatch, child: bool, lost: bool
) -> None:
    async with run(AlarmedElm, deps=probe) as world:
        await (await world.get_agent(AlarmedElm, "e")).plan(child)
        await world.app.__aexit__()
        if lost:
            remove_index(world)
        with renamed(monkeypatch):
            await world.start()

            await world.clock.advance(timedelta(seconds=20))
            await world.crash()
            await world.clock.advance(timedelta(seconds=10))

            assert probe.log == ["Ulmus:e/Ramus:t" if child else "Ulmus:e"] * 3
            tree = world.node.loader.tree(Address.root_of("Ulmus", "e"))
            assert [owner for owner, _ in tree.alarms.due(float("inf"), (-1.0, ""), 9)] == probe.log[:1]
            assert world.node.alarms.stored(Address.root_of("AlarmedElm", "e")) is None
            await world.app.__aexit__()
        probe.log.clear()
        await world.start()


def remove_index(world: World) -> None:
    for file in world.data.glob(f"{FILE}*"):
        file.unlink()


@pytest.mark.promise("CF-187")
@DEPTHS
async def test_the_index_of_the_node_is_made_again_if_it_is_lost(run: Run, probe: Probe, depth: int) -> None:
    async with run(Planner, deps=probe) as world:
        for name, seconds in (("root", 10), ("a", 20), ("b", 10_000)):
            await (await planner(world, depth, name=name)).after(seconds, f"of {name}")
        await (await found(world)).after(1, "x", method="fail")
        await world.clock.advance(timedelta(seconds=1))
        await world.app.__aexit__()
        remove_index(world)
        await world.start()
        probe.log.clear()

        await world.clock.advance(timedelta(seconds=20))

        own = ("root", *NAMES)[depth]
        assert [entry for entry in probe.log if "of" in entry] == (
            ["root: of root", "a: of a"] if depth == 0 else [f"{own}: of root", f"{own}: of a"]
        )
        assert world.node.alarms.with_dead_letters() == [(address(), 1)]
        await world.crash()
        await world.clock.advance(0)
        assert opened(world) == []  # it is whole again: nobody has to be asked


@pytest.mark.promise("CF-187")
async def test_an_index_that_was_half_made_when_the_process_died_is_made_again(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        for name in ("root", "a", "b"):
            await (await planner(world, name=name)).after(10, f"of {name}")
        await world.app.__aexit__()
        for nth in (1, 2, 3):
            remove_index(world)
            await world.start()
            world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                await world.clock.advance(0)
            await world.crash()
            await world.clock.advance(0)
            await world.app.__aexit__()
        await world.start()

        await world.clock.advance(timedelta(seconds=10))

        assert sorted(entry for entry in probe.log if "of" in entry) == ["a: of a", "b: of b", "root: of root"]


@pytest.mark.slow
async def test_what_a_restored_tree_has_to_do_happens(run: Run, probe: Probe, tmp_path: Path) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 2)
        await owner.after(10, "kept")
        await world.app.backup(tmp_path / "copy")
        await owner.after(5, "not in the backup")
        await world.clock.advance(timedelta(seconds=20))
        await (await found(world)).end()
        await world.clock.advance(0)
        probe.log.clear()

        await world.app.restore(tmp_path / "copy")
        await world.clock.advance(0)

        assert [entry for entry in probe.log if "start" not in entry] == ["grandchild: kept"]
        await world.crash()
        await world.clock.advance(timedelta(hours=1))
        assert await (await found(world, 2)).notes() == ["kept"]


@pytest.mark.slow
async def test_a_backup_opened_elsewhere_does_what_is_due(run: Run, probe: Probe, tmp_path: Path) -> None:
    async with run(Planner, deps=probe) as world:
        await (await planner(world, 2)).after(10, "kept")
        await world.app.backup(tmp_path / "copy")
    probe.log.clear()

    async with running(App(agents=[Planner], deps=probe), slow_slices="allow", data=str(tmp_path / "copy")) as world:
        await world.clock.advance(timedelta(seconds=10))

        assert probe.log == ["start grandchild", "grandchild: kept"]


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1, 3])
async def test_a_crash_in_the_middle_of_scheduling_keeps_what_was_acknowledged(
    run: Run, probe: Probe, depth: int
) -> None:
    for nth in range(1, 12):
        async with run(Planner, deps=probe) as world:
            probe.log.clear()
            owner = await planner(world, depth)
            acknowledged: list[str] = []
            world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                for number in range(3):
                    await owner.after(10 - number, str(number))
                    acknowledged.append(str(number))
            await world.crash()

            await world.clock.advance(timedelta(seconds=10))

            done = [entry.rpartition(" ")[2] for entry in probe.log if "start" not in entry]
            assert set(acknowledged) <= set(done)
            assert len(set(done)) == len(done)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1, 3])
async def test_a_crash_in_the_middle_of_a_call_neither_loses_nor_doubles_it(run: Run, probe: Probe, depth: int) -> None:
    for nth in range(1, 10):
        async with run(Planner, deps=probe) as world:
            owner = await planner(world, depth)
            await owner.after(10, "once")
            await owner.every(10, "tick")
            await owner.put("queued")
            world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                await world.clock.advance(timedelta(seconds=10))
            await world.crash()

            await world.clock.advance(timedelta(seconds=10))

            notes = await (await found(world, depth)).notes()
            assert notes.count("once") == notes.count("queued") == 1
            assert notes.count("tick") in (1, 2)


async def test_a_clock_that_is_set_back_delays_and_one_that_is_set_forward_hastens(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 1)
        await owner.after(3600, "later")
        world.clock.jump(time_of(world, -3600))
        await world.crash()
        await world.clock.advance(timedelta(seconds=3600))
        assert "child: later" not in probe.log

        world.clock.jump(time_of(world, 86400))
        await world.crash()
        await world.clock.advance(0)

        assert probe.log.count("child: later") == 1
        world.clock.jump(time_of(world, -86400))
        await world.crash()
        await world.clock.advance(timedelta(days=2))
        assert probe.log.count("child: later") == 1


async def test_a_repeating_call_goes_on_after_the_clock_was_set_back(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 1)
        await owner.every(60, "tick")
        await owner.cron("* * * * *", "minute")
        await world.clock.advance(timedelta(minutes=1))
        world.clock.jump(time_of(world, -3600))
        await world.crash()

        await world.clock.advance(timedelta(minutes=63))

        notes = await (await found(world, 1)).notes()
        assert notes.count("tick") >= 3
        assert notes.count("minute") >= 3


async def test_a_sleeping_tree_stays_asleep_until_it_is_due_and_may_sleep_again(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        await (await planner(world, 3)).every(10, "tick")
        world.sleep()
        assert opened(world) == []

        for _ in range(3):
            await world.clock.advance(timedelta(seconds=9))
            assert opened(world) == []
            await world.clock.advance(timedelta(seconds=1))
            assert opened(world) == ["root"]
            world.sleep()
            assert opened(world) == []

        assert probe.log.count("great-grandchild: tick") == 3


@pytest.mark.slow
async def test_many_agents_of_one_tree_with_much_to_do_at_once_are_all_served(probe: Probe) -> None:
    async with running(App(agents=[Hive], deps=probe), slow_slices="allow") as world:
        hive = await world.get_agent(Hive, "h")
        await hive.fill(450, 250)

        await world.clock.advance(timedelta(seconds=1))
        for _ in range(100):
            await world.settled()
            if len(probe.log) == 450 + 2 * 249:
                break

        assert len(probe.log) == 450 + 2 * 249


class Hive(Agent):
    deps: Probe

    async def fill(self, bees: int, calls: int) -> None:
        for number in range(bees):
            # The first and the last of them have more to do than is begun at once.
            await (await self.sub_agent(Bee, f"{number:04}")).plan(calls if number in (0, bees - 1) else 1)


class Bee(Agent):
    deps: Probe

    async def plan(self, calls: int) -> None:
        for number in range(calls):
            self.schedule(After(timedelta(seconds=1), retry=AT_ONCE), self.work, number)

    async def work(self, number: int) -> None:
        self.deps.log.append(f"{self.name} {number}")


async def test_an_agent_whose_database_is_full_goes_on_once_there_is_room(run: Run, probe: Probe) -> None:
    async with run(Full, deps=probe) as world:
        full = await world.get_agent(Full, "f")
        await full.plan()
        await full.fill()

        await world.clock.advance(timedelta(seconds=10))
        await full.clear()
        probe.log.clear()
        await world.clock.advance(timedelta(seconds=10))

        assert "tick" in probe.log


class Full(Agent):
    migrations = ("CREATE TABLE junk (data BLOB NOT NULL) STRICT",)
    limits = Limits(database_bytes=300_000)
    deps: Probe

    async def plan(self) -> None:
        self.schedule(Every(timedelta(seconds=1)), self.tick)

    async def tick(self) -> None:
        self.sql("INSERT INTO junk VALUES (zeroblob(10))")
        self.deps.log.append("tick")

    async def fill(self) -> None:
        with contextlib.suppress(Exception):
            while True:
                self.sql("INSERT INTO junk VALUES (zeroblob(3000))")
                await asyncio.sleep(0)

    async def clear(self) -> None:
        self.sql("DELETE FROM junk")


@pytest.mark.slow
@pytest.mark.realtime("about the system's clock, and the timers that are set by it")
async def test_in_real_time_a_sleeping_child_is_woken_after_the_process_was_replaced(
    tmp_path: Path, probe: Probe
) -> None:
    settings = Settings(data=tmp_path, durability="disk")
    async with App(agents=[Planner], deps=probe, settings=settings) as app:
        root = await app.get_agent(Planner, "root")
        await root.grow("child", "grandchild")
        child = await app.get_agent(Planner, "root", sub=((Planner, "child"), (Planner, "grandchild")))
        await child.after(2, "later")
    assert "grandchild: later" not in probe.log, "the first app took so long to end that it rang there"
    probe.log.clear()

    async with App(agents=[Planner], deps=probe, settings=settings), asyncio.timeout(patience()):
        await happens(lambda: "grandchild: later" in probe.log)

    assert probe.log == ["start grandchild", "grandchild: later"]
