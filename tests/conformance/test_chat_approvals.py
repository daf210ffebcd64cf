"""A tool that needs a person's approval waits for it, for ever and at no cost, and is called once if it comes."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

import pytest
from tests.conformance.chats import (
    MESSAGES,
    NONE,
    TALKER,
    UPDATED,
    Talking,
    approval,
    check_history,
    chunks,
    done,
    idle,
    open_calls,
    over,
    parts_of,
    resume,
    say,
    talker,
    talking,
    text_of,
    tool_result,
    user,
)
from tests.conformance.served import type_of
from tests.conformance.worlds import Run, asleep, until
from tests.machine import patience

from sapwood import Agent, Question, Refused, TimedOut, deadline, tool
from sapwood.errors import InvalidArguments
from sapwood.testing import ScriptedModel, call, calls, text

QUESTIONS = "sapwood_questions"
NOT_OPEN = "This question is not open, or has changed since it was shown. Reload it."


class Paying(Talking):
    log: list[Any]

    @tool(requires_approval=True)
    async def pay(self, amount: int) -> str:
        """Pay."""
        self.log.append(amount)
        return f"paid {amount}"

    @tool
    async def look_up(self) -> str:
        """Look something up."""
        self.log.append("looked")
        return "found"


def paying(*lines: Any, **settings: Any) -> Any:
    return talker(ScriptedModel(*lines), base=Paying, log=[], **settings)


async def test_python_is_told_what_waits_and_approves_it(run: Run) -> None:
    cls = paying(call("pay", id="p", amount=5), text("paid it"))
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")

        turn = await agent.send("pay")
        assert turn.status == "waiting"
        assert await agent.questions.list() == [Question("p", "pay", {"amount": 5})]
        assert cls.log == []

        assert await agent.questions.approve("p")
        await over(agent)

        assert cls.log == [5]
        assert await agent.questions.list() == []
        _, answer = await agent.conversation.messages()
        assert parts_of(answer, "p")["output"] == "paid 5"
        assert text_of(answer) == "paid it"
        assert await agent.ends() == [(turn.id, "completed")]
        check_history(json.loads(await agent.seen_by_model()))


async def test_python_waits_for_what_comes_of_an_approval(run: Run) -> None:
    cls = paying(call("pay", id="p", amount=5), call("pay", id="q", amount=6), text("paid both"))
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        turn = await agent.send("pay")
        assert (await agent.turns.wait(turn.id)).status == "waiting"

        await agent.questions.approve("p")
        assert (await agent.turns.wait(turn.id)).status == "waiting"
        await agent.questions.approve("q")

        turn = await agent.turns.wait(turn.id)
        assert (turn.status, turn.text) == ("completed", "paid both")
        assert await agent.turns.wait(turn.id) == turn
        with pytest.raises(Refused, match="no turn 'x'"):
            await agent.turns.wait("x")


async def test_whoever_only_waits_for_a_turn_does_not_cancel_it(run: Run) -> None:
    gate = asyncio.Event()
    cls = paying(call("pay", id="p", amount=5), text("paid it", gate=gate))
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        turn = await agent.send("pay")
        await agent.questions.approve("p")

        with pytest.raises(TimedOut), deadline(0.1):
            await agent.turns.wait(turn.id)
        gate.set()

        assert (await agent.turns.wait(turn.id)).text == "paid it"


@pytest.mark.promise("CF-177")
async def test_a_denied_call_is_not_made_and_the_model_is_told_why(run: Run) -> None:
    cls = paying(call("pay", id="p", amount=5), text("as you wish"))
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("pay")

        assert await agent.questions.deny("p", "Too much.")
        await over(agent)

        assert cls.log == []
        assert "Too much." in await agent.seen_by_model()
        _, answer = await agent.conversation.messages()
        assert parts_of(answer, "p")["state"] == "output-denied"
        check_history(json.loads(await agent.seen_by_model()))


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"amount": "much"}, "do not match the tool pay: amount: .*integer"),
        ({"sum": 3}, "amount: .*required; sum: .*not permitted"),
        ({}, "amount: .*required"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_when_they_are_given(
    run: Run, arguments: dict[str, Any], wrong: str
) -> None:
    cls = paying(call("pay", id="p", amount=500), text("paid less"))
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        turn = await agent.send("pay")

        with pytest.raises(InvalidArguments, match=wrong):
            await agent.questions.approve("p", arguments)

        # It still waits, and is answered by whoever knows better.
        assert (await agent.turns.wait(turn.id)).status == "waiting"
        assert await agent.questions.approve("p", {"amount": 3})
        await over(agent)
        assert cls.log == [3]


async def test_a_call_is_made_with_what_the_person_changed(run: Run) -> None:
    cls = paying(call("pay", id="p", amount=500), text("paid less"))
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("pay")

        await agent.questions.approve("p", {"amount": 3})
        await over(agent)

        assert cls.log == [3]


@pytest.mark.promise("CF-176")
async def test_the_first_answer_counts(run: Run) -> None:
    cls = paying(calls(call("pay", id="p", amount=1), call("pay", id="q", amount=2)), text("ok"))
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("pay")

        assert await agent.questions.deny("p")
        assert not await agent.questions.approve("p")
        assert not await agent.questions.approve("unknown")
        assert [one.id for one in await agent.questions.list()] == ["q"]
        assert await agent.questions.approve("q")
        await over(agent)

        assert cls.log == [2]
        check_history(json.loads(await agent.seen_by_model()))


@pytest.mark.promise("CF-183")
async def test_a_turn_that_waits_survives_any_number_of_crashes_and_costs_nothing(run: Run) -> None:
    cls = paying(calls(call("look_up", id="l"), call("pay", id="p", amount=5)), text("paid it"))
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        assert (await agent.send("pay")).status == "waiting"
        await asyncio.sleep(0.05)

        for _ in range(7):
            await world.crash()
            await world.clock.advance(24 * 3600)
            assert world.node.trees == {}

        agent = await world.get_agent(cls, "t")
        assert await agent.questions.approve("p")
        await over(agent)
        assert cls.log == ["looked", 5]
        assert [status for _, status in await agent.ends()] == ["completed"]


async def test_an_agent_whose_turn_waits_may_sleep(run: Run) -> None:
    cls = paying(call("pay", id="p", amount=5), text("paid it"))
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("pay")
        await asleep(world)

        assert await agent.questions.approve("p")


@pytest.mark.promise("CF-177")
@pytest.mark.parametrize("approved", [True, False])
async def test_a_client_answers_and_the_answer_is_shown_to_all_and_after_a_reload(approved: bool) -> None:
    cls = paying(call("pay", id="p", amount=5), text("done with it"))
    async with talking(cls) as one:
        client, other = await one.join(TALKER), await one.join(TALKER)
        await say(client, "r1", user("pay", "u1"))
        await done(client, "r1")
        asked = parts_of(client.of_type(MESSAGES)[-1]["messages"][-1], "p")
        assert (asked["state"], asked["approval"]) == ("approval-requested", {"id": "p"})
        assert {"type": "tool-approval-request", "approvalId": "p", "toolCallId": "p"} in chunks(client, "r1")

        await approval(client, "p", approved=approved)
        updated = await other.until(lambda frame: type_of(frame) == UPDATED)
        await done(client, "r1-1")

        part = parts_of(updated["message"], "p")
        assert part["state"] == ("approval-responded" if approved else "output-denied")
        assert part["approval"] == {"id": "p", "approved": approved}
        assert cls.log == ([5] if approved else [])
        stored = parts_of((await one.site.http(f"{TALKER}/get-messages")).json()[-1], "p")
        assert stored["state"] == ("output-available" if approved else "output-denied")
        assert stored["approval"]["approved"] is approved


@pytest.mark.parametrize("approved", [True, False])
async def test_a_person_answers_over_http_and_hears_how_the_turn_goes_on(approved: bool) -> None:
    cls = paying(calls(call("pay", id="p", amount=5), call("beep", id="b")), text("done with it"))
    async with talking(cls) as one:
        body: dict[str, Any] = {"messages": [user("pay", "u1")], "clientTools": [{"name": "beep"}]}
        asked = await one.site.http(f"{TALKER}/chat", method="POST", body=json.dumps(body).encode())
        assert "tool-approval-request" in asked.text
        said, answer = (await one.site.http(f"{TALKER}/get-messages")).json()
        part = parts_of(answer, "p")
        part.update(state="approval-responded", approval={"id": "p", "approved": approved, "reason": "No!"})

        body["messages"] = [said, answer]
        half = await one.site.http(f"{TALKER}/chat", method="POST", body=json.dumps(body).encode())
        assert half.text == "data: [DONE]\n\n"
        parts_of(answer, "b").update(state="output-available", output="beep!")
        whole = await one.site.http(f"{TALKER}/chat", method="POST", body=json.dumps(body).encode())

        chunks = [json.loads(line[6:]) for line in whole.text.split("\n\n")[:-2]]
        assert (chunks[0], chunks[-1]) == ({"type": "start"}, {"type": "finish"})
        assert cls.log == ([5] if approved else [])
        stored = (await one.site.http(f"{TALKER}/get-messages")).json()
        assert [message["role"] for message in stored] == ["user", "assistant"]
        assert text_of(stored[1]) == "done with it"
        agent = await one.world.get_agent(cls, "t")
        assert ("No!" in await agent.seen_by_model()) is not approved


async def test_an_approval_without_going_on_waits_until_somebody_wants_it() -> None:
    cls = paying(calls(call("pay", id="p", amount=1), call("pay", id="q", amount=2)), text("ok"))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "pay")
        await done(client, "r1")

        await approval(client, "p", approved=True, go_on=False)
        await client.until(lambda frame: type_of(frame) == UPDATED)
        assert (await resume(client, "p1"))["type"] == NONE
        await approval(client, "q", approved=True)
        await done(client, "r1-1")

        assert sorted(cls.log) == [1, 2]


async def test_an_approved_call_is_made_once_even_if_the_process_dies_while_it_is_made() -> None:
    gate = asyncio.Event()

    class Slow(Paying):
        @tool(requires_approval=True)
        async def transfer(self) -> str:
            """Transfer."""
            self.log.append("began")
            await gate.wait()
            return "done"

    model = ScriptedModel(call("transfer", id="t"), text("I do not know"))
    cls = talker(model, base=Slow, log=[])
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send("transfer")
        await agent.questions.approve("t")
        await until(lambda: bool(cls.log))

        await one.world.crash()
        await idle(one)

        agent = await one.world.get_agent(cls, "t")
        assert cls.log == ["began"]
        assert "interrupted" in await agent.seen_by_model()
        _, answer = await agent.conversation.messages()
        assert parts_of(answer, "t")["state"] == "output-error"
        assert text_of(answer) == "I do not know"


async def test_an_answer_kept_just_before_a_crash_is_acted_upon() -> None:
    cls = paying(call("pay", id="p", amount=5), text("paid it"))
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send("pay")

        await agent.questions.approve("p")
        await one.world.crash()
        await idle(one)

        agent = await one.world.get_agent(cls, "t")
        assert cls.log.count(5) <= 1
        _, answer = await agent.conversation.messages()
        assert text_of(answer) == "paid it"
        assert not open_calls(json.loads(await agent.seen_by_model()))


async def test_what_was_asked_and_never_answered_is_closed_when_the_user_says_something_else() -> None:
    cls = paying(call("pay", id="p", amount=5), text("fine"))
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        first = await agent.send("pay")

        turn = await agent.send("no, wait")

        assert turn.text == "fine"
        assert await agent.questions.list() == []
        assert not await agent.questions.approve("p")
        assert cls.log == []
        answer = (await agent.conversation.messages())[1]
        assert parts_of(answer, "p")["state"] == "output-error"
        assert not open_calls(json.loads(await agent.seen_by_model()))
        assert first.id != turn.id


async def test_only_a_call_that_waits_for_a_person_can_be_approved() -> None:
    cls = paying(call("beep", id="c1"), text("fine"))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        agent = await one.world.get_agent(cls, "t")
        await say(client, "r1", "beep", clientTools=[{"name": "beep"}])
        await done(client, "r1")

        assert not await agent.questions.approve("c1")
        await tool_result(client, "c1", "beep!")

        assert (await done(client, "r1-1"))["outcome"] == "completed"


async def test_an_answer_to_another_question_than_is_open_is_refused_in_one_form_everywhere() -> None:
    cls = paying(call("pay", id="p", amount=5), text("fine"))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        agent = await one.world.get_agent(cls, "t")
        await say(client, "r1", "pay")
        await done(client, "r1")
        (question,) = await agent.questions.list()
        other = Question.about("p", "pay", {"amount": 500}, "approval")
        client.frames.clear()

        frame = {"type": "cf_agent_tool_approval", "toolCallId": "p", "approved": True, "digest": other.digest}
        await client.send(frame)
        told = await client.until(lambda frame: type_of(frame) == QUESTIONS)
        shown = await client.until(lambda frame: type_of(frame) == MESSAGES)
        body = json.dumps({"id": "p", "approved": True, "digest": other.digest}).encode()
        posted = await one.site.http(f"{TALKER}/questions", method="POST", body=body)

        assert not await agent.questions.approve(other)
        assert told["refused"] == {"id": "p", "reason": NOT_OPEN}
        assert [one["digest"] for one in told["questions"]] == [question.digest]
        assert parts_of(shown["messages"][-1], "p")["state"] == "approval-requested"
        assert (posted.status, posted.json()) == (409, {"answered": False, "refused": NOT_OPEN})
        assert cls.log == []
        assert await agent.questions.approve(question)


async def test_no_client_says_what_came_of_a_tool_of_the_agent_s_own() -> None:
    cls = paying(call("pay", id="p", amount=5), text("fine"))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        agent = await one.world.get_agent(cls, "t")
        await say(client, "r1", "pay")
        await done(client, "r1")

        await tool_result(client, "p", "paid, believe me")
        assert await agent.questions.list() == [Question("p", "pay", {"amount": 5})]
        await agent.questions.approve("p")

        assert (await done(client, "r1-1"))["outcome"] == "completed"
        assert cls.log == [5]
        _, answer = await agent.conversation.messages()
        assert parts_of(answer, "p")["output"] == "paid 5"


async def test_a_turn_that_somebody_else_runs_for_cannot_be_waited_for_by_way_of_another_agent(run: Run) -> None:
    class Gossip(Talking):
        @tool
        async def ask_around(self) -> str:
            """Ask somebody who asks this agent."""
            friend = await self.sub_agent(GossipFriend, "f")
            return await friend.pass_on()

    cls = talker(ScriptedModel(call("ask_around", id="g"), text("nobody knows")), base=Gossip)
    GossipFriend.asks = cls
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")

        async with asyncio.timeout(patience()):
            turn = await agent.send("ask")

        assert turn.text == "nobody knows"
        assert "cannot wait" in await agent.seen_by_model()


class GossipFriend(Agent):
    """Asks whoever asks it."""

    asks: ClassVar[Any]

    async def pass_on(self) -> str:
        agent = await self.parent_agent(self.asks)
        return (await agent.send("do you know?")).text


async def test_what_ran_beside_a_call_that_waits_is_kept_also_after_a_turn_that_was_broken_off(run: Run) -> None:
    cls = paying(
        call("pay", id="p1", amount=1),
        calls(call("look_up", id="l"), call("pay", id="p2", amount=2)),
        text("paid it"),
    )
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        first = await agent.send("pay")
        await agent.turns.cancel(first.id)

        turn = await agent.send("look, and pay")
        assert turn.status == "waiting"
        await agent.questions.approve("p2")

        assert await over(agent, 2) == [(first.id, "cancelled"), (turn.id, "completed")]
        assert cls.log == ["looked", 2]
        assert open_calls(json.loads(await agent.seen_by_model())) == set()
