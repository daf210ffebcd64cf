"""Our WebSockets under uvicorn: a connection that was given up ends, whether its client reads or not."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.e2e.serving import serving
from tests.machine import patience

from sapwood.web.server import WebSockets

MUCH = 32 * 1024 * 1024
"""More than all buffers between two processes hold."""


class Impatient(WebSockets):
    """Closes a connection soon that does not read."""

    linger = 0.3


class Sender:
    """An app that sends more than fits, and waits for the end or not."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self.sent = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": bytes(MUCH)})
        self.sent.set()
        if self._waits:
            assert (await receive())["type"] == "websocket.disconnect"
        self.ended.set()


@contextmanager
def client(url: str) -> Generator[socket.socket, None, None]:
    port = urlsplit(url).port
    with socket.create_connection(("127.0.0.1", port or 0)) as connection:
        key = base64.b64encode(bytes(16)).decode()
        connection.sendall(
            f"GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        yield connection


def read_all(connection: socket.socket) -> int:
    connection.settimeout(10)
    total = 0
    while data := connection.recv(1024 * 1024):
        total += len(data)
    return total


async def test_whoever_does_not_read_is_cut_off_when_the_app_has_ended() -> None:
    app = Sender(waits=False)
    async with serving(app, ws=Impatient, lifespan="off") as url:
        with client(url) as connection:
            await app.ended.wait()
            await asyncio.sleep(0.6)

            with pytest.raises(ConnectionResetError):
                await asyncio.to_thread(read_all, connection)


async def test_whoever_reads_gets_all_of_it_and_a_proper_end() -> None:
    app = Sender(waits=False)
    async with serving(app, ws=Impatient, lifespan="off") as url:
        with client(url) as connection:
            assert await asyncio.to_thread(read_all, connection) > MUCH


async def test_the_app_is_told_of_a_client_that_neither_reads_nor_answers_pings() -> None:
    app = Sender(waits=True)
    async with serving(app, ws=Impatient, lifespan="off", ws_ping_interval=0.1, ws_ping_timeout=0.1) as url:
        with client(url):
            await asyncio.wait_for(app.ended.wait(), patience())


async def test_a_client_that_does_not_read_does_not_hold_up_the_end_of_the_server() -> None:
    app = Sender(waits=True)
    with ExitStack() as held:
        async with (
            asyncio.timeout(None) as bound,
            serving(app, ws=Impatient, lifespan="off", timeout_graceful_shutdown=3600) as url,
        ):
            held.enter_context(client(url))
            await app.sent.wait()
            bound.reschedule(asyncio.get_running_loop().time() + patience())


async def test_whoever_comes_while_the_server_stops_is_told_to_come_again() -> None:
    came = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        came.set()
        await asyncio.sleep(60)

    with ExitStack() as open_:
        async with serving(slow, ws=Impatient, lifespan="off") as url:
            connection = open_.enter_context(client(url))
            await came.wait()
        connection.settimeout(10)
        assert connection.recv(1024).startswith(b"HTTP/1.1 503")
