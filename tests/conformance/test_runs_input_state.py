"""The input of a run as the first state of the agent that does it, for classes that ask for that."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from tests.conformance.chats import text_of
from tests.conformance.errands import again, boss, caller, helper, over, working
from tests.conformance.far import both
from tests.conformance.served import type_of
from tests.machine import patience

from sapwood import Agent, ChatAgent, Unavailable, agent_tool
from sapwood.testing import ScriptedModel, call, text


class Topic(msgspec.Struct):
    """What a researcher is asked, and what it has found."""

    about: str
    depth: int = 1
    found: tuple[str, ...] = ()


class Researcher(Agent[Topic]):
    """Starts with its input, and adds to it."""

    deps: Any
    expose_runs = True
    initial_state = Topic("nothing")
    input_as_state = True

    async def on_run(self, input: Topic) -> str:
        self.deps.log.append(f"begun {self.state.about}")
        self.set_state(msgspec.structs.replace(self.state, found=("a source",)))
        return self.state.about

    async def shown(self) -> Topic:
        return self.state


class Between(Agent):
    """Has the run below done with its own input."""

    worker: type[Agent[Any]]

    async def on_run(self, input: Any) -> Any:
        return (await self.run_agent(self.worker, input, run_id="r")).output


def nested(levels: int) -> list[Any]:
    """Return the classes from the one below the root down to the researcher."""
    classes: list[Any] = [Researcher]
    for level in range(1, levels):
        classes.insert(0, type(f"Between{level}", (Between,), {"worker": classes[0]}))
    return classes


@pytest.mark.promise("A-170")
@pytest.mark.parametrize("levels", [1, 2, 3])
async def test_the_input_of_a_run_is_the_first_state_of_its_agent(levels: int, level: str) -> None:
    below = nested(levels)
    async with working(cls := boss(below[0]), durability=level) as (one, agent, _):
        run = await agent.give({"about": "bread", "depth": 2}, run_id="r")
        assert (run.status, run.output) == ("completed", "bread")

        for _ in range(2):
            child = await one.world.get_agent(cls, "b", sub=[(each, "r") for each in below])
            assert await child.shown() == Topic("bread", 2, ("a source",))
            await one.world.crash()


@pytest.mark.promise("A-170")
async def test_a_chat_agent_gets_its_input_as_message_and_as_state() -> None:
    class Question(BaseModel):
        about: str
        depth: int = 1

    class Finder(ChatAgent):
        initial_state = Topic("nothing")
        input_as_state = True

    finder = helper(ScriptedModel(text("found")), base=Finder)
    ours = ScriptedModel(call("find", id="c1", about="bread"), text("done"))
    cls = caller(ours, agent_tool(finder, name="find", input=Question))
    async with working(cls) as (one, agent, _):
        await agent.send("go")

        child = await one.world.get_agent(cls, "c", sub=[(finder, "agent-tool:c1")])
        assert [text_of(message) for message in await child.conversation.messages()] == [
            '{"about":"bread","depth":1}',
            "found",
        ]
        client = await one.join("/agents/caller/c/sub/helper/agent-tool%3Ac1")
        told = await client.until(lambda frame: type_of(frame) == "cf_agent_state")
        assert told["state"] == {"about": "bread", "depth": 1, "found": []}


async def test_an_agent_that_has_a_state_keeps_it() -> None:
    class Settled(Researcher):
        async def on_start(self) -> None:
            self.set_state(Topic("my own"))

    async with working(boss(Settled)) as (_, agent, _):
        assert (await agent.give({"about": "bread"}, run_id="r")).output == "my own"


async def test_a_class_that_does_not_ask_for_it_has_its_own_state() -> None:
    plain = type("Plain", (Researcher,), {"input_as_state": False})
    async with working(boss(plain)) as (_, agent, _):
        assert (await agent.give({"about": "bread"}, run_id="r")).output == "nothing"


@pytest.mark.promise("A-170")
async def test_an_input_that_does_not_fit_the_state_ends_the_run_before_it_begins() -> None:
    async with working(cls := boss(Researcher)) as (one, agent, bench):
        run = await agent.give({"about": 3}, run_id="r")

        assert run.status == "failed"
        assert "The input of run 'r' must match the state of Boss:b/Researcher:r, a Topic" in run.error
        assert bench.log == []
        child = await one.world.get_agent(cls, "b", sub=[(Researcher, "r")])
        assert await child.shown() == Topic("nothing")


async def test_a_state_that_the_agent_refuses_ends_the_run_before_it_begins() -> None:
    class Strict(Researcher):
        def validate_state(self, state: Topic, source: Any) -> None:
            if state.depth > 3:
                raise ValueError("too deep")

    async with working(boss(Strict)) as (_, agent, bench):
        run = await agent.give({"about": "bread", "depth": 9}, run_id="r")

        assert run.status == "failed"
        assert "too deep" in run.error
        assert bench.log == []


@pytest.mark.promise("A-170")
async def test_the_input_of_a_remote_run_is_the_state_at_the_other_server() -> None:
    far = type("FarResearcher", (Researcher,), {})
    async with both(far=[far]) as two:
        run = await (await two.desk()).give("FarResearcher", {"about": "bread"}, "r")
        assert run.output == "bread"
        there = await two.far.world.get_agent(far, run.remote["session"])
        assert await there.shown() == Topic("bread", 1, ("a source",))

        refused = await (await two.desk()).give("FarResearcher", {"about": 3}, "s")
        assert refused.status == "failed"
        assert "must match the state of FarResearcher:" in refused.error


@pytest.mark.nightly
@pytest.mark.promise("A-170")
@pytest.mark.slow
async def test_killed_at_any_commit_a_run_finds_its_input_as_state() -> None:
    nth, passed = 0, True
    while passed:
        nth += 1
        below = nested(3)
        async with working(cls := boss(below[0])) as (one, agent, bench):
            await agent.wake()
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                await agent.give({"about": "bread"}, run_id="r")
            passed = one.world.points.passed["committed"] >= before + nth
            await one.world.crash()
            agent = await again(one, cls)
            giving = asyncio.create_task(agent.give({"about": "bread"}, run_id="r"))
            async with asyncio.timeout(patience()):
                while not giving.done():
                    await one.world.clock.advance(1)

            assert (await over(agent, "r")).output == "bread"
            assert {*bench.log} == {"begun bread"}
    assert nth > 5
