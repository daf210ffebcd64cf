"""An edit or a regenerated answer begins a branch: nothing is deleted, and all that reads sees the active path."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from tests.conformance.chats import MESSAGES, TALKER, Talking, check_history, done, say, talker, talking, text_of, user
from tests.conformance.served import Served
from tests.conformance.worlds import Run

from sapwood import Limits, Per, Refused, tool
from sapwood.chat.models.token_estimates import OVERHEAD
from sapwood.chat.store.record import ConversationRecord
from sapwood.errors import InvalidArguments, NotFound, Unavailable
from sapwood.testing import ScriptedModel, World, call, fails, text
from sapwood.types import ConversationBranch

pytestmark = pytest.mark.core("temporal")


LONG = "long " * 100


class Forging(Talking):
    async def put_answer(self, id: str) -> None:
        """Store a message of the assistant."""
        answer = {"id": id, "role": "assistant", "parts": [{"type": "text", "text": "an answer"}]}
        self._actor.of(ConversationRecord).transcript.put(answer)


class Paying(Talking):
    @tool(requires_approval=True)
    async def pay(self, amount: int) -> str:
        """Pay."""
        return f"paid {amount}"


def numbered() -> ScriptedModel:
    """Return a model that answers with the number of the request."""
    return ScriptedModel(*[text(f"answer {number}") for number in range(1, 20)])


async def texts(agent: Any) -> list[str]:
    return [text_of(message) for message in await agent.conversation.messages()]


async def seen(agent: Any) -> list[str]:
    """Return the texts that the model sees."""
    history = json.loads(await agent.seen_by_model())
    check_history(history)
    return [part["content"] for message in history for part in message["parts"] if isinstance(part["content"], str)]


def told(model: ScriptedModel) -> list[str]:
    """Return the texts of the last request."""
    return [str(part.content) for message in model.asked[-1] for part in message.parts]  # type: ignore[union-attr]


def outline(branches: list[ConversationBranch]) -> list[tuple[str, int, bool]]:
    return [(branch.text, branch.messages, branch.is_active) for branch in branches]


async def id_of(agent: Any, words: str) -> str:
    """Return the id of the message with this text, in whatever branch it is."""
    (found,) = [one for one in await agent.conversation.search(words, all_branches=True) if text_of(one) == words]
    return found["id"]


async def regenerate(one: Served, id: str, *messages: dict[str, Any]) -> None:
    client = await one.join(TALKER)
    await say(client, id, *messages, trigger="regenerate-message")
    await done(client, id)


async def test_an_edit_begins_a_branch_and_the_model_sees_only_its_path(run: Run) -> None:
    model = numbered()
    cls = talker(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        assert await agent.conversation.branches() == []
        await agent.send([user("Plan a trip to Rome.", "u1")])
        await agent.send([user("And hotels?", "u2")])

        await agent.send([user("Plan a trip to Oslo.", "u1")])

        assert await texts(agent) == ["Plan a trip to Oslo.", "answer 3"]
        assert told(model) == ["Plan a trip to Oslo."]
        assert await seen(agent) == ["Plan a trip to Oslo.", "answer 3"]
        old, new = await agent.conversation.branches()
        assert outline([old, new]) == [("Plan a trip to Rome.", 4, False), ("Plan a trip to Oslo.", 2, True)]
        assert (old.after, old.role, new.after, new.role, new.message_id) == (None, "user", None, "user", "u1")
        assert old.at <= new.at


async def test_a_conversation_continues_in_the_branch_it_is_switched_to_also_after_a_restart(run: Run) -> None:
    model = numbered()
    cls = talker(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send([user("one", "u1")])
        await agent.send([user("two", "u2")])
        await agent.send([user("second", "u2")])
        old = await id_of(agent, "two")

        assert await agent.conversation.switch(old) is True
        assert await agent.conversation.switch(old) is False
        await world.restart()
        agent = await world.get_agent(cls, "t")
        await agent.send("three")

        assert told(model) == ["one", "answer 1", "two", "answer 2", "three"]
        assert await texts(agent) == ["one", "answer 1", "two", "answer 2", "three", "answer 4"]
        assert await agent.conversation.switch("u2") is True
        assert await texts(agent) == ["one", "answer 1", "second", "answer 3"]
        assert await seen(agent) == ["one", "answer 1", "second", "answer 3"]
        await agent.conversation.switch(await id_of(agent, "answer 2"))
        assert (await texts(agent))[-1] == "answer 4"  # the newest message after the one that was named


async def test_answers_that_are_regenerated_are_siblings() -> None:
    model = numbered()
    cls = talker(model)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send([user("hi", "u1")])

        await regenerate(one, "r2", user("hi", "u1"))
        await regenerate(one, "r3", user("hi", "u1"))

        assert outline(await agent.conversation.branches()) == [
            ("answer 1", 1, False),
            ("answer 2", 1, False),
            ("answer 3", 1, True),
        ]
        assert {(branch.after, branch.role) for branch in await agent.conversation.branches()} == {("u1", "assistant")}
        assert told(model) == ["hi"]
        await agent.conversation.switch(await id_of(agent, "answer 2"))
        await agent.send("more")
        assert told(model) == ["hi", "answer 2", "more"]
        assert outline(await agent.conversation.branches())[1] == ("answer 2", 3, True)


async def test_a_regenerated_answer_that_fails_or_is_stopped_before_it_begins_brings_back_the_old_one() -> None:
    model = ScriptedModel(
        text("answer 1"), text("answer 2"), fails(ModelHTTPError(400, "gpt")), text("", stalls=True), text("answer 5")
    )
    cls = talker(model)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send([user("hi", "u1")])
        await agent.send([user("more", "u2")])
        before = ["hi", "answer 1", "more", "answer 2"]

        await regenerate(one, "r1", user("hi", "u1"))
        assert await texts(agent) == await seen(agent) == before

        client = await one.join(TALKER)
        await say(client, "r2", user("hi", "u1"), trigger="regenerate-message")
        await one.world.until(lambda: model.is_stalled)
        assert outline(await agent.conversation.branches()) == [("answer 1", 3, False)]
        await agent.turns.cancel()
        await done(client, "r2")
        await one.world.settled()

        assert await texts(agent) == await seen(agent) == before
        assert await agent.conversation.branches() == []
        shown = client.of_type(MESSAGES)[-1]
        assert [text_of(each) for each in shown["messages"]] == before
        await agent.send("go on")
        assert told(model) == [*before, "go on"]


async def test_a_regenerated_answer_that_fails_after_a_crash_brings_back_the_old_one() -> None:
    model = ScriptedModel(text("answer 1"), text("", stalls=True), fails(ModelHTTPError(400, "gpt")))
    cls = talker(model)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send([user("hi", "u1")])
        client = await one.join(TALKER)
        await say(client, "r1", user("hi", "u1"), trigger="regenerate-message")
        await one.world.until(lambda: model.is_stalled)
        turn = (await agent.conversation.export())["turns"][-1]["id"]

        await one.world.crash()
        agent = await one.world.get_agent(cls, "t")

        assert (await agent.turns.wait(turn)).status == "failed"
        assert await texts(agent) == await seen(agent) == ["hi", "answer 1"]


async def test_a_fork_during_a_regenerated_answer_has_the_old_one() -> None:
    model = ScriptedModel(text("answer 1"), text("", stalls=True))
    cls = talker(model)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send([user("hi", "u1")])
        client = await one.join(TALKER)
        await say(client, "r1", user("hi", "u1"), trigger="regenerate-message")
        await one.world.until(lambda: model.is_stalled)

        await one.world.app.fork(cls, "t", to="copy", work="drop")

        copy = await one.world.get_agent(cls, "copy")
        assert await texts(copy) == await seen(copy) == ["hi", "answer 1"]
        await agent.turns.cancel()


async def test_a_regenerated_answer_that_waits_for_a_person_is_the_branch_that_is_shown() -> None:
    model = ScriptedModel(text("answer 1"), call("pay", amount=1), text("paid"))
    cls = talker(model, base=Paying)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send([user("hi", "u1")])
        await regenerate(one, "r1", user("hi", "u1"))
        (question,) = await agent.questions.list()
        await agent.questions.approve(question)
        await one.world.settled()

        assert await texts(agent) == ["hi", "paid"]


@pytest.mark.parametrize("answer", ["allow", "deny", "cancel"])
async def test_a_regenerated_answer_that_waits_for_more_of_a_limit_and_is_not_allowed_it_brings_back_the_old_one(
    answer: str,
) -> None:
    limits = Limits(tokens=Per("day", OVERHEAD + 80, extend_by=1000))
    cls = talker(ScriptedModel(text("ok"), text("again")), limits=limits, model_settings={"max_tokens": 60})
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send([user("hi", "u1")])
        client = await one.join(TALKER)
        await say(client, "r1", user("hi", "u1"), trigger="regenerate-message")
        await one.world.settled()
        (question,) = await agent.questions.list()
        assert await texts(agent) == ["hi"]

        if answer == "cancel":
            await agent.turns.cancel("r1")
        else:
            await agent.questions.answer(question, answer)
        await one.world.settled()

        assert await texts(agent) == await seen(agent) == ["hi", "again" if answer == "allow" else "ok"]


async def test_branches_branch_again(run: Run) -> None:
    model = numbered()
    cls = talker(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        for said in ("a", "b", "c"):
            await agent.send([user(said, said)])
        await agent.send([user("c2", "c")])
        await agent.send([user("b2", "b")])
        await agent.send([user("a2", "a")])

        found = await agent.conversation.branches()
        assert outline(found) == [
            ("a", 4, False),
            ("b", 4, False),
            ("c", 2, False),
            ("c2", 2, False),
            ("b2", 2, False),
            ("a2", 2, True),
        ]
        assert [one.after == found[0].after for one in found] == [True, False, False, False, False, True]
        parents = {one.message_id: one.text for one in found} | {None: None}
        assert [parents[one.parent] for one in found] == [None, "a", "b", "b", "a", None]
        assert found[1].after == found[4].after != found[2].after == found[3].after
        for words, path in {
            "c": ["a", "answer 1", "b", "answer 2", "c", "answer 3"],
            "c2": ["a", "answer 1", "b", "answer 2", "c2", "answer 4"],
            "b2": ["a", "answer 1", "b2", "answer 5"],
            "a2": ["a2", "answer 6"],
        }.items():
            await agent.conversation.switch(await id_of(agent, words))
            assert await texts(agent) == path
            assert await seen(agent) == path
        await agent.conversation.switch(await id_of(agent, "a"))
        assert await texts(agent) == ["a", "answer 1", "b2", "answer 5"]


async def test_a_message_of_another_branch_can_be_edited_and_answered_again() -> None:
    model = numbered()
    cls = talker(model)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send([user("one", "u1")])
        await agent.send([user("two", "u2")])
        await agent.send([user("other", "u1")])

        await agent.send([user("second", "u2")])  # by a client that does not know the other branch
        assert told(model) == ["one", "answer 1", "second"]
        await agent.conversation.switch("u1")
        await regenerate(one, "r1", user("second", "u2"))
        assert told(model) == ["one", "answer 1", "second"]


async def test_a_new_message_follows_the_branch_that_its_client_shows() -> None:
    model = numbered()
    cls = talker(model)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send([user("one", "u1")])
        shown = await agent.conversation.messages()
        await regenerate(one, "r1", user("one", "u1"))

        await agent.send([*shown, user("two", "u2")])  # by a client that does not know the other answer

        assert told(model) == ["one", "answer 1", "two"]
        assert await texts(agent) == ["one", "answer 1", "two", "answer 3"]


@pytest.mark.parametrize("edited", ["u1", "u2"])
async def test_a_message_that_is_queued_behind_an_edit_follows_what_its_client_showed(edited: str) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("answer 1"), text("answer 2", gate=gate), text("answer 3"), text("answer 4"))
    cls = talker(model)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send([user("Rome", "u1")])
        shown = [*await agent.conversation.messages(), user("hotels", "u2")]
        await agent.turns.start([shown[-1]])
        await agent.turns.start([user("changed", edited)])
        last = await agent.turns.start([*shown, user("At the river?", "u4")])
        gate.set()
        await agent.turns.wait(last.id)

        assert await texts(agent) == ["Rome", "answer 1", "hotels", "answer 2", "At the river?", "answer 4"]
        assert told(model) == ["Rome", "answer 1", "hotels", "answer 2", "At the river?"]


async def test_a_message_of_a_client_that_shows_the_queued_edit_follows_the_edit() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("answer 1", gate=gate), text("answer 2"), text("answer 3"))
    cls = talker(model)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.turns.start([user("Rome", "u1")])
        await agent.turns.start([user("Oslo", "u1")])
        last = await agent.turns.start([user("Oslo", "u1"), user("hotels", "u2")])
        gate.set()
        await agent.turns.wait(last.id)

        assert await texts(agent) == ["Oslo", "answer 2", "hotels", "answer 3"]


async def test_a_client_cannot_edit_what_the_assistant_has_said_or_says() -> None:
    model = ScriptedModel(text("answer 1"), text("answer 2", delay=0.5), text("answer 3"))
    cls = talker(model)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        first = await agent.send([user("hi", "u1")])
        said = (await agent.conversation.messages())[-1]["id"]
        with pytest.raises(InvalidArguments, match="is that of a message of the assistant"):
            await agent.send([user("forged", said)])

        client = await one.join(TALKER)
        await say(client, "r2", user("more", "u2"))
        started = await client.until(lambda frame: '"type":"start"' in frame.get("body", ""))
        says = json.loads(started["body"])["messageId"]
        with pytest.raises(InvalidArguments, match="is that of a message of the assistant"):
            await agent.turns.start([user("forged", says)])
        await done(client, "r2")

        assert await texts(agent) == ["hi", "answer 1", "more", "answer 2"]
        assert (await agent.turns.wait(first.id)).text == "answer 1"


async def test_a_queued_message_with_the_id_of_an_answer_fails_when_its_turn_comes() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("answer 1", gate=gate), text("answer 2"))
    cls = talker(model, base=Forging)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.turns.start([user("hi", "u1")])
        forged = await agent.turns.start([user("forged", "x")])
        last = await agent.turns.start([user("more", "u2")])
        await agent.put_answer("x")
        gate.set()

        failed = await agent.turns.wait(forged.id)
        assert (failed.status, "of a message of the assistant" in failed.error) == ("failed", True)
        assert (await agent.turns.wait(last.id)).status == "completed"
        assert "forged" not in await texts(agent)


async def test_two_new_messages_with_the_same_id_are_refused() -> None:
    model = numbered()
    cls = talker(model)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        with pytest.raises(InvalidArguments, match="must have an `id` of its own, got two with 'x'"):
            await agent.send([user("hidden", "x"), user("hello", "x")])
        await agent.send([user("hello", "x")])
        assert told(model) == ["hello"]


async def test_the_same_message_and_the_same_request_begin_no_branch() -> None:
    model = numbered()
    cls = talker(model)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        client = await one.join(TALKER)
        await say(client, "r1", user("one", "u1"))
        await done(client, "r1")
        await say(client, "r2", user("changed", "u1"))
        await done(client, "r2")

        await say(client, "r3", user("changed", "u1"))
        refused = await done(client, "r3")
        await agent.turns.start([user("changed", "u1")], id="r2")

        assert "the last one is answered" in refused["body"]
        assert len(await agent.conversation.branches()) == 2
        assert len(model.asked) == 2


@pytest.mark.parametrize("concurrency", ["queue", "merge"])
async def test_an_edit_of_one_of_several_messages_of_a_turn_leaves_the_model_the_others(concurrency: str) -> None:
    model = ScriptedModel(*[text(f"answer {number}", delay=0.1) for number in range(1, 9)])
    cls = talker(model, concurrency=concurrency)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        first = await agent.turns.start([user("I am Ann", "s0"), user("Who am I?", "s1")])
        if concurrency == "merge":
            await agent.turns.start([user("second", "s2")])
            last = await agent.turns.start([user("third", "s3")])
            await agent.turns.wait(last.id)
            assert await seen(agent) == ["I am Ann\n\nWho am I?", "answer 1", "second\n\nthird", "answer 2"]
            await agent.send([user("last", "s3")])
            assert (await seen(agent))[-3:-1] == ["second", "last"]
        else:
            await agent.turns.wait(first.id)
            assert await seen(agent) == ["I am Ann", "Who am I?", "answer 1"]
        whole = await seen(agent)

        await agent.send([user("What am I called?", "s1")])
        assert await texts(agent) == await seen(agent)
        assert told(model) == ["I am Ann", "What am I called?"]
        await agent.conversation.switch(await id_of(agent, "Who am I?"))
        assert await seen(agent) == whole
        await one.world.restart()
        agent = await one.world.get_agent(cls, "t")
        await agent.send([user("I am Bea", "s0")])
        assert told(model) == ["I am Bea"]


async def test_search_finds_the_active_path_and_all_branches_if_asked(run: Run) -> None:
    cls = talker(numbered())
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send([user("A ticket to Rome.", "u1")])
        await agent.conversation.search("ticket")  # makes the index
        await agent.send([user("A ticket to Oslo.", "u1")])

        assert [text_of(one) for one in await agent.conversation.search("ticket")] == ["A ticket to Oslo."]
        found = await agent.conversation.search("ticket", all_branches=True)
        assert {text_of(one) for one in found} == {"A ticket to Rome.", "A ticket to Oslo."}
        await agent.conversation.switch(next(one["id"] for one in found if "Rome" in text_of(one)))
        assert [text_of(one) for one in await agent.conversation.search("ticket")] == ["A ticket to Rome."]


async def test_an_export_has_all_branches_and_clearing_deletes_them(run: Run) -> None:
    cls = talker(numbered())
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send([user("one", "u1")])
        await agent.send([user("two", "u2")])
        await agent.send([user("second", "u2")])

        exported = await agent.conversation.export()
        others = exported["other_branches"]
        assert [text_of(one) for one in exported["messages"]] == ["one", "answer 1", "second", "answer 3"]
        assert [text_of(one["message"]) for one in others] == ["two", "answer 2"]
        assert others[0]["after"] == exported["messages"][1]["id"]
        assert others[1]["after"] == others[0]["message"]["id"]
        assert len(exported["turns"]) == 3

        await agent.conversation.clear()
        assert await agent.conversation.branches() == []
        assert await agent.conversation.search("two", all_branches=True) == []
        assert (await agent.conversation.export())["other_branches"] == []


async def test_switching_is_refused_without_the_message_and_while_a_turn_is_open() -> None:
    model = ScriptedModel(text("a"), text("b"), text("c", delay=0.5), call("pay", amount=1))
    cls = talker(model, base=Paying)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send([user("one", "u1")])
        await agent.send([user("changed", "u1")])
        old = await id_of(agent, "one")
        with pytest.raises(Refused, match="There is no message 'none' in this conversation"):
            await agent.conversation.switch("none")

        turn = await agent.turns.start("slow")
        with pytest.raises(
            Refused, match=f"has a running turn \\({turn.id}\\). Switch .* when it has ended, or cancel it"
        ):
            await agent.conversation.switch(old)
        await agent.turns.wait(turn.id)
        waiting = await agent.send("pay")
        assert waiting.status == "waiting"
        with pytest.raises(Refused, match="has a waiting turn"):
            await agent.conversation.switch(old)

        await agent.turns.cancel(waiting.id)
        assert await agent.conversation.switch(old) is True


async def test_an_edit_ends_the_question_of_the_branch_that_is_left() -> None:
    cls = talker(ScriptedModel(call("pay", amount=1), text("ok")), base=Paying)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        assert (await agent.send([user("pay", "u1")])).status == "waiting"

        await agent.send([user("do not pay", "u1")])

        assert await agent.questions.list() == []
        await agent.conversation.switch(await id_of(agent, "pay"))
        assert "The question was not answered" in await agent.seen_by_model()


async def test_clients_receive_the_conversation_when_it_is_switched() -> None:
    cls = talker(numbered())
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send([user("one", "u1")])
        await agent.send([user("changed", "u1")])
        client = await one.join(TALKER)
        old = await id_of(agent, "one")

        await agent.conversation.switch(old)

        frame = await client.until(
            lambda one: one["type"] == MESSAGES and [text_of(each) for each in one["messages"]] == ["one", "answer 1"]
        )
        stored = (await one.site.http(f"{TALKER}/get-messages")).json()
        assert frame["messages"] == stored
        before = await one.site.http(f"{TALKER}/get-messages?before=u1")
        assert "belong to another branch" in before.text


async def test_use_chat_edits_and_regenerates_over_http_and_loads_the_active_path() -> None:
    cls = talker(numbered())
    async with talking(cls) as one:

        async def post(messages: list[dict[str, Any]], trigger: str, id: str) -> list[dict[str, Any]]:
            """Send what the transport of the AI SDK sends, and return the messages that a page loads."""
            body = {"id": "chat", "messages": messages, "trigger": trigger, "messageId": id}
            answer = await one.site.http(f"{TALKER}/chat", method="POST", body=json.dumps(body).encode())
            assert answer.status == 200
            assert "[DONE]" in answer.text
            return (await one.site.http(f"{TALKER}/get-messages")).json()

        first = await post([user("one", "u1")], "submit-message", "u1")
        second = await post(first[:1], "regenerate-message", first[1]["id"])
        assert [text_of(message) for message in second] == ["one", "answer 2"]
        longer = await post([*second, user("two", "u2")], "submit-message", "u2")
        edited = await post([*longer[:2], user("other", "u2")], "submit-message", "u2")
        assert [text_of(message) for message in edited] == ["one", "answer 2", "other", "answer 4"]

        agent = await one.world.get_agent(cls, "t")
        assert [branch.text for branch in await agent.conversation.branches()] == [
            *("answer 1", "answer 2", "two", "other"),
        ]
        await agent.conversation.switch(first[1]["id"])
        assert (await one.site.http(f"{TALKER}/get-messages")).json() == first


async def test_a_turn_that_failed_is_shown_only_in_its_branch() -> None:
    cls = talker(ScriptedModel(text("fine"), fails(ModelHTTPError(400, "gpt")), text("more")))
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send([user("one", "u1")])
        failed = await agent.send([user("changed", "u1")])
        assert failed.status == "failed"
        await agent.conversation.switch(await id_of(agent, "one"))

        client = await one.join(TALKER)
        await client.send({"type": "cf_agent_stream_resume_request", "probeId": "p"})
        answer = await client.until(lambda frame: frame.get("probeId") == "p")

        assert answer["type"] == "cf_agent_stream_resume_none"
        continued = await agent.turns.continue_last()
        assert continued.text == "finemore"


async def test_messages_over_the_count_go_from_branches_first_and_as_a_whole() -> None:
    cls = talker(numbered(), max_messages=6)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        for said in ("one", "changed", "again"):
            await agent.send([user(said, "u1")])
        assert len(await agent.conversation.branches()) == 3

        await agent.send([user("two", "u2")])
        assert [branch.text for branch in await agent.conversation.branches()] == ["changed", "again"]
        await agent.send("three")
        await agent.send("four")

        assert await agent.conversation.branches() == []
        assert await texts(agent) == ["two", "answer 4", "three", "answer 5", "four", "answer 6"]
        assert await seen(agent) == await texts(agent)


class Reading(Talking):
    compact_above = 200


class Summarizer(ScriptedModel):
    async def _answer(self, messages: Any, info: Any) -> Any:
        from pydantic_ai.messages import ModelResponse, TextPart

        return ModelResponse(parts=[TextPart("## Goal\nTo talk.")])


async def compacted(world: World, agent: Any) -> str:
    await world.settled()
    return await agent.seen_by_model()


async def test_compaction_of_one_branch_leaves_the_others_as_they_were(run: Run) -> None:
    cls = talker(Summarizer(text(LONG), text("short"), text(LONG), text("short")), base=Reading)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send([user("one", "u1")])
        await agent.send([user("two", "u2")])
        before = await agent.seen_by_model()
        await agent.send([user("second", "u2")])
        summarised = await compacted(world, agent)  # what both branches have in common
        assert "Its 2 messages are not" in summarised
        assert "second" in summarised
        newest = (await agent.conversation.messages())[-1]["id"]

        await agent.conversation.switch(await id_of(agent, "two"))
        assert await compacted(world, agent) == before
        await agent.conversation.switch(newest)
        assert await compacted(world, agent) == summarised
        await agent.send([user("third", "u2")])  # begins at a message that the summary replaces: all are there again
        assert "Summary of the earlier" not in await agent.seen_by_model()


async def test_a_branch_that_begins_after_a_summary_has_it_and_one_before_it_has_all_messages(run: Run) -> None:
    cls = talker(Summarizer(text(LONG)), base=Reading)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        for said in ("one", "two", "three"):
            await agent.send([user(said, said)])
            await world.settled()
        assert "Summary of the earlier" in await compacted(world, agent)

        await agent.send([user("third", "three")])
        assert "Summary of the earlier" in await agent.seen_by_model()
        await agent.send([user("ONE", "one")])
        assert await seen(agent) == ["ONE", LONG]


async def test_what_a_failed_turn_has_summarised_is_there_again() -> None:
    model = Summarizer(
        *[text(f"answer {number} {LONG}") for number in range(1, 4)],
        fails(ModelHTTPError(400, "gpt")),
        text("other"),
    )
    cls = talker(model, compact_above=None)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        for number in range(1, 4):
            await agent.send([user(f"question {number}", f"u{number}")])
        before = await seen(agent)
        cls.compact_above = 300
        await regenerate(one, "r1", user("question 3", "u3"))
        cls.compact_above = None
        assert await seen(agent) == before

        await agent.send([user("question three", "u3")])
        assert await seen(agent) == [*before[:-2], "question three", "other"]


@pytest.mark.slow
async def test_killed_at_any_commit_an_edit_and_a_switch_have_happened_or_not(run: Run) -> None:
    async def edits(agent: Any) -> None:
        await agent.send([user("changed", "u1")])

    async def switches(agent: Any) -> None:
        await agent.conversation.switch(await id_of(agent, "second"))

    paths = (["one", "two"], ["one", "second"], ["changed"])
    for act in (edits, switches):
        nth, passed = 0, True
        while passed:
            nth += 1
            cls = talker(ScriptedModel(text("ok"), each=True))
            async with run(cls) as world:
                agent = await world.get_agent(cls, "t")
                await agent.send([user("one", "u1")])
                await agent.send([user("second", "u2")])
                await agent.send([user("two", "u2")])
                before = world.points.passed["committed"]
                world.crash_at("committed", nth)
                with contextlib.suppress(Unavailable, NotFound):
                    await act(agent)
                passed = world.points.passed["committed"] >= before + nth
                await world.crash()
                agent = await world.get_agent(cls, "t")
                await world.settled()

                said = [text_of(one) for one in await agent.conversation.messages() if one["role"] == "user"]
                assert said in paths
                assert [one for one in await seen(agent) if one != "ok"] == said
                found = {branch.text for branch in await agent.conversation.branches()}
                assert found == {"two", "second"} | ({"one", "changed"} if said == ["changed"] else set())
                assert (await agent.send("more")).status == "completed"
