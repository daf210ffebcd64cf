"""The connection between a server and its successor carries messages and open files, in order, and ends for both."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from pathlib import Path

import pytest

from sapwood.cli.launch import Launch
from sapwood.cli.successor import Successor
from sapwood.runtimes.handover_line import CHUNK, HandoverLine, LineLost


def test_messages_arrive_in_order_each_with_its_files() -> None:
    one, other = HandoverLine.pair()
    ends = [socket.socketpair() for _ in range(3)]

    for number, (near, _) in enumerate(ends):
        one.send("connection", near.fileno(), received=bytes([number]) * number)
        near.close()
    one.send("released")

    for number, (_, far) in enumerate(ends):
        message = other.receive(1)
        assert (message.kind, message.facts["received"]) == ("connection", bytes([number]) * number)
        with socket.socket(fileno=other.take_file()) as taken:
            assert not os.get_inheritable(taken.fileno())
            taken.sendall(b"hello")
        assert far.recv(10) == b"hello"
        far.close()
    assert other.receive(1).kind == "released"
    one.close()
    other.close()


async def test_a_message_is_waited_for_however_large_it_is() -> None:
    one, other = HandoverLine.pair()
    waiting = asyncio.ensure_future(other.received())
    await asyncio.sleep(0)
    received = os.urandom(CHUNK + 17)

    await asyncio.to_thread(one.send, "connection", received=received)

    assert (await waiting).facts["received"] == received
    one.close()
    other.close()


def test_the_end_of_the_other_process_is_noticed() -> None:
    one, other = HandoverLine.pair()
    one.send("serving")
    one.close()

    assert other.receive(1).kind == "serving"
    with pytest.raises(LineLost):
        other.receive(1)
    with pytest.raises(LineLost):
        other.send("released")
    with pytest.raises(LineLost):
        other.send("released")
    other.close()


def test_a_successor_that_could_not_be_given_all_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits to be told that all was given: the other process would wait for it in vain."""
    monkeypatch.setattr("sapwood.runtimes.handover_line.SEND_TIMEOUT", 0.05)
    launch = Launch([sys.executable, "-c", "import time; time.sleep(60)"], ".", dict(os.environ))
    successor = Successor(launch)
    near, far = socket.socketpair()
    for _ in range(10_000):  # it reads nothing
        successor.give(near.fileno(), bytes(1000))
        if successor.line.is_lost:
            break
    successor.release()

    assert not successor.until_serving()

    assert not successor.is_alive
    near.close()
    far.close()


@pytest.mark.slow
@pytest.mark.realtime("a process is waited for, which starts another one")
@pytest.mark.skipif(sys.platform != "linux", reason="It needs /proc")
def test_what_a_failed_successor_has_started_is_ended_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, pathlib, time\n"
        "program = subprocess.Popen(['sleep', '60'])\n"
        "pathlib.Path(sys.argv[1]).write_text(f'{program.pid}.')\n"
        "time.sleep(60)"
    )
    pid = tmp_path / "pid"
    successor = Successor(Launch([sys.executable, "-c", code, str(pid)], ".", dict(os.environ)))
    end = time.monotonic() + 20
    while not (pid.exists() and pid.read_text().endswith(".")):
        assert time.monotonic() < end
        time.sleep(0.01)

    successor.end()

    with pytest.raises((OSError, IndexError)):  # gone, or a zombie that no process waits for
        assert Path(f"/proc/{pid.read_text()[:-1]}/cmdline").read_bytes().split(b"\0")[1]
