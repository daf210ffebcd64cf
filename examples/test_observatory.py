"""A test of retention: it advances the clock."""

from datetime import timedelta

from observatory import Observatory
from sapwood import App
from sapwood.testing import running


# --8<-- [start:sweep]
async def test_retention_deletes_old_runs_except_the_pinned_and_the_last() -> None:
    async with running(App(agents=[Observatory])) as world:
        hill = await world.get_agent(Observatory, "hill")
        await hill.observe("Vega", "Mars", "Rigel", "Sirius", "Deneb")
        await hill.keep("Mars")
        assert len(await hill.archive()) == 6

        await world.clock.advance(timedelta(minutes=2))
        assert len(await hill.archive()) == 5  # runs of assistants are not kept

        await world.clock.advance(timedelta(days=31))
        stars = [line.partition(",")[0] for line in await hill.archive()]
        assert stars == ["Mars (pinned)", "Sirius", "Deneb"]


# --8<-- [end:sweep]
