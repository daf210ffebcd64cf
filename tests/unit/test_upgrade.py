"""An upgrade that fails leaves a server that stops as every other."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sapwood.cli.launch import Launch
from sapwood.cli.upgrade import Upgrade
from sapwood.errors import Refused


async def test_a_server_that_stops_after_a_failed_upgrade_refuses_clients_at_once() -> None:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    upgrade = Upgrade(Launch(["/nowhere/sapwood"], "/", {}), listening, "token", 1.0, None)
    server = cast("Any", SimpleNamespace(should_exit=False, started=True))

    with pytest.raises(Refused, match=r"cannot be started: .*This server continues"):
        await upgrade.start(lambda: cast("Any", None), server)
    upgrade.abandon()
    where = listening.getsockname()
    listening.close()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where, 1).close()
