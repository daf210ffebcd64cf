"""A connection to NATS comes back, through servers that nobody named, too."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import nats.errors
import pytest
from tests.cluster.servers import Nats
from tests.machine import patience
from tests.ports import free_port

from sapwood.errors import Unavailable, UsageError
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.nats import bootstrap, nats_connection
from sapwood.runtimes.cluster.nats.transport import NatsTransport
from sapwood.timings import Timings


class _InOrder(Random):
    def sample(self, population: Sequence[Any], k: int, *, counts: Iterable[int] | None = None) -> list[Any]:
        return list(population[:k])


async def test_a_connection_comes_back_through_servers_that_were_not_named(tmp_path: Path) -> None:
    cell = Nats(tmp_path).start().wait()
    try:
        connection = await nats_connection.connect(cell.urls.split(",")[0], "test")
        assert connection.connected_url.port == cell.ports[0]
        await _until(lambda: len(connection.servers) >= cell.count)
        cell.kill(0)
        await _until(lambda: connection.is_connected and connection.connected_url.port != cell.ports[0])
        await connection.flush()
        await connection.close()
    finally:
        cell.stop()


async def test_a_server_that_stands_still_is_left_at_once_and_whoever_waits_is_told(tmp_path: Path) -> None:
    cell = Nats(tmp_path).start().wait()
    try:
        connection = await nats_connection.connect(cell.urls, "test")
        still = cell.ports.index(connection.connected_url.port)
        assert await nats_connection.answers(connection)
        cell.pause(still)
        asked = asyncio.ensure_future(connection.request("nobody", b"", timeout=30))
        await asyncio.sleep(0.1)
        assert not await nats_connection.answers(connection)

        await nats_connection.go_elsewhere(connection)
        with pytest.raises(nats.errors.Error):
            await asked
        await _until(lambda: connection.is_connected)
        assert cell.ports.index(connection.connected_url.port) != still
        assert await nats_connection.answers(connection)
        await connection.close()
    finally:
        for n in range(cell.count):
            cell.go_on(n)
        cell.stop()


async def test_a_server_that_stands_still_does_not_keep_a_node_from_starting(tmp_path: Path) -> None:
    cell = Nats(tmp_path).start().wait()
    try:
        connection = await nats_connection.connect(cell.urls, "test")
        still = cell.ports.index(connection.connected_url.port)
        cell.pause(still)
        transport = NatsTransport("n", connection, Names("c", Layout()))
        async with asyncio.timeout(patience()):
            await transport.listen()
        assert cell.ports.index(connection.connected_url.port) != still
        await transport.close()
        await connection.close()
    finally:
        for n in range(cell.count):
            cell.go_on(n)
        cell.stop()


async def test_a_server_that_takes_questions_and_answers_none_does_not_keep_a_node_from_starting(
    tmp_path: Path, one_nats: Nats
) -> None:
    port = free_port()
    mute = f"nats://node:node-secret@127.0.0.1:{port}"
    program = str(Path(sys.executable).with_name("nats-server"))
    options = ("-a", "127.0.0.1", "-p", str(port), "--user", "node", "--pass", "node-secret")
    server = await asyncio.create_subprocess_exec(program, *options, stderr=asyncio.subprocess.DEVNULL)
    try:
        deaf = await nats_connection.connect(mute, "deaf")
        await deaf.subscribe("$JS.API.>")
        await deaf.flush()
        connection = await nats_connection.connect(
            f"{mute},{one_nats.urls}", "test", random=_InOrder()
        )  # the mute one first
        assert connection.connected_url.port == port
        quick = Timings(nats_answer_timeout=0.5)
        async with asyncio.timeout(patience()):
            await bootstrap.found(connection, "mute", Layout(streams=1, replicas=1), timings=quick)
        assert connection.connected_url.port != port
        await connection.close()
        await deaf.close()
    finally:
        server.terminate()
        await server.wait()


async def test_a_server_that_answers_too_late_is_not_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cell = Nats(tmp_path, 1).start().wait()
    try:
        connection = await nats_connection.connect(cell.urls, "test")
        cell.pause(0)
        assert not await nats_connection.answers(connection)
        cell.go_on(0)
        await _until(lambda: not connection._pongs)

        assert await nats_connection.answers(connection)
        assert connection.stats["reconnects"] == 0
        assert caplog.messages == []
        await connection.close()
    finally:
        cell.go_on(0)
        cell.stop()


async def _until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + patience(10)
    while not is_so():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def test_who_cannot_connect_is_told_where_and_not_the_password() -> None:
    with pytest.raises(Unavailable) as told:
        await nats_connection.connect(
            "nats://node:secret@127.0.0.1:1", "test", timings=Timings(nats_connect_timeout=0.5)
        )

    assert str(told.value) == "No NATS server answers at nats://127.0.0.1:1: connection refused."


async def test_a_wrong_password_is_told_at_once_in_one_sentence(
    one_nats: Nats, caplog: pytest.LogCaptureFixture
) -> None:
    never = Timings(nats_connect_timeout=3600, nats_interactive_timeout=3600)
    async with asyncio.timeout(patience()):
        with pytest.raises(UsageError) as told:
            await nats_connection.connect(one_nats.urls.replace("node-secret", "wrong"), "test", timings=never)

    where = f"nats://127.0.0.1:{one_nats.ports[0]}"
    assert str(told.value) == f"The NATS servers at {where} refused the user 'node'. Check the password."
    with pytest.raises(UsageError, match=r"need a user and a password\."):
        await nats_connection.connect(where, "test")
    # Who is refused may be cut off before the reason was read, and asks again.
    assert [text for text in caplog.messages if "reset by peer" not in text] == []


async def test_a_node_that_may_only_look_is_told_which_user_it_needs(one_nats: Nats) -> None:
    quick = Timings(nats_answer_timeout=1.0)
    connection = await nats_connection.connect(one_nats.urls.replace("node:node-", "watch:watch-"), "test")
    try:
        with pytest.raises(UsageError, match=r"NATS denied this to the user 'watch': .*needs a user with write access"):
            await bootstrap.found(connection, "unfounded", Layout(streams=1, replicas=1), timings=quick)
    finally:
        await connection.close()


async def test_who_waits_is_told_soon_and_once(caplog: pytest.LogCaptureFixture) -> None:
    quick = Timings(nats_interactive_timeout=0.5)
    with pytest.raises(Unavailable, match="connection refused"):
        await nats_connection.connect("127.0.0.1:1,nats://127.0.0.1:2", "test", in_hurry=True, timings=quick)
    # Who is refused may be cut off before the reason was read, and asks again.
    assert [text for text in caplog.messages if "reset by peer" not in text] == []


async def test_what_is_no_nats_server_is_refused() -> None:
    with pytest.raises(UsageError, match=r"got 'http://foo'"):
        await nats_connection.connect("nats://a,http://user:secret@foo", "test")


async def test_servers_without_room_for_the_streams_are_told_of_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cell = Nats(tmp_path, room="2GB", stream_room="3GB").start().wait()
    try:
        connection = await nats_connection.connect(cell.urls, "test")
        with pytest.raises(UsageError, match=r"insufficient storage.*8 x NATS_STREAM_SIZE of NATS_STORE_SIZE"):
            await bootstrap.found(connection, "sapwood", Layout(), timings=Timings(nats_no_room_timeout=1.0))
        assert [text for text in caplog.messages if "has no room for the streams" in text] == caplog.messages
        assert len(caplog.messages) == 1
        await connection.close()
    finally:
        cell.stop()
