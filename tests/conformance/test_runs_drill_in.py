"""Opening a run: its helper is an agent like any other, and what is said to it later changes nothing of the run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.conformance.chats import CLEAR, done, resume, say, streamed, text_of, user
from tests.conformance.errands import (
    CALLER,
    again,
    caller,
    frames,
    helper,
    joined_later,
    over,
    told_end,
    told_text,
    working,
)
from tests.conformance.served import type_of

from sapwood import ChatAgent
from sapwood import agent as agent_type
from sapwood.testing import ScriptedModel, call, fails, text

pytestmark = pytest.mark.core("workers", "cluster")

INSIDE = f"{CALLER}/sub/helper/agent-tool%3Ac1"


async def refused(one: Any, path: str) -> tuple[int, int]:
    """Ask for what is not there, by HTTP and by a socket; return how each is refused."""
    return (await one.site.http(f"{path}/get-messages")).status, await one.site.refused(path)


def asking(*more: Any) -> Any:
    return ScriptedModel(call("helper", id="c1", message="the question"), text("thanks"), *more)


@pytest.mark.promise("A-108")
async def test_a_helper_can_be_opened_and_asked_more_with_the_question_in_mind() -> None:
    theirs = ScriptedModel(text("the answer"), text("and more"))
    async with working(cls := caller(asking(), helper(theirs))) as (one, agent, _):
        await agent.send("go")

        inside = await one.join(INSIDE)
        await say(inside, "r2", user("tell me more"))
        await done(inside, "r2")

        child = await one.world.get_agent(cls, "c", sub=[(cls.worker, "agent-tool:c1")])
        texts = [text_of(message) for message in await child.conversation.messages()]
        assert texts == ["the question", "the answer", "tell me more", "and more"]
        assert "the question" in str(theirs.asked[1])


@pytest.mark.slow
@pytest.mark.promise("A-136", "A-231", "CF-112")
async def test_what_is_said_to_a_helper_later_does_not_change_what_the_caller_sees_of_the_run(level: str) -> None:
    theirs = ScriptedModel(text("the answer"), text("and more"), fails(ValueError("no")), text("continued"))
    async with working(cls := caller(asking(), helper(theirs)), durability=level) as (one, agent, _):
        client = await one.join(CALLER)
        await agent.send("go")
        await told_end(client, "agent-tool:c1")
        run, seen = await agent.one("agent-tool:c1"), len(frames(client))

        inside = await one.join(INSIDE)
        await say(inside, "r2", user("tell me more"))
        await done(inside, "r2")
        await say(inside, "r3", user("and fail"))
        await done(inside, "r3")

        assert await agent.one("agent-tool:c1") == run
        assert len(frames(client)) == seen
        await joined_later(one, CALLER, client, "agent-tool:c1")
        await one.world.crash()
        await again(one, cls)
        await joined_later(one, CALLER, client, "agent-tool:c1")


@pytest.mark.promise("A-136")
async def test_while_a_helper_is_asked_more_whoever_comes_sees_the_run_as_it_was() -> None:
    gate = asyncio.Event()
    theirs = ScriptedModel(text("the answer"), text("and more", gate=gate))
    async with working(caller(asking(), helper(theirs))) as (one, agent, _):
        client = await one.join(CALLER)
        await agent.send("go")
        await told_end(client, "agent-tool:c1")

        inside = await one.join(INSIDE)
        await say(inside, "r2", user("tell me more"))
        await streamed(inside, "r2", "and")
        await joined_later(one, CALLER, client, "agent-tool:c1")
        gate.set()
        await done(inside, "r2")


@pytest.mark.promise("A-136")
async def test_a_run_whose_turn_is_continued_later_stays_what_it_was() -> None:
    theirs = ScriptedModel(text("the answer"), text(" and more"))
    async with working(cls := caller(asking(), helper(theirs))) as (one, agent, _):
        client = await one.join(CALLER)
        await agent.send("go")
        await told_end(client, "agent-tool:c1")
        run, seen = await agent.one("agent-tool:c1"), len(frames(client))

        child = await one.world.get_agent(cls, "c", sub=[(cls.worker, "agent-tool:c1")])
        turn = await child.turns.continue_last()

        assert turn.text == "the answer and more"
        assert await agent.one("agent-tool:c1") == run
        assert len(frames(client)) == seen
        await joined_later(one, CALLER, client, "agent-tool:c1")


@pytest.mark.promise("A-136")
async def test_a_run_whose_answer_is_asked_for_again_later_stays_what_it_was() -> None:
    theirs = ScriptedModel(text("the answer"), text("another answer"))
    async with working(cls := caller(asking(), helper(theirs))) as (one, agent, _):
        client = await one.join(CALLER)
        await agent.send("go")
        await told_end(client, "agent-tool:c1")
        run = await agent.one("agent-tool:c1")

        inside = await one.join(INSIDE)
        child = await one.world.get_agent(cls, "c", sub=[(cls.worker, "agent-tool:c1")])
        question = (await child.conversation.messages())[0]
        await say(inside, "r2", question, trigger="regenerate-message")
        await done(inside, "r2")

        assert [text_of(message) for message in await child.conversation.messages()] == [
            "the question",
            "another answer",
        ]
        assert await agent.one("agent-tool:c1") == run
        await joined_later(one, CALLER, client, "agent-tool:c1")


async def test_what_is_said_to_a_helper_during_its_run_waits_for_its_turn() -> None:
    gate = asyncio.Event()
    theirs = ScriptedModel(text("the answer", gate=gate), text("to the other question"))
    async with working(cls := caller(asking(), helper(theirs))) as (one, agent, _):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        await told_text(client, "agent-tool:c1", "the")
        inside = await one.join(INSIDE)
        assert (await resume(inside))["id"] == "agent-tool:c1"
        await say(inside, "r2", user("another question"))
        gate.set()
        await sending
        await done(inside, "r2")

        assert (await over(agent, "agent-tool:c1")).output == "the answer"
        child = await one.world.get_agent(cls, "c", sub=[(cls.worker, "agent-tool:c1")])
        assert text_of((await child.conversation.messages())[-1]) == "to the other question"


async def test_a_helper_that_is_cleared_from_inside_leaves_a_run_that_is_still_known() -> None:
    async with working(caller(asking(), helper(ScriptedModel(text("the answer"))))) as (one, agent, _):
        await agent.send("go")
        inside = await one.join(INSIDE)
        await inside.send({"type": "cf_agent_chat_clear"})
        await inside.call("nothing")

        late = await one.join(CALLER)
        end = await told_end(late, "agent-tool:c1")

        assert end["event"]["summary"] == "the answer"
        assert (await agent.one("agent-tool:c1")).output == "the answer"


@pytest.mark.promise("A-72", "A-233")
async def test_only_runs_that_were_given_can_be_opened_and_only_under_their_own_class() -> None:
    helper(ScriptedModel(), "OtherHelper")
    async with working(caller(asking(), helper(ScriptedModel(text("the answer"))))) as (one, agent, _):
        await agent.send("go")

        assert await refused(one, f"{CALLER}/sub/helper/agent-tool%3Aguessed") == (404, 4404)
        assert await refused(one, f"{CALLER}/sub/other-helper/agent-tool%3Ac1") == (404, 4404)
        assert await one.site.refused(f"{CALLER}/sub/no-such-class/agent-tool%3Ac1") == 4404
        assert await agent.child_names() == ["agent-tool:c1"]
        await one.join(INSIDE)


async def test_a_run_that_was_cleared_cannot_be_opened_any_more_and_those_inside_are_sent_away() -> None:
    async with working(caller(asking(), helper(ScriptedModel(text("the answer"))))) as (one, agent, _):
        await agent.send("go")
        inside = await one.join(INSIDE)

        await agent.clear_them()

        assert (await inside.ended())[0] == 1001
        assert await refused(one, INSIDE) == (404, 4404)
        assert await agent.child_names() == []


@pytest.mark.promise("A-240")
async def test_whoever_clears_a_conversation_clears_its_runs_in_every_tab() -> None:
    async with working(caller(asking(), helper(ScriptedModel(text("the answer"))))) as (one, agent, _):
        tab, other = await one.join(CALLER), await one.join(CALLER)
        await agent.send("go")
        await told_end(other, "agent-tool:c1")
        inside = await one.join(INSIDE)

        await tab.send({"type": CLEAR})
        await other.until(lambda frame: type_of(frame) == CLEAR)

        assert (await inside.ended())[0] == 1001
        late = await one.join(CALLER)
        await late.call("nothing")
        assert frames(late) == []
        assert (await agent.all_runs(), await agent.child_names(), await agent.conversation.messages()) == ([], [], [])
        assert await refused(one, INSIDE) == (404, 4404)


@pytest.mark.promise("A-116")
async def test_a_run_can_be_opened_by_the_name_its_class_had() -> None:
    renamed = agent_type(type="helper-of-old")(helper(ScriptedModel(text("the answer"), text("more")), "HelperOfOld"))
    ours = ScriptedModel(call("helper_of_old", id="c1", message="the question"), text("thanks"))
    async with working(cls := caller(ours, renamed)) as (one, agent, _):
        await agent.send("go")
        agent_type(type="helper-of-today", aliases=("helper-of-old",))(renamed)
        await one.world.restart()
        await again(one, cls)
        late = await one.join(CALLER)
        await told_end(late, "agent-tool:c1")

        inside = await one.join(f"{CALLER}/sub/{frames(late)[0]['event']['agentType']}/agent-tool%3Ac1")
        await say(inside, "r2", user("more"))

        assert (await done(inside, "r2"))["outcome"] == "completed"


@pytest.mark.promise("A-164")
async def test_a_helper_has_no_way_to_its_callers_conversation() -> None:
    """Isolation: what the helper knows is its input."""

    class Curious(ChatAgent):
        async def respond(self, turn: Any) -> Any:
            yield str(len(self.conversation.history()))

    ours = ScriptedModel(text("a secret"), call("helper", id="c1", message="x"), text("done"))
    async with working(caller(ours, helper(None, base=Curious))) as (_, agent, _):
        await agent.send("what is the password?")
        await agent.send("go")

        assert (await agent.one("agent-tool:c1")).output == "1"


async def test_a_class_that_nobody_knows_is_not_found_and_never_answered_by_its_parent() -> None:
    async with working(caller(asking(), helper(ScriptedModel(text("the answer"))))) as (one, agent, _):
        await agent.send("ask")

        assert await refused(one, f"{CALLER}/sub/unheard-of/agent-tool%3Ac1") == (404, 4404)
