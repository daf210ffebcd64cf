from datetime import timedelta

from library import Library
from sapwood import App
from sapwood.testing import running

TWO_WEEKS = timedelta(weeks=2)


# --8<-- [start:advance]
async def test_a_reader_is_reminded_even_if_the_server_was_down() -> None:
    async with running(App(agents=[Library])) as world:
        town = await world.get_agent(Library, "town")
        await town.join("ann", "Mill Lane 1")
        await town.lend("Walden", "ann", TWO_WEEKS)

        await world.crash()
        await world.clock.advance(TWO_WEEKS - timedelta(seconds=1))
        town = await world.get_agent(Library, "town")
        assert await town.pending() == ["remind Walden", "tidy_up"]

        await world.clock.advance(timedelta(seconds=2))
        assert await town.pending() == ["tidy_up", "remind Walden"]


# --8<-- [end:advance]


async def test_a_returned_book_has_no_reminder() -> None:
    async with running(App(agents=[Library])) as world:
        town = await world.get_agent(Library, "town")
        await town.lend("Emma", "ann", TWO_WEEKS)
        await town.give_back("Emma")

        await world.clock.advance(timedelta(weeks=3))

        assert await town.pending() == ["tidy_up"]
        assert await town.failures() == []


async def test_a_failed_letter_does_not_block_other_readers() -> None:
    async with running(App(agents=[Library])) as world:
        town = await world.get_agent(Library, "town")
        await town.join("ann", "Mill Lane 1")
        await town.lend("Middlemarch", "bob", TWO_WEEKS)
        await town.lend("Walden", "ann", TWO_WEEKS)

        await world.clock.advance(TWO_WEEKS + timedelta(minutes=1))

        (letter,) = await town.failures()
        assert "no address for bob" in letter
