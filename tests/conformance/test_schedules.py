"""Schedules: a call of the agent itself, later; it happens in that agent, at its time, however deep it lives."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pydantic
import pytest
from tests.conformance.planners import AT_ONCE, NAMES, Planner, found, planner, time_of
from tests.conformance.served import served
from tests.conformance.worlds import Probe, Run, happens
from tests.machine import patience

from sapwood import After, Agent, App, At, Connection, Cron, Every, Retry, Settings
from sapwood.errors import InvalidArguments, NotCopyable, UsageError
from sapwood.types import Address

pytestmark = pytest.mark.storage

DEPTHS = pytest.mark.parametrize("depth", range(4))


@pytest.mark.promise("A-24", "A-87", "A-89", "CF-41", "CF-47")
@DEPTHS
async def test_a_delayed_call_happens_at_its_time_in_the_agent_that_wished_it(
    run: Run, probe: Probe, depth: int
) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, depth)
        await owner.after(10, "later")

        await world.clock.advance(timedelta(seconds=9.9))
        before = await owner.notes()
        await world.clock.advance(timedelta(seconds=0.1))

        assert before == []
        assert await owner.notes() == ["later"]
        assert await owner.planned() == []
        assert [note for above in range(depth) for note in await (await found(world, above)).notes()] == []


@pytest.mark.promise("A-89", "CF-47", "CF-195")
@DEPTHS
async def test_it_happens_also_if_the_agent_slept_and_the_process_died_meanwhile(
    run: Run, probe: Probe, depth: int
) -> None:
    async with run(Planner, deps=probe) as world:
        await (await planner(world, depth)).after(10, "later")
        world.sleep()
        await world.crash()
        probe.log.clear()

        await world.clock.advance(timedelta(seconds=10))

        name = ("root", *NAMES)[depth]
        assert probe.log == [f"start {name}", f"{name}: later"]
        await world.clock.advance(timedelta(hours=1))
        assert probe.log == [f"start {name}", f"{name}: later"]


@pytest.mark.promise("A-87", "CF-42", "CF-187")
@DEPTHS
async def test_a_repeating_call_happens_again_and_again(run: Run, probe: Probe, depth: int) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, depth)
        booked = await owner.every(10, "tick")

        await world.clock.advance(timedelta(seconds=35))

        assert await owner.notes() == ["tick"] * 3
        assert await owner.due(booked) == time_of(world, 5)


@pytest.mark.promise("A-87", "CF-42", "CF-187")
@DEPTHS
async def test_a_cron_call_happens_at_the_times_of_its_expression(run: Run, probe: Probe, depth: int) -> None:
    async with run(Planner, deps=probe) as world:
        world.clock.jump(datetime(2026, 6, 1, 11, 58, tzinfo=UTC))
        owner = await planner(world, depth)
        booked = await owner.cron("0,30 14 * * *", "in Berlin", tz="Europe/Berlin")

        await world.clock.advance(timedelta(minutes=1))
        assert await owner.notes() == []
        await world.clock.advance(timedelta(minutes=1))
        assert await owner.notes() == ["in Berlin"]
        await world.clock.advance(timedelta(days=2))

        assert await owner.notes() == ["in Berlin"] * 5
        assert await owner.due(booked) == datetime(2026, 6, 3, 12, 30, tzinfo=UTC)


class Brief(Agent):
    """Wishes things in few words."""

    deps: Probe

    async def wish(self, now: datetime) -> list[datetime]:
        in_tokyo = (now + timedelta(seconds=7)).astimezone(timezone(timedelta(hours=9)))
        wishes = (timedelta(seconds=5), now + timedelta(seconds=6), At(in_tokyo), At(now - timedelta(days=1)))
        return [self.schedule(wish, self.say, str(number)).due_at for number, wish in enumerate(wishes)]

    async def say(self, text: str) -> None:
        self.deps.log.append(text)


@pytest.mark.promise("CF-187")
async def test_a_timedelta_and_a_datetime_say_when_as_well(run: Run, probe: Probe) -> None:
    async with run(Brief, deps=probe) as world:
        brief = await world.get_agent(Brief, "b")
        now = time_of(world)

        due = await brief.wish(now)

        assert due == [now + timedelta(seconds=seconds) for seconds in (5, 6, 7, -86400)]
        await world.clock.advance(timedelta(0))
        assert probe.log == ["3"]
        await world.clock.advance(timedelta(seconds=7))
        assert probe.log == ["3", "0", "1", "2"]


@pytest.mark.promise("CF-42")
async def test_however_many_intervals_were_missed_one_call_is_owed(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 1)
        booked = await owner.every(10, "tick")
        await owner.cron("* * * * *", "minute")
        await world.crash()
        world.clock.jump(time_of(world, 3605))
        await world.clock.advance(0)

        owner = await found(world, 1)
        assert sorted(await owner.notes()) == ["minute", "tick"]
        assert await owner.due(booked) == time_of(world, 5)


@pytest.mark.promise("CF-188")
async def test_a_call_that_takes_longer_than_its_interval_is_not_overtaken(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world)
        await owner.every(10, "tick", method="slowly")

        await world.clock.advance(timedelta(seconds=35))
        assert probe.log.count("root begins tick") == 1
        probe.go.set()
        await world.clock.advance(0)

        assert await owner.notes() == ["tick"]
        await world.clock.advance(timedelta(seconds=5))
        assert await owner.notes() == ["tick"] * 2


@pytest.mark.promise("CF-188")
async def test_a_repeating_call_survives_its_errors(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 2)
        await owner.every(10, "tick", method="fail")

        await world.clock.advance(timedelta(seconds=30))
        assert probe.log.count("grandchild tries tick") == 3
        probe.log.append("tick works")
        await world.clock.advance(timedelta(seconds=10))

        assert await owner.notes() == ["tick"]
        assert await owner.planned() == ["tick"]


async def test_a_repeating_call_keeps_its_beat_also_when_it_had_to_be_tried_again(run: Run, probe: Probe) -> None:
    retry = Retry(max_attempts=3, initial_delay=timedelta(seconds=2), max_delay=timedelta(seconds=2))
    async with run(Planner, deps=probe) as world:
        owner = await planner(world)
        booked = await owner.every(10, "tick", method="fail", retry=retry)
        begun = time_of(world)

        await world.clock.advance(timedelta(seconds=15))

        assert probe.log.count("root tries tick") == 3
        assert await owner.due(booked) == begun + timedelta(seconds=20)


@pytest.mark.promise("A-87", "A-91", "CF-43", "CF-187")
async def test_cancelling_forgets_a_schedule_by_its_id_or_its_key(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 1)
        booked = await owner.after(10, "one")
        await owner.after(10, "two", key="b")
        await owner.every(5, "three", key="c")
        await owner.after(10, "four")

        assert [await owner.cancel(one) for one in (booked, "b", "c")] == [True, True, True]
        assert [await owner.cancel(one) for one in (booked, "b", "c", "", "1-x", "nobody")] == [False] * 6
        await world.clock.advance(timedelta(hours=1))

        assert await owner.notes() == ["four"]


@pytest.mark.promise("A-90")
async def test_an_agent_sees_its_own_schedules_in_the_order_they_are_due(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        root, child = await planner(world), await planner(world, 1)
        await root.after(30, "third")
        await root.every(10, "first")
        await root.after(20, "second")
        await child.after(15, "mine")

        assert await root.planned() == ["first", "second", "third"]
        assert await child.planned() == ["mine"]


class Secretary(Agent):
    """Shows what it has planned."""

    async def plan(self) -> str:
        wish = Every(timedelta(minutes=1), key="calls", retry=Retry(max_attempts=7))
        planned = self.schedule(wish, self.call, "Ann", times=2)
        assert planned == self.schedules.get(planned.id) == self.schedules.get("calls")
        assert [planned] == self.schedules.list()
        assert planned.method == "call"
        assert planned.arguments == {"name": "Ann", "times": 2}
        assert planned.when == wish
        assert planned.due_at == planned.created_at + timedelta(minutes=1)
        assert (planned.failed, planned.error) == (0, None)
        return ", ".join(field.name for field in fields(planned))

    async def call(self, name: str, *, times: int = 1) -> None:
        pass


class Office(Agent):
    async def hire(self, name: str) -> str:
        return await (await self.sub_agent(Secretary, name)).plan()


@pytest.mark.promise("CF-43")
async def test_a_schedule_shows_what_was_wished_and_nothing_of_the_bookkeeping(run: Run) -> None:
    async with run(Office) as world:
        office = await world.get_agent(Office, "o")

        assert await office.hire("s") == "id, method, arguments, when, due_at, failed, error, created_at"


@pytest.mark.promise("A-90", "A-91", "CF-44")
async def test_nobody_reads_or_cancels_the_schedules_of_another(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        root = await planner(world)
        await root.grow("a")
        await root.grow("b")
        a = await world.get_agent(Planner, "root", sub=[(Planner, "a")])
        b = await world.get_agent(Planner, "root", sub=[(Planner, "b")])
        other = await planner(world, name="other")
        booked = await a.after(10, "mine", key="k")
        for stranger in (root, b, other):
            await stranger.after(10, "also mine", key="x")

        for stranger in (root, b, other):
            assert await stranger.due(booked) is None
            assert await stranger.due("k") is None
            assert not await stranger.cancel(booked)
            assert not await stranger.cancel("k")
            assert await stranger.planned() == ["also mine"]
        await world.clock.advance(timedelta(seconds=10))

        assert await a.notes() == ["mine"]


@pytest.mark.promise("CF-45")
async def test_the_same_call_scheduled_by_two_siblings_is_two_schedules(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        root = await planner(world)
        await root.grow("a")
        await root.grow("b")
        both = [await world.get_agent(Planner, "root", sub=[(Planner, name)]) for name in ("a", "b")]
        for one in (root, *both):
            await one.every(10, "tick", key="k")

        await world.clock.advance(timedelta(seconds=10))
        await both[0].cancel("k")
        await world.clock.advance(timedelta(seconds=10))

        assert [await one.notes() for one in (root, *both)] == [["tick"] * 2, ["tick"], ["tick"] * 2]


@pytest.mark.promise("CF-48")
async def test_slashes_and_wildcards_in_names_are_just_characters(run: Run, probe: Probe) -> None:
    names = ("a", "a/b", "a/Planner:b", "a%", "%", "_", "a_b", "axb", "a:b", "é", "..", "a0", "a-")
    async with run(Planner, deps=probe) as world:
        root = await planner(world)
        for name in names:
            await root.grow(name, "b")
            child = await world.get_agent(Planner, "root", sub=[(Planner, name)])
            below = await world.get_agent(Planner, "root", sub=[(Planner, name), (Planner, "b")])
            await child.after(10, f"of {name}")
            await below.after(10, f"below {name}")
        for name in ("a", "%", "_"):
            await root.cut(name)
        await world.crash()

        await world.clock.advance(timedelta(seconds=10))

        kept = [name for name in names if name not in ("a", "%", "_")]
        assert {entry for entry in probe.log if not entry.startswith("start")} == {
            *(f"{name}: of {name}" for name in kept),
            *(f"b: below {name}" for name in kept),
        }


@pytest.mark.promise("CF-187")
async def test_the_same_wish_under_a_key_changes_nothing_and_another_takes_its_place(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world)
        first = await owner.after(10, "one", key="k")
        await world.clock.advance(timedelta(seconds=5))

        assert await owner.after(10, "one", key="k") == first
        assert await owner.due(first) == time_of(world, 5)
        assert await owner.after(10, "two", key="k") != first
        assert await owner.due("k") == time_of(world, 10)
        await world.clock.advance(timedelta(hours=1))

        assert await owner.notes() == ["two"]
        await owner.after(10, "one", key="k")  # the key is free again
        await world.clock.advance(timedelta(seconds=10))
        assert await owner.notes() == ["two", "one"]


@pytest.mark.promise("CF-42")
async def test_without_a_key_a_repeating_wish_is_one_schedule_and_a_single_one_is_not(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world)
        for _ in range(3):
            await owner.every(10, "tick")
            await owner.cron("* * * * *", "minute")
            await owner.after(10, "once")
        await owner.every(10, "tock")
        await owner.every(20, "tick")

        assert sorted(await owner.planned()) == ["minute", "once", "once", "once", "tick", "tick", "tock"]


class Chain(Agent):
    """Schedules itself anew, always under one key."""

    deps: Probe

    async def begin(self) -> None:
        self.schedule(After(timedelta(seconds=1), key="chain"), self.link, 1)

    async def link(self, number: int) -> None:
        self.deps.log.append(str(number))
        if number < 5:
            self.schedule(After(timedelta(seconds=1), key="chain"), self.link, number + 1)

    async def begin_again(self, slow: bool) -> None:
        self.schedule(After(timedelta(seconds=1), key="again"), self.again, slow)

    async def again(self, slow: bool) -> None:
        """Wish the very same that is running now."""
        self.schedule(After(timedelta(seconds=1), key="again"), self.again, slow)
        if slow:
            await asyncio.sleep(0)
        self.deps.log.append("again")

    async def cancel_itself(self, key: str) -> None:
        self.deps.log.append(f"cancelled: {self.schedules.cancel(key)}, {self.schedules.cancel(key)}")
        if key == "slow":
            await asyncio.sleep(0)
        self.deps.log.append(f"{key} ends")

    async def begin_to_end(self) -> None:
        for key in ("fast", "slow"):
            self.schedule(Every(timedelta(seconds=1), key=key), self.cancel_itself, key)
        self.schedule(timedelta(seconds=2), self.link, 5)

    async def keys(self) -> list[str | None]:
        return [schedule.when.key for schedule in self.schedules.list()]


async def test_a_call_may_schedule_its_successor_under_its_own_key(run: Run, probe: Probe) -> None:
    async with run(Chain, deps=probe) as world:
        chain = await world.get_agent(Chain, "c")
        await chain.begin()

        await world.clock.advance(timedelta(minutes=1))

        assert probe.log == ["1", "2", "3", "4", "5"]
        assert await chain.keys() == []


@pytest.mark.parametrize("slow", [False, True])
async def test_a_running_call_that_wishes_the_very_same_again_is_called_again(
    run: Run, probe: Probe, slow: bool
) -> None:
    async with run(Chain, deps=probe) as world:
        chain = await world.get_agent(Chain, "c")
        await chain.begin_again(slow)

        await world.clock.advance(timedelta(seconds=5))

        assert probe.log == ["again"] * 5
        assert await chain.keys() == ["again"]


@pytest.mark.promise("CF-49")
async def test_a_call_that_cancels_its_own_schedule_completes_and_later_ones_still_happen(
    run: Run, probe: Probe
) -> None:
    async with run(Chain, deps=probe) as world:
        chain = await world.get_agent(Chain, "c")
        await chain.begin_to_end()

        await world.clock.advance(timedelta(minutes=1))

        assert sorted(probe.log) == ["5", "cancelled: True, False", "cancelled: True, False", "fast ends", "slow ends"]
        assert await chain.keys() == []


@pytest.mark.promise("CF-49")
@pytest.mark.parametrize("raises", [False, True])
async def test_a_schedule_cancelled_while_its_call_runs_is_not_called_again(
    run: Run, probe: Probe, raises: bool
) -> None:
    async with run(Slow, deps=probe) as world:
        slow = await world.get_agent(Slow, "s")
        await slow.begin(raises)
        await world.clock.advance(timedelta(seconds=1))

        await slow.cancel_all()
        probe.go.set()
        await world.clock.advance(timedelta(hours=1))

        assert sorted(probe.log) == sorted(
            ["once begins", "again begins"] + ([] if raises else ["once ends", "again ends"])
        )
        assert await slow.left() == (0, 0)


class Slow(Agent):
    """Takes its time, and may raise at the end of it."""

    deps: Probe

    async def begin(self, raises: bool) -> None:
        # The one has attempts left when it raises, the other has not.
        self.schedule(After(timedelta(seconds=1), retry=AT_ONCE), self.work, "once", raises)
        self.schedule(Every(timedelta(seconds=1), retry=Retry(max_attempts=1)), self.work, "again", raises)

    async def work(self, text: str, raises: bool) -> None:
        self.deps.log.append(f"{text} begins")
        await self.deps.go.wait()
        if raises:
            raise RuntimeError("too late")
        self.deps.log.append(f"{text} ends")

    async def cancel_all(self) -> None:
        for schedule in self.schedules.list():
            assert self.schedules.cancel(schedule.id)

    async def left(self) -> tuple[int, int]:
        return len(self.schedules.list()), len(self.dead_letters.list())


@pytest.mark.promise("CF-189")
async def test_a_single_call_is_tried_again_after_a_while_and_then_forgotten(run: Run, probe: Probe) -> None:
    retry = Retry(max_attempts=4, initial_delay=timedelta(seconds=10), max_delay=timedelta(seconds=15))
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 1)
        booked = await owner.after(1, "x", method="fail", retry=retry)

        await world.clock.advance(timedelta(seconds=1))
        for failed, most in ((1, 10), (2, 15), (3, 15)):
            due = await owner.due(booked)
            assert due is not None
            assert time_of(world) <= due <= time_of(world, most)
            assert await owner.failed(booked) == failed
            if failed == 2:
                await world.crash()
                owner = await found(world, 1)
            if failed == 3:
                probe.log.append("x works")
            await world.clock.advance((due - time_of(world)).total_seconds() + 0.001)

        assert probe.log.count("child tries x") == 4
        assert await owner.notes() == ["x"]
        assert await owner.planned() == []
        assert await owner.dead() == []


async def test_the_writes_of_a_call_that_raises_before_its_first_await_are_undone(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world)
        await owner.after(1, "x", method="fail", retry=AT_ONCE)

        await world.clock.advance(timedelta(seconds=1))

        assert probe.log.count("root tries x") == 3
        assert await owner.notes() == []


@pytest.mark.promise("CF-189")
async def test_a_call_that_the_end_of_the_process_interrupts_is_made_again(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 3)
        await owner.after(1, "x", method="slowly")
        await world.clock.advance(timedelta(seconds=1))
        await world.crash()
        await world.clock.advance(0)
        await world.restart()
        await world.clock.advance(0)
        probe.go.set()
        await world.clock.advance(0)

        assert probe.log.count("great-grandchild begins x") == 3
        assert await (await found(world, 3)).notes() == ["x"]


async def test_a_call_that_an_abort_interrupts_is_made_again_once_the_agent_is_asked_for(
    run: Run, probe: Probe
) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 1)
        await owner.after(1, "x", method="slowly")
        await world.clock.advance(timedelta(seconds=1))
        root = await found(world)
        await root.stop("child")
        await world.clock.advance(timedelta(minutes=20))  # nobody asks: it stays stopped
        assert probe.log.count("child begins x") == 1

        await root.grow("child")
        probe.go.set()
        await world.clock.advance(timedelta(seconds=2))

        assert await (await found(world, 1)).notes() == ["x"]


@dataclass(frozen=True)
class Parcel:
    weight: float
    labels: tuple[str, ...] = ()


class Letter(pydantic.BaseModel):
    sender: str
    sent: datetime


class Post(Agent):
    """Takes arguments of all kinds."""

    deps: Probe

    async def later(self, parcel: Parcel, letter: Letter) -> None:
        labels = ["a"]
        self.schedule(timedelta(seconds=1), self.take, parcel, letter, [{1, 2}], b=labels)
        labels.append("b")  # too late: it was copied
        self.schedule(timedelta(seconds=2), self.several, 1, 2, 3, x=4, y=5)
        self.schedule(timedelta(seconds=3), self.several)
        self.schedule(timedelta(seconds=4), self.defaults, 1)
        self.schedule(timedelta(seconds=5), self.defaults, 1, c=9)
        self.schedule(timedelta(seconds=6), self._own, None)

    async def take(self, parcel: Parcel, letter: Letter, sets: list[set[int]], *, b: list[str]) -> None:
        self.deps.log.append(repr((parcel, letter, sets, b)))

    async def several(self, *numbers: int, **named: int) -> None:
        self.deps.log.append(repr((numbers, named)))

    async def defaults(self, a: int, /, b: int = 2, *, c: int = 3) -> None:
        self.deps.log.append(repr((a, b, c)))

    async def _own(self, anything: Any) -> None:
        self.deps.log.append(f"own {anything}")

    async def stream(self) -> Any:
        yield 1

    async def wrong(self, which: str) -> None:
        second = timedelta(seconds=1)
        match which:
            case "too few":
                self.schedule(second, self.take)  # pyright: ignore[reportCallIssue]
            case "wrong type":
                self.schedule(second, self.several, "one")  # pyright: ignore[reportArgumentType]
            case "function":
                self.schedule(second, self._own, lambda: None)
            case "object":
                self.schedule(second, self._own, object())
            case "not a method":
                self.schedule(second, len, "x")
            case "of another":
                self.schedule(second, Post.several, self)  # pyright: ignore[reportArgumentType]
            case "lambda":
                self.schedule(second, lambda: None)
            case "generator":
                self.schedule(second, self.stream)
            case "number":
                self.schedule(60, self.several)  # pyright: ignore[reportArgumentType]
            case "text":
                self.schedule("* * * * *", self.several)  # pyright: ignore[reportArgumentType]
            case "naive":
                self.schedule(datetime(2030, 1, 1), self.several)  # noqa: DTZ001 - that is the point
            case _:
                raise AssertionError(which)

    async def planned(self) -> int:
        return len(self.schedules.list())


async def test_arguments_are_copied_when_the_call_is_wished_and_arrive_as_what_they_are(run: Run, probe: Probe) -> None:
    sent = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    async with run(Post, deps=probe) as world:
        post = await world.get_agent(Post, "p")
        await post.later(Parcel(1.5, ("x",)), Letter(sender="ann", sent=sent))
        await world.crash()

        await world.clock.advance(timedelta(seconds=6))

        assert probe.log == [
            repr((Parcel(1.5, ("x",)), Letter(sender="ann", sent=sent), [{1, 2}], ["a"])),
            "((1, 2, 3), {'x': 4, 'y': 5})",
            "((), {})",
            "(1, 2, 3)",
            "(1, 2, 9)",
            "own None",
        ]


@pytest.mark.parametrize(
    ("which", "error", "message"),
    [
        ("too few", InvalidArguments, "take.*missing a required argument"),
        ("wrong type", InvalidArguments, "several.*int"),
        ("function", NotCopyable, "called later: its arguments are stored, and a function cannot be stored"),
        ("object", NotCopyable, "object"),
        ("not a method", UsageError, "expects a method of this agent, such as self.remind"),
        ("of another", UsageError, "expects a method of this agent"),
        ("lambda", UsageError, "expects a method of this agent"),
        ("generator", UsageError, "it is a generator"),
        ("number", UsageError, r"write timedelta\(seconds=60\)"),
        ("text", UsageError, r"write Cron\('\* \* \* \* \*'\)"),
        ("naive", UsageError, "with a time zone, got 2030-01-01 00:00:00"),
    ],
)
async def test_what_could_not_be_called_later_is_refused_now(
    run: Run, probe: Probe, which: str, error: type[Exception], message: str
) -> None:
    async with run(Post, deps=probe) as world:
        post = await world.get_agent(Post, "p")

        with pytest.raises(error, match=message):
            await post.wrong(which)

        assert await post.planned() == 0


class Careful(Agent):
    """Plans inside of transactions, in its start, and in calls that fail."""

    migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)
    deps: Probe

    async def on_start(self) -> None:
        self.schedule(Every(timedelta(minutes=1)), self.say, "from the start")

    async def undone(self) -> None:
        try:
            with self.transaction():
                self.schedule(timedelta(seconds=1), self.say, "undone")
                self.enqueue(self.say, "undone too")
                raise ValueError
        except ValueError:
            self.schedule(timedelta(seconds=2), self.say, "kept")

    async def suspended(self) -> None:
        with self.transaction():
            self.schedule(timedelta(seconds=1), self.say, "suspended")
            await asyncio.sleep(0)

    async def refused(self) -> None:
        """A call that raises, reached by a stub, undoes nothing."""
        self.schedule(timedelta(seconds=1), self.say, "written before the error")
        raise ValueError("no good")

    async def plan_to_fail(self) -> None:
        self.schedule(After(timedelta(seconds=1), retry=Retry(max_attempts=1)), self.wish_and_fail)

    async def wish_and_fail(self) -> None:
        self.schedule(timedelta(seconds=1), self.say, "wished by one that failed")
        self.enqueue(self.say, "queued by one that failed")
        raise ValueError

    async def say(self, text: str) -> None:
        self.deps.log.append(text)

    async def planned(self) -> int:
        return len(self.schedules.list())


async def test_a_schedule_made_in_a_transaction_is_undone_with_it(run: Run, probe: Probe) -> None:
    async with run(Careful, deps=probe) as world:
        careful = await world.get_agent(Careful, "c")
        await careful.undone()
        with pytest.raises(UsageError, match="transaction"):
            await careful.suspended()

        await world.clock.advance(timedelta(seconds=10))

        assert probe.log == ["kept"]
        assert await careful.planned() == 1


async def test_what_a_scheduled_call_wished_before_it_raised_is_undone_with_the_rest(run: Run, probe: Probe) -> None:
    async with run(Careful, deps=probe) as world:
        careful = await world.get_agent(Careful, "c")
        await careful.plan_to_fail()
        with pytest.raises(ValueError, match="no good"):
            await careful.refused()

        await world.clock.advance(timedelta(seconds=10))

        assert probe.log == ["written before the error"]
        assert await careful.planned() == 1


async def test_a_repeating_schedule_wished_at_every_start_is_one(run: Run, probe: Probe) -> None:
    async with run(Careful, deps=probe) as world:
        for _ in range(3):
            careful = await world.get_agent(Careful, "c")
            await world.restart()
        world.sleep()
        await world.clock.advance(timedelta(minutes=2))

        assert probe.log == ["from the start"] * 2
        careful = await world.get_agent(Careful, "c")
        assert await careful.planned() == 1


async def test_a_thousand_calls_due_at_once_all_happen_in_order(run: Run, probe: Probe) -> None:
    async with run(Many, deps=probe) as world:
        many = await world.get_agent(Many, "m")
        await many.plan(1000)

        await world.clock.advance(timedelta(seconds=1))
        for _ in range(20):
            await world.settled()

        assert probe.log == [str(number) for number in range(1000)]
        assert await many.left() == 0


class Many(Agent):
    deps: Probe

    async def plan(self, count: int) -> None:
        for number in range(count):
            self.schedule(timedelta(seconds=1), self.say, number)

    async def say(self, number: int) -> None:
        self.deps.log.append(str(number))

    async def left(self) -> int:
        return len(self.schedules.list())


class Gardener(Agent):
    """Deletes: those below it, or itself."""

    deps: Probe

    async def plan(self, what: str) -> None:
        self.schedule(Every(timedelta(seconds=1)), self.do, what)
        self.schedule(timedelta(seconds=2), self.say, f"{self.name} lives on")

    async def plan_below(self, what: str) -> None:
        await (await self.sub_agent(Gardener, "child")).plan(what)

    async def do(self, what: str) -> None:
        match what:
            case "cut":
                await self.children.delete(Gardener, "child")
            case "end":
                await self.destroy()
            case _:
                self.deps.log.append(f"{self.name} {what}")
        self.deps.log.append(f"{self.name} did {what}")

    async def say(self, text: str) -> None:
        self.deps.log.append(text)

    async def child_names(self) -> int:
        return len(self.children.list())


@pytest.mark.promise("A-93")
async def test_a_scheduled_call_may_delete_a_child_whose_schedules_then_never_happen(run: Run, probe: Probe) -> None:
    async with run(Gardener, deps=probe) as world:
        root = await world.get_agent(Gardener, "root")
        await root.plan("cut")
        await root.plan_below("live")

        await world.clock.advance(timedelta(seconds=3.5))

        assert probe.log.count("root did cut") == 3
        assert probe.log.count("child live") <= 1
        assert "child lives on" not in probe.log
        assert "root lives on" in probe.log
        assert await root.child_names() == 0


@pytest.mark.promise("CF-24")
@pytest.mark.parametrize("child", [False, True])
async def test_a_scheduled_call_may_destroy_its_agent_and_nothing_of_it_happens_any_more(
    run: Run, probe: Probe, child: bool
) -> None:
    async with run(Gardener, deps=probe) as world:
        root = await world.get_agent(Gardener, "root")
        await (root.plan_below("end") if child else root.plan("end"))

        await world.clock.advance(timedelta(seconds=10))
        await world.crash()
        await world.clock.advance(timedelta(seconds=10))

        name = "child" if child else "root"
        assert probe.log == [f"{name} did end"]
        root = await world.get_agent(Gardener, "root")
        assert await root.child_names() == 0
        assert world.node.alarms.stored(Address.root_of("Gardener", "root")) is None


class Counter(Agent[int]):
    """Counts in its state, by the clock and in a fiber."""

    initial_state = 0
    deps: Probe

    async def begin(self) -> None:
        self.set_state(1)
        self.schedule(Every(timedelta(seconds=10)), self.add, 10)
        self.start_fiber("f", self.wait_and_add)

    async def wait_and_add(self) -> None:
        await self.deps.go.wait()
        self.set_state(self.state + 100)

    async def add(self, number: int) -> None:
        self.set_state(self.state + number)
        if "fail" in self.deps.log:
            raise RuntimeError("not this time")

    async def plan_plain(self) -> None:
        self.schedule(timedelta(seconds=1), self._plain, 1000)

    def _plain(self, number: int) -> None:
        self.set_state(self.state + number)

    async def count(self) -> int:
        return self.state

    async def all_fibers(self) -> list[str]:
        return [fiber.status for fiber in self.fibers.list()]


@pytest.mark.promise("CF-195")
async def test_after_a_forced_eviction_state_schedules_and_fibers_are_there_again(run: Run, probe: Probe) -> None:
    async with run(Counter, deps=probe) as world:
        await (await world.get_agent(Counter, "c")).begin()
        await world.clock.advance(timedelta(seconds=10))
        await world.crash()
        probe.go.set()
        await world.clock.advance(timedelta(seconds=10))

        counter = await world.get_agent(Counter, "c")
        assert await counter.count() == 1 + 10 + 10 + 100
        assert await counter.all_fibers() == ["completed"]


async def test_the_state_that_a_failing_call_set_is_undone_with_the_rest(run: Run, probe: Probe) -> None:
    async with run(Counter, deps=probe) as world:
        counter = await world.get_agent(Counter, "c")
        probe.go.set()
        await counter.begin()
        probe.log.append("fail")
        await world.clock.advance(timedelta(seconds=19))
        assert await counter.count() == 101
        probe.log.clear()
        await world.clock.advance(timedelta(seconds=1))

        assert await counter.count() == 111
        await world.crash()
        assert await (await world.get_agent(Counter, "c")).count() == 111


async def test_a_plain_method_may_be_scheduled_too(run: Run, probe: Probe) -> None:
    async with run(Counter, deps=probe) as world:
        counter = await world.get_agent(Counter, "c")
        await counter.plan_plain()

        await world.clock.advance(timedelta(seconds=1))

        assert await counter.count() == 1000


async def test_an_agent_does_not_go_to_sleep_while_a_scheduled_call_runs(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 2)
        await owner.after(1, "x", method="slowly")
        await world.clock.advance(timedelta(seconds=1))

        world.sleep()
        probe.go.set()
        await world.clock.advance(0)

        assert probe.log.count("grandchild begins x") == 1
        assert await (await found(world, 2)).notes() == ["x"]


class Listening(Agent):
    deps: Probe

    async def on_message(self, connection: Connection, message: str | bytes) -> None:
        self.schedule(timedelta(seconds=1), self.say, str(message))

    async def say(self, text: str) -> None:
        self.deps.log.append(text)
        self.broadcast(text)


async def test_a_message_of_a_client_may_schedule_a_call_that_answers_later(probe: Probe) -> None:
    async with served(App(agents=[Listening], deps=probe)) as one:
        client = await one.join("/agents/listening/l")
        await client.send("hello")
        async with asyncio.timeout(patience()):
            await happens(lambda: one.world.node.alarms.stored(Address.root_of("Listening", "l")) is not None)

        await one.world.clock.advance(timedelta(seconds=1))

        await client.until(lambda frame: frame == "hello")
        assert probe.log == ["hello"]


@pytest.mark.promise("CF-50")
async def test_what_happens_to_a_schedule_is_told_by_the_agent_that_owns_it(
    run: Run, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="sapwood")
    async with run(Planner, deps=probe) as world:
        owner = await planner(world, 2)
        caplog.clear()

        booked = await owner.after(10, "x")
        await owner.cancel(booked)

        theirs = [record for record in caplog.records if record.name != "sapwood.kernel.actors.watchdog"]
        told = [(record.message, getattr(record, "address", None)) for record in theirs]
        path = "Planner:root/Planner:child/Planner:grandchild"
        assert told == [("scheduled", path), ("schedule cancelled", path)]


@pytest.mark.realtime("about the system's clock, and the timers that are set by it")
async def test_in_real_time_a_call_happens_soon_after_it_is_due_and_never_before(tmp_path: Any, probe: Probe) -> None:
    async with App(agents=[Planner], deps=probe, settings=Settings(data=tmp_path)) as app:
        owner = await app.get_agent(Planner, "root")
        begun = asyncio.get_running_loop().time()

        await owner.after(0.2, "later")

        async with asyncio.timeout(patience()):
            await happens(lambda: "root: later" in probe.log)
        assert asyncio.get_running_loop().time() - begun >= 0.19


@pytest.mark.slow
@pytest.mark.realtime("about the system's clock, and the timers that are set by it")
async def test_in_real_time_a_call_that_came_due_while_nobody_ran_happens_at_the_start(
    tmp_path: Any, probe: Probe
) -> None:
    settings = Settings(data=tmp_path, durability="disk")
    async with App(agents=[Planner], deps=probe, settings=settings) as app:
        owner = await app.get_agent(Planner, "root")
        await owner.after(1, "later")
        await owner.every(1, "tick")
    assert "root: later" not in probe.log, "the first app took so long to end that it happened there"
    await asyncio.sleep(1.1)

    async with App(agents=[Planner], deps=probe, settings=settings), asyncio.timeout(patience()):
        await happens(lambda: probe.log.count("root: tick") >= 2)

    assert probe.log.count("root: later") == 1


class Rostered(Agent):
    """Has a daily call whose method gets another name with a deploy."""

    async def plan(self, method: str) -> None:
        self.schedule(Cron("0 8 * * *", key="daily"), getattr(self, method))

    async def report(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS done (what TEXT)")
        self.sql("INSERT INTO done VALUES ('report')")

    async def summary(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS done (what TEXT)")
        self.sql("INSERT INTO done VALUES ('summary')")

    async def done(self) -> list[str]:
        self.sql("CREATE TABLE IF NOT EXISTS done (what TEXT)")
        return [str(row["what"]) for row in self.sql("SELECT what FROM done")]

    async def misused(self) -> None:
        self.schedule(timedelta(1), self.summary())  # pyright: ignore[reportArgumentType, reportCallIssue]

    async def misqueued(self) -> None:
        self.enqueue("bob", self.summary)  # pyright: ignore[reportCallIssue, reportArgumentType]


async def test_a_call_that_is_owed_is_owed_still_when_its_key_gets_another_method(run: Run) -> None:
    async with run(Rostered) as world:
        agent = await world.get_agent(Rostered, "r")
        await agent.plan("report")
        world.clock.jump(world.clock.now() + 3 * 86_400)

        await agent.plan("summary")
        await world.clock.advance(1)

        assert await agent.done() == ["summary"]


async def test_a_method_that_was_called_and_a_text_are_refused_with_what_to_write(run: Run) -> None:
    async with run(Rostered) as world:
        agent = await world.get_agent(Rostered, "r")

        with pytest.raises(UsageError, match="without parentheses"):
            await agent.misused()
        with pytest.raises(UsageError, match=r"queues\['bob'\]"):
            await agent.misqueued()
