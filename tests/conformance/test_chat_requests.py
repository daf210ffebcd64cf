"""Only a new message of the user starts a turn or ends an open question: at both doors."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from tests.cases import slow
from tests.conformance.chats import MESSAGES, TALKER, Talking, done, over, say, talker, talking, text_of, user
from tests.conformance.served import Served
from tests.conformance.worlds import until

from sapwood import tool
from sapwood.testing import ScriptedModel, call, fails, text

NO_MESSAGES = 'The body has no `messages`. Send {"messages":[{"role":"user","parts":[{"type":"text","text":"…"}]}]}.'
EMPTY: list[dict[str, Any]] = [{}, {"message": "hello"}, {"messages": None}, {"messages": []}]


async def post(one: Served, body: Any) -> tuple[int, str]:
    answer = await one.site.http(f"{TALKER}/chat", method="POST", body=json.dumps(body).encode())
    return answer.status, answer.text


async def ask(one: Served, body: Any, door: str) -> str:
    """Send a chat request through a door; return the text of the refusal, "" if it was accepted."""
    if door == "http":
        status, answer = await post(one, body)
        assert status in (200, 400)
        return "" if status == 200 else answer
    client = await one.join(TALKER)
    init = {"method": "POST", "body": json.dumps(body)}
    await client.send({"id": "odd", "init": init, "type": "cf_agent_use_chat_request"})
    end = await done(client, "odd")
    return str(end["body"]) if end.get("error") else ""


def paying(*script: Any) -> Any:
    class Paying(Talking):
        @tool(requires_approval=True)
        async def pay(self, amount: int) -> str:
            """Pay."""
            return f"paid {amount}"

    return talker(ScriptedModel(*script), base=Paying)


async def stored(one: Served) -> list[dict[str, Any]]:
    return (await one.site.http(f"{TALKER}/get-messages")).json()


@pytest.mark.parametrize("door", ["http", "socket"])
@pytest.mark.parametrize("body", EMPTY)
async def test_a_request_without_messages_is_refused_with_an_example(body: dict[str, Any], door: str) -> None:
    cls = talker(ScriptedModel(text("never")))
    async with talking(cls) as one:
        assert NO_MESSAGES in await ask(one, body, door)

        assert await stored(one) == []
        assert cls.model.asked == []


@pytest.mark.parametrize("door", ["http", "socket"])
@pytest.mark.parametrize(
    "body",
    [
        EMPTY[0],
        *slow(EMPTY[1:]),
        {"messages": [user("pay", "u1")]},
        {"messages": [{"id": "x", "role": "assistant", "parts": []}]},
        *slow([{"messages": [user("pay", "u1")], "trigger": "regenerate-message"}, {"trigger": "regenerate-message"}]),
    ],
)
async def test_only_a_new_message_ends_an_open_question(body: dict[str, Any], door: str) -> None:
    cls = paying(call("pay", id="p", amount=5), text("thanks"))
    async with talking(cls) as one:
        assert (await post(one, {"messages": [user("pay", "u1")]}))[0] == 200
        before = await stored(one)

        assert await ask(one, body, door)

        assert await stored(one) == before
        agent = await one.world.get_agent(cls, "t")
        assert await agent.questions.approve("p")
        await over(agent)
        assert text_of((await stored(one))[-1]) == "thanks"
        assert len(cls.model.asked) == 2


async def test_a_request_to_answer_again_waits_for_an_open_question() -> None:
    gate = asyncio.Event()
    cls = paying(replace(call("pay", id="p", amount=5), gate=gate), text("paid"), text("again"))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("pay", "u1"))
        await until(lambda: len(cls.model.asked) == 1)
        await say(client, "r2", user("pay", "u1"), trigger="regenerate-message")
        await one.world.settled()
        gate.set()
        await done(client, "r1")

        await client.send({"type": "cf_agent_tool_approval", "toolCallId": "p", "approved": True, "autoContinue": True})
        await done(client, "r2")

        assert [text_of(message) for message in await stored(one)] == ["pay", "again"]
        assert len(cls.model.asked) == 3


@pytest.mark.parametrize("door", ["http", "socket"])
@pytest.mark.parametrize("trigger", ["submit-message", "regenerate-message"])
async def test_an_empty_conversation_has_nothing_to_answer(trigger: str, door: str) -> None:
    cls = talker(ScriptedModel(text("never")))
    async with talking(cls) as one:
        said = [{"id": "x", "role": "assistant", "parts": []}]

        assert "is empty" in await ask(one, {"messages": said, "trigger": trigger}, door)

        assert await stored(one) == []


@pytest.mark.parametrize("door", ["http", "socket"])
async def test_an_answered_message_is_not_answered_again(door: str) -> None:
    cls = talker(ScriptedModel(text("hello"), text("hello again")))
    async with talking(cls) as one:
        await post(one, {"messages": [user("hi", "u1")]})

        assert "the last one is answered" in await ask(one, {"messages": [user("hi", "u1")]}, door)

        assert [text_of(message) for message in await stored(one)] == ["hi", "hello"]
        assert await ask(one, {"trigger": "regenerate-message"}, door) == ""
        assert [text_of(message) for message in await stored(one)] == ["hi", "hello again"]


@pytest.mark.parametrize("door", ["http", "socket"])
async def test_a_message_that_is_being_answered_is_not_answered_twice(door: str) -> None:
    gate = asyncio.Event()
    cls = talker(ScriptedModel(text("hello", gate=gate), text("never")))
    async with talking(cls) as one:
        first = asyncio.create_task(post(one, {"messages": [user("hi", "u1")]}))
        await until(lambda: len(cls.model.asked) == 1)

        assert "is being answered" in await ask(one, {"messages": [user("hi", "u1")]}, door)

        gate.set()
        assert (await first)[0] == 200
        assert [text_of(message) for message in await stored(one)] == ["hi", "hello"]


async def test_a_message_whose_turn_failed_is_answered_when_it_is_sent_again() -> None:
    cls = talker(ScriptedModel(fails(ValueError("out of order")), text("hello")))
    async with talking(cls) as one:
        await post(one, {"messages": [user("hi", "u1")]})
        assert [text_of(message) for message in await stored(one)] == ["hi"]

        assert (await post(one, {"messages": [user("hi", "u1")]}))[0] == 200

        assert [text_of(message) for message in await stored(one)] == ["hi", "hello"]


async def test_a_client_that_may_not_ask_again_receives_the_conversation() -> None:
    cls = paying(call("pay", id="p", amount=5), text("thanks"))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("pay", "u1"))
        await done(client, "r1")

        await say(client, "r2", user("pay", "u1"), trigger="regenerate-message")
        end = await done(client, "r2")

        assert end["error"]
        assert [message["role"] for message in client.of_type(MESSAGES)[-1]["messages"]] == ["user", "assistant"]


async def test_an_answer_with_a_wrong_field_is_named_and_not_its_form() -> None:
    cls = paying(call("pay", id="p", amount=5))
    async with talking(cls) as one:
        body = json.dumps({"id": "p", "approved": "yes"}).encode()

        answer = await one.site.http(f"{TALKER}/questions", method="POST", body=body)

        assert answer.status == 400
        assert answer.json()["refused"].startswith("The body is not a valid answer: Expected `bool | null`, got `str`")
