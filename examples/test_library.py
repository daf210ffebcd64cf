from datetime import timedelta

from library import Library
from sapwood import App
from sapwood.testing import running

TWO_WEEKS = timedelta(weeks=2)


# --8<-- [start:advance]
async def test_a_reader_is_reminded_even_if_the_program_was_dead() -> None:
    async with running(App(agents=[Library])) as world:
        town = await world.get_agent(Library, "town")
        await town.join("ann", "Mill Lane 1")
        await town.lend("Walden", "ann", TWO_WEEKS)

        await world.crash()
        await world.clock.advance(TWO_WEEKS - timedelta(seconds=1))
        town = await world.get_agent(Library, "town")
        assert await town.to_come() == ["remind Walden", "tidy_up"]

        await world.clock.advance(timedelta(seconds=2))
        assert await town.to_come() == ["tidy_up", "remind Walden"]


# --8<-- [end:advance]


async def test_a_returned_book_has_no_reminder() -> None:
    async with running(App(agents=[Library])) as world:
        town = await world.get_agent(Library, "town")
        await town.lend("Emma", "ann", TWO_WEEKS)
        await town.give_back("Emma")

        await world.clock.advance(timedelta(weeks=3))

        assert await town.to_come() == ["tidy_up"]
        assert await town.given_up() == []


async def test_a_letter_that_cannot_be_sent_blocks_no_other_reader() -> None:
    async with running(App(agents=[Library])) as world:
        town = await world.get_agent(Library, "town")
        await town.join("ann", "Mill Lane 1")
        await town.lend("Middlemarch", "bob", TWO_WEEKS)
        await town.lend("Walden", "ann", TWO_WEEKS)

        await world.clock.advance(TWO_WEEKS + timedelta(minutes=1))

        (letter,) = await town.given_up()
        assert "Where does bob live?" in letter
