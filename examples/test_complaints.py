from complaints import Desk
from sapwood import App
from sapwood.testing import running


async def test_a_refund_waits_for_an_approval_across_a_crash() -> None:
    async with running(App(agents=[Desk])) as world:
        ann = await world.get_agent(Desk, "ann")
        turn = await ann.send("The vase of order 17 is broken.")

        await world.crash()

        ann = await world.get_agent(Desk, "ann")
        (question,) = await ann.questions.list()
        assert (turn.status, question.tool) == ("waiting", "refund")
        await ann.questions.approve(question)
        turn = await ann.turns.wait(turn.id)
        assert turn.text == "You get 25 euros for the vase."
