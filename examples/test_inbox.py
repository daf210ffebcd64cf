from inbox import Inbox
from sapwood import App
from sapwood.testing import running


async def test_notes_survive_a_crash() -> None:
    async with running(App(agents=[Inbox])) as world:
        alice = await world.get_agent(Inbox, "alice")
        await alice.note("shopping", "milk")

        await world.crash()

        alice = await world.get_agent(Inbox, "alice")
        assert await alice.note("shopping", "bread") == 2
