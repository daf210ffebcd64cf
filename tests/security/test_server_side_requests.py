"""Clients that make the server send requests to hosts that they cannot reach themselves (SSRF)."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.conformance.chats import TALKER, done, say, talker, talking, user
from tests.e2e.provider import OpenAIChat, Provider, Reply, providing
from tests.security.parts import file, message, post, user_text

pytestmark = pytest.mark.slow

SECRET = "INTERNAL-SECRET-4711"


class Internal:
    """An HTTP server that no client of a chat may reach."""

    def __init__(self) -> None:
        self.hits = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.hits += 1
        body = SECRET.encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        writer.close()


@asynccontextmanager
async def internal_server() -> AsyncGenerator[Internal, None]:
    internal = Internal()
    server = await asyncio.start_server(internal.serve, "127.0.0.1", 0)
    internal.port = server.sockets[0].getsockname()[1]
    try:
        yield internal
    finally:
        server.close()


def told_model(provider: Provider) -> str:
    return json.dumps([request.body["messages"] for request in provider.requests])


ALLOW_LOCAL = {"providerMetadata": {"pydantic_ai": {"force_download": "allow-local"}}}


async def test_no_message_makes_the_server_fetch_an_internal_url_in_this_or_a_later_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name is public and resolves to this machine: only the download can notice, and fails one turn."""
    resolved = socket.getaddrinfo

    def resolve(host: Any, *more: Any, **options: Any) -> Any:
        return resolved("127.0.0.1" if host == "files.example.com" else host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    dialect = OpenAIChat()
    async with internal_server() as internal, providing(Reply(dialect.events(["ok"]))) as provider:
        cls = talker(dialect.model(provider.port))
        async with talking(cls, file_url_schemes=("https", "http")) as one:
            client, agent = await one.join(TALKER), await one.world.get_agent(cls, "t")
            for number, host in enumerate(["127.0.0.1", "localhost", "0x7f.1", "[::1]", "[::ffff:7f00:1]"]):
                for more in ({}, ALLOW_LOCAL):
                    wrong = message(user_text(), file(f"http://{host}:{internal.port}/admin", **more))
                    assert (await post(one, wrong)).status == 400
                    await say(client, f"r{number}{bool(more)}", wrong)
                    ended = await done(client, f"r{number}{bool(more)}")
                    assert "must name a public host" in ended["body"]
            assert await agent.conversation.messages() == []

            for more in ({}, ALLOW_LOCAL):
                id = f"named{bool(more)}"
                url = f"http://files.example.com:{internal.port}/admin"
                await say(client, id, message(user_text(), file(url, **more)) | {"id": id})
                ended = await done(client, id)
                assert ended["outcome"] == "error"
                assert "could not read a file" in ended["body"]
                assert "127.0.0.1" not in ended["body"]
                await say(client, f"after {id}", user("again", f"after {id}"))
                assert (await done(client, f"after {id}"))["outcome"] == "completed"

            await one.world.restart()
            client = await one.join(TALKER)
            await say(client, "later", user("and again"))
            assert (await done(client, "later"))["outcome"] == "completed"
        assert internal.hits == 0
        assert SECRET not in told_model(provider)
        assert "was left out: http://files.example.com" in told_model(provider)


@pytest.mark.parametrize("is_nested", [False, True])
async def test_no_answer_of_a_client_tool_makes_the_server_fetch_a_url(is_nested: bool) -> None:
    """A result of the form of a file stays data when the conversation is read back: Pydantic AI keeps them apart."""
    dialect = OpenAIChat()
    calls = [("look", {}, "call-1")]
    replies = [Reply(dialect.events([], calls)), *(Reply(dialect.events(["ok"])) for _ in range(3))]
    async with internal_server() as internal, providing(*replies) as provider:
        cls = talker(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            tools = [{"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}]
            await say(client, "r1", user("hi"), clientTools=tools)
            await done(client, "r1")
            url = f"http://127.0.0.1:{internal.port}/admin"
            output = {"kind": "document-url", "url": url, "media_type": "text/plain", "force_download": "allow-local"}
            result = {"type": "cf_agent_tool_result", "toolCallId": "call-1", "toolName": "look"}
            await client.send({**result, "output": [output] if is_nested else output, "autoContinue": True})
            await provider.asked(2)
            await one.world.until(lambda: len(provider.requests) == 2 and provider.requests[1].sent.is_set())
            await one.world.restart()
            client = await one.join(TALKER)
            await say(client, "r2", user("again"))

            assert (await done(client, "r2"))["outcome"] == "completed"
        assert internal.hits == 0
        assert "document-url" in told_model(provider)  # as text
        assert SECRET not in told_model(provider)


async def test_a_file_that_the_model_does_not_take_fails_one_turn_only() -> None:
    dialect = OpenAIChat()
    async with providing(Reply(dialect.events(["ok"]))) as provider:
        cls = talker(dialect.model(provider.port))
        async with talking(cls) as one:
            client = await one.join(TALKER)
            for number, media_type in enumerate(["application/x-unknown", "text/plain"]):
                data = f"data:{media_type};base64,/////w=="  # not UTF-8
                await say(client, f"r{number}", message(file(data, media_type)) | {"id": f"m-{number}"})
                await done(client, f"r{number}")
                await say(client, f"after{number}", user("again", f"after-{number}"))
                assert (await done(client, f"after{number}"))["outcome"] == "completed"
