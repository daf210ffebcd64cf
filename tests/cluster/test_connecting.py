"""A connection to NATS comes back, through servers that nobody named, too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.servers import Nats

from sapwood.errors import Unavailable
from sapwood.runtimes.cluster import connecting


async def test_a_connection_comes_back_through_servers_that_were_not_named(tmp_path: Path) -> None:
    cell = Nats(tmp_path).start().wait()
    try:
        connection = await connecting.connect(cell.urls.split(",")[0], "test")
        assert connection.connected_url.port == cell.ports[0]
        await _until(lambda: len(connection.servers) >= cell.count)
        cell.kill(0)
        await _until(lambda: connection.is_connected and connection.connected_url.port != cell.ports[0])
        await connection.flush()
        await connection.close()
    finally:
        cell.stop()


async def _until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def test_who_cannot_connect_is_told_where_and_not_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "PATIENCE", 0.5)
    with pytest.raises(Unavailable) as told:
        await connecting.connect("nats://node:secret@127.0.0.1:1", "test")

    assert "nats://127.0.0.1:1" in str(told.value)
    assert "secret" not in str(told.value)
