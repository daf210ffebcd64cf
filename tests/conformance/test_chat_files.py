"""Pictures and other files in chats: stored once, named by messages, and read only for the model."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent, BinaryImage, FilePart
from pydantic_ai.models.function import FunctionStreamedResponse
from tests.conformance.chats import MESSAGES, TALKER, Talking, cancel, done, say, talker, talking, user
from tests.conformance.replicated import running_replicated
from tests.conformance.served import Served
from tests.conformance.worlds import Run, until

from sapwood import App, Limits, NotFound, Turn, Unavailable, tool
from sapwood.testing import ScriptedModel, World, call, text

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
        if not self.files.list():
            return []
        return self._actor.database.execute(
            "SELECT digest, holder FROM sapwood_file_references ORDER BY digest, holder"
        )

    async def texts(self) -> list[str]:
        return [str(body) for (body,) in self._actor.database.execute("SELECT body FROM sapwood_sent_texts")]

    async def busy(self) -> bool:
        return bool(self.fibers.list())

    async def has_whole(self, digest: str) -> bool:
        return hashlib.sha256(await self.files.get(digest)).hexdigest() == digest

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


async def test_a_deleted_message_lets_its_files_go_and_one_in_another_branch_does_not() -> None:
    model = ScriptedModel(text("ok"))
    cls, first, second, third = talker(model, base=Keeper), png(100_000, "1"), png(100_000, "2"), png(0, "3")
    async with talking(cls) as one:
        client = await one.join(TALKER)
        agent = await one.world.get_agent(cls, "t")
        await say(client, "r1", picture(first, "p1"))
        await done(client, "r1")
        await say(client, "r2", picture(first, "p1"), picture(second, "p2"))
        await done(client, "r2")

        await say(client, "r3", picture(third, "p1"))  # edited: what followed it belongs to another branch
        await done(client, "r3")
        after_edit = dict(await agent.held())
        await agent.conversation.clear()

        assert set(after_edit) == {hashlib.sha256(one).hexdigest() for one in (first, second, third)}
        assert after_edit[hashlib.sha256(third).hexdigest()] == "message:p1"
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
        holders = {holder for digest, holder in await agent.held() if digest == hashlib.sha256(content).hexdigest()}
        assert "message:p1" in holders
        assert len(holders) == 2  # the old message holds it too
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


async def test_a_client_that_may_only_watch_may_not_send_large_frames() -> None:
    watched = type("Watched", (Keeper,), {"is_watch_only": lambda self, connection: True})
    cls = talker(ScriptedModel(text("ok")), base=watched)
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


async def receives(world: World, cls: Any) -> None:
    await (await world.get_agent(cls, "t")).send([picture(png(100_000, "new"), "p2"), picture(png(0, "small"), "p3")])


async def edits(world: World, cls: Any) -> None:
    await (await world.get_agent(cls, "t")).send([picture(png(100_000, "new"), "p1")])


async def clears(world: World, cls: Any) -> None:
    await (await world.get_agent(cls, "t")).conversation.clear()


@pytest.mark.slow
@pytest.mark.parametrize("act", [receives, edits, clears])
async def test_a_kill_at_any_commit_loses_no_file_of_a_message_and_keeps_none_that_nothing_names(
    run: Run, act: Any
) -> None:
    cls = talker(ScriptedModel(text("ok"), each=True), base=Keeper)
    nth, passed = 0, True
    while passed:
        nth += 1
        async with run(cls) as world:
            agent = await world.get_agent(cls, "t")
            await agent.send([picture(png(100_000, "old"), "p1")])
            before = world.points.passed["committed"]
            world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable, NotFound):
                await act(world, cls)
            passed = world.points.passed["committed"] >= before + nth
            await world.crash()
            await check_files(world, cls)


async def check_files(world: World, cls: Any) -> None:
    """Every file that a message names is there, and each of the others goes, at the latest after a day."""
    agent = await world.get_agent(cls, "t")

    async def is_idle() -> bool:
        return not await agent.busy()

    while not await is_idle():
        await world.clock.advance(1)
    exported = await agent.conversation.export()
    named = {
        part["url"].rpartition("/")[2]
        for message in [*exported["messages"], *(one["message"] for one in exported["other_branches"])]
        for part in message["parts"]
        if part["type"] == "file"
    }
    for digest in named:
        assert await agent.has_whole(digest)
    await world.clock.advance(100_000)
    world.sleep()
    agent = await world.get_agent(cls, "t")
    kept = {digest for digest, _ in await agent.held()}
    assert kept == named
    await until(lambda: {path.name for path in world.data.rglob("*.files/*")} <= named)


class Artist(Keeper):
    """Answers with a picture of its own."""

    async def respond(self, turn: Turn) -> AsyncIterator[Any]:
        yield "Here:"
        yield picture(png(100_000, "own"))["parts"][1]


async def test_a_picture_that_an_agent_answers_with_is_stored(run: Run) -> None:
    cls = talker(base=Artist)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("draw")

        (answer,) = [one for one in await agent.conversation.messages() if one["role"] == "assistant"]
        (file,) = [part for part in answer["parts"] if part["type"] == "file"]
        assert file["url"] == url_of(png(100_000, "own"))
        assert await agent.held() == [(hashlib.sha256(png(100_000, "own")).hexdigest(), f"message:{answer['id']}")]


@dataclass
class DrawnResponse(FunctionStreamedResponse):
    """A response that is a picture."""

    async def _get_event_iterator(self) -> AsyncIterator[Any]:
        part = FilePart(BinaryImage(png(100_000, "drawn"), media_type="image/png"))
        yield self._parts_manager.handle_part(vendor_part_id="picture", part=part)


class DrawingModel(ScriptedModel):
    """A model that answers with a picture, and notes what it is asked."""

    @asynccontextmanager
    async def request_stream(
        self, messages: Any, settings: Any, parameters: Any, run_context: Any = None
    ) -> AsyncGenerator[Any]:
        self.asked.append(messages)
        yield DrawnResponse(model_request_parameters=parameters, _model_name="drawing", _iter=_nothing())


async def _nothing() -> AsyncIterator[str]:
    for one in ():
        yield one


async def test_a_picture_of_the_model_is_stored_shown_and_sent_back_to_it(run: Run) -> None:
    model, content = DrawingModel(), png(100_000, "drawn")
    cls = talker(model, base=Keeper, output_type=BinaryImage)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("draw")
        await agent.send("again")

        answers = [one for one in await agent.conversation.messages() if one["role"] == "assistant"]
        files = [part for one in answers for part in one["parts"] if part["type"] == "file"]
        assert [file["url"] for file in files] == [url_of(content)] * 2
        assert len(await agent.seen_by_model()) < 5000
        (drawn,) = [part for message in model.asked[-1] for part in message.parts if part.part_kind == "file"]
        assert drawn.content.data == content


async def test_a_picture_that_is_posted_over_http_is_stored() -> None:
    model = ScriptedModel(text("nice"))
    cls, content = talker(model, base=Keeper), png(2_000_000)
    async with talking(cls) as one:
        body = json.dumps({"messages": [picture(content)]}).encode()
        answer = await one.site.http(f"{TALKER}/chat", method="POST", body=body)

        assert answer.status == 200
        assert seen_files(model) == [content]


async def test_what_is_exported_names_files_by_reference(run: Run) -> None:
    cls, content = talker(ScriptedModel(text("ok")), base=Keeper), png(100_000)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send([picture(content)])

        exported = json.dumps(await agent.conversation.export())

        assert exported.count(url_of(content)) == 3  # for clients, for models, and for Helix
        assert len(exported) < 5000


@pytest.mark.parametrize(
    ("accepts", "told"),
    [
        ({"text/*": 1000}, "This agent accepts files of type text/*, got image/png."),
        ({"image/*": 100}, "A file of type image/png must have at most 100 bytes"),
        ({"*/*": 100, "image/png": 10_000}, None),
    ],
)
async def test_inline_files_are_limited_by_what_the_class_accepts(accepts: dict[str, int], told: str | None) -> None:
    cls = talker(ScriptedModel(text("ok")), base=Keeper, accept_files=accepts)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", picture(png()))

        end = await done(client, "r1")

        assert end["outcome"] == ("completed" if told is None else "error")
        assert (told or "") in end["body"]


async def test_a_picture_beyond_the_limit_of_files_is_refused_in_one_sentence() -> None:
    cls = talker(ScriptedModel(text("ok")), base=Keeper, limits=Limits(file_bytes=50_000))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", picture(png(100_000)))

        end = await done(client, "r1")

        assert "the limit is 50000" in end["body"]
        assert await (await one.world.get_agent(cls, "t")).conversation.messages() == []


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "rpc", "id": "c1", "method": "take"},
        {"type": "cf_agent_tool_result", "toolCallId": "c1"},
        {"type": "mine"},
    ],
    ids=["call", "tool result", "own message"],
)
async def test_only_a_message_for_the_model_may_be_long_because_of_its_files(frame: dict[str, Any]) -> None:
    cls = talker(ScriptedModel(text("ok")))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        url = picture(png(2_000_000))["parts"][1]["url"]
        await client.send({**frame, "args": [url], "output": url})

        assert (await client.ended())[0] == 1009


async def test_in_a_cluster_pictures_of_people_tools_and_models_are_files_too() -> None:
    drawing, painting, model = DrawingModel(), ScriptedModel(call("paint"), text("done")), ScriptedModel(text("nice"))
    drawer = talker(drawing, base=Keeper, output_type=BinaryImage)
    painter = type("Painting", (Painter,), {"model": painting})
    viewer = type("Viewer", (talker(model, base=Keeper),), {})
    async with running_replicated(App(agents=[drawer, painter, viewer]), slow_slices="allow") as world:
        agent = await world.get_agent(drawer, "t")
        await agent.send("draw")
        (file,) = [part for part in (await agent.conversation.messages())[-1]["parts"] if part["type"] == "file"]
        await (await world.get_agent(painter, "t")).send("paint")
        await (await world.get_agent(viewer, "t")).send([picture(png(100_000), "p1")])

        assert not file["url"].startswith("data:")
        assert seen_files(painting) == [png(100_000, "painted")]
        assert seen_files(model) == [png(100_000)]


async def test_a_message_is_cancelled_also_while_its_picture_is_stored() -> None:
    cls = talker(ScriptedModel(text("never", gate=asyncio.Event())), base=Keeper)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", picture(png(600_000)))
        await cancel(client, "r1")

        end = await done(client, "r1")

        assert end["outcome"] == "aborted"
