"""`sapwood top`, in a terminal and without one, whatever has become of the server."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.command import COMMAND, PATIENCE, said_by, sapwood, serving
from tests.e2e.test_pools import APP, POOLED, call

COLUMNS = 80


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP.replace('@agent(pool="heavy")\n', ""))
    return tmp_path


class Screen:
    """A terminal with a command in it, and all that it has shown."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.shown = ""

    def until(self, fits: Callable[[str], bool]) -> str:
        """Return what is shown once it fits."""
        end = time.monotonic() + PATIENCE
        while not fits(self.shown):
            assert time.monotonic() < end, self.shown
            if select.select([self._descriptor], [], [], 0.2)[0]:
                self.shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(self._descriptor, 65536).decode())
        return self.shown


@contextmanager
def terminal(folder: Path, *arguments: str) -> Iterator[Screen]:
    process, descriptor = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.environ |= {"TERM": "xterm", "COLUMNS": str(COLUMNS)}
        os.execv(sys.executable, [*COMMAND, *arguments])
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    try:
        yield Screen(descriptor)
    finally:
        os.kill(process, signal.SIGINT)
        os.close(descriptor)
        os.waitpid(process, 0)


@pytest.mark.nightly
def test_without_a_terminal_it_is_printed_once_with_what_each_process_uses(folder: Path) -> None:
    with serving(folder) as server:
        call(server, "desk/a", "add", 1)

        text = said_by(folder, "top")

    assert text.startswith("one process, 1 tree awake, 0 sockets\n")
    assert re.search(r"^process +up +core +memory +trees +agents +calls +sockets$", text, re.MULTILINE)
    assert re.search(rf"^ *{server.process.pid} .* \d+ % +\d+ MiB +1 +1 +0 +0$", text, re.MULTILINE)
    assert text.count("All queues are empty.") == 1


@pytest.mark.nightly
def test_with_workers_each_is_shown_with_its_pool_and_one_that_is_stuck_is_named(folder: Path) -> None:
    (folder / "app.py").write_text(APP)
    with serving(folder, *POOLED) as server:
        call(server, "desk/a", "add", 1)
        heavy = call(server, "press/a", "process")

        text = said_by(folder, "top")
        os.kill(heavy, signal.SIGSTOP)
        stuck = said_by(folder, "top")
        os.kill(heavy, signal.SIGCONT)

    assert re.search(rf"^1 +heavy +{heavy} +\d+ s +0 +\d+ %", text, re.MULTILINE)
    assert "worker 1 does not answer: it is busy or restarting" in stuck
    assert re.search(rf"^1 +heavy +{heavy} +\d+ s +0 % +\d+ MiB *$", stuck, re.MULTILINE)
    assert re.search(r"^0 +\d+ +\d+ s +0 +\d+ %", stuck, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= COLUMNS


def test_in_a_terminal_it_is_renewed_and_outlives_the_server(folder: Path) -> None:
    with serving(folder) as server, terminal(folder, "top", "--every", "0.2") as screen:
        with server.connect("/agents/desk/a"):
            screen.until(lambda shown: shown.count("one process, 1 tree awake, 1 socket") >= 3)
        screen.until(lambda shown: "awake, 0 sockets" in shown)
        assert "Desk:a" in screen.shown

        server.stop()
        screen.until(lambda shown: "No server runs on the data folder" in shown and "Retrying." in shown)
        before = len(screen.shown)
        with serving(folder):
            screen.until(lambda shown: "one process, 0 trees awake" in shown[before:])


def test_where_no_server_runs_it_says_what_to_do(folder: Path) -> None:
    done = sapwood(folder, "top")

    assert done.returncode == 1
    assert done.stderr.startswith("error: There is no data folder 'sapwood-data'. Start a server with")


def test_of_a_server_that_does_not_answer_it_says_so_and_does_not_wait_for_ever(folder: Path) -> None:
    with serving(folder) as server:
        os.kill(server.process.pid, signal.SIGSTOP)
        done = sapwood(folder, "top")
        os.kill(server.process.pid, signal.SIGCONT)

    assert done.returncode == 1
    assert "did not answer within 5 seconds. An agent may be blocking its event loop" in done.stderr
