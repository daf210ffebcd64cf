from payments import Ledger, Shop
from sapwood import App
from sapwood.testing import running


async def test_an_order_is_paid_once_even_if_checkout_is_repeated() -> None:
    async with running(App(agents=[Shop])) as world:
        shop = await world.get_agent(Shop, "corner")
        Ledger.outages = 2

        assert await shop.check_out("17", 500) == 1
        await world.crash()
        shop = await world.get_agent(Shop, "corner")
        assert await shop.check_out("17", 500) == 1

        assert await shop.total() == 500
