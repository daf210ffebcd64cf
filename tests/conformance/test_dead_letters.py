"""Dead letters: calls that were given up are kept, with the reason, until somebody replays or deletes them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from tests.conformance.planners import AT_ONCE, NAMES, Planner, address, found, planner, time_of
from tests.conformance.worlds import Probe, Run

from sapwood import Agent, Retry, Unavailable

DEPTHS = pytest.mark.parametrize("depth", range(4))


@pytest.mark.promise("A-24", "CF-189")
@DEPTHS
async def test_a_call_that_fails_too_often_becomes_a_dead_letter_of_its_agent(
    run: Run, probe: Probe, depth: int
) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, depth)
        await owner.after(1, "scheduled", method="fail", retry=AT_ONCE)
        await owner.put("queued", method="fail", retry=AT_ONCE)

        await world.clock.advance(timedelta(seconds=1))
        await world.crash()

        owner = await found(world, depth)
        assert await owner.dead() == [("queued", "crashed", 3, 1), ("scheduled", "crashed", 3, 1)]
        assert await owner.notes() == []
        assert await owner.planned() == await owner.queued() == []
        for above in range(depth):
            assert await (await found(world, above)).dead() == []
        assert world.node.alarms.with_dead_letters() == [(address(), 1)]
        tree = world.node.trees[address()]
        assert tree.alarms.with_dead_letters() == [(address(depth), 1)]


@pytest.mark.parametrize("nth", range(1, 7))
async def test_of_an_agent_whose_deletion_a_crash_interrupted_no_dead_letters_are_listed(
    run: Run, probe: Probe, nth: int
) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 2)
        await owner.put("queued", method="fail", retry=AT_ONCE)
        await world.settled()
        assert world.node.trees[address()].alarms.with_dead_letters() == [(address(2), 1)]

        world.crash_at("committed", nth)
        with suppress(Unavailable):
            await (await found(world)).cut("child")
        await world.crash()

        await (await found(world)).cut("child")
        await world.settled()
        assert world.node.trees[address()].alarms.with_dead_letters() == []
        assert world.node.alarms.with_dead_letters() == []


class Careless(Agent):
    async def plan(self) -> None:
        self.schedule(timedelta(seconds=1), self.divide, 1, by=0)

    async def divide(self, number: int, *, by: int) -> None:
        raise ZeroDivisionError("one may not") if not by else AssertionError

    async def check(self) -> list[str]:
        (letter,) = self.dead_letters.list()
        assert letter.method == "divide"
        assert letter.arguments == {"number": 1, "by": 0}
        assert letter.code == "crashed"
        assert (letter.attempts, letter.occurrences) == (3, 1)
        return [letter.error, letter.failed_at.isoformat()]


async def test_a_dead_letter_says_what_was_called_how_often_and_why_it_was_given_up(run: Run) -> None:
    async with run(Careless) as world:
        careless = await world.get_agent(Careless, "c")
        await careless.plan()

        await world.clock.advance(timedelta(seconds=10))

        error, failed_at = await careless.check()
        assert error == "ZeroDivisionError: one may not"
        assert time_of(world, -9).isoformat() <= failed_at <= time_of(world).isoformat()


@DEPTHS
async def test_a_dead_letter_that_is_replayed_is_called_once_more_and_gone(run: Run, probe: Probe, depth: int) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, depth)
        await owner.after(1, "x", method="fail")
        await world.clock.advance(timedelta(seconds=1))
        (letter,) = await owner.dead_ids()
        probe.log.append("x works")

        assert await owner.replay(letter)
        assert not await owner.replay(letter)
        await world.clock.advance(0)

        assert await owner.notes() == ["x"]
        assert await owner.dead() == []
        assert world.node.alarms.with_dead_letters() == []
        assert world.node.alarms.stored(address()) is None


async def test_a_replayed_call_that_fails_again_is_a_dead_letter_again(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world)
        await owner.after(1, "x", method="fail", retry=AT_ONCE)
        await owner.put("y", method="fail", queue="z")
        await world.clock.advance(timedelta(seconds=1))

        for letter in await owner.dead_ids():
            await owner.replay(letter)
        await world.clock.advance(0)

        assert probe.log.count("root tries x") == 6
        assert sorted(await owner.dead()) == [("x", "crashed", 3, 1), ("y", "crashed", 1, 1)]


async def test_a_queued_call_is_replayed_behind_what_is_in_its_lane_now(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world)
        await owner.put("x", method="fail", queue="a")
        await world.clock.advance(0)
        await owner.put("stuck", method="slowly", queue="a")
        await world.clock.advance(0)
        probe.log.append("x works")

        await owner.replay((await owner.dead_ids())[0])
        await world.clock.advance(0)
        assert await owner.queued("a") == ["stuck", "x"]
        probe.go.set()
        await world.clock.advance(0)

        assert await owner.notes() == ["stuck", "x"]


async def test_a_deleted_dead_letter_is_gone(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 1)
        await owner.after(1, "x", method="fail")
        await world.clock.advance(timedelta(seconds=1))
        (letter,) = await owner.dead_ids()

        assert await owner.forget(letter)
        assert not await owner.forget(letter)
        await world.clock.advance(timedelta(hours=1))

        assert probe.log.count("child tries x") == 1
        assert await owner.dead() == []
        assert world.node.alarms.with_dead_letters() == []


async def test_nobody_replays_or_deletes_the_dead_letters_of_another(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        child, root = await planner(world, 1), await planner(world)
        for one in (child, root):
            await one.after(1, "x", method="fail")
        await world.clock.advance(timedelta(seconds=1))
        (letter,) = await child.dead_ids()

        assert not await root.forget(letter)
        assert not await root.replay(letter)
        assert not await root.replay("nobody")

        assert len(await child.dead()) == len(await root.dead()) == 1


@pytest.mark.promise("CF-188")
async def test_a_repeating_call_has_one_dead_letter_that_counts(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 1)
        await owner.every(10, "tick", method="fail", retry=AT_ONCE)

        await world.clock.advance(timedelta(seconds=30))
        assert await owner.dead() == [("tick", "crashed", 3, 3)]
        probe.log.append("tick works")
        await owner.replay((await owner.dead_ids())[0])
        await world.clock.advance(timedelta(seconds=10))

        assert await owner.notes() == ["tick", "tick"]
        assert await owner.dead() == []
        assert await owner.planned() == ["tick"]


class Changing(Agent):
    """Its methods change while calls of them wait."""

    deps: Probe

    async def plan(self) -> None:
        self.schedule(timedelta(seconds=1), self.act, "x")

    async def plan_again(self) -> None:
        self.enqueue(self.act, "x")

    async def act(self, text: str) -> None:
        self.deps.log.append(text)

    async def dead(self) -> list[tuple[str, str, int]]:
        return [(letter.code, letter.error, letter.attempts) for letter in self.dead_letters.list()]

    async def replay(self) -> None:
        for letter in self.dead_letters.list():
            self.dead_letters.replay(letter.id)


async def _other_argument(self: Changing, words: str) -> None:
    raise AssertionError


async def _other_type(self: Changing, text: int) -> None:
    raise AssertionError


async def _more_arguments(self: Changing, text: str, how: str) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (None, "no method 'act'"),
        (_other_argument, "words"),
        (_other_type, "int"),
        (_more_arguments, "'how' that the stored call lacks"),
    ],
)
async def test_a_stored_call_that_no_longer_fits_the_program_is_a_dead_letter_and_can_be_replayed_when_it_does(
    run: Run, probe: Probe, monkeypatch: pytest.MonkeyPatch, now: Callable[..., Any] | None, message: str
) -> None:
    async with run(Changing, deps=probe) as world:
        await (await world.get_agent(Changing, "c")).plan()
        with monkeypatch.context() as changed:
            change(changed, now)

            await world.clock.advance(timedelta(seconds=1))

            changing = await world.get_agent(Changing, "c")
            ((code, error, attempts),) = await changing.dead()
            assert (code, attempts) == ("signature_changed", 0)
            assert message in error
        await world.restart()
        changing = await world.get_agent(Changing, "c")
        await changing.replay()
        await world.clock.advance(0)

        assert probe.log == ["x"]
        assert await changing.dead() == []


def change(changed: pytest.MonkeyPatch, now: Callable[..., Any] | None) -> None:
    """Have `act` be something else, as after a deploy."""
    from sapwood.kernel.marshal.agent_class import Method, known

    kind = known(Changing)
    changed.setattr(kind, "methods", dict(kind.methods))
    del kind.methods["act"]
    if now is None:
        changed.delattr(Changing, "act")
    else:
        changed.setattr(Changing, "act", now)
        kind.methods["act"] = Method("Changing", "act", now, {})


async def test_a_new_argument_with_a_default_fits_what_was_stored_without_it(
    run: Run, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(self: Changing, text: str, how: str = "well") -> None:
        self.deps.log.append(f"{text} {how}")

    async with run(Changing, deps=probe) as world:
        await (await world.get_agent(Changing, "c")).plan()
        change(monkeypatch, act)

        await world.clock.advance(timedelta(seconds=1))

        assert probe.log == ["x well"]


@pytest.mark.promise("CF-189")
@pytest.mark.parametrize(("depth", "queued"), [(0, False), (2, True)])
async def test_a_call_that_ends_the_process_again_and_again_is_given_up(
    run: Run, probe: Probe, depth: int, queued: bool
) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, depth)
        if queued:
            await owner.put("deadly", method="slowly")
            await owner.put("behind it")
        else:
            await owner.after(1, "deadly", method="slowly")
            await owner.after(1, "behind it")
        name = ("root", *NAMES)[depth]

        await world.clock.advance(timedelta(seconds=1))
        for _ in range(6):
            await world.crash()
            await world.clock.advance(0)
        called = probe.log.count(f"{name} begins deadly")
        await world.crash()
        await world.clock.advance(timedelta(hours=1))

        owner = await found(world, depth)
        assert called == probe.log.count(f"{name} begins deadly") in (5, 6)
        assert await owner.dead() == [("deadly", "abandoned", 5, 1)]
        assert await owner.notes() == ["behind it"]


@pytest.mark.promise("CF-189")
async def test_a_call_that_failed_once_and_then_ends_the_process_is_given_up_too(run: Run, probe: Probe) -> None:
    async with run(Deadly, deps=probe) as world:
        await (await world.get_agent(Deadly, "d")).plan()
        await world.clock.advance(timedelta(seconds=2))
        for _ in range(7):
            await world.crash()
            await world.clock.advance(0)

        deadly = await world.get_agent(Deadly, "d")
        assert await deadly.codes() == ["abandoned"]
        assert probe.log.count("called") <= 8


class Deadly(Agent):
    """Raises at first, and then hangs until the process is killed."""

    deps: Probe

    async def plan(self) -> None:
        self.schedule(timedelta(seconds=1), self.work)

    async def work(self) -> None:
        self.deps.log.append("called")
        if len(self.deps.log) == 1:
            raise RuntimeError("only this once")
        await self.deps.go.wait()

    async def codes(self) -> list[str]:
        return [letter.code for letter in self.dead_letters.list()]


async def test_a_call_that_often_waits_for_its_next_attempt_while_the_process_ends_is_not_taken_for_a_deadly_one(
    run: Run, probe: Probe
) -> None:
    retry = Retry(max_attempts=20, initial_delay=timedelta(seconds=5), max_delay=timedelta(seconds=5))
    async with run(Planner, deps=probe) as world:
        owner = await planner(world)
        await owner.after(1, "x", method="fail", retry=retry)
        await world.clock.advance(timedelta(seconds=1))
        for _ in range(12):
            await world.crash()
            world.clock.jump(time_of(world, 5))
            await world.crash()
            await world.clock.advance(0)

        owner = await found(world)
        assert await owner.dead() == []
        assert await owner.planned() == ["x"]


async def test_deleting_an_agent_deletes_its_dead_letters(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        root, child = await planner(world), await planner(world, 1)
        await child.after(1, "x", method="fail")
        await world.clock.advance(timedelta(seconds=1))
        assert world.node.alarms.with_dead_letters() == [(address(), 1)]

        await root.cut("child")
        await world.crash()
        await world.clock.advance(timedelta(seconds=1))
        await root_noticed(world)

        assert await (await planner(world, 1)).dead() == []
        assert world.node.alarms.with_dead_letters() == []


async def root_noticed(world: Any) -> None:
    """Let the root do something by the clock, so that what is said of its tree is brought up to date."""
    root = await found(world)
    await root.after(1, "noticed")
    await world.clock.advance(timedelta(seconds=1))
