"""`sapwood upgrade` when processes die, stop or run out of something in the middle of it."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.e2e.command import PATIENCE, Server, sapwood, serving, until
from tests.e2e.test_upgrade import APP, PATH, SECOND, served, upgraded

pytestmark = pytest.mark.nightly

PREPARED = re.compile(r"upgrade: process \d+ is prepared|handing over")
HANDING = re.compile(r"upgrade: handing over to process (\d+)")
STARTING = re.compile(r"upgrade: starting a new server")
CONTINUES = re.compile(r"this one continues")


def asking(folder: Path) -> threading.Thread:
    """Run the command beside the test."""
    thread = threading.Thread(target=sapwood, args=(folder, "upgrade"), daemon=True)
    thread.start()
    return thread


def getting(server: Server, path: str) -> list[tuple[int, str]]:
    """Send a request beside the test; return the list that its answer comes into."""
    answers: list[tuple[int, str]] = []
    threading.Thread(target=lambda: answers.append(server.get(path)), daemon=True).start()
    return answers


@pytest.mark.parametrize("options", [pytest.param((), id="alone"), pytest.param(("--workers", "2"), id="workers")])
def test_the_old_server_continues_if_the_new_one_is_killed_while_a_slow_call_runs(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving(tmp_path, "serve", "app:app", "--grace", "20", *options) as server:
        (tmp_path / "app.py").write_text(SECOND)
        slow = getting(server, f"{PATH}?wait=8")
        before = set(children(server.process.pid))
        asking(tmp_path)
        [new] = until(lambda: set(children(server.process.pid)) - before)
        server.wait_for(PREPARED)

        os.kill(new, signal.SIGKILL)

        server.wait_for(CONTINUES)
        until(lambda: slow)
        assert slow[0][0] == 200
        for n in range(8):
            assert server.get(f"/agents/counter/a{n}")[1].split()[0] == "first"


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_more_idle_connections_than_can_be_open_twice(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)

    class Limited(Server):
        command = ("sh", "-c", 'ulimit -n 160; exec "$@"', "sh", sys.executable, "-m", "sapwood")

    server = Limited(tmp_path, "serve", "app:app", "--grace", "3")
    try:
        clients = [socket.create_connection(("127.0.0.1", server.port), PATIENCE) for _ in range(75)]
        assert server.get(PATH)[0] == 200
        (tmp_path / "app.py").write_text(SECOND)

        upgraded(tmp_path)

        for client in clients:
            client.sendall(f"GET {PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
            assert b" 200 " in client.recv(1000)
            client.close()
    finally:
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(PATIENCE)


def test_a_worker_that_has_just_been_restarted_hands_over_when_it_has_started(tmp_path: Path) -> None:
    with served(tmp_path, "--workers", "2") as server:
        [old, *_] = workers(server.process.pid)
        (tmp_path / "app.py").write_text(SLOW_PREPARATION)
        asking(tmp_path)
        server.wait_for(re.compile("opens its deps"))
        (tmp_path / "slow").touch()
        os.kill(old, signal.SIGKILL)
        server.wait_for(re.compile("restarting it"))
        server.wait_for(HANDING)
        server.wait_for(re.compile(r"process \d+ serves now"))
        assert server.get(PATH)[1].startswith("second")


SLOW_PREPARATION = (
    SECOND.replace("app = App(agents=[Counter])", "")
    + """
import contextlib, pathlib, sys, time

if pathlib.Path("slow").exists():
    time.sleep(6)

@contextlib.asynccontextmanager
async def deps():
    print("opens its deps", file=sys.stderr, flush=True)
    await asyncio.sleep(3)
    yield None

app = App(agents=[Counter], deps=deps)
"""
)


def workers(supervisor: int) -> list[int]:
    return [worker for one in children(supervisor) for worker in children(one)]


@pytest.mark.parametrize("options", [pytest.param((), id="alone"), pytest.param(("--workers", "2"), id="workers")])
def test_a_stop_ends_a_new_server_that_is_being_imported(options: tuple[str, ...], tmp_path: Path) -> None:
    with served(tmp_path, *options) as server:
        (tmp_path / "app.py").write_text("import time\ntime.sleep(600)\n" + SECOND)
        before = set(children(server.process.pid))
        asking(tmp_path)
        server.wait_for(STARTING)
        [new] = until(lambda: set(children(server.process.pid)) - before)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(PATIENCE)
        until(lambda: not _lives(new))


@pytest.mark.parametrize("options", [pytest.param((), id="alone"), pytest.param(("--workers", "2"), id="workers")])
def test_a_new_server_ends_while_it_imports_if_the_old_one_is_killed(options: tuple[str, ...], tmp_path: Path) -> None:
    with served(tmp_path, *options) as server:
        (tmp_path / "app.py").write_text("import time\ntime.sleep(600)\n" + SECOND)
        before = set(children(server.process.pid))
        asking(tmp_path)
        server.wait_for(STARTING)
        [new] = until(lambda: set(children(server.process.pid)) - before)
        time.sleep(1)
        server.process.kill()
        server.process.wait(PATIENCE)
        try:
            until(lambda: not _lives(new))
        finally:
            if _lives(new):
                os.kill(new, signal.SIGKILL)


@pytest.mark.parametrize("options", [pytest.param((), id="alone"), pytest.param(("--workers", "2"), id="workers")])
def test_a_new_server_that_fails_and_does_not_end_is_killed(options: tuple[str, ...], tmp_path: Path) -> None:
    hangs = (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\nraise RuntimeError('no')\n"
    )
    with served(tmp_path, *options):
        (tmp_path / "app.py").write_text(hangs)
        assert "no" in sapwood(tmp_path, "upgrade").stderr
        (tmp_path / "app.py").write_text(SECOND)
        upgraded(tmp_path)


@pytest.mark.parametrize("options", [pytest.param((), id="alone"), pytest.param(("--workers", "2"), id="workers")])
def test_a_folder_that_was_renamed_is_named(options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with served(tmp_path / "a", *options):
        (tmp_path / "a").rename(tmp_path / "b")
        done = sapwood(tmp_path / "b", "upgrade")
        assert done.returncode == 1
        assert "The new server cannot be started" in done.stderr
        assert str(tmp_path / "a") in done.stderr
        (tmp_path / "b").rename(tmp_path / "a")
        upgraded(tmp_path / "a")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


HALF_FAILS = (
    SECOND.replace("app = App(agents=[Counter])", "")
    + """
import pathlib

class OneFails:
    path = "/one-fails"
    async def start(self, node):
        try:
            pathlib.Path("first-worker").touch(exist_ok=False)
        except FileExistsError:
            await asyncio.sleep(3)
            raise RuntimeError("too late")
    async def stop(self):
        pass

app = App(agents=[Counter], driver=OneFails())
"""
)


def test_a_request_that_began_is_served_once_if_only_some_new_workers_start(tmp_path: Path) -> None:
    """A new worker reads no connection that its predecessor may continue."""
    with served(tmp_path, "--workers", "2") as server:
        clients = [socket.create_connection(("127.0.0.1", server.port), PATIENCE) for _ in range(8)]
        for n, client in enumerate(clients):
            client.sendall(f"GET /agents/counter/c{n} HTTP/1.1\r\nhost: localh".encode())
        time.sleep(0.5)  # they are accepted by both
        (tmp_path / "app.py").write_text(HALF_FAILS)
        said = asking(tmp_path)
        until((tmp_path / "first-worker").exists)
        time.sleep(1)  # the first new worker serves, the other one does not yet

        for client in clients:
            client.sendall(b"ost\r\n\r\n")
        server.wait_for(CONTINUES)
        said.join(PATIENCE)

        for client in clients:
            answer = client.recv(1000)
            client.close()
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.endswith(b"first 1")


SLOW_START = HALF_FAILS.replace(
    "await asyncio.sleep(3)\n            raise RuntimeError", "await asyncio.sleep(4)\n            str"
).replace('"first-worker"', '"first-new-worker"')


def test_a_stop_reaches_the_new_server_while_the_old_workers_end(tmp_path: Path) -> None:
    with served(tmp_path, "--workers", "2") as server:
        [old, *_] = workers(server.process.pid)
        (tmp_path / "app.py").write_text(SLOW_START)
        asking(tmp_path)
        until((tmp_path / "first-new-worker").exists)  # the old workers have handed over
        os.kill(old, signal.SIGSTOP)  # the old supervisor waits for it
        said = len(server.said)
        server.wait_for(re.compile("sapwood is running at"), said)
        time.sleep(0.5)

        server.process.send_signal(signal.SIGTERM)

        server.wait_for(re.compile(r"process \d+ serves now"))
        server.process.wait(PATIENCE)
