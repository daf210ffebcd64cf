"""What is done by the clock while something else goes wrong, or is in the way, in the same agent or tree."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.conformance.worlds import Run
from tests.machine import patience

from sapwood import Agent, Retry
from sapwood.errors import Unavailable
from sapwood.testing import World
from sapwood.when import After

pytestmark = pytest.mark.core("cluster")

SOON = timedelta(seconds=1)
SLOW = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 300000) SELECT count(*) FROM n"


class Troubled(Agent):
    """Plans calls that get in each other's way."""

    migrations = ("CREATE TABLE did (what TEXT) STRICT",)

    async def plan(self, *methods: str) -> None:
        for method in methods:
            self.schedule(After(SOON, key=method, retry=Retry(max_attempts=1)), getattr(self, method))

    async def did(self) -> list[str]:
        return [str(row["what"]) for row in self.sql("SELECT what FROM did")]

    async def pay(self) -> None:
        self.sql("INSERT INTO did VALUES ('pay')")

    async def compute(self) -> None:
        await self.read_sql(SLOW)
        self.sql("INSERT INTO did VALUES ('compute')")

    async def cancel_pay(self) -> None:
        self.sql("INSERT INTO did VALUES (?)", f"cancelled: {self.schedules.cancel('pay')}")

    async def work(self) -> None:
        self.sql("INSERT INTO did VALUES ('work')")

    async def begin_and_compute(self) -> None:
        self.start_fiber("work", self.work)
        await self.read_sql(SLOW)

    async def child(self, name: str) -> None:
        await self.sub_agent(Troubled, name)

    async def dead(self) -> int:
        return len(self.dead_letters.list())


async def troubled(world: World) -> Troubled:
    return await world.get_agent(Troubled, "t")


async def does(agent: Troubled, what: list[str]) -> None:
    """Return once the agent did this; read_sql takes real time."""
    async with asyncio.timeout(patience()):
        while sorted(await agent.did()) != what:  # noqa: ASYNC110 - nobody can tell us
            await asyncio.sleep(0.01)


async def test_a_call_that_is_due_during_read_sql_is_called(run: Run) -> None:
    async with run(Troubled) as world:
        agent = await troubled(world)
        await agent.plan("compute", "pay")

        await world.clock.advance(SOON)

        await does(agent, ["compute", "pay"])
        assert await agent.dead() == 0


async def test_a_call_that_another_one_cancels_in_the_same_moment_does_not_begin(run: Run) -> None:
    async with run(Troubled) as world:
        agent = await troubled(world)
        await agent.plan("cancel_pay", "pay")

        await world.clock.advance(SOON)

        assert await agent.did() == ["cancelled: True"]


async def test_a_commit_that_fails_at_the_end_of_a_call_has_it_called_again(run: Run) -> None:
    async with run(Troubled) as world:
        agent = await troubled(world)
        await agent.plan("pay")
        (actor,) = world.node.trees[next(iter(world.node.trees))].actors.values()
        commit = type(actor.database).commit
        failed: list[int] = []

        def fail_once(database: object) -> None:
            if database is actor.database and not failed:
                failed.append(1)
                actor.database.give_up(Unavailable("the disk"))
                raise Unavailable("the disk")
            commit(database)  # pyright: ignore[reportArgumentType]

        type(actor.database).commit = fail_once  # pyright: ignore[reportAttributeAccessIssue]
        try:
            await world.clock.advance(SOON)
            await world.clock.advance(timedelta(seconds=5))
        finally:
            type(actor.database).commit = commit

        assert failed
        assert await (await troubled(world)).did() == ["pay"]


async def test_a_fiber_begun_before_read_sql_runs_and_harms_no_sibling(run: Run) -> None:
    async with run(Troubled) as world:
        parent = await troubled(world)
        await parent.child("a")
        await parent.child("b")
        first = await world.get_agent(Troubled, "t", sub=[(Troubled, "a")])
        second = await world.get_agent(Troubled, "t", sub=[(Troubled, "b")])

        busy = asyncio.ensure_future(first.begin_and_compute())
        await asyncio.sleep(0.005)
        await second.pay()
        await busy
        await second.pay()
        await world.clock.advance(SOON)

        assert await second.did() == ["pay", "pay"]
        await does(first, ["work"])
