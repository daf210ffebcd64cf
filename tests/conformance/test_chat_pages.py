"""Clients receive the end of a long conversation, and fetch the rest page by page. Nothing of it gets lost."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.chats import MESSAGES, TALKER, done, say, talker, talking, text_of, user
from tests.conformance.served import Served

from sapwood.testing import ScriptedModel, text


async def texts(one: Served, query: str = "") -> list[str]:
    answer = await one.site.http(f"{TALKER}/get-messages{query}")
    assert answer.status == 200, answer.text
    return [text_of(message) for message in answer.json()]


async def long_talk(one: Served, cls: Any, turns: int = 5) -> list[dict[str, Any]]:
    agent = await one.world.get_agent(cls, "t")
    for number in range(turns):
        await agent.send([user(f"m{number}", f"u{number}")])
    return await agent.conversation.messages()


async def test_a_client_that_connects_receives_the_newest_messages() -> None:
    cls = talker(ScriptedModel(text("ok")), page_messages=4)
    async with talking(cls) as one:
        await long_talk(one, cls)

        client = await one.join(TALKER)

        (told,) = [frame for frame in client.of_type(MESSAGES) if frame.get("connect")]
        assert [text_of(message) for message in told["messages"]] == ["m3", "ok", "m4", "ok"]
        assert await texts(one) == ["m3", "ok", "m4", "ok"]


async def test_a_page_is_bounded_in_bytes_and_begins_with_a_message_of_the_user() -> None:
    cls = talker(ScriptedModel(text("a" * 300)), page_bytes=1000)
    async with talking(cls) as one:
        await long_talk(one, cls)

        assert await texts(one) == ["m3", "a" * 300, "m4", "a" * 300]
        assert await texts(one, "?limit=3") == ["m4", "a" * 300]


async def test_the_last_message_of_the_user_and_its_answer_are_sent_however_long_they_are() -> None:
    cls = talker(ScriptedModel(text("a" * 3000)), page_bytes=1000, page_messages=1)
    async with talking(cls) as one:
        await long_talk(one, cls, turns=2)

        assert await texts(one) == ["m1", "a" * 3000]


async def test_older_messages_are_fetched_page_by_page_until_there_are_none() -> None:
    cls = talker(ScriptedModel(text("ok")), page_messages=4)
    async with talking(cls) as one:
        stored = await long_talk(one, cls)
        seen = (await one.site.http(f"{TALKER}/get-messages")).json()

        while page := (await one.site.http(f"{TALKER}/get-messages?before={seen[0]['id']}&limit=3")).json():
            assert len(page) <= 3
            seen = [*page, *seen]

        assert seen == stored


async def test_a_page_before_an_unknown_message_or_of_no_number_is_refused() -> None:
    cls = talker(ScriptedModel(text("ok")))
    async with talking(cls) as one:
        nothing_yet = await one.site.http(f"{TALKER}/get-messages?before=u0")
        await long_talk(one, cls, turns=1)

        unknown = await one.site.http(f"{TALKER}/get-messages?before=nobody")
        wrong = [await one.site.http(f"{TALKER}/get-messages?limit={limit}") for limit in ("0", "-1", "x", "1" * 30)]

        assert nothing_yet.status == unknown.status == 400
        assert "must be the id of a stored message, got 'nobody'" in unknown.text
        assert [one.status for one in wrong] == [400] * 4


async def test_a_client_that_resends_the_end_of_a_conversation_deletes_nothing_before_it() -> None:
    model = ScriptedModel(text("ok"))
    cls = talker(model, page_messages=2)
    async with talking(cls) as one:
        stored = await long_talk(one, cls)
        client = await one.join(TALKER)
        known = (await one.site.http(f"{TALKER}/get-messages")).json()

        await say(client, "r1", *known, user("more", "u9"))
        await done(client, "r1")
        await say(client, "r2", *known, user("more", "u9"), trigger="regenerate-message")
        await done(client, "r2")

        agent = await one.world.get_agent(cls, "t")
        now = await agent.conversation.messages()
        assert now[: len(stored)] == stored
        assert [text_of(message) for message in now[len(stored) :]] == ["more", "ok"]
        assert len(json.loads(await agent.seen_by_model())) == len(now)


async def test_an_edited_message_before_the_page_ends_what_clients_see() -> None:
    cls = talker(ScriptedModel(text("ok")), page_messages=2)
    async with talking(cls) as one:
        stored = await long_talk(one, cls)
        client = await one.join(TALKER)

        await say(client, "r1", *stored[:2], user("other", "u1"))
        await done(client, "r1")

        agent = await one.world.get_agent(cls, "t")
        assert [text_of(message) for message in await agent.conversation.messages()] == ["m0", "ok", "other", "ok"]
