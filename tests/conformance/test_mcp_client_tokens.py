"""Tokens for MCP servers are not lost: not by `add` at each start, by cancelled callers, or by several at a time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.conformance.mcp_servers import Asked, respond, said
from tests.conformance.served import served
from tests.conformance.test_mcp_client_sign_ins import LOCAL, Bank, app, path_of, ready, signed_in, signing
from tests.conformance.worlds import until

from sapwood.errors import Unavailable


@pytest.mark.parametrize("options", [{"client_id": "known"}, {"headers": {"x-tenant": "a"}}, {}])
async def test_a_server_that_is_added_again_keeps_its_tokens(options: dict[str, Any]) -> None:
    bank = Bank()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        agent = await signing(one)
        server = await agent.add(url, options)
        assert server.sign_in_url is not None
        assert await agent.add(url, options) == server  # not invalidated by another attempt
        await one.site.http(path_of(bank.allow(server.sign_in_url)))
        assert (await ready(one)).status == "ready"
        await one.world.restart()
        agent = await signing(one)
        assert (await agent.add(url, options)).status == "ready"
        assert await agent.use() == "paid"
        assert len(bank.exchanged) == 1


async def test_a_refresh_whose_caller_is_cancelled_keeps_the_new_token() -> None:
    bank = Bank()
    token = bank.raw["/token"]
    arrived, go = asyncio.Event(), asyncio.Event()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        agent = await signed_in(one, bank, url)

        async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
            arrived.set()
            await go.wait()
            await token(asked, writer)

        bank.raw["/token"] = slow
        bank.valid.clear()
        using = asyncio.ensure_future(agent.use())
        await arrived.wait()
        using.cancel()
        go.set()
        await until(lambda: len(bank.exchanged) == 2)
        assert await agent.use() == "paid"
        assert len(bank.exchanged) == 2


async def test_several_callers_without_a_valid_token_begin_one_sign_in() -> None:
    bank = Bank()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        agent = await signed_in(one, bank, url)
        bank.valid.clear()
        bank.refreshable.clear()
        seen = len(bank.seen)
        await asyncio.gather(*(agent.use() for _ in range(5)), return_exceptions=True)
        paths = [asked.path for asked in bank.seen[seen:]]
        assert paths.count("/.well-known/oauth-authorization-server") == 1


async def test_a_code_whose_exchange_is_cancelled_is_exchanged_once() -> None:
    bank = Bank()
    arrived, go = asyncio.Event(), asyncio.Event()
    token = bank.raw["/token"]

    async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await go.wait()
        await token(asked, writer)

    bank.raw["/token"] = slow
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        agent = await signing(one)
        server = await agent.add(url, {"redirect_url": "https://my.example.com/back"})
        assert server.sign_in_url is not None
        ending = asyncio.ensure_future(agent.complete(bank.allow(server.sign_in_url)))
        await arrived.wait()
        ending.cancel()
        await asyncio.wait({ending})
        go.set()
        assert (await ready(one)).status == "ready"
        assert await agent.use() == "paid"
        assert len(bank.exchanged) == 1


async def test_a_token_that_is_added_while_a_sign_in_begins_is_kept() -> None:
    bank = Bank()
    bank.valid.add("given")
    arrived, go = asyncio.Event(), asyncio.Event()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        agent = await signed_in(one, bank, url)
        bank.valid.discard("access-1")
        bank.refreshable.clear()

        async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
            arrived.set()
            await go.wait()
            respond(writer, 200, bank.metadata())

        bank.raw["/.well-known/oauth-authorization-server"] = slow
        late = asyncio.ensure_future(asyncio.gather(agent.use(), return_exceptions=True))
        await arrived.wait()
        assert (await agent.add(url, {"token": "given"})).status == "ready"
        go.set()
        await late
        assert (await agent.server()).status == "ready"
        assert await agent.use() == "paid"


@pytest.mark.parametrize("how", ["stream", "ping"])
async def test_a_token_that_ends_during_a_call_does_not_repeat_it(how: str) -> None:
    bank, paid = Bank(), 0

    async def pay(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal paid
        paid += 1
        bank.valid.clear()  # before the stream is continued, or its question is answered
        answer = {"jsonrpc": "2.0", "id": asked.message["id"], "result": said("paid")}
        ping = {"jsonrpc": "2.0", "id": "p", "method": "ping"}
        events = "".join(f"data: {json.dumps(one)}\n\n" for one in (ping, answer))
        cut = "id: 1\nretry: 0\ndata:\n\n"
        respond(writer, 200, events if how == "ping" else cut, content_type="text/event-stream")

    async with served(app(), **LOCAL) as one, bank.serving() as url:
        agent = await signed_in(one, bank, url)
        bank.raw["tools/call"], bank.raw["/mcp"] = pay, bank.raw["tools/call"]
        using = asyncio.gather(agent.use(), return_exceptions=True)
        (told,) = await using
        assert paid == 1
        assert told == "paid" if how == "ping" else isinstance(told, Unavailable)
