import pytest

from booking import Booking
from sapwood import App
from sapwood.testing import running


async def test_a_payment_is_tried_again_and_the_fare_is_not_looked_up_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with running(App(agents=[Booking])) as world:
        ann = await world.get_agent(Booking, "ann")
        assert await ann.book("To the north.") == "90 euros are paid."

        await world.crash()

        ann = await world.get_agent(Booking, "ann")
        assert await ann.book("To the north.") == "90 euros are paid."
    assert capsys.readouterr().out.splitlines() == ["look up Oslo", "pay 90", "pay 90"]
