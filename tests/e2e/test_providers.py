"""Real adapters of models, against a provider on this machine: what it says arrives, what it breaks is mended or told.

Nothing leaves this machine. The provider writes the formats of OpenAI and Anthropic byte by byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.exceptions import ModelRateLimitError
from pydantic_ai.models.fallback import FallbackModel
from tests.conformance.chats import (
    TALKER,
    Talking,
    built,
    cancel,
    chunks,
    done,
    kinds,
    over,
    say,
    streamed,
    talker,
    talking,
    text_of,
    user,
)
from tests.conformance.served import Client, Served
from tests.e2e.provider import DIALECTS, Anthropic, Dialect, OpenAIChat, Provider, Reply, providing, refused, torn
from tests.machine import patience

from sapwood import Turn, tool
from sapwood.errors import UsageError
from sapwood.testing import ScriptedModel, fails, recorded, text

"""Seconds within which a provider knows that nobody listens any more."""
GREETING = ["Grüße ", "aus ", "🌲 Wörth", "!"]
TEXT = "".join(GREETING)
CALLS = [("add", {"a": 1, "b": "ü🌲"}, "c1"), ("add", {"a": 2, "b": 'a "quote"'}, "c2")]
GO_ON_AT = 30.0
"""Seconds that are more than any pause between two attempts."""


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.name)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    """Return how the provider of this test speaks."""
    return request.param


class Adding(Talking):
    """One with a tool, and a door that can be held shut before the model is asked."""

    added: list[tuple[int, str]]
    door: asyncio.Event
    at_door: asyncio.Event

    @tool
    async def add(self, a: int, b: str) -> str:
        """Add."""
        self.added.append((a, b))
        return f"{a}{b}"

    async def before_step(self, turn: Turn, step: int) -> None:
        self.at_door.set()
        await self.door.wait()


def adding(model: Any, *, shut: bool = False, **settings: Any) -> Any:
    door = asyncio.Event()
    if not shut:
        door.set()
    return talker(model, base=Adding, added=[], door=door, at_door=asyncio.Event(), **settings)


def whole(dialect: Dialect, **more: Any) -> Reply:
    """Return a greeting, torn apart in the middle of its characters."""
    return Reply(torn(b"".join(dialect.events(GREETING))), **more)


def upto(events: list[bytes], words: str) -> int:
    """Return how many events there are up to the one that has these words."""
    return next(at for at, event in enumerate(events) if words.encode() in event) + 1


async def waits(client: Client, id: str, times: int = 1) -> list[Any]:
    """Wait until a client was told this often that the turn waits; return how long each time."""

    def told() -> list[Any]:
        return [chunk["data"]["seconds"] for chunk in chunks(client, id) if chunk["type"] == "data-waiting"]

    await client.until(lambda _: len(told()) >= times)
    return told()


async def passes(one: Served, provider: Provider, requests: int) -> None:
    """Let time pass until this many requests have arrived."""
    async with asyncio.timeout(patience()):
        while len(provider.requests) < requests:
            await one.world.clock.advance(GO_ON_AT)
            await asyncio.sleep(0.01)


async def test_an_answer_that_arrives_in_shreds_is_put_together(dialect: Dialect) -> None:
    async with providing(whole(dialect)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("hi"))
            assert (await done(client, "r1"))["outcome"] == "completed"
            agent = await one.world.get_agent(cls, "t")
            stored = (await agent.conversation.messages())[-1]
            assert text_of(stored) == TEXT
            assert text_of(built(chunks(client, "r1"))) == TEXT
        assert provider.requests[0].body["stream"] is True


@pytest.mark.parametrize("size", [1, 64, *(pytest.param(one, marks=pytest.mark.nightly) for one in (2, 3, 100_000))])
async def test_it_does_not_matter_where_the_shreds_end(dialect: Dialect, size: int) -> None:
    reply = Reply(torn(b"".join(dialect.events(GREETING)), size=size))
    async with providing(reply) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            agent = await one.world.get_agent(cls, "t")
            assert (await agent.send("hi")).text == TEXT


async def test_a_slow_answer_is_seen_as_it_comes(dialect: Dialect) -> None:
    async with providing(Reply(dialect.events([f"{n} " for n in range(10)]), delay=0.05)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("count"))
            await streamed(client, "r1", "0 1 ")
            assert not provider.requests[0].sent.is_set()
            await done(client, "r1")


async def test_tool_calls_that_come_in_pieces_and_together_are_made_once_each(dialect: Dialect) -> None:
    asks = Reply(torn(b"".join(dialect.events(["Well. "], CALLS))))
    async with providing(asks, whole(dialect)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("add"))
            await done(client, "r1")
            assert sorted(cls.added) == [(1, "ü🌲"), (2, 'a "quote"')]
            agent = await one.world.get_agent(cls, "t")
            stored = (await agent.conversation.messages())[-1]
            tools = [(part["input"], part["output"]) for part in stored["parts"] if "toolCallId" in part]
            assert tools == [({"a": 1, "b": "ü🌲"}, "1ü🌲"), ({"a": 2, "b": 'a "quote"'}, '2a "quote"')]
            assert text_of(stored) == "Well. " + TEXT
        told = json.dumps(provider.requests[1].body, ensure_ascii=False)
        assert all(told.count(id) >= 2 for id in ("c1", "c2")), "The provider was told both calls and both results."
        assert "1ü🌲" in told


@pytest.mark.parametrize("framed", [True, False], ids=["cut", "closed in good order"])
async def test_an_answer_cut_in_the_middle_ends_in_words_and_keeps_what_was_said(
    dialect: Dialect, *, framed: bool
) -> None:
    events = dialect.events(GREETING)
    cut = Reply(events, cut_after=upto(events, "aus "), framed=framed)
    async with providing(cut, whole(dialect)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("hi"))
            end = await done(client, "r1")
            assert (end["error"], end["body"]) == (
                True,
                "The connection to the model was lost during its answer.",
            )
            agent = await one.world.get_agent(cls, "t")
            assert text_of((await agent.conversation.messages())[-1]) == "Grüße aus "
            assert len(provider.requests) == 1, "What was said already is not asked for again."
            assert (await agent.send("and?")).text == TEXT
        assert "Grüße aus " in json.dumps(provider.requests[1].body, ensure_ascii=False)


async def test_tool_calls_that_were_cut_in_the_middle_are_not_made(dialect: Dialect) -> None:
    events = dialect.events([], CALLS)
    cut = Reply(events, cut_after=upto(events, "c1") + 2, framed=False)
    async with providing(cut, whole(dialect)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            agent = await one.world.get_agent(cls, "t")
            assert (await agent.send("add")).status == "failed"
            assert cls.added == []
            assert (await agent.send("and?")).text == TEXT


@pytest.mark.parametrize("status", [429, 500, 503, 529])
async def test_a_provider_that_cannot_answer_now_is_asked_again(dialect: Dialect, status: int) -> None:
    async with providing(refused(status), refused(status), whole(dialect)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("hi"))
            await waits(client, "r1", 1)
            assert len(provider.requests) == 1, "The SDK does not ask again by itself, where nobody sees it."
            await passes(one, provider, 2)
            await waits(client, "r1", 2)
            await passes(one, provider, 3)
            assert (await done(client, "r1"))["outcome"] == "completed"
            agent = await one.world.get_agent(cls, "t")
            assert text_of((await agent.conversation.messages())[-1]) == TEXT
            assert kinds(client, "r1").count("start-step") == 1


async def test_a_connection_cut_before_the_first_word_is_made_again(dialect: Dialect) -> None:
    async with providing(Reply([b":"], cut_after=0), whole(dialect)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("hi"))
            await waits(client, "r1")
            await passes(one, provider, 2)
            assert (await done(client, "r1"))["outcome"] == "completed"


async def test_a_provider_that_is_overloaded_in_the_first_event_is_asked_again() -> None:
    dialect = Anthropic()
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    overloaded = Reply([b"event: error\ndata: " + json.dumps(error).encode() + b"\n\n"])
    async with providing(overloaded, whole(dialect)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("hi"))
            await waits(client, "r1")
            await passes(one, provider, 2)
            assert (await done(client, "r1"))["outcome"] == "completed"


async def test_retry_after_is_kept_to(dialect: Dialect) -> None:
    async with providing(refused(429, retry_after="7"), whole(dialect)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("hi"))
            assert await waits(client, "r1") == [pytest.approx(7)]
            await one.world.clock.advance(6.9)
            await asyncio.sleep(0.05)
            assert len(provider.requests) == 1
            await one.world.clock.advance(0.2)
            await provider.asked(2)
            assert (await done(client, "r1"))["outcome"] == "completed"


async def test_who_is_asked_again_and_again_says_at_last_that_it_cannot(dialect: Dialect) -> None:
    async with providing(refused(429, "your org-12345 is poor")) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("hi"))
            await passes(one, provider, 5)
            end = await done(client, "r1")
            assert end["body"] == "The rate limit of the model was reached. Try again later."
            assert len(provider.requests) == 5


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "The model's provider rejected the API key."),
        (404, "The model's provider does not know this model."),
        (400, "The model's provider rejected the request."),
    ],
)
async def test_what_asking_again_does_not_mend_is_told_at_once(dialect: Dialect, status: int, words: str) -> None:
    async with providing(refused(status, "secret-detail")) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            agent = await one.world.get_agent(cls, "t")
            turn = await agent.send("hi")
            assert (turn.status, turn.error) == ("failed", words)
            assert len(provider.requests) == 1


async def test_waiting_for_a_provider_can_be_cancelled(dialect: Dialect) -> None:
    async with providing(refused(429, retry_after="3600"), whole(dialect)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("hi"))
            await waits(client, "r1")
            await cancel(client, "r1")
            assert (await done(client, "r1"))["outcome"] == "aborted"
            await one.world.clock.advance(7200)
            assert len(provider.requests) == 1


@pytest.mark.parametrize("status", [429, 500])
async def test_only_a_provider_that_is_busy_makes_others_wait(dialect: Dialect, status: int) -> None:
    async with providing(refused(status, retry_after="60"), whole(dialect)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("hi"))
            await waits(client, "r1")
            other = await one.join("/agents/talker/other")
            await say(other, "r2", user("hi"))
            if status == 429:
                await waits(other, "r2")
                assert len(provider.requests) == 1
            else:
                assert (await done(other, "r2"))["outcome"] == "completed"
            await passes(one, provider, 3)
            await done(client, "r1")


async def left(provider: Provider) -> None:
    """Wait until our side has closed the connection. It never does after the answer: none of them comes to an end."""
    async with asyncio.timeout(patience()):
        await provider.requests[-1].left.wait()


@pytest.mark.promise("B-16")
async def test_a_turn_cancelled_in_the_middle_closes_the_connection_at_once(dialect: Dialect) -> None:
    events = dialect.events(GREETING)
    async with providing(Reply(events, holds_after=upto(events, "aus "))) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("hi"))
            await streamed(client, "r1", "Grüße aus ")
            agent = await one.world.get_agent(cls, "t")
            assert await agent.turns.cancel()
            await left(provider)
            assert (await done(client, "r1"))["outcome"] == "aborted"
            assert text_of((await agent.conversation.messages())[-1]) == "Grüße aus "


async def test_a_turn_cancelled_while_words_pour_in_closes_the_connection_at_once(dialect: Dialect) -> None:
    async with providing(Reply(dialect.events(["word "] * 2000), holds_after=1000, delay=0.001)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("hi"))
            await streamed(client, "r1", "word word")
            await cancel(client, "r1")
            await left(provider)
            await done(client, "r1")


@pytest.mark.promise("B-16")
async def test_a_turn_cancelled_before_the_headers_came_closes_the_connection_at_once(dialect: Dialect) -> None:
    async with providing(Reply(silent=True)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("hi"))
            await provider.asked()
            agent = await one.world.get_agent(cls, "t")
            assert await agent.turns.cancel()
            await left(provider)
            assert (await done(client, "r1"))["outcome"] == "aborted"


@pytest.mark.promise("B-16")
async def test_a_turn_cancelled_before_the_request_was_sent_never_sends_it(dialect: Dialect) -> None:
    async with providing(whole(dialect)) as provider:
        cls = adding(dialect.model(provider.port), shut=True)
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("hi"))
            await cls.at_door.wait()
            agent = await one.world.get_agent(cls, "t")
            assert await agent.turns.cancel()
            cls.door.set()
            assert (await done(client, "r1"))["outcome"] == "aborted"
            await asyncio.sleep(0.05)
            assert (provider.requests, provider.connections) == ([], 0)


@pytest.mark.parametrize("loops", [0, 20, *(pytest.param(one, marks=pytest.mark.nightly) for one in range(4, 40, 4))])
async def test_a_turn_cancelled_at_any_moment_leaves_no_connection_behind(dialect: Dialect, loops: int) -> None:
    """From the moment something was said to the moment the answer comes, by rounds of the event loop."""
    async with providing(Reply(silent=True)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            agent = await one.world.get_agent(cls, "t")
            await agent.conversation.messages()
            sending = asyncio.create_task(agent.send("hi"))
            for _ in range(loops):
                await asyncio.sleep(0)
            while not sending.done() and not await agent.turns.cancel():  # noqa: ASYNC110 - it is seen from outside
                await asyncio.sleep(0)
            assert (await sending).status == "cancelled"
            if provider.requests:
                await left(provider)


@pytest.mark.promise("B-16")
@pytest.mark.parametrize("when", ["silent", "middle"])
async def test_who_stops_waiting_for_send_closes_the_connection_at_once(dialect: Dialect, when: str) -> None:
    events = dialect.events(GREETING)
    reply = Reply(silent=True) if when == "silent" else Reply(events, holds_after=upto(events, "aus "))
    async with providing(reply) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            agent = await one.world.get_agent(cls, "t")
            sending = asyncio.create_task(agent.send("hi"))
            await (await provider.asked()).sent.wait()
            await asyncio.sleep(0.05)
            sending.cancel()
            await left(provider)
            with contextlib.suppress(asyncio.CancelledError):
                await sending
            assert [status for _, status in await over(agent)] == ["cancelled"]


async def test_who_stops_waiting_for_send_before_the_request_was_sent_never_sends_it(dialect: Dialect) -> None:
    async with providing(whole(dialect)) as provider:
        cls = adding(dialect.model(provider.port), shut=True)
        async with talking(cls) as one:
            agent = await one.world.get_agent(cls, "t")
            sending = asyncio.create_task(agent.send("hi"))
            await cls.at_door.wait()
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
            cls.door.set()
            await asyncio.sleep(0.1)
            assert provider.requests == []


async def test_one_request_at_once_is_one_request_at_once(dialect: Dialect) -> None:
    async with providing(Reply(dialect.events(GREETING), delay=0.01)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls, model_requests_at_once=1) as one:
            clients = [await one.join(f"/agents/talker/{name}") for name in "abc"]
            for client in clients:
                await say(client, "r", user("hi"))
            for client in clients:
                assert (await done(client, "r"))["outcome"] == "completed"
            assert (provider.at_once, len(provider.requests)) == (1, 3)
            told = [chunk for client in clients for chunk in chunks(client, "r") if chunk["type"] == "data-waiting"]
            assert [chunk["data"]["seconds"] for chunk in told] == [None, None]


async def test_who_waits_for_another_s_request_can_be_cancelled() -> None:
    dialect = OpenAIChat()
    async with providing(Reply(silent=True)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls, model_requests_at_once=1) as one:
            first, second = await one.join("/agents/talker/a"), await one.join("/agents/talker/b")
            await say(first, "r", user("hi"))
            await provider.asked()
            await say(second, "r", user("hi"))
            await waits(second, "r")
            await cancel(second, "r")
            assert (await done(second, "r"))["outcome"] == "aborted"
            await cancel(first, "r")
            await done(first, "r")
            assert len(provider.requests) == 1


async def test_so_many_requests_in_a_minute_and_no_more() -> None:
    dialect = OpenAIChat()
    async with providing(whole(dialect)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls, model_requests_per_minute=2) as one:
            agent = await one.world.get_agent(cls, "t")
            for _ in range(2):
                await agent.send("hi")
            client = await one.join(TALKER)
            await say(client, "r3", user("hi"))
            assert await waits(client, "r3") == [pytest.approx(60)]
            await one.world.clock.advance(59.9)
            await asyncio.sleep(0.05)
            assert len(provider.requests) == 2
            await one.world.clock.advance(0.2)
            assert (await done(client, "r3"))["outcome"] == "completed"


async def test_two_keys_of_one_provider_do_not_wait_for_each_other() -> None:
    dialect = OpenAIChat()
    async with providing(Reply(silent=True), whole(dialect)) as provider:
        models = {key: dialect.model(provider.port, key=key) for key in ("one", "two")}

        class Choosing(Adding):
            def get_model(self) -> Any:
                return models[self.name]

        door = asyncio.Event()
        door.set()
        cls = type("Talker", (Choosing,), {"added": [], "door": door, "at_door": asyncio.Event()})
        async with talking(cls, model_requests_at_once=1) as one:
            first, second = await one.join("/agents/talker/one"), await one.join("/agents/talker/two")
            await say(first, "r", user("hi"))
            await provider.asked()
            await say(second, "r", user("hi"))
            assert (await done(second, "r"))["outcome"] == "completed"
            await cancel(first, "r")
            await done(first, "r")


async def test_a_known_model_has_a_price(dialect: Dialect) -> None:
    async with providing(whole(dialect)) as provider:
        cls = adding(dialect.model(provider.port))
        async with talking(cls) as one:
            turn = await (await one.world.get_agent(cls, "t")).send("hi")
            (used,) = turn.usage.values()
            assert (used["requests"], used["input_tokens"], used["output_tokens"]) == (1, 100, 10)
            assert 0 < used["cost"] < 0.01


async def test_a_model_nobody_knows_has_none_and_never_nothing(dialect: Dialect) -> None:
    async with providing(Reply(dialect.events(GREETING, model="nobody-knows-1"))) as provider:
        cls = adding(dialect.model(provider.port, "nobody-knows-1"))
        async with talking(cls) as one:
            turn = await (await one.world.get_agent(cls, "t")).send("hi")
            assert turn.usage["nobody-knows-1"]["cost"] is None


async def test_of_several_models_the_one_that_answered_is_noted(dialect: Dialect) -> None:
    asks = Reply(dialect.events([], CALLS[:1], model="second"))
    async with (
        providing(refused(500)) as broken,
        providing(asks, Reply(dialect.events(GREETING, model="second"))) as ok,
    ):
        model = FallbackModel(dialect.model(broken.port, "first"), dialect.model(ok.port, "second"))
        cls = adding(model)
        async with talking(cls) as one:
            turn = await (await one.world.get_agent(cls, "t")).send("hi")
            assert (turn.text, list(turn.usage)) == (TEXT, ["second"])
            assert turn.usage["second"]["requests"] == 2
            assert (len(broken.requests), len(ok.requests)) == (2, 2)


async def test_models_that_can_all_not_answer_now_are_asked_again(dialect: Dialect) -> None:
    async with providing(refused(500)) as broken, providing(refused(503), whole(dialect)) as mended:
        cls = adding(FallbackModel(dialect.model(broken.port), dialect.model(mended.port)))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", user("hi"))
            await waits(client, "r1")
            await passes(one, mended, 2)
            assert (await done(client, "r1"))["outcome"] == "completed"


async def test_a_ready_agent_s_own_model_is_limited_too() -> None:
    dialect = OpenAIChat()
    async with providing(Reply(dialect.events(GREETING), delay=0.01)) as provider:
        cls = adding(None, loop=PydanticAgent(dialect.model(provider.port)))
        cls.model = None
        async with talking(cls, model_requests_at_once=1) as one:
            agents = [await one.world.get_agent(cls, name) for name in "ab"]
            turns = await asyncio.gather(*(agent.send("hi") for agent in agents))
            assert [turn.text for turn in turns] == [TEXT, TEXT]
            assert provider.at_once == 1


async def test_a_summary_is_asked_for_as_patiently_as_an_answer() -> None:
    busy = ModelRateLimitError("scripted", "not now", retry_after=5)
    model = ScriptedModel(text("well " * 50), fails(busy), text("in short"), text("yes"))
    cls = adding(None, loop=PydanticAgent(model), compact_above=40)
    cls.model = None
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send("tell")
        client = await one.join(TALKER)
        await say(client, "r2", user("and?"))
        assert await waits(client, "r2") == [pytest.approx(5)]
        await one.world.clock.advance(5)
        assert (await done(client, "r2"))["outcome"] == "completed"
        assert "in short" in await agent.seen_by_model()


async def heard(model: Any, *said: str) -> tuple[list[Turn], Any]:
    """Say something to a model; return what it answered, and the tools it called."""
    cls = adding(model)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        return [await agent.send(text) for text in said], cls.added


async def test_what_was_recorded_is_played_without_a_network(dialect: Dialect, tmp_path: Path) -> None:
    file = tmp_path / "answers" / "adding.json"
    asks = Reply(torn(b"".join(dialect.events(["Well. "], CALLS))))
    async with providing(asks, whole(dialect)) as provider, recorded(file, record=True) as client:
        model = dialect.model(provider.port, key="sk-secret", client=client)
        (first,), added = await heard(model, "add")
        assert first.text == "Well. " + TEXT
        assert "sk-secret" not in file.read_text()

    async with recorded(file) as client:
        (second,), again = await heard(dialect.model(1, client=client), "add")
    assert (second.text, second.usage, sorted(again)) == (first.text, first.usage, sorted(added))


async def test_a_cut_that_was_recorded_is_played_too(dialect: Dialect, tmp_path: Path) -> None:
    file, events = tmp_path / "cut.json", dialect.events(GREETING)
    cut = Reply(events, cut_after=upto(events, "aus "))
    async with providing(cut) as provider, recorded(file, record=True) as client:
        (first,), _ = await heard(dialect.model(provider.port, client=client), "hi")
    async with recorded(file) as client:
        (second,), _ = await heard(dialect.model(1, client=client), "hi")
    assert (first.status, first.text) == (second.status, second.text) == ("failed", "Grüße aus ")


async def test_what_was_not_recorded_is_told_and_not_waited_for(
    dialect: Dialect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "hi.json"
    async with providing(whole(dialect)) as provider, recorded(file, record=True) as client:
        await heard(dialect.model(provider.port, client=client), "hi")
    async with recorded(file) as client:
        (turn,), _ = await heard(dialect.model(1, client=client), "something else")
    assert turn.status == "failed"
    assert "Record it again." in caplog.text


def test_nothing_recorded_says_how_to_record(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="SAPWOOD_RECORD=1"):
        recorded(tmp_path / "none.json")
