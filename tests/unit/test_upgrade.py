"""An upgrade that fails leaves a server that stops as every other, and can be upgraded again."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sapwood.cli.launch import Launch
from sapwood.cli.upgrade import Upgrade
from sapwood.errors import Refused
from sapwood.runtimes.handover_line import SERVING, HandoverLine
from sapwood.runtimes.workers.supervisor_upgrade import WorkersBefore


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


def test_workers_that_serve_again_after_a_failed_upgrade_say_nothing_to_the_first_process() -> None:
    line, far_end = HandoverLine.pair()
    before = WorkersBefore(line, line, [], {})
    supervisor = cast("Any", SimpleNamespace(workers=[]))

    before.serves(supervisor)
    before.serves(supervisor)

    assert far_end.receive(1).kind == SERVING
    assert far_end.received_now() is None
    line.close()
    far_end.close()
