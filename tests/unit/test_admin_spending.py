"""What agents use of models is counted by hour, class, model and user, and adds up to what was used in all."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.unit.admin_requests import LOOK, ask

from sapwood import App, ChatAgent, agent_tool
from sapwood.admin.admin import Admin
from sapwood.admin.spending_hours import added_up
from sapwood.errors import InvalidArguments
from sapwood.kernel.trees.hourly_usage import HOUR, KEPT_DAYS
from sapwood.kernel.trees.usage import Spent
from sapwood.testing import ScriptedModel, World, call, running, text

PRICES = {"scripted": (1.0, 1.0)}
UNITS = Spent._fields


class HourlyScout(ChatAgent):
    """Answers at the bottom."""

    model = ScriptedModel(text("far away"), each=True)


class HourlyGuide(ChatAgent):
    model = ScriptedModel(call("hourly_scout", message="where?"), text("there"), each=True)
    tools = (agent_tool(HourlyScout),)

    async def forget(self) -> None:
        await self.runs.clear()


def app() -> App:
    return App(agents=[HourlyGuide])


async def send(world: World, name: str, *, by_operator: bool = False) -> None:
    if by_operator:
        async for _ in Admin(world.node).call(f"HourlyGuide:{name}", "send", ["go"]):
            pass
    else:
        await (await world.get_agent(HourlyGuide, name)).send("go")


def total(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {unit: sum(row[unit] for row in rows) for unit in UNITS}


async def hours(world: World, *by: str, **params: Any) -> list[dict[str, Any]]:
    return (await ask(world, "spending", by=list(by), **params))["rows"]


async def test_spending_is_counted_by_hour_class_model_and_user() -> None:
    async with running(app(), prices=PRICES) as world:
        start = world.clock.now() // HOUR * HOUR
        await send(world, "a")
        await world.clock.advance(timedelta(hours=2))
        await send(world, "b", by_operator=True)
        await send(world, "c")
        await world.restart()

        rows = await hours(world, "user", "hour", "class")
        assert [(row["hour"] - start, row["class"], row["user"], row["requests"]) for row in rows] == [
            (0, "HourlyGuide", None, 2),
            (0, "HourlyScout", None, 1),
            (2 * HOUR, "HourlyGuide", None, 2),
            (2 * HOUR, "HourlyGuide", "operator", 2),
            (2 * HOUR, "HourlyScout", None, 1),
            (2 * HOUR, "HourlyScout", "operator", 1),
        ]
        assert total(rows) == total((await ask(world, "spending"))["rows"])
        assert total(rows)["nanodollars"] > 0
        assert [(row["model"], row["requests"]) for row in await hours(world, "model")] == [("scripted", 9)]
        assert not any(tree.actors for tree in world.node.trees.values())


async def test_hours_are_selected_by_time_and_tree() -> None:
    async with running(app(), prices=PRICES) as world:
        start = world.clock.now() // HOUR * HOUR
        for name in ("a", "b", "a"):
            await send(world, name)
            await world.clock.advance(timedelta(hours=1))

        async def starts(**params: Any) -> list[float]:
            return [(row["hour"] - start) / HOUR for row in await hours(world, "hour", **params)]

        assert await starts() == [0, 1, 2]
        assert await starts(address="HourlyGuide:a") == [0, 2]
        assert await starts(**{"from": start + HOUR}) == [1, 2]
        assert await starts(**{"from": start + HOUR - 1, "to": start + 2 * HOUR}) == [0, 1]
        told = await ask(world, "spending", to=start + 2 * HOUR, limit=1)
        assert (told["count"], len(told["trees"]), told["more"]) == (2, 1, False)
        assert total(told["trees"]) == {unit: told["rows"][0][unit] // 2 for unit in UNITS}
        with pytest.raises(InvalidArguments, match="root"):
            await ask(world, "spending", by=["hour"], address="HourlyGuide:a/HourlyScout:x")
        with pytest.raises(InvalidArguments):
            await ask(world, "spending", by=["day"])


async def test_what_deleted_agents_have_used_stays_in_the_hours() -> None:
    async with running(app(), prices=PRICES) as world:
        await send(world, "a")
        before = await hours(world, "class")

        await (await world.get_agent(HourlyGuide, "a")).forget()
        await world.settled()

        assert await hours(world, "class") == before
        assert [row["class"] for row in before] == ["HourlyGuide", "HourlyScout"]


async def test_hours_are_deleted_when_they_are_old() -> None:
    async with running(app(), prices=PRICES) as world:
        await send(world, "a")
        await world.clock.advance(timedelta(days=KEPT_DAYS - 1))
        await send(world, "a")
        assert len(await hours(world, "hour")) == 2

        await world.clock.advance(timedelta(days=2))
        await send(world, "a")

        assert len(await hours(world, "hour")) == 2


async def test_users_are_hidden_without_the_scope_content() -> None:
    async with running(app(), prices=PRICES) as world:
        await send(world, "a", by_operator=True)

        (row,) = (await ask(world, "spending", LOOK, by=["user"]))["rows"]

        assert row["user"] == {"hidden": "string", "length": 8}


async def test_hours_survive_a_crash_and_count_nothing_twice() -> None:
    async with running(app(), prices=PRICES) as world:
        await send(world, "a")
        await world.crash()
        await send(world, "a")

        assert total(await hours(world, "hour")) == total((await ask(world, "spending"))["rows"])


def test_the_hours_of_several_nodes_are_added_up() -> None:
    one = {"hour": 3600, "user": None, **Spent(1, 2, 3, 4, 0)._asdict()}
    other = {"hour": 7200, "user": None, **Spent(1, 1, 1, 1, 1)._asdict()}

    assert added_up([other, one, one]) == [
        {"hour": 3600, "user": None, **Spent(2, 4, 6, 8, 0)._asdict()},
        other,
    ]


async def test_what_the_source_of_a_fork_used_counts_once_in_the_sums_of_all_trees() -> None:
    async with running(app(), prices=PRICES) as world:
        await send(world, "a")
        before = await ask(world, "spending", by_class=True)

        await world.app.fork(HourlyGuide, "a", to="b")

        assert (await ask(world, "spending", by_class=True))["rows"] == before["rows"]
        assert total(await hours(world, "hour")) == total(before["rows"])
        assert total((await ask(world, "spending", address="HourlyGuide:b"))["rows"]) == total(before["rows"])
        await send(world, "b")
        assert total((await ask(world, "spending"))["rows"])["requests"] == total(before["rows"])["requests"] + 1
        assert total(await hours(world, "hour"))["requests"] == total(before["rows"])["requests"] + 1
