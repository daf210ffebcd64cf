"""Limits of users: what is done for one user in all trees is counted in one ledger, and refused in time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from tests.conformance.drivers import running
from tests.conformance.serving import door
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Limits, Per, Turn, Unavailable, agent_tool, tool
from sapwood.chat.models.token_estimates import OVERHEAD
from sapwood.chat.models.user_ledger import UserLedger
from sapwood.chat.models.user_limits import ledger_name
from sapwood.chat.turn.intake import Intake
from sapwood.chat.turn.user_reservations import UserReservations
from sapwood.errors import UsageError
from sapwood.testing import ScriptedModel, World, call, text

MOST = 60
STEP = OVERHEAD + 4 + MOST
ONE = STEP + 20
"""A budget for one answer."""
AT = datetime(2027, 3, 1, 20, tzinfo=UTC)


class Desk(ChatAgent):
    """Answers a user."""

    model_settings: ClassVar[Any] = {"max_tokens": MOST}
    model = ScriptedModel(text("one two"), each=True)

    async def ask(self, user: str, id: str | None = None) -> tuple[str, str | None, str | None]:
        """Answer as if the user had sent a message by a client."""
        row = self._actor.of(Intake).ask(
            [{"role": "user", "parts": [{"type": "text", "text": "go"}]}], user=user, id=id
        )
        turn: Turn[Any] = await self.turns.wait(row.id)
        return turn.status, turn.reason, turn.error


class Errand(ChatAgent):
    """Helps."""

    model_settings: ClassVar[Any] = {"max_tokens": MOST}
    model = ScriptedModel(text("help"), each=True)


class Team(Desk):
    """Has an errand."""

    model = ScriptedModel(call("errand", message="go"), text("done"), each=True)
    tools = (agent_tool(Errand),)


@asynccontextmanager
async def users(
    limits: Callable[[str], Any], *agents: type[Agent[Any]], **settings: Any
) -> AsyncGenerator[World, None]:
    app = App(agents=agents or (Desk, Team), authenticate=lambda request: "ann", user_limits=limits)
    async with asyncio.timeout(patience()), running(app, prices={"scripted": (1.0, 1.0)}, **settings) as world:
        world.clock.jump(AT)
        yield world


async def used(world: World, user: str) -> int:
    """Return the tokens that are counted for a user in all."""
    ledger = await world.get_agent(UserLedger, ledger_name(user))
    return next((one["tokens"] for one in await ledger.used() if one["period"] is None), 0)


async def spent(agent: Any) -> int:
    return sum(one["input_tokens"] + one["output_tokens"] for one in (await agent.spending.total()).values())


@pytest.mark.parametrize("limits", [Limits(tokens=ONE), Limits(dollars=Per("day", ONE / 1e6))])
async def test_a_limit_of_a_user_holds_in_all_trees_together_and_not_for_others(limits: Limits) -> None:
    async with users(lambda user: limits) as world:
        first, second = await world.get_agent(Desk, "a"), await world.get_agent(Desk, "b")
        assert (await first.ask("ann"))[0] == "completed"
        status, reason, error = await second.ask("ann")
        assert (status, reason) == ("failed", "over_limit")
        assert "for the user 'ann'" in str(error)
        assert (await second.ask("bob"))[0] == "completed"
        assert await used(world, "ann") == await spent(first)


async def test_the_next_period_has_a_budget_of_its_own_and_the_error_names_its_end() -> None:
    async with users(lambda user: Limits(tokens=Per("day", ONE))) as world:
        agent = await world.get_agent(Desk, "a")
        assert (await agent.ask("ann"))[0] == "completed"
        assert "The period ends at 2027-03-02T00:00:00+00:00." in str((await agent.ask("ann"))[2])
        await world.clock.advance(4 * 3600)
        assert (await agent.ask("ann"))[0] == "completed"


@pytest.mark.core("workers", "cluster", "temporal")
async def test_what_sub_agents_do_counts_for_the_user_whose_message_began_it() -> None:
    async with users(lambda user: Limits(tokens=100 * ONE)) as world:
        agent = await world.get_agent(Team, "t")
        assert (await agent.ask("ann"))[0] == "completed"
        rows = await agent.spending.list()
        assert {row.agent[-1].type for row in rows} == {"Team", "Errand"}
        assert await used(world, "ann") == await spent(agent)


async def test_a_user_without_limits_has_no_ledger() -> None:
    async def none(user: str) -> Limits | None:
        return None

    async with users(none) as world:
        agent = await world.get_agent(Desk, "a")
        assert (await agent.ask("ann"))[0] == "completed"
        assert await used(world, "ann") == 0


@pytest.mark.parametrize(
    "limits",
    [Limits(runs_at_once=1), Limits(tokens=Per("day", 5, extend_by=1)), Limits(tokens=Per("day", 5, warn_at=1)), 5],
)
async def test_a_limit_that_users_cannot_have_fails_the_turn(limits: Any) -> None:
    async with users(lambda user: limits) as world:
        agent = await world.get_agent(Desk, "a")
        assert (await agent.ask("ann"))[0] == "failed"


def test_limits_of_users_need_users() -> None:
    with pytest.raises(UsageError, match="needs authenticate"):
        App(agents=[Desk], user_limits=lambda user: None)


@pytest.mark.parametrize("id", ["ann", "", "a\0b", "x" * 600, "\ud800", "sha256-", "Ä/ö:%"])
def test_any_text_is_the_id_of_one_ledger(id: str) -> None:
    from sapwood.address import checked_name

    assert checked_name(ledger_name(id))
    assert ledger_name(id) != ledger_name(id + ".")


async def test_requests_in_progress_in_two_trees_cannot_exceed_the_limit_together() -> None:
    gate = asyncio.Event()

    class Slow(Desk):
        model = ScriptedModel(text("one two", gate=gate), each=True)

    async with users(lambda user: Limits(tokens=ONE), Slow) as world:
        first, second = await world.get_agent(Slow, "a"), await world.get_agent(Slow, "b")
        one = asyncio.create_task(first.ask("ann"))
        await world.until(lambda: len(Slow.model.asked) == 1)
        status, reason, error = await second.ask("ann")
        assert (status, reason) == ("failed", "over_limit")
        assert f"{STEP} reserved" in str(error)
        gate.set()
        assert (await one)[0] == "completed"


@pytest.mark.parametrize("step", [pytest.param(4, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.nightly)])
async def test_a_crash_at_any_commit_between_reserve_and_settle_counts_each_request_once(step: int) -> None:
    nth, passed = 1 - step, True
    while passed:
        nth += step
        async with users(lambda user: Limits(tokens=(Per("month", 3 * ONE), 100 * ONE))) as world:
            agent = await world.get_agent(Team, "t")
            before = world.points.passed["committed"]
            world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                await agent.ask("ann", "turn-1")
                await world.settled()
            passed = world.points.passed["committed"] >= before + nth
            await world.crash()
            agent = await world.get_agent(Team, "t")
            assert (await agent.ask("ann", "turn-1"))[0] == "completed"
            await world.settled()
            assert await used(world, "ann") == await spent(agent), nth
            ledger = await world.get_agent(UserLedger, "ann")
            assert await ledger.reserved() == 0, nth


class Office(Agent):
    """Has a desk of another tree work."""

    async def on_run(self, input: str) -> str:
        desk = await self.get_agent(Desk, input)
        return (await desk.send("go")).text


class Switchboard(Desk):
    """Calls agents of other trees from a tool and from a run."""

    model = ScriptedModel(call("ring", desk="x"), call("office", message="y"), text("done"), each=True)
    tools = (agent_tool(Office, name="office"),)

    @tool
    async def ring(self, desk: str) -> str:
        """Ask a desk."""
        other = await self.get_agent(Desk, desk)
        return (await other.send("go")).text


@pytest.mark.core("workers", "cluster", "temporal")
async def test_what_a_turn_sends_to_other_trees_counts_for_its_user() -> None:
    async with users(lambda user: Limits(tokens=100 * ONE), Switchboard, Desk) as world:
        agent = await world.get_agent(Switchboard, "s")
        assert (await agent.ask("ann"))[0] == "completed"
        desks = [await world.get_agent(Desk, name) for name in "xy"]
        parts = [await spent(one) for one in (agent, *desks)]
        assert all(parts)
        assert await used(world, "ann") == sum(parts)


async def test_a_ledger_that_cannot_be_reached_is_asked_again_and_no_request_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counted(Desk):
        model = ScriptedModel(text("one two"), each=True)

    failures, find = 3, UserReservations._ledger  # pyright: ignore[reportPrivateUsage]

    async def away(self: UserReservations, user: str) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            assert Counted.model.asked == []
            raise Unavailable("The node that has it is starting.")
        return await find(self, user)

    monkeypatch.setattr(UserReservations, "_ledger", away)
    async with users(lambda user: Limits(tokens=100 * ONE), Counted) as world:
        agent = await world.get_agent(Counted, "c")
        asking = asyncio.create_task(agent.ask("ann"))
        while not asking.done():
            await world.clock.advance(5)
        assert (await asking)[0] == "completed"
        assert len(Counted.model.asked) == 1


async def test_a_settlement_that_fails_is_delivered_by_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    original, failures = UserReservations.deliver, 2

    async def fails(self: UserReservations, user: str, usage: Any) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise Unavailable("The node that has it is starting.")
        await original(self, user, usage)

    monkeypatch.setattr(UserReservations, "deliver", fails)
    async with users(lambda user: Limits(tokens=100 * ONE)) as world:
        agent = await world.get_agent(Desk, "d")
        assert (await agent.ask("ann"))[0] == "completed"
        assert await used(world, "ann") == 0
        await world.clock.advance(60)
        await world.settled()
        assert await used(world, "ann") == await spent(agent)


@pytest.mark.slow
async def test_no_client_reaches_a_ledger() -> None:
    app: dict[str, Any] = {"authenticate": lambda request: "ann", "user_limits": lambda user: Limits(tokens=100 * ONE)}
    async with asyncio.timeout(patience()), door(Desk, **app) as site:
        agent = await site.world.get_agent(Desk, "d")
        assert (await agent.ask("ann"))[0] == "completed"
        for path in ("", "/questions", "/call/used", "/chat", "/runs"):
            for method in ("GET", "POST"):
                told = await site.http(f"/agents/sapwood-user/ann{path}", method=method, body=b"{}")
                assert told.status == 400, (method, path)


@pytest.mark.slow
async def test_a_user_without_an_id_is_refused() -> None:
    app: dict[str, Any] = {"authenticate": lambda request: {"name": "ann"}, "user_limits": lambda user: None}
    async with asyncio.timeout(patience()), door(Desk, **app) as site:
        assert (await site.http("/agents/desk/d/questions")).status == 500
