"""Connections that a client holds without ever finishing a request: they end, and keep no other client out."""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command import Server
from tests.machine import patience

from sapwood.web.connection_limits import ADDRESS, PROCESS, ConnectionLimits, address_key

APP = """
from sapwood import Agent, App, expose


class Room(Agent):
    @expose
    async def open_database(self, name: str) -> int:
        self.sql("CREATE TABLE IF NOT EXISTS notes (note TEXT)")
        self.sql("INSERT INTO notes VALUES (?)", name)
        return self.sql("SELECT count(*) AS number FROM notes")[0]["number"]

    async def on_request(self, request):
        from starlette.responses import PlainTextResponse

        body = await request.body()
        return PlainTextResponse("x" * 20_000_000 if request.method == "PUT" else str(len(body)))


app = App(agents=[Room])
"""
SERVE = """
import resource, sys

from sapwood.cli.serve_options import ServeOptions
from sapwood.cli.server_process import serve
from sapwood.timings import Timings

files, workers, timings = eval(sys.argv[1])
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
serve(ServeOptions("app:app", "127.0.0.1", 0, grace=5.0, workers=workers, timings=Timings(**timings)))
"""
HALF = b"GET /agents/room/held HTTP/1.1\r\nHost: 127.0.0.1\r\nX-a: "
HALF_HANDSHAKE = (
    b"GET /agents/room/held HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-Web"
)
REFUSED = (
    b"GET /agents/nosuch/held HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
"""A socket that is closed at once, and whose client never answers that."""
WHOLE = b"GET /agents/room/new HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
FILES = 400
HELD = 420


class LimitedServer(Server):
    command = (sys.executable, "-c", SERVE)


@contextmanager
def served(
    folder: Path, *, files: int = 0, workers: int | None = None, **timings: Any
) -> Generator[LimitedServer, None, None]:
    (folder / "app.py").write_text(APP)
    server = LimitedServer(folder, repr((files, workers, timings)))
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait(patience())


def connected(stack: ExitStack, server: Server) -> socket.socket:
    one = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), patience()))
    one.settimeout(patience())
    return one


def answer(one: socket.socket) -> bytes:
    """Read a connection to its end."""
    parts: list[bytes] = []
    with contextlib.suppress(ConnectionResetError):
        while part := one.recv(65536):
            parts.append(part)
    return b"".join(parts)


def all_ended(held: list[socket.socket]) -> int:
    """Wait until the server has closed all of these connections. Returns how many are still open."""
    left, until = set(held), time.monotonic() + patience(60)
    while left and time.monotonic() < until:
        for one in select.select(list(left), [], [], 1.0)[0]:
            answer(one)
            left.remove(one)
    return len(left)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("half", "workers"),
    [
        pytest.param(HALF, None, id="headers"),
        pytest.param(HALF, 2, id="headers-workers", marks=pytest.mark.nightly),
        pytest.param(REFUSED, None, id="refused", marks=pytest.mark.nightly),
        pytest.param(REFUSED, 2, id="refused-workers", marks=pytest.mark.nightly),
        pytest.param(HALF_HANDSHAKE, None, id="handshake", marks=pytest.mark.nightly),
        pytest.param(HALF_HANDSHAKE, 2, id="handshake-workers", marks=pytest.mark.nightly),
        pytest.param(b"", None, id="nothing", marks=pytest.mark.nightly),
        pytest.param(b"", 2, id="nothing-workers", marks=pytest.mark.nightly),
    ],
)
def test_half_requests_keep_no_client_out_and_end(tmp_path: Path, half: bytes, workers: int | None) -> None:
    with served(tmp_path, files=FILES, workers=workers, request_header_timeout=3.0) as server, ExitStack() as stack:
        client = stack.enter_context(server.connect("/agents/room/good"))
        held: list[socket.socket] = []
        for _ in range(HELD * (workers or 1)):
            held.append(connected(stack, server))
            held[-1].sendall(half)
        new = connected(stack, server)
        new.sendall(WHOLE)
        assert answer(new).startswith(b"HTTP/1.1 200")
        for number in range(20):  # the connected client reaches agents whose databases have to be opened
            other = stack.enter_context(server.connect(f"/agents/room/other-{number}"))
            assert call(other, "open_database", "x") == 1
        assert call(client, "open_database", "x") == 1
        assert all_ended(held) == 0
        server.wait_for(re.compile(r"connection limit reached scope=process limit=200 .*closed_waiting=[1-9]"))
        assert sum("connection limit reached" in line for line in server.said) < 10
        assert not [line for line in server.said if "Traceback" in line or "Too many open files" in line]


@pytest.mark.slow
def test_a_slow_body_ends_and_one_in_time_does_not(tmp_path: Path) -> None:
    times = {"request_body_timeout": 2.0, "request_body_rate": 1000}
    with served(tmp_path, **times) as server, ExitStack() as stack:
        slow, steady = connected(stack, server), connected(stack, server)
        steady.sendall(
            b"POST /agents/room/steady HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 20000\r\n\r\n" + b"x" * 19_999
        )
        slow.sendall(b"POST /agents/room/slow HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\nx")
        until = time.monotonic() + patience()
        while not select.select([slow], [], [], 0.1)[0]:
            assert time.monotonic() < until, "the connection is still open"
            with contextlib.suppress(ConnectionError):
                slow.sendall(b"x")  # one byte for each look: a connection that is never silent
        assert answer(slow).startswith(b"HTTP/1.1 408")
        steady.sendall(b"x")
        assert steady.recv(100).startswith(b"HTTP/1.1 200")
        assert not [line for line in server.said if "Traceback" in line]


@pytest.mark.slow
def test_a_client_that_does_not_read_its_response_is_cut(tmp_path: Path) -> None:
    with served(tmp_path, response_stall_timeout=1.0) as server, ExitStack() as stack:
        one = connected(stack, server)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.sendall(WHOLE.replace(b"GET", b"PUT"))
        watch = select.poll()
        watch.register(one, select.POLLHUP | select.POLLERR)
        assert watch.poll(patience() * 1000), "the connection is still open"


@pytest.mark.slow
def test_a_second_request_on_a_connection_has_the_same_deadline(tmp_path: Path) -> None:
    with served(tmp_path, request_header_timeout=1.0) as server, ExitStack() as stack:
        one = connected(stack, server)
        one.sendall(WHOLE.replace(b"Connection: close\r\n", b""))
        assert one.recv(65536).startswith(b"HTTP/1.1 200")
        one.sendall(HALF)
        assert b"HTTP/1.1 408" in answer(one)


UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"


@pytest.mark.slow
def test_an_upgrade_that_is_no_handshake_is_answered(tmp_path: Path) -> None:
    with served(tmp_path) as server, ExitStack() as stack:
        for head in (b"POST / HTTP/1.1\r\n", b"FOO / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nContent-Length: 3\r\n"):
            one = connected(stack, server)
            one.sendall(head + b"Host: 127.0.0.1\r\n" + UPGRADE + b"\r\n")
            assert b" 4" in answer(one)[:20]
        many = connected(stack, server)
        many.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + UPGRADE + b"X-a: b\r\n" * 500 + b"\r\n")
        assert b" 4" in answer(many)[:20]


@pytest.mark.slow
def test_requests_that_are_no_http_are_one_log_line_without_a_traceback(tmp_path: Path) -> None:
    broken = [
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"POST /agents/room/a HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /agents/room/a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n\r\nxGET bad\r\n\r\n",
    ]
    with served(tmp_path) as server, ExitStack() as stack:
        for data in broken * 10:
            one = connected(stack, server)
            one.sendall(data)
            assert b"HTTP/1.1 400" in answer(one)
        assert server.get("/healthz") == (200, "ok")
        assert not [line for line in server.said if "Traceback" in line]
        assert sum("Invalid HTTP request" in line for line in server.said) < 10


def call(client: Any, method: str, *args: Any) -> Any:
    client.send(json.dumps({"type": "rpc", "id": "1", "method": method, "args": args}))
    while (frame := json.loads(client.recv(patience()))).get("type") != "rpc":
        pass
    assert frame["success"], frame
    return frame["result"]


class Connection:
    def __init__(self) -> None:
        self.is_closed = False

    def close_waiting(self) -> None:
        self.is_closed = True


def entered(limits: ConnectionLimits, host: str, *, waits: bool = True) -> Connection:
    connection = Connection()
    key, _ = limits.enter(host)
    assert key is not None
    if waits:
        limits.wait(connection, key)
    return connection


def test_one_address_closes_its_own_waiting_connections_only() -> None:
    limits = ConnectionLimits(total=100, per_address=2)
    other = entered(limits, "192.0.2.9")
    first, second = entered(limits, "192.0.2.1"), entered(limits, "192.0.2.1")
    third = entered(limits, "192.0.2.1")
    assert [one.is_closed for one in (other, first, second, third)] == [False, True, False, False]


def test_an_address_with_requests_under_way_is_refused_at_its_limit() -> None:
    limits = ConnectionLimits(total=100, per_address=1)
    entered(limits, "192.0.2.1", waits=False)
    assert limits.enter("192.0.2.1") == (None, ADDRESS)
    assert limits.enter("192.0.2.2") == ("192.0.2.2", "")


def test_the_process_is_full_when_no_connection_waits() -> None:
    limits = ConnectionLimits(total=1, per_address=1)
    connection = entered(limits, "192.0.2.1", waits=False)
    assert limits.enter("192.0.2.2") == (None, PROCESS)
    limits.leave(connection, "192.0.2.1")
    assert limits.enter("192.0.2.2") == ("192.0.2.2", "")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "10.0.0.7", ""])
def test_loopback_and_proxies_have_no_limit_of_their_own(host: str) -> None:
    limits = ConnectionLimits(total=100, per_address=1, trusted={"10.0.0.7"})
    connections = [entered(limits, host) for _ in range(5)]
    assert not any(one.is_closed for one in connections)


def test_addresses_of_one_ipv6_network_count_together() -> None:
    assert address_key("2001:db8::1") == address_key("2001:db8::ffff:1") != address_key("2001:db8:0:1::1")
    assert address_key("::ffff:192.0.2.1") == address_key("192.0.2.1") == "192.0.2.1"


def test_a_limit_that_holds_is_logged_once_in_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    limits = ConnectionLimits(total=1, per_address=1, log_interval=10.0, now=lambda: now)
    for _ in range(50):
        entered(limits, "127.0.0.1")
    assert len(caplog.records) == 1
    now += 10.0
    entered(limits, "127.0.0.1")
    assert caplog.records[1].getMessage().endswith("refused=0 closed_waiting=49 last_address=127.0.0.1")
