"""A test of a fiber that sleeps: a crash during the sleep, then the clock advances."""

import asyncio
from datetime import timedelta

from sapwood import App
from sapwood.testing import running
from trips import Travel, Trip


# --8<-- [start:sleep]
async def test_a_trip_is_booked_once_with_a_reminder_a_day_before() -> None:
    async with running(App(agents=[Travel])) as world:
        ann = await world.get_agent(Travel, "ann")
        oslo = Trip("Oslo", world.clock.time() + timedelta(days=30))
        planning = asyncio.ensure_future(ann.plan(oslo))
        await world.clock.advance(timedelta(days=28))
        booked = ["a flight to Oslo", "a bed in Oslo"]
        assert await ann.done() == booked

        planning.cancel()
        await world.crash()
        await world.clock.advance(timedelta(days=1))

        ann = await world.get_agent(Travel, "ann")
        assert await ann.done() == [*booked, "tomorrow: Oslo"]
        assert await ann.plan(oslo) == "SW 12, Hotel Oslo, 30000 cents"


# --8<-- [end:sleep]
