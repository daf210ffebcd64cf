"""One client that asks for too much at once: each flood ends at a limit with an answer, and others are served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.conformance.serving import Site, call, door, frames_until, greeted
from tests.machine import patience
from websockets.exceptions import ConnectionClosed

from sapwood import Agent, ChatAgent, Limits, expose
from sapwood.timings import Timings
from sapwood.wire import chat

EVENTS = "GET /agents/room/{name}/events HTTP/1.1\r\nhost: x\r\nuser: {user}\r\n\r\n"


def named(request: Any) -> str | None:
    return request.headers.get("user")


class Room(Agent):
    @expose
    async def add(self, number: int) -> int:
        return number + 1

    @expose
    async def wait(self) -> None:
        await asyncio.Event().wait()

    @expose
    async def forever(self) -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    @expose
    async def plan(self, times: int) -> int:
        for _ in range(times):
            self.schedule(timedelta(hours=1), self.add, 1)
        return times


async def reads_events(stack: AsyncExitStack, site: Site, user: str, name: str = "a") -> int:
    """Begin to read the events of an agent, and go on; return the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    stack.callback(writer.close)
    writer.write(EVENTS.format(name=name, user=user).encode())
    async with asyncio.timeout(patience()):
        return int((await reader.readuntil(b"\r\n\r\n")).split()[1])


async def test_readers_of_events_count_as_connections_of_their_user() -> None:
    async with door(Room, authenticate=named, connections_per_user=3) as site, AsyncExitStack() as stack:
        assert [await reads_events(stack, site, "eve") for _ in range(5)] == [200, 200, 200, 429, 429]
        assert await site.refused("/agents/room/a", additional_headers={"user": "eve"}) == 1013
        assert await reads_events(stack, site, "ada") == 200


async def test_readers_of_events_count_as_connections_of_their_agent() -> None:
    async with door(Room, authenticate=named, connections_per_agent=2) as site, AsyncExitStack() as stack:
        found = [await reads_events(stack, site, user) for user in ("eve", "eve", "eve", "ada")]
        assert found == [200, 200, 429, 429]
        assert await reads_events(stack, site, "ada", "b") == 200


async def test_a_reader_that_leaves_makes_room() -> None:
    async with door(Room, authenticate=named, connections_per_user=1) as site:
        async with AsyncExitStack() as stack:
            assert await reads_events(stack, site, "eve") == 200
            assert await reads_events(stack, site, "eve") == 429
        async with AsyncExitStack() as stack, asyncio.timeout(patience()):
            while await reads_events(stack, site, "eve") == 429:
                pass


async def test_sockets_of_one_user_are_limited_and_others_connect() -> None:
    async with door(Room, authenticate=named, connections_per_user=5) as site, AsyncExitStack() as stack:
        for _ in range(5):
            client = await stack.enter_async_context(site.socket("/agents/room/a", additional_headers={"user": "eve"}))
            await greeted(client)
        assert await site.refused("/agents/room/b", additional_headers={"user": "eve"}) == 1013
        async with site.socket("/agents/room/a", additional_headers={"user": "ada"}) as other:
            assert await call(other, "add", 1) == 2


class Sink(Agent):
    async def on_request(self, request: Any) -> Any:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse(str(len(await request.body())))


UPLOAD = "POST /agents/sink/a HTTP/1.1\r\nhost: x\r\nuser: {user}\r\ncontent-length: 1000\r\n\r\n"


async def test_bodies_under_way_are_limited_for_one_user_and_for_all() -> None:
    async with door(Sink, authenticate=named, request_bytes=1000) as site, AsyncExitStack() as stack:

        async def upload(user: str, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
            stack.callback(writer.close)
            writer.write(UPLOAD.format(user=user).encode() + data)
            return reader, writer

        async def status(reader: asyncio.StreamReader) -> int:
            async with asyncio.timeout(patience()):
                return int((await reader.readuntil(b"\r\n\r\n")).split()[1])

        eve = [await upload("eve", b"x" * 999) for _ in range(6)]
        answers = [asyncio.create_task(status(reader)) for reader, _ in eve]
        done, others = await asyncio.wait(answers, timeout=patience(), return_when=asyncio.FIRST_COMPLETED)
        assert {one.result() for one in done} == {429}
        ada, rest = await upload("ada", b"x" * 999)
        rest.write(b"x")
        assert await status(ada) == 200
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def test_streams_of_one_socket_are_limited_with_an_error() -> None:
    async with door(Room) as site, site.socket("/agents/room/a") as client:
        await greeted(client)
        for number in range(257):
            await client.send(json.dumps({"type": "rpc", "id": f"s{number}", "method": "forever", "args": []}))
        async with asyncio.timeout(patience()):
            while (await frames_until(client, "rpc"))[-1].get("error") != "A client may have at most 256 open streams.":
                pass
        assert await call(client, "add", 1) == 2


@pytest.mark.slow
async def test_turns_that_wait_are_limited_with_an_error() -> None:
    async def never(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "Well"
        await asyncio.Event().wait()

    cls = type("Talker", (ChatAgent,), {"model": FunctionModel(stream_function=never, model_name="made-up")})
    async with door(cls, timings=Timings(queued_turns=3)) as site, site.socket("/agents/talker/a") as client:
        await greeted(client)
        for number in range(6):  # one is answered, three wait
            message = {"id": f"m{number}", "role": "user", "parts": [{"type": "text", "text": "hey"}]}
            init = {"method": "POST", "body": json.dumps({"messages": [message]})}
            await client.send(json.dumps({"type": chat.REQUEST, "id": f"q{number}", "init": init}))
        refused: list[str] = []
        async with asyncio.timeout(patience()):
            while len(refused) < 2:
                frame = (await frames_until(client, chat.RESPONSE))[-1]
                if frame.get("error"):
                    assert frame["body"].startswith("Too many queued turns: 3.")
                    refused.append(frame["id"])
        assert refused == ["q4", "q5"]


@pytest.mark.nightly  # the server waits for eve until she has had time to take its close frame
async def test_replays_that_nobody_reads_end_the_socket_and_hold_up_nobody() -> None:
    async def never(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        for _ in range(100):
            yield "Well, " * 2_000
        await asyncio.Event().wait()

    cls = type("Talker", (ChatAgent,), {"model": FunctionModel(stream_function=never, model_name="made-up")})
    async with door(cls) as site, site.socket("/agents/talker/a") as client:
        await greeted(client)
        message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "hey"}]}
        init = {"method": "POST", "body": json.dumps({"messages": [message]})}
        await client.send(json.dumps({"type": chat.REQUEST, "id": "q", "init": init}))
        await frames_until(client, chat.RESPONSE)
        async with site.socket("/agents/talker/a") as eve:
            with pytest.raises(ConnectionClosed):
                await ask_again_without_end(eve, {"type": chat.RESUME_ACK, "id": "q"})  # each time a megabyte, unread
        await client.send(json.dumps({"type": chat.RESUME, "probeId": "p"}))
        assert (await frames_until(client, chat.RESUMING))[-1]["probeId"] == "p"


@pytest.mark.slow
async def test_schedules_end_at_the_size_of_the_database() -> None:
    async with door(Room, limits=Limits(database_bytes=500_000)) as site, site.socket("/agents/room/a") as client:
        await greeted(client)
        with pytest.raises(RuntimeError, match="database_bytes"):
            await plan_without_end(client)
        async with site.socket("/agents/room/b") as other:
            assert await call(other, "add", 1) == 2


async def ask_again_without_end(client: Any, frame: dict[str, str]) -> None:
    while True:
        await client.send(json.dumps(frame))


async def plan_without_end(client: Any) -> None:
    while True:
        await call(client, "plan", 200)


@pytest.mark.nightly
async def test_a_thousand_sockets_and_readers_leave_nothing_behind() -> None:
    async with door(Room, authenticate=named, connections=1200) as site:
        for _ in range(3):
            async with AsyncExitStack() as stack:
                clients = [
                    await stack.enter_async_context(
                        site.socket("/agents/room/a", additional_headers={"user": f"u{number}"})
                    )
                    for number in range(600)
                ]
                assert {await reads_events(stack, site, f"u{number}") for number in range(400)} == {200}
                assert await call(clients[-1], "add", 1) == 2
        async with site.socket("/agents/room/a", additional_headers={"user": "eve"}) as client:
            assert await call(client, "add", 1) == 2
