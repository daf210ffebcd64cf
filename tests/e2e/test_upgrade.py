"""`sapwood upgrade`: a new process takes over the running server, and clients notice at most a reconnect."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.command import PATIENCE, Server, sapwood, serving, until
from websockets.exceptions import ConnectionClosed

APP = """
import asyncio

from sapwood import Agent, After, App
from starlette.responses import JSONResponse, PlainTextResponse

RELEASE = "first"

class Counter(Agent):
    migrations = ("CREATE TABLE hits (n INTEGER NOT NULL) STRICT",)

    async def note(self, number):
        self.sql("INSERT INTO hits (n) VALUES (?)", number)
        return RELEASE

    async def work(self):
        noted = []
        for number in range(40):
            noted.append(await self.step(f"note {number}", self.note, number))
            await asyncio.sleep(0.1)
        return noted

    async def on_request(self, request):
        if request.url.path.endswith("/start"):
            self.start_fiber("work", self.work)
            return PlainTextResponse("started")
        if request.url.path.endswith("/work"):
            fiber = self.fibers.get("work")
            return JSONResponse([fiber.status, [row["n"] for row in self.sql("SELECT n FROM hits ORDER BY rowid")]])
        if seconds := request.query_params.get("wait"):
            await asyncio.sleep(float(seconds))
        self.sql("INSERT INTO hits (n) VALUES (1)")
        return PlainTextResponse(f"{RELEASE} {self.sql('SELECT count(*) FROM hits').scalar(int)}")

app = App(agents=[Counter])
"""
SECOND = APP.replace("first", "second").replace('") STRICT",)', '") STRICT", "ALTER TABLE hits ADD COLUMN who TEXT")')
BROKEN_IMPORT = "raise RuntimeError('no such thing')\n"
BROKEN_START = (
    APP.replace("app = ", "good = ")
    + """
class Late:
    path = "/late"
    async def start(self, node):
        raise RuntimeError("too late")
    async def stop(self):
        pass

app = App(agents=[Counter], driver=Late())
"""
)
HANDED = re.compile(r"upgrade: process (\d+) serves now")
PATH = "/agents/counter/main"


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Server]:
    (folder / "app.py").write_text(APP)
    with serving(folder, "serve", "app:app", "--grace", "3", *options) as server:
        try:
            yield server
        finally:
            server.process.send_signal(signal.SIGTERM)  # after an upgrade it passes this to the server that runs now
            server.process.wait(PATIENCE)


class Caller:
    """A client that sends one request after another over one connection, and never sends one again."""

    def __init__(self, port: int, path: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self._path = path
        self._stop = threading.Event()
        self.answers: list[str] = []
        self.failures: list[str] = []
        self.connections = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            try:
                if self._connection.sock is None:
                    self.connections += 1
                self._connection.request("GET", self._path)
                answer = self._connection.getresponse()
                text = answer.read().decode()
                (self.answers if answer.status == 200 else self.failures).append(text)
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                self._connection.close()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        self._connection.close()


def releases(caller: Caller) -> set[str]:
    return {text.split()[0] for text in list(caller.answers)}


def upgraded(folder: Path) -> str:
    done = sapwood(folder, "upgrade")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("options", [pytest.param((), id="alone"), pytest.param(("--workers", "2"), id="workers")])
def test_an_upgrade_changes_the_code_and_the_schema_while_clients_call(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    with served(tmp_path, *options) as server, server.connect(PATH) as watching:
        callers = [Caller(server.port, f"{PATH}{n % 2}") for n in range(6)]
        until(lambda: all(caller.answers for caller in callers))
        (tmp_path / "app.py").write_text(SECOND)

        said = upgraded(tmp_path)

        until(lambda: all("second" in releases(caller) for caller in callers))
        with pytest.raises(ConnectionClosed) as closed:  # noqa: PT012 - frames may come before the end
            while True:
                watching.recv(PATIENCE)
        for caller in callers:
            caller.end()
        assert [caller.failures for caller in callers] == [[]] * 6
        assert [caller.connections for caller in callers] == [1] * 6
        assert sum(len(caller.answers) for caller in callers) == sum(
            int(server.get(f"{PATH}{n}")[1].split()[1]) - 1 for n in range(2)
        )
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        assert "takes over" in said
        upgraded(tmp_path)  # the successor of a successor
        assert server.get(f"{PATH}0")[0] == 200
        assert server.process.poll() is None

        server.process.send_signal(signal.SIGTERM)

        assert server.process.wait(PATIENCE) in (0, -signal.SIGTERM)
        assert not _listens(server.port)


@pytest.mark.parametrize(
    ("code", "why", "options"),
    [
        pytest.param(BROKEN_IMPORT, "no such thing", (), id="before", marks=pytest.mark.nightly),
        pytest.param(BROKEN_START, "the old one serves again", (), id="after"),
        pytest.param(BROKEN_IMPORT, "no such thing", ("--workers", "2"), id="workers", marks=pytest.mark.nightly),
        pytest.param(
            BROKEN_START, "the old one serves again", ("--workers", "2"), id="workers after", marks=pytest.mark.nightly
        ),
    ],
)
def test_the_old_server_continues_if_the_new_one_cannot_start(
    code: str, why: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    """A new server that fails before the old one has stopped, or only after."""
    with served(tmp_path, *options) as server:
        caller = Caller(server.port, PATH)
        (tmp_path / "app.py").write_text(code)

        done = sapwood(tmp_path, "upgrade")

        assert done.returncode == 1
        assert why in done.stderr
        answered = len(caller.answers)
        until(lambda: len(caller.answers) > answered)
        caller.end()
        assert (caller.failures, releases(caller)) == ([], {"first"})
        (tmp_path / "app.py").write_text(SECOND)
        upgraded(tmp_path)
        assert server.get(PATH)[1].startswith("second")


@pytest.mark.nightly
@pytest.mark.parametrize("options", [pytest.param((), id="alone"), pytest.param(("--workers", "2"), id="workers")])
def test_a_slow_call_is_waited_for_while_others_are_served(options: tuple[str, ...], tmp_path: Path) -> None:
    with served(tmp_path, *options) as server:
        slow: list[tuple[int, str]] = []
        asking = threading.Thread(target=lambda: slow.append(server.get(f"{PATH}?wait=2")), daemon=True)
        asking.start()
        too_slow: list[tuple[int, str]] = []
        path = "/agents/counter/other?wait=600"
        hopeless = threading.Thread(target=lambda: too_slow.append(server.get(path)), daemon=True)
        hopeless.start()
        caller = Caller(server.port, "/agents/counter/busy")
        until(lambda: caller.answers)
        (tmp_path / "app.py").write_text(SECOND)

        upgraded(tmp_path)

        asking.join(PATIENCE)
        hopeless.join(PATIENCE)
        until(lambda: "second" in releases(caller))
        caller.end()
        assert caller.failures == []
        assert [(status, text.split()[0]) for status, text in slow] == [(200, "first")]
        assert [status for status, _ in too_slow] == [503]


@pytest.mark.nightly
@pytest.mark.parametrize("options", [pytest.param((), id="alone"), pytest.param(("--workers", "2"), id="workers")])
def test_a_fiber_in_progress_continues_at_the_new_server(options: tuple[str, ...], tmp_path: Path) -> None:
    with served(tmp_path, *options) as server:
        agent = "/agents/counter/worker"
        server.get(f"{agent}/start")
        until(lambda: json.loads(server.get(f"{agent}/work")[1])[1])
        (tmp_path / "app.py").write_text(SECOND)

        upgraded(tmp_path)

        until(lambda: json.loads(server.get(f"{agent}/work")[1])[0] == "completed")
        assert json.loads(server.get(f"{agent}/work")[1])[1] == list(range(40))


@pytest.mark.nightly
def test_half_a_request_is_completed_at_the_new_server(tmp_path: Path) -> None:
    with served(tmp_path) as server, socket.create_connection(("127.0.0.1", server.port), PATIENCE) as client:
        client.sendall(f"GET {PATH} HTTP/1.1\r\nhost: localh".encode())
        (tmp_path / "app.py").write_text(SECOND)

        upgraded(tmp_path)
        client.sendall(b"ost\r\nconnection: close\r\n\r\n")

        answer = client.makefile("rb").read().decode()
        assert answer.startswith("HTTP/1.1 200")
        assert answer.endswith("second 1")


@pytest.mark.parametrize(
    "options", [pytest.param((), id="alone"), pytest.param(("--workers", "2"), id="workers", marks=pytest.mark.nightly)]
)
def test_the_server_ends_if_the_first_process_is_killed(options: tuple[str, ...], tmp_path: Path) -> None:
    with serving_once(tmp_path, *options) as server:
        upgraded(tmp_path)
        server.wait_for(HANDED)

        os.kill(server.process.pid, signal.SIGKILL)

        until(lambda: any("first process of this server is gone" in line for line in list(server.said)))
        until(lambda: not _listens(server.port))


@pytest.mark.nightly
def test_a_stop_during_an_upgrade_ends_both(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        (tmp_path / "app.py").write_text(f"import time\ntime.sleep({PATIENCE})\n" + SECOND)
        asking = threading.Thread(target=sapwood, args=(tmp_path, "upgrade"), daemon=True)
        asking.start()
        server.wait_for(re.compile("upgrade: starting a new server"))

        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(PATIENCE)

        assert time.monotonic() - began < PATIENCE / 2
        asking.join(PATIENCE)
        until(lambda: not _listens(server.port))


@pytest.mark.nightly
def test_only_a_server_of_serve_can_be_upgraded(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving(tmp_path, "dev") as server:
        done = sapwood(tmp_path, "upgrade")
        server.stop()

    assert done.returncode == 1
    assert "`sapwood dev` restarts by itself" in done.stderr


ACTIVATED = """
import os, socket, sys

listening = socket.socket()
listening.bind(("127.0.0.1", 0))
listening.listen()
os.dup2(listening.fileno(), 3)
os.set_inheritable(3, True)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "sapwood.socket"}
os.execv(sys.executable, [sys.executable, "-m", "sapwood", *sys.argv[1:]])
"""


class Activated(Server):
    """A server that is started as systemd starts the service of a socket."""

    command = (sys.executable, "-c", ACTIVATED)


@pytest.mark.nightly
def test_a_server_uses_the_socket_of_systemd_and_hands_it_over(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    server = Activated(tmp_path, "serve", "app:app", "--port", "1")
    try:
        assert server.get(PATH)[1] == "first 1"
        (tmp_path / "app.py").write_text(SECOND)

        upgraded(tmp_path)

        assert server.get(PATH)[1] == "second 2"
    finally:
        server.stop()


@contextmanager
def serving_once(folder: Path, *options: str) -> Iterator[Server]:
    (folder / "app.py").write_text(APP)
    with serving(folder, "serve", "app:app", *options) as server:
        yield server


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
