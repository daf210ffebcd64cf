"""Tests of agents that use agents, each with a scripted model."""

import asyncio

from paper import Editor, Researcher
from sapwood import App
from sapwood.testing import ScriptedModel, call, calls, running, text


async def test_the_editor_uses_the_results_of_its_helpers() -> None:
    both = calls(
        call("researcher", id="c1", message="salt"),
        call("archive", id="c2", message="salt"),
    )
    editors = ScriptedModel(both, text("A page on salt."))
    models = {Editor: editors, Researcher: ScriptedModel(text("Salt is salty."))}
    async with running(App(agents=[Editor]), models=models) as world:
        editor = await world.get_agent(Editor, "daily")

        turn = await editor.send("Write about salt.")
        runs = await editor.all_runs()

    assert (turn.status, turn.text) == ("completed", "A page on salt.")
    assert [(run.id, run.agent.type, run.output) for run in runs] == [
        ("agent-tool:c1", "Researcher", "Salt is salty."),
        ("agent-tool:c2", "Archive", "In 1987 we had a page on salt."),
    ]


async def test_completed_runs_are_not_repeated_after_a_crash() -> None:
    go = asyncio.Event()
    both = calls(
        call("researcher", id="c1", message="salt"),
        call("archive", id="c2", message="salt"),
    )
    editors = ScriptedModel(both, text("A page on salt."), text("You are welcome."))
    slow = ScriptedModel(text("Salt is salty.", gate=go))
    models = {Editor: editors, Researcher: slow}
    async with running(App(agents=[Editor]), models=models) as world:
        editor = await world.get_agent(Editor, "daily")
        writing = asyncio.create_task(editor.send("Write about salt."))
        async for event in editor.subscribe("children"):
            if (
                event.kind == "completed"
            ):  # the archive; the researcher is still streaming
                break
        _, archive = await editor.all_runs()

        await world.crash()
        go.set()
        await asyncio.gather(writing, return_exceptions=True)
        editor = await world.get_agent(Editor, "daily")
        await editor.send("Thank you.")  # answered after the turns before it
        runs = await editor.all_runs()

    assert [run.output for run in runs] == [
        "Salt is salty.",
        "In 1987 we had a page on salt.",
    ]
    assert runs[1] == archive  # unchanged: it did not run again
    assert len(editors.asked) == 3
