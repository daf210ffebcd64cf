"""An example, served as its README says, in a process that can be killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.request import urlopen

from tests.machine import patience
from tests.servers import Server

from sapwood.cli.remote import ask

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SLOW = "0.15"
"""Seconds per word, with which the fastest helper of an example has something to do for seconds."""


class Example(Server):
    """A running example. Killed and started again, it has the same port and the same data."""

    def __init__(self, name: str, folder: Path, **environment: str) -> None:
        self._app = EXAMPLES / name / "app.py"
        self.crashes = 0
        super().__init__(folder, folder / "data", **environment)

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--data", str(self._data), "--grace", "3", "--log-level", "warning"]
        return [sys.executable, "-m", "sapwood", "serve", str(self._app), *options]

    def get(self, path: str) -> Any:
        """Return what is answered at a path."""
        with urlopen(self.url + path, timeout=patience()) as answer:
            return json.load(answer)

    def rows(self, address: str, sql: str) -> list[list[Any]]:
        """Return what an agent has stored, as `sapwood sql` would."""
        return ask(str(self._data), "sql", address=address, sql=sql)["rows"]

    def terminal(self, *words: str) -> str:
        """Return what the command line says to somebody at the same machine."""
        command = [sys.executable, "-m", "sapwood", *words, "--data", str(self._data)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience(), check=False)
        return done.stdout + done.stderr

    def crash(self, **environment: str) -> None:
        """Kill the process where it stands, and start another, which is told this too."""
        with self.away():
            self.told |= environment

    @contextmanager
    def away(self) -> Iterator[None]:
        """Kill the process where it stands, and start another after the block."""
        self.crashes += 1
        self.end(signal.SIGKILL)
        try:
            yield
        finally:
            self.start()


class Accident:
    """What may happen in the middle of a flow: nothing, or the server is killed. The flow has to end the same.

    A page comes back within two seconds of a server: where somebody then has to press something while the others are
    still at work, the next process works more slowly, until the test is over.
    """

    def __init__(self, kind: Literal["calm", "killed"], example: Example) -> None:
        self._kind = kind
        self._example = example
        self._usual: dict[str, str] = {}
        self.has_happened = False

    @property
    def is_calm(self) -> bool:
        """Whether it is nothing that happens."""
        return self._kind == "calm"

    def now(self, *, slowly: bool = False) -> None:
        self.has_happened = True
        if self._kind == "killed":
            self._usual = {"PAUSE": self._example.told["PAUSE"]} if slowly else {}
            self._example.crash(**dict.fromkeys(self._usual, SLOW))

    def is_over(self) -> None:
        """Let the next test find a server of the usual pace."""
        if self._usual:
            self._example.crash(**self._usual)
