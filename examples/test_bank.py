import pytest

from bank import Account, Bank, NotEnough
from sapwood import App, ChildFailed, NotFound
from sapwood.testing import running

ADA = (Account, "ada")


async def test_only_a_transaction_rolls_back() -> None:
    async with running(App(agents=[Bank])) as world:
        bank = await world.get_agent(Bank, "village")
        await bank.deposit("ada", 500)
        ada = await world.get_agent(Bank, "village", sub=[ADA])

        with pytest.raises(NotEnough):
            await ada.spend(900)
        assert await ada.book(0) == 500

        with pytest.raises(NotEnough):
            await ada.spend_carelessly(900)
        assert await ada.book(0) == -400


async def test_an_error_names_its_agent() -> None:
    async with running(App(agents=[Bank])) as world:
        bank = await world.get_agent(Bank, "village")
        await bank.deposit("ada", 500)

        with pytest.raises(NotFound) as caught:
            await bank.transfer("ada", "eve", 100)
        assert isinstance(caught.value, ChildFailed)
        assert caught.value.path[-1] == ("Account", "eve")
        assert await bank.deposit("ada", 0) == 500


async def test_a_child_that_fails_to_start_is_not_created() -> None:
    async with running(App(agents=[Bank])) as world:
        bank = await world.get_agent(Bank, "village")

        with pytest.raises(ConnectionError):
            await bank.unlock()
        assert await bank.child_names() == []
