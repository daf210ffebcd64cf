"""Pictures and other files in chats: stored once, named by messages, and read only for the model."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent
from tests.conformance.chats import MESSAGES, TALKER, Talking, done, say, talker, talking, user
from tests.conformance.served import Served

from sapwood import tool
from sapwood.testing import ScriptedModel, call, text

PNG = b"\x89PNG\r\n\x1a\n" + b"IHDR" + bytes(range(256))


def png(size: int = 0, seed: str = "") -> bytes:
    """Return what counts as a picture, of at least so many bytes."""
    filling = hashlib.sha512(seed.encode()).digest()
    return PNG + seed.encode() + filling * (size // len(filling) + 1)


def picture(content: bytes, id: str = "p1", words: str = "look", name: str | None = "cat.png") -> dict[str, Any]:
    """Return a message with a picture, as a browser sends it."""
    url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    named = {} if name is None else {"filename": name}
    message = user(words, id)
    message["parts"].append({"type": "file", "mediaType": "image/png", **named, "url": url})
    return message


def url_of(content: bytes, path: str = TALKER) -> str:
    return f"{path}/files/{hashlib.sha256(content).hexdigest()}"


def seen_files(model: Any, request: int = -1) -> list[bytes]:
    """Return the files that the model was sent."""
    found: list[bytes] = []
    for message in model.asked[request]:
        for part in message.parts:
            content = getattr(part, "content", None)
            files = content if isinstance(content, list) else [content]
            found += [one.data for one in files if isinstance(one, BinaryContent)]
    return found


class Keeper(Talking):
    """A talker that tells which files it has, and who needs them."""

    async def held(self) -> list[tuple[str, str]]:
        return self._actor.database.execute(
            "SELECT digest, holder FROM sapwood_file_references ORDER BY digest, holder"
        )

    async def texts(self) -> list[str]:
        return [str(body) for (body,) in self._actor.database.execute("SELECT body FROM sapwood_sent_texts")]

    async def count(self) -> int:
        return len(self.files.list())


async def fetched(one: Served, url: str) -> bytes:
    answer = await one.site.http(url)
    assert answer.status == 200, answer.text
    return answer.body


async def test_a_picture_is_stored_and_everybody_gets_its_url_before_the_turn_is_done() -> None:
    model = ScriptedModel(text("a cat"))
    cls, content = talker(model, base=Keeper), png(200_000)
    async with talking(cls) as one:
        sender, other = await one.join(TALKER), await one.join(TALKER)
        await say(sender, "r1", picture(content))
        await done(sender, "r1")
        await done(other, "r1")

        file = {"type": "file", "mediaType": "image/png", "filename": "cat.png", "url": url_of(content)}
        for client in (sender, other):
            end = next(at for at, frame in enumerate(client.frames) if frame.get("done"))
            told = [frame for frame in client.frames[:end] if frame["type"] == MESSAGES and frame["messages"]]
            assert told[0]["messages"][0]["parts"][1] == file
            assert "base64" not in json.dumps(client.frames)
        assert await fetched(one, url_of(content)) == content
        assert seen_files(model) == [content]
        agent = await one.world.get_agent(cls, "t")
        assert await agent.held() == [(hashlib.sha256(content).hexdigest(), "message:p1")]
        assert content[:48] not in (await agent.seen_by_model()).encode()
        assert len(await agent.seen_by_model()) < 3000


async def test_a_transcript_that_is_sent_back_names_the_files_of_this_agent() -> None:
    model = ScriptedModel(text("a cat"), text("yes"))
    cls, content = talker(model, base=Keeper), png()
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", picture(content))
        await done(client, "r1")
        agent = await one.world.get_agent(cls, "t")
        known = await agent.conversation.messages()

        again = {**user("and again", "p2"), "parts": [dict(known[0]["parts"][1])]}
        await say(client, "r2", *known, again)
        await done(client, "r2")

        assert seen_files(model) == [content, content]
        digest = hashlib.sha256(content).hexdigest()
        assert await agent.held() == [(digest, "message:p1"), (digest, "message:p2")]


@pytest.mark.parametrize("path", [TALKER, "/agents/talker/other", "/agents/desk/t"])
async def test_a_url_of_a_file_that_this_agent_does_not_have_is_refused(path: str) -> None:
    cls = talker(ScriptedModel(text("no")))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        part = {"type": "file", "mediaType": "image/png", "url": url_of(png(), path)}
        await say(client, "r1", {**user("x", "p1"), "parts": [part]})

        end = await done(client, "r1")

        assert "`url` must name a file of this agent" in end["body"]
        assert end["error"]


async def test_a_deleted_or_replaced_message_lets_its_files_go() -> None:
    model = ScriptedModel(text("ok"))
    cls, first, second, third = talker(model, base=Keeper), png(100_000, "1"), png(100_000, "2"), png(0, "3")
    async with talking(cls) as one:
        client = await one.join(TALKER)
        agent = await one.world.get_agent(cls, "t")
        await say(client, "r1", picture(first, "p1"))
        await done(client, "r1")
        await say(client, "r2", picture(first, "p1"), picture(second, "p2"))
        await done(client, "r2")

        await say(client, "r3", picture(third, "p1"))  # edited: what followed it is taken back
        await done(client, "r3")
        after_edit = await agent.held()
        await agent.conversation.clear()

        assert after_edit == [(hashlib.sha256(third).hexdigest(), "message:p1")]
        assert await agent.held() == []
        assert await agent.count() == 0


async def test_an_edited_message_may_keep_its_file() -> None:
    model = ScriptedModel(text("ok"))
    cls, content = talker(model, base=Keeper), png(100_000)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", picture(content, "p1"))
        await done(client, "r1")
        await say(client, "r2", picture(content, "p1", "look again"))
        await done(client, "r2")

        agent = await one.world.get_agent(cls, "t")
        assert await agent.held() == [(hashlib.sha256(content).hexdigest(), "message:p1")]
        assert seen_files(model) == [content]


async def test_messages_over_the_count_let_their_files_go() -> None:
    cls = talker(ScriptedModel(text("ok")), base=Keeper, max_messages=2)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        for number in range(3):
            await agent.send([picture(png(0, str(number)), f"p{number}")])

        assert [holder for _, holder in await agent.held()] == ["message:p2"]


async def test_a_message_that_waits_for_its_turn_keeps_its_file_and_a_skipped_one_does_not() -> None:
    model = ScriptedModel(text("slow", delay=0.5), text("ok"))
    cls = talker(model, base=Keeper, concurrency="latest")
    async with talking(cls) as one:
        client = await one.join(TALKER)
        agent = await one.world.get_agent(cls, "t")
        await say(client, "r1", user("first", "u1"))
        await client.until(lambda frame: frame["type"] == "cf_agent_use_chat_response")
        await say(client, "r2", user("first", "u1"), picture(png(0, "2"), "p2"))
        await client.until(lambda frame: "files/" in json.dumps(frame))
        waiting = await agent.held()
        await agent.turns.cancel("r2")

        assert [holder for _, holder in waiting] == ["message:p2"]
        assert await agent.held() == []
        await done(client, "r1")


async def test_a_file_that_is_gone_or_damaged_becomes_a_note_for_the_model() -> None:
    model = ScriptedModel(text("a cat"), text("I cannot see it"))
    cls, content = talker(model, base=Keeper), png(100_000)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", picture(content))
        await done(client, "r1")
        (stored,) = list(one.world.data.rglob(hashlib.sha256(content).hexdigest()))
        stored.unlink()

        await say(client, "r2", user("what was it?", "u2"))
        end = await done(client, "r2")

        assert end["outcome"] == "completed"
        assert seen_files(model) == []
        assert "[A file could not be read and was left out: image/png]" in str(model.asked[-1])


async def test_the_record_of_a_request_names_the_file_instead_of_its_bytes() -> None:
    cls, content = talker(ScriptedModel(text("a cat")), base=Keeper), png(300_000)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send([picture(content)])

        name = f"<file sha256:{hashlib.sha256(content).hexdigest()}, {len(content)} bytes>"
        assert any(name in row for row in await agent.texts())


class Painter(Keeper):
    @tool
    async def paint(self) -> Any:
        """Paint."""
        return BinaryContent(png(100_000, "painted"), media_type="image/png")

    @tool
    async def scan(self) -> bytes:
        """Scan."""
        return png(0, "scanned")

    @tool
    async def read(self) -> bytes:
        """Read."""
        return b"plain text"


@pytest.mark.parametrize(("name", "content"), [("paint", png(100_000, "painted")), ("scan", png(0, "scanned"))])
async def test_a_picture_of_a_tool_is_shown_by_its_url_and_sent_to_the_model(name: str, content: bytes) -> None:
    model = ScriptedModel(call(name), text("done"))
    cls = talker(model, base=Painter)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("paint", "u1"))
        await done(client, "r1")

        agent = await one.world.get_agent(cls, "t")
        answer = (await agent.conversation.messages())[-1]
        (part,) = [part for part in answer["parts"] if part["type"] == f"tool-{name}"]
        assert part["output"] == {"type": "file", "mediaType": "image/png", "url": url_of(content)}
        assert seen_files(model) == [content]
        assert await fetched(one, url_of(content)) == content
        assert [holder for _, holder in await agent.held()] == [f"message:{answer['id']}"]
        await agent.conversation.clear()
        assert await agent.count() == 0


async def test_bytes_of_a_tool_that_are_text_stay_text() -> None:
    model = ScriptedModel(call("read"), text("done"))
    cls = talker(model, base=Painter)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send("read")

        assert "plain text" in await agent.seen_by_model()
        assert await agent.count() == 0


async def test_a_frame_whose_size_comes_from_its_pictures_is_accepted() -> None:
    model = ScriptedModel(text("six cats"))
    cls, pictures = talker(model, base=Keeper), [png(1_000_000, str(number)) for number in range(6)]
    async with talking(cls) as one:
        client = await one.join(TALKER)
        message = user("look", "p1")
        message["parts"] += [picture(content)["parts"][1] for content in pictures]
        await say(client, "r1", message)
        end = await done(client, "r1")

        assert end["outcome"] == "completed"
        assert seen_files(model) == pictures
        newcomer = await one.join(TALKER)
        (told,) = [frame for frame in newcomer.of_type(MESSAGES) if frame.get("connect")]
        assert len(json.dumps(told)) < 20_000
        transcript = await (await one.world.get_agent(cls, "t")).conversation.messages()
        await say(client, "r2", *transcript, user("more", "u2"))
        await done(client, "r2")


async def test_a_text_does_not_pass_for_a_file() -> None:
    cls = talker(ScriptedModel(text("ok")))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        pasted = picture(png(2_000_000))["parts"][1]["url"]
        await say(client, "r1", user(pasted, "u1"))

        end = await done(client, "r1")

        assert "Send files as parts of type file" in end["body"]


@pytest.mark.parametrize("right", ["is_watch_only", "is_readonly"])
async def test_who_may_not_start_turns_may_not_send_large_frames(right: str) -> None:
    cls = talker(ScriptedModel(text("ok")), base=type("Closed", (Keeper,), {right: lambda self, connection: True}))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", picture(png(2_000_000)))

        assert (await client.ended())[0] == 1009


async def test_words_of_more_than_an_ordinary_frame_are_refused() -> None:
    cls = talker(ScriptedModel(text("ok")))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("x" * 2_000_000, "u1"))

        assert (await client.ended())[0] == 1009


async def test_messages_join_in_the_order_in_which_they_came() -> None:
    cls = talker(ScriptedModel(text("ok")), base=Keeper)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", picture(png(600_000), "p1"))
        await say(client, "r2", user("after", "u2"))
        await done(client, "r2")

        messages = await (await one.world.get_agent(cls, "t")).conversation.messages()
        assert [message["id"] for message in messages if message["role"] == "user"] == ["p1", "u2"]
