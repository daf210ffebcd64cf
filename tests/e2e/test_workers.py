"""`sapwood serve --workers`: several processes on one folder behind one port, and what becomes of it if one dies."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.e2e.command import COMMAND, PATIENCE, Server, said_by, sapwood, serving, serving_by_two
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

APP = """
import asyncio
import os
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

from sapwood import Agent, App, expose
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response


class Counter(Agent[int]):
    initial_state = 0

    @expose
    async def add(self, by: int) -> int:
        self.set_state(self.state + by)
        return self.state

    @expose
    async def process(self) -> int:
        return os.getpid()

    @expose
    async def process_of(self, name: str) -> int:
        return await (await self.get_agent(Counter, name)).process()

    @expose
    async def count_of(self, name: str, upto: int) -> int:
        counter = await self.get_agent(Counter, name)
        return sum([number async for number in counter.numbers(upto)])

    async def numbers(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    @expose
    async def later(self, seconds: float) -> None:
        self.schedule(timedelta(seconds=seconds), self.add, 100)

    @expose
    async def spin(self) -> None:
        while True:
            pass

    async def on_request(self, request: Request) -> Response:
        if until := request.query_params.get("until"):
            Path(f"begun-{time.monotonic_ns()}").touch()
            while not Path(until).exists():
                await asyncio.sleep(0.02)
        return PlainTextResponse(f"{self.name} in {os.getpid()} got {len(await request.body())}")


app = App(agents=[Counter])
"""
TWO = ("serve", "app:app", "--workers", "2", "--grace", "5")
PATIENT = ("serve", "app:app", "--workers", "2", "--grace", "3600")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


class Caller:
    """A client that calls methods as the npm client does."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def __call__(self, method: str, *args: Any) -> Any:
        self.begin(method, *args)
        while True:
            frame = json.loads(self._connection.recv(PATIENCE))
            if frame.get("type") == "rpc":
                assert frame["success"], frame
                return frame.get("result")

    def begin(self, method: str, *args: Any) -> None:
        self._connection.send(json.dumps({"type": "rpc", "id": uuid4().hex, "method": method, "args": args}))

    def closed(self) -> int | None:
        """Read to the end; return the close code."""
        try:
            while True:
                self._connection.recv(PATIENCE)
        except ConnectionClosed:
            return self._connection.close_code


@contextmanager
def caller(server: Server, name: str) -> Iterator[Caller]:
    with server.connect(f"/agents/counter/{name}") as connection:
        yield Caller(connection)


def call(server: Server, name: str, method: str, *args: Any) -> Any:
    with caller(server, name) as calls:
        return calls(method, *args)


def apart(server: Server) -> tuple[str, str]:
    """Return the names of two roots that different workers run."""
    names = [f"n{number}" for number in range(20)]
    first = call(server, names[0], "process")
    return names[0], next(name for name in names if call(server, name, "process") != first)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "It did not happen."
        time.sleep(0.02)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def two(folder: Path) -> Iterator[Server]:
    with serving(folder, *TWO) as server:
        yield server


def test_any_client_reaches_any_agent_and_agents_reach_each_other(two: Server) -> None:
    one, other = apart(two)
    there = call(two, other, "process")

    # Whoever accepts a connection is chance: among so many are some for each worker.
    with_one = [call(two, one, "process_of", other) for _ in range(8)]
    answers = {two.get(f"/agents/counter/{other}")[1] for _ in range(8)}

    assert set(with_one) == {there}
    assert answers == {f"{other} in {there} got 0"}
    assert call(two, one, "count_of", other, 500) == sum(range(500))


def test_a_worker_that_is_killed_is_started_again_and_nobody_else_notices(two: Server) -> None:
    one, other = apart(two)
    here, there = call(two, one, "process"), call(two, other, "process")
    assert call(two, other, "add", 7) == 7
    os.kill(there, signal.SIGSTOP)  # so that it is not the one that accepts
    goes_on = threading.Timer(1.0, os.kill, (there, signal.SIGCONT))
    goes_on.start()
    with caller(two, one) as calls, caller(two, other) as cut_off:
        assert calls("add", 1) == 1
        assert cut_off("process") == there
        goes_on.join()

        os.kill(there, signal.SIGKILL)
        assert cut_off.closed() == 1012
        two.wait_for(re.compile(r"was killed by SIGKILL; restarting it"))

        # It waits for the one that is being started.
        assert calls("process_of", other) not in (here, there)
        assert call(two, other, "add", 1) == 8
        assert [calls("add", 1), calls("process")] == [2, here]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are not forked")
def test_nobody_notices_the_end_of_the_process_that_workers_are_forked_from(two: Server) -> None:
    one, other = apart(two)
    below = Path(f"/proc/{two.process.pid}/task/{two.process.pid}/children").read_text().split()
    (keeper,) = [int(pid) for pid in below if b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    with caller(two, one) as calls, caller(two, other) as others:
        there = others("process")

        os.kill(keeper, signal.SIGKILL)
        assert [calls("add", 1), others("add", 1)] == [1, 1]

        os.kill(there, signal.SIGKILL)  # and one that dies is started nevertheless
        two.wait_for(re.compile("restarting it"))
    assert call(two, other, "process") not in (there, keeper)
    assert two.stop() == 0


@pytest.mark.nightly
def test_a_server_that_was_paused_as_a_whole_goes_on_with_the_workers_it_had(folder: Path) -> None:
    with serving_by_two(folder, silence=-58.0) as two:  # of 60: two seconds
        workers = [call(two, name, "process") for name in apart(two)]
        for process in (two.process.pid, *workers):
            os.kill(process, signal.SIGSTOP)
        time.sleep(4.5)

        for process in (two.process.pid, *reversed(workers)):
            os.kill(process, signal.SIGCONT)
            time.sleep(0.2)

        assert [call(two, name, "process") for name in apart(two)] == workers


def test_a_worker_that_computes_for_ever_holds_up_only_its_own_trees_and_is_named(folder: Path) -> None:
    with serving(folder, *TWO, SAPWOOD_SLOW_AFTER="0.2", SAPWOOD_STUCK_AFTER="0.5", SAPWOOD_FATAL_AFTER="2") as two:
        one, other = apart(two)
        with caller(two, other) as spinning:
            there = spinning("process")
            spinning.begin("spin")
            two.wait_for(re.compile(r"worker \d .*spin"))
            with caller(two, one) as calls:
                assert [calls("add", 1) for _ in range(20)] == list(range(1, 21))

                two.wait_for(re.compile(r"exited with code \d+; restarting it"))
                assert call(two, other, "process") not in (there, calls("process"))
                assert calls("add", 1) == 21
        assert f"Counter:{other}" in (folder / "sapwood-data" / "strikes.jsonl").read_text()


def test_sigterm_lets_requests_end_whichever_worker_answers_them(folder: Path) -> None:
    with serving(folder, *PATIENT) as two:
        one, other = apart(two)
        processes = [call(two, name, "process") for name in (one, other)]
        answers: list[tuple[int, str]] = []
        asking = [
            threading.Thread(target=lambda name=name: answers.append(two.get(f"/agents/counter/{name}?until=enough")))
            for name in (one, other) * 4
        ]
        for thread in asking:
            thread.start()
        until(lambda: len([*folder.glob("begun-*")]) == 8)

        two.process.terminate()
        until(lambda: is_refused(two))
        (folder / "enough").touch()
        assert two.process.wait(PATIENCE) == 0
        for thread in asking:
            thread.join()
        assert [status for status, _ in answers] == [200] * 8
        assert not any(map(alive, processes))


@pytest.mark.nightly
@pytest.mark.parametrize("is_stuck", [False, True])
def test_whoever_comes_after_sigterm_is_refused_while_requests_end(folder: Path, is_stuck: bool) -> None:
    with serving(folder, *PATIENT) as two:
        one, other = apart(two)
        stuck = call(two, other, "process")
        if is_stuck:
            os.kill(stuck, signal.SIGSTOP)
        answers: list[tuple[int, str]] = []
        asking = threading.Thread(target=lambda: answers.append(two.get(f"/agents/counter/{one}?until=enough")))
        if not is_stuck:  # otherwise chance may have the one that is stuck hold it
            asking.start()
            until(lambda: any(folder.glob("begun-*")))

        two.process.terminate()
        until(lambda: is_refused(two))
        assert alive(stuck)
        assert not answers
        if is_stuck:
            os.kill(stuck, signal.SIGCONT)
        else:
            (folder / "enough").touch()
            asking.join()
            assert [status for status, _ in answers] == [200]
        assert two.process.wait(PATIENCE) == 0


def is_refused(server: Server) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port), 0.2).close()
    except ConnectionRefusedError:
        return True
    except OSError:  # it was reset
        pass
    return False


@pytest.mark.nightly
def test_sockets_are_told_to_come_again_when_the_server_stops(two: Server) -> None:
    one, other = apart(two)
    with ExitStack() as open_:
        callers = [open_.enter_context(caller(two, name)) for name in (one, other) * 3]
        for each in callers:
            each("process")

        assert two.stop() == 0
        assert {each.closed() for each in callers} == {1012}


def test_workers_end_when_their_supervisor_is_killed_and_nobody_runs_beside_them(folder: Path) -> None:
    with serving(folder, *TWO) as two:
        one, other = apart(two)
        processes = [call(two, name, "process") for name in (one, other)]
        os.kill(processes[0], signal.SIGSTOP)  # this one cannot notice yet
        two.process.kill()
        two.process.wait(PATIENCE)

        refused = sapwood(folder, *COMMAND[3:], "serve", "app:app", "--port", "0")
        assert "is in use by process" in refused.stderr
        os.kill(processes[0], signal.SIGCONT)
        until(lambda: not any(map(alive, processes)))
    with serving(folder, *TWO) as again:
        assert call(again, one, "add", 1) == 1


@pytest.mark.nightly
def test_another_number_of_workers_finds_everything_and_what_was_due_happens(folder: Path) -> None:
    names = [f"n{number}" for number in range(8)]
    for count, workers in enumerate([("--workers", "2"), (), ("--workers", "3"), ("--workers", "1")]):
        expected = 101 * count
        with serving(folder, "serve", "app:app", *workers) as server:
            for name in names:
                until(lambda name=name, expected=expected: call(server, name, "add", 0) == expected)
                assert call(server, name, "add", 1) == expected + 1
                call(server, name, "later", 1.0)
            assert server.stop() in (0, -signal.SIGTERM)
    with sqlite3.connect(folder / "sapwood-data" / "alarms-0-of-1.db") as index:
        assert index.execute("SELECT count(*) FROM sapwood_node_alarms").fetchone() == (len(names) + 1,)


def test_an_app_that_cannot_start_ends_the_command_and_says_why(folder: Path) -> None:
    (folder / "app.py").write_text(f"{APP}\nclass Picky(Agent):\n    deps: int\n\napp = App(agents=[Picky])\n")

    done = sapwood(folder, *TWO, "--port", "0")

    assert done.returncode == 1
    assert "before it was ready; sapwood shuts down" in done.stderr
    assert "Picky expects deps of type int" in done.stderr


@pytest.mark.nightly
def test_the_commands_of_an_operator_reach_every_worker(two: Server, folder: Path) -> None:
    one, other = apart(two)
    for name in (one, other):
        call(two, name, "add", 5)

    trees = json.loads(said_by(folder, "tree", "--json"))
    top = json.loads(said_by(folder, "top", "--json"))
    states = [said_by(folder, "state", f"Counter:{name}").strip() for name in (one, other)]

    assert {f"Counter:{one}", f"Counter:{other}"} <= {root["address"] for root in trees["roots"]}
    assert {root["status"] for root in trees["roots"]} <= {"live", "asleep", "busy"}
    assert states == ["5", "5"]
    assert {worker["process"] for worker in top["workers"]} == {call(two, name, "process") for name in (one, other)}
    assert {f"Counter:{one}", f"Counter:{other}"} <= {tree["address"] for tree in top["busiest"]}
    assert "worker" in said_by(folder, "top")
