"""Tests of cron schedules: they set the clock, and advance it."""

from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from reports import Reports
from sapwood import Agent, App, Cron, agent
from sapwood.testing import running

BERLIN = ZoneInfo("Europe/Berlin")


# --8<-- [start:advance]
async def test_a_report_is_written_on_working_days_at_eight_in_berlin() -> None:
    async with running(App(agents=[Reports])) as world:
        friday = datetime(2026, 3, 27, 7, 59, tzinfo=BERLIN)
        world.clock.jump(friday)
        office = await world.get_agent(Reports, "office")

        await world.clock.advance(timedelta(days=2))
        assert await office.written() == ["morning"]

        # The clocks go forward on Sunday: the next eight o'clock is an hour sooner.
        await world.clock.advance(timedelta(hours=23, minutes=2))
        assert await office.written() == ["morning", "morning"]


# --8<-- [end:advance]


# --8<-- [start:deploy]
@agent(type="Clerk")
class ClerkBefore(Agent):
    migrations = ("CREATE TABLE done (what TEXT NOT NULL) STRICT",)

    async def on_start(self) -> None:
        self.schedule(Cron("0 8 * * *", key="daily"), self.work, "at eight")

    async def work(self, when: str) -> None:
        self.sql("INSERT INTO done VALUES (?)", when)

    async def done(self) -> list[str]:
        return [str(row["what"]) for row in self.sql("SELECT what FROM done")]


@agent(type="Clerk")
class ClerkAfter(ClerkBefore):
    async def on_start(self) -> None:
        self.schedule(Cron("30 9 * * *", key="daily"), self.work, "at half past nine")


async def test_a_new_time_with_the_same_key_replaces_the_old(
    tmp_path: Path,
) -> None:
    async with running(App(agents=[ClerkBefore]), data=tmp_path) as world:
        await world.get_agent(ClerkBefore, "office")
        await world.clock.advance(timedelta(days=1))

    async with running(App(agents=[ClerkAfter]), data=tmp_path) as world:
        await world.clock.advance(timedelta(days=3))

        clerk = await world.get_agent(ClerkAfter, "office")
        assert await clerk.done() == ["at eight", "at half past nine"]


# --8<-- [end:deploy]
