from continued import EARLIER, Desk
from sapwood import App
from sapwood.testing import running


async def test_the_model_sees_imported_messages_once_after_a_crash() -> None:
    async with running(App(agents=[Desk])) as world:
        ann = await world.get_agent(Desk, "ann")
        await ann.import_messages(EARLIER)
        await ann.import_messages(EARLIER)

        await world.crash()

        ann = await world.get_agent(Desk, "ann")
        assert (await ann.send("Which order was it?")).text == "It was order 17."
