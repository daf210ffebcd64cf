import asyncio

from essays import Essays
from sapwood import App
from sapwood.testing import running


async def test_a_draft_that_waits_for_a_review_is_not_written_again() -> None:
    async with running(App(agents=[Essays])) as world:
        ann = await world.get_agent(Essays, "ann")
        await ann.write("oaks")
        for verdict in ("Shorter.", "good"):
            while not (questions := await ann.questions.list()):  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)
            await world.crash()
            ann = await world.get_agent(Essays, "ann")
            await ann.questions.answer(questions[0], verdict)

        assert await ann.result("oaks") == "All about oaks. Shorter."
