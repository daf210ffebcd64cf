"""HTTP to URLs that clients chose: never into a private network, and never without an end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest
from tests.machine import patience

from sapwood.client.checked_transport import CheckedTransport, ResponseLimits
from sapwood.client.public_hosts import HostRules, address_of, is_public_address, is_public_host
from sapwood.errors import InvalidResult, Refused

RULES = HostRules("Requests", "Allow it.")
LOCAL = HostRules("Requests", "Allow it.", frozenset({"127.0.0.1", "inner.example", "outer.example"}))
LIMITS = ResponseLimits(bytes=1000)
OK = b"HTTP/1.1 200 OK\r\n"

Answer = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[int]:
    """Answer each request with what a function writes; it is given the head of the request."""

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await answer((await reader.readuntil(b"\r\n\r\n")).decode().lower(), writer)
            writer.close()

    async with asyncio.timeout(patience()), await asyncio.start_server(met, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def client(rules: HostRules, limits: ResponseLimits = LIMITS, **more: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=CheckedTransport(rules, limits, **more), follow_redirects=True)


def resolve(monkeypatch: pytest.MonkeyPatch, **names: list[str]) -> list[str]:
    """Give names addresses, one after the other; return the list in which look-ups are noted."""
    asked: list[str] = []

    async def found(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        address = names[host.partition(".")[0]].pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    return asked


async def test_a_private_host_is_not_called_unless_it_is_allowed() -> None:
    async def answer(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"content-length: 2\r\n\r\nhi")

    async with serving(answer) as port, client(RULES) as strict, client(LOCAL) as lenient:
        url = f"http://127.0.0.1:{port}/"
        with pytest.raises(Refused, match=r"Requests are not sent to '127\.0\.0\.1', .* Allow it\."):
            await strict.get(url)
        with pytest.raises(Refused):
            await strict.get(f"http://localhost:{port}/")
        assert (await lenient.get(url)).text == "hi"
        async with client(HostRules("Requests", "", allows_private=True)) as trusting:
            assert (await trusting.get(url)).text == "hi"


async def test_a_name_is_resolved_once_and_that_address_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[str] = []

    async def answer(head: str, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        writer.write(OK + b"content-length: 0\r\n\r\n")

    async with serving(answer) as port, client(LOCAL) as lenient:
        asked = resolve(monkeypatch, inner=["127.0.0.1", "10.0.0.1"])
        await lenient.get(f"http://inner.example:{port}/")

    assert asked == ["inner.example"]
    assert f"host: inner.example:{port}" in heads[0]


async def test_a_redirect_is_checked_like_the_first_url(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 302 Found\r\nlocation: http://rebound.example/\r\ncontent-length: 0\r\n\r\n")

    async with serving(answer) as port, client(LOCAL) as lenient:
        resolve(monkeypatch, inner=["127.0.0.1"], rebound=["169.254.169.254"])
        with pytest.raises(Refused, match=r"rebound\.example"):
            await lenient.get(f"http://inner.example:{port}/")


async def test_secrets_stay_with_their_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[str] = []

    async def answer(head: str, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        if "inner" in head:
            writer.write(
                b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: http://outer.example:%d/\r\n\r\n" % port
            )
        else:
            writer.write(OK + b"content-length: 0\r\n\r\n")

    async with serving(answer) as port:
        resolve(monkeypatch, inner=["127.0.0.1"], outer=["127.0.0.1"])
        origin = f"http://inner.example:{port}"
        async with client(LOCAL, origin=origin, secrets={"x-api-key": "s3cret"}) as lenient:
            await lenient.get(f"{origin}/")

    assert ["s3cret" in head for head in heads] == [True, False]


@pytest.mark.parametrize(
    ("head", "part"),
    [
        (b"content-length: 2000\r\n", b"x" * 2000),
        (b"connection: close\r\n", b"x" * 2000),
        (b"content-type: text/event-stream\r\n", b"data: 1\n\ndata: " + b"x" * 2000),
        (b"content-encoding: gzip\r\ncontent-length: 3\r\n", b"abc"),
    ],
)
async def test_a_body_that_is_too_long_or_compressed_is_refused(head: bytes, part: bytes) -> None:
    async def answer(request: str, writer: asyncio.StreamWriter) -> None:
        assert "accept-encoding: identity" in request
        writer.write(OK + head + b"\r\n" + part)

    async with serving(answer) as port, client(LOCAL) as lenient:
        with pytest.raises(InvalidResult):
            await lenient.get(f"http://127.0.0.1:{port}/")


async def test_a_stream_of_events_has_a_limit_for_each_event_only() -> None:
    async def answer(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"content-type: text/event-stream\r\n\r\n")
        for _number in range(100):
            writer.write(b"data: " + b"x" * 500 + b"\r\n\r\n")
            await writer.drain()

    async with serving(answer) as port, client(LOCAL) as lenient:
        assert len((await lenient.get(f"http://127.0.0.1:{port}/")).content) == 100 * 510


@pytest.mark.parametrize("head", [b"", OK, OK + b"content-length: 9\r\n\r\nx"])
async def test_a_server_that_never_ends_is_left(head: bytes) -> None:
    is_left = asyncio.Event()

    async def answer(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await is_left.wait()
        writer.close()
        is_closed.set()

    is_closed = asyncio.Event()
    async with serving(answer) as port, client(LOCAL, ResponseLimits(seconds=0.05)) as lenient:
        with pytest.raises(httpx2.TimeoutException):
            await lenient.get(f"http://127.0.0.1:{port}/", timeout=None)
        is_left.set()
        await is_closed.wait()


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "169.254.169.254", "192.0.0.192", "168.63.129.16", "::1", "::ffff:10.0.0.1", ""),
        *("64:ff9b::a00:1", "2002:a00:1::", "2600::5efe:a00:1", "fd00::1", "224.0.0.1", "ff0e::1", "fe80::1%2"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public_address(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public_address(address)
    assert is_public_host(address)


@pytest.mark.parametrize(
    "url", ["ftp://8.8.8.8/", "http://", "8.8.8.8", "http://[::1", "http://a..b/", "http://a:99999/"]
)
async def test_a_url_that_cannot_be_called_is_refused(url: str) -> None:
    with pytest.raises(Refused, match="valid URL"):
        await address_of(url, RULES)
