"""A worker that computes for ever costs only its own trees, and whoever did it is named.

As long as Python runs, the worker names the agent itself. Where a call into C holds everything up, its supervisor
misses a sign of life and asks: most of those calls still let a signal in, and the agent is named too. Of the
others it is known where in the code they were.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.e2e.command import PATIENCE, Server, said_by, serving, serving_by_two
from tests.machine import patience
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

APP = """
import itertools
import os
import re
from datetime import timedelta

from sapwood import Agent, App, Settings, expose


class Oven(Agent[int]):
    initial_state = 0

    @expose
    async def add(self) -> int:
        self.set_state(self.state + 1)
        return self.state

    @expose
    async def process(self) -> int:
        return os.getpid()

    @expose
    async def burn(self) -> None:
        while True:
            pass

    @expose
    async def match(self) -> None:
        re.match("(a+)+$", "a" * 64 + "b")

    @expose
    async def hold_on(self) -> None:
        all(itertools.repeat(True))

    @expose
    async def burn_later(self) -> None:
        self.schedule(timedelta(0), self.burn)


app = App(agents=[Oven], settings=Settings(slow_after=0.2, stuck_after=0.5, fatal_after=1.0))
"""
TWO = ("serve", "app:app", "--workers", "2", "--grace", "5")
SOON = patience(2.0)
"""Seconds in which an agent of another worker answers, on a machine of which one core burns."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@contextmanager
def oven(server: Server, name: str) -> Iterator[ClientConnection]:
    with server.connect(f"/agents/oven/{name}", open_timeout=PATIENCE) as connection:
        yield connection


def begin(connection: ClientConnection, method: str) -> None:
    connection.send(json.dumps({"type": "rpc", "id": uuid4().hex, "method": method, "args": []}))


def call(connection: ClientConnection, method: str) -> Any:
    begin(connection, method)
    while True:
        frame = json.loads(connection.recv(PATIENCE))
        if frame.get("type") == "rpc":
            assert frame["success"], frame
            return frame.get("result")


def process_of(server: Server, name: str) -> int:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with oven(server, name) as connection:
                return call(connection, "process")
        except (ConnectionClosed, OSError, EOFError):
            assert time.monotonic() < end
            time.sleep(0.05)


def apart(server: Server) -> tuple[str, str]:
    """Return the names of two roots that different workers run."""
    names = [f"n{number}" for number in range(20)]
    first = process_of(server, names[0])
    return names[0], next(name for name in names if process_of(server, name) != first)


@contextmanager
def held_by(server: Server, name: str) -> Iterator[ClientConnection]:
    """Connect to a root through its own worker: the other one may be about to end."""
    own = process_of(server, name)
    for _ in range(50):
        with oven(server, name) as connection:
            if holds(own, server.port, connection.local_address[1]):
                yield connection
                return
    raise AssertionError("no connection was accepted by the worker of its root")


def holds(process: int, here: int, there: int) -> bool:
    wanted = f":{here:04X} 0100007F:{there:04X} "
    inodes = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines() if wanted in line}
    found = {str(one.readlink()) for one in Path(f"/proc/{process}/fd").iterdir() if one.is_symlink()}
    return any(f"socket:[{inode}]" in found for inode in inodes)


class Witness:
    """Calls an agent again and again, and knows how long the slowest answer took."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._done = threading.Event()
        self.slowest = 0.0
        self.answers: list[int] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.is_set():
            began = time.monotonic()
            self.answers.append(call(self._connection, "add"))
            self.slowest = max(self.slowest, time.monotonic() - began)
            time.sleep(0.01)

    def check(self) -> None:
        self._done.set()
        self._thread.join(PATIENCE)
        assert self.answers == [*range(1, len(self.answers) + 1)], "its state is as it was"
        assert len(self.answers) > 20
        assert self.slowest < SOON


def strikes(folder: Path) -> list[str]:
    file = folder / "sapwood-data" / "strikes.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["root"] for line in lines if line.startswith("{")]


def crashes(folder: Path) -> list[str]:
    return [one.read_text() for one in sorted((folder / "sapwood-data" / "crashes").iterdir())]


def is_quarantined(folder: Path, name: str) -> bool:
    roots = json.loads(said_by(folder, "tree", "--json"))["roots"]
    return {root["address"]: root["status"] for root in roots}[f"Oven:{name}"] == "quarantined"


@pytest.mark.nightly
def test_three_fires_end_in_quarantine_which_a_restart_does_not_end_and_nobody_else_notices(folder: Path) -> None:
    with serving(folder, *TWO) as two:
        calm, hot = apart(two)
        with oven(two, hot) as connection:
            assert call(connection, "add") == 1
        with held_by(two, calm) as watched:
            witness = Witness(watched)
            for _ in range(3):
                heard = len(two.said)
                with oven(two, hot) as connection:
                    begin(connection, "burn")
                    two.wait_for(re.compile(rf"Oven:{hot}\.burn blocked the event loop"), heard)
                    two.wait_for(re.compile(r"worker \d \(process \d+\) exited with code 70; restarting it"), heard)
            witness.check()

        assert strikes(folder) == [f"Oven:{hot}"] * 3
        assert all(f"Oven:{hot}.burn" in text and "app.py" in text for text in crashes(folder))
        assert two.get(f"/agents/oven/{hot}")[0] == 503
        assert is_quarantined(folder, hot)
        assert two.stop() == 0
    with serving(folder, *TWO) as again:
        assert is_quarantined(folder, hot)
        assert process_of(again, calm) > 0


def test_a_fire_that_a_schedule_lights_again_ends_in_quarantine_too(folder: Path) -> None:
    with serving(folder, *TWO) as two:
        calm, hot = apart(two)
        with held_by(two, calm) as watched, oven(two, hot) as connection:
            witness = Witness(watched)
            begin(connection, "burn_later")
            for _ in range(3):
                heard = len(two.said)
                two.wait_for(re.compile(r"exited with code 70; restarting it"), heard)
            two.wait_for(re.compile(r"quarantine"))
            witness.check()
        assert strikes(folder) == [f"Oven:{hot}"] * 3


@pytest.mark.parametrize("method", ["match", "hold_on"])
def test_a_call_into_c_that_never_ends_is_killed_by_the_supervisor_and_named(folder: Path, method: str) -> None:
    answers = method == "match"  # it lets signals in: on a busy machine, too, it gets the time to answer
    how = "exited with code 70" if answers else "was killed by SIGKILL"
    with serving_by_two(folder, silence=2.0, answer=PATIENCE if answers else 5.0) as two:
        calm, hot = apart(two)
        with held_by(two, calm) as watched, oven(two, hot) as connection:
            witness = Witness(watched)
            begin(connection, method)
            two.wait_for(re.compile(rf"worker \d \(process \d+\) {how}; restarting"))
            witness.check()

        assert process_of(two, hot) > 0
        told = "\n".join(crashes(folder))
        assert f" in {method}" in told
        if answers:  # the agent is known, and gets a strike
            assert f"Oven:{hot}.match" in told
            assert strikes(folder) == [f"Oven:{hot}"]
        else:
            assert "stopped answering" in told
            assert f" in {method}" in "".join(two.said)
