import pytest

from newsroom import Desk, Newsroom, Reporter
from sapwood import App, NotFound
from sapwood.testing import running

SPORT = (Desk, "sport")


async def test_a_deleted_reporter_stays_deleted_after_a_crash() -> None:
    async with running(App(agents=[Newsroom])) as world:
        daily = await world.get_agent(Newsroom, "daily")
        await daily.cover("sport", {"ann": "the cup"})
        desk = await world.get_agent(Newsroom, "daily", sub=[SPORT])
        assert await desk.replace("ann") == 0

        await world.crash()

        desk = await world.get_agent(Newsroom, "daily", sub=[SPORT])
        assert await desk.staff() == ["2 ann: sleeping"]


async def test_a_reporter_belongs_to_one_desk() -> None:
    async with running(App(agents=[Newsroom])) as world:
        daily = await world.get_agent(Newsroom, "daily")
        await daily.cover("sport", {"ann": "the cup"})
        await daily.cover("politics", {"ben": "the vote"})

        with pytest.raises(NotFound):
            await world.get_agent(
                Newsroom, "daily", sub=[(Desk, "politics"), (Reporter, "ann")]
            )
