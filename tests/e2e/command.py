"""The real command line, in processes of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.machine import patience
from websockets.sync.client import ClientConnection, connect

COMMAND = [sys.executable, "-m", "sapwood"]
PATIENCE = patience()
P = TypeVar("P", bound="Process")
T = TypeVar("T")
SERVE_BY_TWO = """
import sys

from sapwood.cli.serve_options import ServeOptions
from sapwood.cli.server_process import serve
from sapwood.timings import Timings

timings = Timings(worker_silence_timeout=float(sys.argv[1]), worker_answer_timeout=float(sys.argv[2]))
serve(ServeOptions("app:app", "127.0.0.1", 0, grace=5.0, workers=2, timings=timings))
"""
RUNNING = re.compile(r"running at http://[^:]+:(\d+)")


class Process:
    """A command that goes on until it is stopped, and what it says."""

    command: Sequence[str] = COMMAND

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [*self.command, *arguments],
            cwd=folder,
            env={**os.environ, "SAPWOOD_PORT": "0", **variables},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self._heard = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._heard:
                self.said.append(line)
                self._heard.notify_all()
        self.process.stderr.close()

    def wait_for(self, pattern: re.Pattern[str], after: int = 0) -> re.Match[str]:
        """Return once a line of its log fits."""
        until = time.monotonic() + PATIENCE
        with self._heard:
            while True:
                for line in self.said[after:]:
                    if found := pattern.search(line):
                        return found
                assert self._heard.wait(until - time.monotonic()), "".join(self.said)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


class Server(Process):
    """A server in a process of its own."""

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        super().__init__(folder, *arguments, **variables)
        try:
            self.port = int(self.wait_for(RUNNING)[1])
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def connect(self, path: str, **more: Any) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{self.port}{path}", compression=None, **more)

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    @property
    def token(self) -> str:
        """The token of its data folder."""
        return json.loads((self.folder / "sapwood-data/operator.json").read_text())["token"]

    def post(self, endpoint: str, token: str | None = None, /, **params: Any) -> tuple[int, str]:
        """Return the status and the answer of an endpoint of the admin API."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            head = {"authorization": f"Bearer {token or self.token}"}
            connection.request("POST", f"/_sapwood/{endpoint}", json.dumps(params), head)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


class TwoWorkers(Server):
    """As `sapwood serve app:app --workers 2`, with a timeout of its own for silent workers."""

    command = (sys.executable, "-c", SERVE_BY_TWO)


@contextmanager
def serving(folder: Path, *arguments: str, **variables: str) -> Iterator[Server]:
    with _ended(Server(folder, *(arguments or ("serve", "app:app", "--access-log")), **variables)) as server:
        yield server


@contextmanager
def serving_by_two(folder: Path, *, silence: float, answer: float = 5.0) -> Iterator[Server]:
    """Serve by two workers.

    One that is silent for `silence` seconds beyond `fatal_after`, and does not `answer` in time, is killed.
    """
    with _ended(TwoWorkers(folder, str(silence), str(answer))) as server:
        yield server


@contextmanager
def going_on(folder: Path, *arguments: str, **variables: str) -> Iterator[Process]:
    """Run a command that does not end by itself."""
    with _ended(Process(folder, *arguments, **variables)) as process:
        yield process


@contextmanager
def _ended(process: P) -> Iterator[P]:
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.process.kill()
            process.process.wait(PATIENCE)


def sapwood(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def until(found: Callable[[], T]) -> T:
    """Ask again until there is an answer: nothing tells a test what another process has done."""
    end = time.monotonic() + PATIENCE
    while not (value := found()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return value


def said_by(folder: Path, *arguments: str) -> str:
    done = sapwood(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
