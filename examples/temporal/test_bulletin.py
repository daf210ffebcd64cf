from sapwood import App
from sapwood.testing import running

from bulletin import Editor


# --8<-- [start:test]
async def test_printing_waits_for_an_approval() -> None:
    async with running(App(agents=[Editor])) as world:
        editor = await world.get_agent(Editor, "morning")
        turn = await editor.send("A bulletin, please.")
        (question,) = await editor.questions.list()
        assert (turn.status, question.tool) == ("waiting", "print_it")

        await world.crash()
        editor = await world.get_agent(Editor, "morning")
        await editor.questions.approve(question.id)

        assert (await editor.turns.wait(turn.id)).text == "The bulletin is out."


# --8<-- [end:test]
