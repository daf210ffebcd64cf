"""Tests of the orchestrator: crashes, sleep, and the view from outside."""

import contextlib

import pytest

from orchestrator import Orchestrator, Researcher
from sapwood import App, NotFound, Unavailable
from sapwood.testing import running

QUESTION = "how many rings do trees grow every year?"


# --8<-- [start:crash-at]
@pytest.mark.parametrize("nth", range(1, 8))
async def test_acknowledged_answers_survive_a_crash_at_any_commit(nth: int) -> None:
    async with running(App(agents=[Orchestrator])) as world:
        orchestrator = await world.get_agent(Orchestrator, "alice")
        world.crash_at("committed", nth)

        answered = 0
        with contextlib.suppress(Unavailable):
            for _ in range(3):
                await orchestrator.ask("trees", QUESTION)
                answered += 1
        await world.crash()

        orchestrator = await world.get_agent(Orchestrator, "alice")
        assert (await orchestrator.progress()).questions >= answered


# --8<-- [end:crash-at]


# --8<-- [start:sleep]
async def test_a_researcher_remembers_after_a_sleep() -> None:
    async with running(App(agents=[Orchestrator])) as world:
        orchestrator = await world.get_agent(Orchestrator, "alice")
        await orchestrator.ask("trees", QUESTION)

        world.sleep()

        assert (await orchestrator.ask("trees", QUESTION)).times_asked == 2


# --8<-- [end:sleep]


# --8<-- [start:inside]
async def test_a_researcher_is_created_at_its_first_question() -> None:
    async with running(App(agents=[Orchestrator])) as world:
        orchestrator = await world.get_agent(Orchestrator, "alice")
        with pytest.raises(NotFound):
            await world.get_agent(Orchestrator, "alice", sub=[(Researcher, "trees")])

        await orchestrator.ask("trees", QUESTION)

        researcher = await world.get_agent(
            Orchestrator, "alice", sub=[(Researcher, "trees")]
        )
        assert (await researcher.find(QUESTION)).times_asked == 2


# --8<-- [end:inside]
