"""Budgets by calendar: usage counts in the period in which it is settled, and the next period starts at zero."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import pytest
from tests.cases import slow
from tests.conformance.drivers import running
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Limits, OverLimit, Per, Run, Unavailable, tool
from sapwood.capabilities.call_rows import CallRows
from sapwood.capabilities.limit_warnings import METHOD
from sapwood.chat.models.token_estimates import OVERHEAD
from sapwood.kernel.trees.period_usage import PERIOD_SPENDING
from sapwood.kernel.trees.usage import Spent
from sapwood.testing import ScriptedModel, World, call, text
from sapwood.testing.faults import CountingFiles
from sapwood.types import Address, LimitWarning

MOST = 60
"""Tokens an answer may have."""
STEP = OVERHEAD + 4 + MOST
"""What is reserved for an answer to "go"."""
ONE = STEP + 20
"""A budget for one answer."""
PRICES = {"scripted": (1.0, 1.0)}
"""A millionth of a dollar for each token."""
BERLIN = "Europe/Berlin"


class Purse(Agent):
    """Has others work, on a budget."""

    below: type[Agent[Any]]

    async def on_run(self, input: str) -> str:
        run = await self.run_agent(self.below, input, run_id=input)
        if not run.ok:
            raise ValueError(run.error)
        return run.output

    async def give(self, id: str) -> Run:
        return await self.run_agent(self.below, "go", run_id=id)

    async def give_deep(self, id: str) -> Run:
        return await self.run_agent(self.below, id, run_id=id)

    async def clear(self) -> int:
        return await self.runs.clear()

    async def warned(self) -> list[str]:
        return [str(row["what"]) for row in self.sql("SELECT what FROM warned")]


class Warned(Purse):
    """Notes what it is warned of."""

    migrations = ("CREATE TABLE warned (what TEXT NOT NULL) STRICT",)

    async def on_limit_near(self, warning: LimitWarning) -> None:
        left = f"{warning.used / warning.amount:.0%} of {warning.amount:g} {warning.limit} a {warning.period}"
        self.sql("INSERT INTO warned VALUES (?)", f"{left}, until {warning.ends_at:%Y-%m-%d %H:%M} {warning.zone}")


def purse(
    model: Any, levels: int = 1, *, worker: Limits | None = None, base: type = Purse, mid: Any = None, **settings: Any
) -> Any:
    """Make the class of a root whose workers are so many levels below it."""
    cls: Any = type(
        "PurseWorker", (ChatAgent,), {"model": model, "model_settings": {"max_tokens": MOST}, "limits": worker}
    )
    for level in range(levels - 1):
        cls = type(f"PurseMid{level}", (base,), {"below": cls, "limits": mid})
    return type("PurseRoot", (base,), {"below": cls, **settings})


@asynccontextmanager
async def spending(cls: Any, at: datetime | None = None, **settings: Any) -> AsyncGenerator[tuple[World, Any], None]:
    async with asyncio.timeout(patience()), running(App(agents=[cls]), prices=PRICES, **settings) as world:
        if at is not None:
            world.clock.jump(at)
        yield world, await world.get_agent(cls, "p")


def tree_of(world: World) -> Any:
    return world.node.trees[Address.root_of("PurseRoot", "p")]


def rows(world: World) -> list[tuple[Any, ...]]:
    """Return what is stored of periods: the agent, the period, its start and the tokens."""
    root = tree_of(world).root
    if not root.has(PERIOD_SPENDING):
        return []
    return root.execute(
        "SELECT agent, period, starts_at, tokens, nanodollars FROM sapwood_period_spending ORDER BY 1, 3"
    )


async def used(agent: Any) -> int:
    total = await agent.spending.total()
    return sum(one["input_tokens"] + one["output_tokens"] for one in total.values())


@pytest.mark.parametrize("limits", [{"tokens": Per("day", ONE)}, {"dollars": Per("day", ONE / 1e6)}])
async def test_the_next_day_has_a_budget_of_its_own(limits: Any) -> None:
    cls = purse(ScriptedModel(text("one two")), limits=Limits(**limits))
    async with spending(cls, datetime(2027, 3, 1, 20, tzinfo=UTC)) as (world, agent):
        assert (await agent.give("a")).ok
        refused = await agent.give("b")
        assert (refused.status, refused.reason) == ("failed", "over_limit")
        ((name, limit),) = limits.items()
        assert f"Limits({name}={limit!r}) for PurseRoot:p and all agents under it" in refused.error
        assert "The period ends at 2027-03-02T00:00:00+00:00." in refused.error

        await world.clock.advance(4 * 3600 - 1)
        assert (await agent.give("c")).reason == "over_limit"
        await world.clock.advance(1)

        assert (await agent.give("d")).ok
        assert (await agent.give("e")).reason == "over_limit"


async def test_a_limit_for_the_lifetime_holds_beside_those_of_periods() -> None:
    model = ScriptedModel(text("one two"))
    cls = purse(model, limits=Limits(tokens=(Per("hour", ONE), Per("month", 3 * STEP), 2 * STEP)))
    async with spending(cls) as (world, agent):
        ends: list[str | None] = []
        for at in range(5):
            ends.append((await agent.give(f"r{at}")).error)
            await world.clock.advance(3600)

        assert ends[0] is ends[1] is None
        assert f"Limits(tokens={2 * STEP})" in str(ends[-1])
        assert "period" not in str(ends[-1])


@pytest.mark.slow
@pytest.mark.parametrize("levels", [1, 2, 3])
async def test_what_is_used_deep_below_counts_for_the_root_and_is_kept_by_a_crash(levels: int) -> None:
    cls = purse(ScriptedModel(text("one two")), levels, limits=Limits(tokens=Per("week", ONE, zone=BERLIN)))
    give = "give" if levels == 1 else "give_deep"
    async with spending(cls, datetime(2026, 10, 23, tzinfo=UTC)) as (world, agent):
        assert (await getattr(agent, give)("go")).ok
        ((stem, period, _, tokens, _),) = rows(world)
        assert (stem, period, tokens) == ("root", "week", await used(agent))

        await world.crash()
        agent = await world.get_agent(cls, "p")
        assert "all agents under it" in (await getattr(agent, give)("b")).error
        assert [row[3] for row in rows(world)] == [tokens]

        world.clock.jump(datetime(2026, 10, 26, 0, 0, tzinfo=ZoneInfo(BERLIN)))  # clocks changed the day before
        assert (await getattr(agent, give)("c")).ok


async def test_a_limit_of_a_class_holds_for_each_of_its_agents() -> None:
    cls = purse(ScriptedModel(text("one two")), worker=Limits(tokens=Per("day", ONE)), limits=Limits(tokens=10 * STEP))
    async with spending(cls) as (world, agent):
        assert (await agent.give("a")).ok
        assert (await agent.give("b")).ok

        assert len({row[0] for row in rows(world)} - {"root"}) == 2
        await agent.clear()
        assert rows(world) == []
        assert await used(agent) > 0


async def test_a_request_counts_in_the_period_in_which_it_ends() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("one two", gate=gate), text("one two"))
    cls = purse(model, limits=Limits(tokens=Per("day", ONE)))
    async with spending(cls, datetime(2027, 3, 1, 23, 59, tzinfo=UTC)) as (world, agent):
        giving = asyncio.create_task(agent.give("a"))
        await world.until(lambda: len(model.asked) == 1)
        await world.clock.advance(120)
        refused = await agent.give("b")  # what is reserved counts on the second day too
        assert f"{STEP} reserved" in refused.error
        gate.set()
        assert (await giving).ok

        assert [row[2] for row in rows(world)] == [datetime(2027, 3, 2, tzinfo=UTC).timestamp()]
        assert (await agent.give("c")).reason == "over_limit"


@pytest.mark.parametrize(("day", "hours"), [((2026, 3, 29), 23), ((2026, 10, 25), 25)])
async def test_a_day_on_which_clocks_change_is_as_long_as_they_say(day: tuple[int, int, int], hours: int) -> None:
    cls = purse(ScriptedModel(text("one two")), limits=Limits(tokens=Per("day", ONE, zone=BERLIN)))
    async with spending(cls, datetime(*day, tzinfo=ZoneInfo(BERLIN))) as (world, agent):
        start = world.clock.now()
        assert (await agent.give("a")).ok
        world.clock.jump(start + hours * 3600 - 1)
        assert (await agent.give("b")).reason == "over_limit"
        world.clock.jump(start + hours * 3600)
        assert (await agent.give("c")).ok


async def test_a_clock_that_is_set_back_finds_what_was_used_before() -> None:
    cls = purse(ScriptedModel(text("one two")), limits=Limits(tokens=Per("month", ONE)))
    async with spending(cls, datetime(2027, 1, 31, 23, 59, tzinfo=UTC)) as (world, agent):
        january = world.clock.now()
        assert (await agent.give("a")).ok
        world.clock.jump(january + 120)
        assert (await agent.give("b")).ok

        world.clock.jump(january)
        assert "The period ends at 2027-02-01T00:00:00" in (await agent.give("c")).error
        world.clock.jump(january + 120)
        assert "The period ends at 2027-03-01T00:00:00" in (await agent.give("d")).error

        world.clock.jump(datetime(2050, 1, 1, tzinfo=UTC))  # it is wrong
        assert (await agent.give("e")).ok
        world.clock.jump(january + 120)  # it is put right
        assert (await agent.give("f")).reason == "over_limit"
        assert len(rows(world)) == 3


async def test_only_the_nearest_periods_are_kept() -> None:
    cls = purse(ScriptedModel(text("one two")), limits=Limits(tokens=(Per("hour", ONE), Per("month", 100 * ONE))))
    async with spending(cls, datetime(2027, 1, 10, tzinfo=UTC)) as (world, agent):
        for at in range(6):
            assert (await agent.give(f"r{at}")).ok
            await world.clock.advance(3600)

        hours = [row for row in rows(world) if row[1] == "hour"]
        (month,) = [row for row in rows(world) if row[1] == "month"]
        assert [row[2] for row in hours] == [world.clock.now() - 3600 * before for before in (3, 2, 1)]
        assert month[3] == await used(agent)


async def test_the_error_has_the_time_until_the_period_ends_if_a_wait_helps() -> None:
    cls = purse(ScriptedModel(text("one two")), limits=Limits(tokens=Per("day", ONE), dollars=Per("hour", 1)))
    async with spending(cls, datetime(2027, 1, 10, 23, 59, 30, tzinfo=UTC)) as (world, agent):
        assert (await agent.give("a")).ok
        tree = tree_of(world)
        root = tree.actors[Address.root_of("PurseRoot", "p")]

        def refusal(tokens: int, nanodollars: int | None = 0) -> OverLimit:
            with pytest.raises(OverLimit) as over:
                tree.spending.reserve(root, tokens, nanodollars, "scripted")
            return over.value

        assert (refusal(ONE).limit, refusal(ONE).retry_after) == ("tokens", 30.0)
        assert refusal(ONE + 1).retry_after is None
        assert (refusal(0, 10**9).limit, refusal(0, 10**9).retry_after) == ("dollars", 30.0)
        assert refusal(0, None).retry_after is None
        assert "price is unknown, so Limits(dollars=Per('hour', 1)) for" in str(refusal(0, None))


@pytest.mark.slow
async def test_a_crash_at_any_commit_leaves_a_period_that_equals_what_was_used() -> None:
    nth, passed = 0, True
    while passed:
        nth += 1
        cls = purse(ScriptedModel(text("one two")), limits=Limits(tokens=Per("month", 10 * STEP), dollars=9.0))
        async with spending(cls) as (world, agent):
            await agent.clear()
            before = world.points.passed["committed"]
            world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                await agent.give("a")
            passed = world.points.passed["committed"] >= before + nth
            await world.crash()
            agent = await world.get_agent(cls, "p")

            assert (await agent.give("a")).ok
            ((_, _, _, tokens, nanodollars),) = rows(world)
            assert tokens == await used(agent)
            assert nanodollars == tokens * 1000
            assert tree_of(world).spending._reserved == set()


NEAR = Per("day", 1000, zone=BERLIN, warn_at=0.1)


async def test_an_agent_is_warned_once_in_each_period() -> None:
    cls = purse(ScriptedModel(text("one two")), base=Warned, limits=Limits(tokens=NEAR))
    async with spending(cls, datetime(2027, 3, 1, 20, tzinfo=UTC)) as (world, agent):
        shares: list[float] = []
        for day in range(2):
            for at in range(3):
                assert (await agent.give(f"r{day}-{at}")).ok
                shares.append(rows(world)[-1][3] / 1000)
                await world.settled()
                assert len(await agent.warned()) == day + (shares[-1] >= 0.1)
            await world.clock.advance(86400)

        (first,) = [share for share in shares[:3] if share >= 0.1][:1]
        assert await agent.warned() == [
            f"{first:.0%} of 1000 tokens a day, until 2027-03-02 00:00 {BERLIN}",
            f"{first:.0%} of 1000 tokens a day, until 2027-03-03 00:00 {BERLIN}",
        ]


class WarnedWorker(ChatAgent):
    """Asks its model several times, and is warned of a limit of its own."""

    model_settings: ClassVar[Any] = {"max_tokens": MOST}
    limits = Limits(tokens=Per("day", 100 * ONE, warn_at=0.0001))
    warnings: ClassVar[list[LimitWarning]]

    @tool
    async def look(self) -> str:
        """Look."""
        return "seen"

    async def on_limit_near(self, warning: LimitWarning) -> None:
        self.warnings.append(warning)


def warned_worker() -> Any:
    WarnedWorker.warnings = []
    WarnedWorker.model = ScriptedModel(*[call("look")] * 5, text("well"), each=True)
    return type("PurseRoot", (Purse,), {"below": WarnedWorker})


@pytest.mark.parametrize("durability", ["process", *slow(["disk"])])
async def test_an_agent_that_asks_the_model_itself_is_warned_too(durability: str) -> None:
    async with spending(warned_worker(), durability=durability) as (world, agent):
        assert (await agent.give("a")).ok
        await world.until(lambda: len(WarnedWorker.warnings) == 1)
        assert (await agent.give("b")).ok  # another agent, with a limit of its own
        await world.until(lambda: len(WarnedWorker.warnings) == 2)


async def test_a_warning_and_the_count_do_not_wait_for_each_other_on_a_slow_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, sync = threading.Event(), CountingFiles.sync_descriptor
    disk.set()

    def slow(self: CountingFiles, path: Any, descriptor: int) -> None:
        assert disk.wait(60)
        sync(self, path, descriptor)

    monkeypatch.setattr(CountingFiles, "sync_descriptor", slow)
    async with spending(warned_worker(), durability="disk") as (world, agent):
        assert (await agent.give("a")).ok
        await world.settled()
        await world.clock.advance(86400)  # another day, and another warning
        tree = tree_of(world)
        (worker,) = (actor for actor in tree.actors.values() if actor.parent is not None)
        disk.clear()
        worker.database.begin()
        worker.database.execute("UPDATE sapwood_turns SET ended_at = ended_at + 1")
        tree.slices.commit()  # the file is being synced
        tree.spending.add(worker, "a", "scripted", Spent(1, STEP, 0))
        tree.slices.commit()
        disk.set()

        await world.until(lambda: all(world.node.gate.is_quiet(one) for one in (worker.database, tree.root)))
        await world.until(lambda: len(WarnedWorker.warnings) == 2)


async def test_each_threshold_of_a_limit_warns_by_itself() -> None:
    limits = Limits(dollars=(Per("week", 0.001, warn_at=0.1), Per("week", 0.001, warn_at=0.3), Per("month", 1)))
    cls = purse(ScriptedModel(text("one two")), base=Warned, limits=limits)
    async with spending(cls) as (world, agent):
        for at in range(6):
            await agent.give(f"r{at}")
        await world.settled()

        assert len(await agent.warned()) == 2
        assert all("of 0.001 dollars a week" in what for what in await agent.warned())


@pytest.mark.nightly
@pytest.mark.slow
async def test_a_crash_at_any_commit_warns_an_agent_in_the_middle_exactly_once() -> None:
    nth, passed = 0, True
    near = Limits(tokens=Per("month", 1000, warn_at=0.01))
    while passed:
        nth += 1
        cls = purse(ScriptedModel(text("one two")), 2, base=Warned, limits=None, mid=near)
        async with spending(cls) as (world, agent):
            await agent.warned()
            before = world.points.passed["committed"]
            world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                await agent.give_deep("go")
                await world.settled()
            passed = world.points.passed["committed"] >= before + nth
            await world.crash()
            agent = await world.get_agent(cls, "p")
            assert (await agent.give_deep("go")).ok
            await world.settled()

            middle = await world.get_agent(cls, "p", sub=[(cls.below, "go")])
            assert len(await middle.warned()) == 1
            assert await agent.warned() == []


async def test_a_warning_that_cannot_be_queued_is_not_noted_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(tokens=Per("day", ONE * 100, warn_at=0.0001))
    cls = purse(ScriptedModel(text("there"), each=True), base=Warned, limits=limits)
    enqueue, refused = CallRows.enqueue, list[str]()

    def refuse_once(self: CallRows, method: str, *more: Any) -> Any:
        if method == METHOD and not refused:
            refused.append(method)
            raise OverLimit("The database is full.", limit="database_bytes")
        return enqueue(self, method, *more)

    monkeypatch.setattr(CallRows, "enqueue", refuse_once)
    async with running(App(agents=[cls])) as world:
        root = await world.get_agent(cls, "p")
        assert (await root.give("a")).ok
        assert refused
        assert (await root.give("b")).ok
        await world.settled()

        assert len(await root.warned()) == 1


@pytest.mark.parametrize(
    ("limits", "most"),
    [({"tokens": Per("month", 5)}, "take up to "), ({"dollars": Per("month", 0.000_001)}, r"cost up to \$")],
)
async def test_a_request_that_fits_into_no_period_says_so_and_names_no_end(limits: Any, most: str) -> None:
    cls = purse(ScriptedModel(text("one two")), limits=Limits(**limits))
    async with spending(cls) as (_, agent):
        refused = await agent.give("a")

    assert refused.reason == "over_limit"
    assert re.search(
        rf"one request may {most}.*, more than all of Limits\(.*Set max_tokens in model_settings", refused.error
    )
    assert "The period ends" not in refused.error
