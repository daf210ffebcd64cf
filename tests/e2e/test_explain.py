"""`sapwood explain` prints what the provider got, byte for byte."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic_ai import Agent as Loop
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.native_tools import MCPServerTool
from tests.conformance.chats import Talking, idle, talker, talking
from tests.e2e.provider import DIALECTS, Dialect, Reply, providing, torn
from tests.machine import patience

from sapwood import App, agent_tool, tool
from sapwood.admin.admin import Admin
from sapwood.testing import World, running

pytestmark = pytest.mark.realtime("the provider is a real server")


class Adding(Talking):
    """Has a tool, and compacts its conversation."""

    words = "Be short."

    @tool
    async def add(self, a: int, b: str) -> str:
        """Add."""
        return f"{a}{b}"

    def get_instructions(self) -> str:
        return self.words

    async def compact(self, messages: list[object]) -> str:
        return f"{len(messages)} messages were here."


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_a_past_step_is_explained_byte_for_byte(dialect: Dialect) -> None:
    """Also after compaction, a restart, and with instructions that have changed since."""
    asks = Reply(torn(b"".join(dialect.events(["Well. "], [("add", {"a": 1, "b": "ü🌲"}, "c1")]))))
    answers = Reply(torn(b"".join(dialect.events(["Grüße 🌲"]))))
    async with providing(asks, answers) as provider:
        cls = talker(dialect.model(provider.port), base=Adding)
        async with talking(cls) as one:
            agent = await one.world.get_agent(cls, "t")
            turns = [await agent.send("first: 🌲")]
            cls.words = "Be long, and say why."
            turns += [await agent.send(f"message {number}") for number in range(3)]
            cls.compact_above = 1
            turns += [await agent.send("and after compaction?")]
            await one.world.restart()

            steps = [(turn.id, step) for turn in turns for step in range(1, turn.steps + 1)]
            operator = Admin(one.world.node)
            found = [(await operator.explain("Talker:t", turn, step))["requests"] for turn, step in steps]

        assert [[request["body"].encode() for request in requests] for requests in found] == [
            [request.raw] for request in provider.requests
        ]
        assert all(request["url"].startswith("http://") and "?" not in request["url"] for (request,) in found)


def asking(dialect: Dialect, tool: str, **arguments: Any) -> Reply:
    return Reply(torn(b"".join(dialect.events([], [(tool, arguments, f"call-{tool}")]))))


def saying(dialect: Dialect, text: str) -> Reply:
    return Reply(torn(b"".join(dialect.events([text]))))


async def bodies(world: World, address: str, turn: str, steps: int) -> list[bytes]:
    """Return what is recorded that a provider was sent in a turn, with all attempts."""
    found = [(await Admin(world.node).explain(address, turn, step))["requests"] for step in range(1, steps + 1)]
    return [request["body"].encode() for requests in found for request in requests if request["url"]]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_a_crash_in_the_middle_of_an_answer_leaves_each_attempt_byte_for_byte(dialect: Dialect) -> None:
    held = Reply(torn(b"".join(dialect.events(["Never heard."]))), holds_after=0)
    async with providing(asking(dialect, "add", a=1, b="ü🌲"), held, saying(dialect, "Heard. 🌲")) as provider:
        cls = talker(dialect.model(provider.port), base=Adding)
        async with running(App(agents=[cls]), slow_slices="warn") as world:
            agent = await world.get_agent(cls, "t")
            turn = (await agent.turns.start("hello 🌲")).id
            await provider.asked(2)
            async with asyncio.timeout(patience()):
                while len(await bodies(world, "Talker:t", turn, 2)) < 2:  # noqa: ASYNC110 - a commit tells nobody
                    await asyncio.sleep(0.01)
            await world.crash()
            cls.words = "Be long, and say why."
            agent = await world.get_agent(cls, "t")
            ended = await agent.turns.wait(turn)
            found = await bodies(world, "Talker:t", turn, ended.steps)

    assert len(found) == 3
    assert found == [request.raw for request in provider.requests]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_what_a_sub_agent_three_levels_down_was_sent_is_explained_byte_for_byte(dialect: Dialect) -> None:
    replies = [
        asking(dialect, "middle", message="ü"),
        asking(dialect, "lower", message="🌲"),
        asking(dialect, "lowest", message="\\n"),
        *(saying(dialect, text) for text in ("four", "three", "two", "one")),
    ]
    async with providing(*replies) as provider:
        model = dialect.model(provider.port)
        lowest = type("Lowest", (Talking,), {"model": model, "__doc__": "Finds."})
        lower = type("Lower", (Talking,), {"model": model, "__doc__": "Asks.", "tools": [agent_tool(lowest)]})
        middle = type("Middle", (Talking,), {"model": model, "__doc__": "Asks.", "tools": [agent_tool(lower)]})
        cls = talker(model, tools=[agent_tool(middle)])
        async with running(App(agents=[cls]), slow_slices="warn") as world:
            agent = await world.get_agent(cls, "t")
            turn: str | None = (await agent.send("hello")).id
            found, address, levels = list[tuple[float, bytes]](), "Talker:t", 0
            while turn is not None:
                spans = (await Admin(world.node).explain(address, turn))["spans"]
                steps = [one for one in spans if one["kind"] == "step"]
                found += zip(
                    [one["began_at"] for one in steps], await bodies(world, address, turn, len(steps)), strict=True
                )
                runs = [one for one in spans if one["kind"] == "run"]
                turn, levels = None, levels + 1
                for run in runs:
                    address += f"/{run['name']}:{run['facts']['child']}"
                    work = (await Admin(world.node).explain(address))["spans"]
                    turn = work[0]["facts"]["turn"]

    assert levels == 4
    assert sorted(body for _, body in found) == sorted(request.raw for request in provider.requests)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_a_redacted_record_differs_from_what_was_sent_in_nothing_else(dialect: Dialect) -> None:
    def redact(kind: str, text: str) -> str:
        return text.replace("hunter2", "<secret>")

    async with providing(asking(dialect, "add", a=1, b="hunter2"), saying(dialect, "Done.")) as provider:
        cls = talker(dialect.model(provider.port), base=Adding)
        async with running(App(agents=[cls], redact=redact), slow_slices="warn") as world:
            agent = await world.get_agent(cls, "t")
            turn = await agent.send("my password is hunter2")
            found = await bodies(world, "Talker:t", turn.id, turn.steps)

    assert all(b"hunter2" in request.raw for request in provider.requests)
    assert found == [request.raw.replace(b"hunter2", b"<secret>") for request in provider.requests]


@pytest.mark.parametrize("name", ["anthropic", "openai-responses"])
async def test_the_key_of_an_mcp_server_that_the_provider_calls_is_not_recorded(name: str) -> None:
    key = 'a "key" ü'
    server = MCPServerTool(id="maps", url="https://example.com/mcp", authorization_token=key)
    (dialect,) = [one for one in DIALECTS if one.name == name]
    async with providing(saying(dialect, "Hello.")) as provider:
        model = dialect.model(provider.port)
        cls = talker(model, loop=Loop(model, capabilities=[NativeTool(server)]))
        async with running(App(agents=[cls]), slow_slices="warn") as world:
            agent = await world.get_agent(cls, "t")
            turn = await agent.send(key)
            found = await bodies(world, "Talker:t", turn.id, turn.steps)

    (request,) = provider.requests
    sent = [json.dumps(request.body[name]) for name in ("tools", "mcp_servers") if name in request.body]
    assert any(json.dumps(key) in one for one in sent)
    recorded = json.loads(found[0])
    assert [json.dumps(recorded[name]) for name in ("tools", "mcp_servers") if name in recorded] == [
        one.replace(json.dumps(key), '"<not recorded>"') for one in sent
    ]
    for name in ("tools", "mcp_servers"):
        for body in (recorded, request.body):
            body.pop(name, None)
    assert recorded == request.body


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_instructions_that_change_with_every_request_do_not_store_the_conversation_again(
    dialect: Dialect,
) -> None:
    class Clock(Talking):
        asked = 0

        def get_instructions(self) -> str:
            type(self).asked += 1
            return f"It is {self.asked} o'clock."

    turns = 6
    answers = [Reply(torn(b"".join(dialect.events(["Yes."])))) for _ in range(turns)]
    async with providing(*answers) as provider:
        cls = talker(dialect.model(provider.port), base=Clock)
        async with talking(cls) as one:
            agent = await one.world.get_agent(cls, "t")
            done = [await agent.send(f"message {number}") for number in range(turns)]
            operator = Admin(one.world.node)
            found = await operator.sql("Talker:t", "SELECT count(*) FROM sapwood_sent_messages", [])
            bodies = [(await operator.explain("Talker:t", turn.id, 1))["requests"][0]["body"] for turn in done]

        assert found["rows"][0][0] <= 2 * 2 * turns  # as it was sent, and in the form of Pydantic AI
        assert [body.encode() for body in bodies] == [request.raw for request in provider.requests]


class Summarising(Talking):
    compact_above = 100

    async def sent(self) -> list[int | None]:
        rows = self._actor.database.execute(
            "SELECT step FROM sapwood_model_requests JOIN sapwood_spans ON sapwood_spans.number = span WHERE url <> ''"
        )
        return [step for (step,) in rows]


async def test_what_was_sent_to_summarise_after_a_turn_is_recorded_too() -> None:
    dialect = next(one for one in DIALECTS if "openai" in one.name)
    reply = Reply(torn(b"".join(dialect.events(["a long answer " * 20]))))
    message = {"role": "assistant", "content": "## Goal"}
    whole = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
    }
    summary = Reply([json.dumps(whole).encode()], headers={"content-type": "application/json"})
    async with providing(reply, reply, summary) as provider:
        cls = talker(dialect.model(provider.port), base=Summarising)
        async with talking(cls) as one:
            agent = await one.world.get_agent(cls, "t")
            turns = [await agent.send(word) for word in ("one", "two")]
            await idle(one)
            async with asyncio.timeout(patience()):
                while "## Goal" not in await agent.seen_by_model():  # noqa: ASYNC110 - seen from outside
                    await asyncio.sleep(0.01)
            assert await agent.sent() == [1, 1, None]
            assert len(provider.requests) == 3
            assert b"## Decisions" in provider.requests[-1].raw

            summary_of_turn = (await Admin(one.world.node).explain("Talker:t", turns[-1].id, 0))["requests"]
            work = (await Admin(one.world.node).explain("Talker:t"))["spans"]

    assert [request["body"].encode() for request in summary_of_turn] == [provider.requests[-1].raw]
    assert [one["kind"] for one in work if one["kind"] not in ("fiber", "turn")] == []
