"""A studio, opened as its user does: with `sapwood dev` and the link that it prints."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

from tests.browser.serving import Example
from tests.machine import patience


class StudioServer(Example):
    """`sapwood dev`, with agents of all kinds."""

    app = Path(__file__).with_name("studio_app.py")

    def __init__(self, folder: Path, **environment: str) -> None:
        super().__init__("studio", folder, **environment)

    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--data", str(self._data), "--log-level", "info"]
        return [sys.executable, "-m", "sapwood", "dev", str(self.app), *options]

    def link(self, place: str = "") -> str:
        """Return the link to the studio, as it is printed; with a place, the link that leads there."""
        end = time.monotonic() + patience()
        while time.monotonic() < end:
            if found := re.findall(r"studio: (http://\S+)", self._log.read_text()):
                return found[-1] + (f"&at={quote(place, safe='')}" if place else "")
            time.sleep(0.02)
        raise RuntimeError(f"No link to the studio: {self.log()}")

    def token(self) -> str:
        """Return the token of the data folder."""
        return json.loads((self._data / "operator.json").read_text())["token"]

    @property
    def data(self) -> Path:
        """The data folder."""
        return self._data

    def call(self, address: str, method: str, *arguments: Any) -> None:
        """Call a method of an agent, and wait until it has returned."""
        for line in self.ask("call", address=address, method=method, arguments=arguments).splitlines():
            said = json.loads(line)
            assert "error" not in said, said

    def answer(self, endpoint: str, **params: Any) -> Any:
        """Return what an endpoint answers, which is JSON."""
        return json.loads(self.ask(endpoint, **params))

    def ask(self, endpoint: str, **params: Any) -> str:
        """Return what an endpoint of the admin API answers."""
        request = Request(
            f"{self.url}/_sapwood/{endpoint}",
            json.dumps(params).encode(),
            {"authorization": f"Bearer {self.token()}", "content-type": "application/json"},
        )
        with urlopen(request, timeout=patience()) as answer:
            return answer.read().decode()


class ServedStudio(StudioServer):
    """`sapwood serve --studio`: one process, which can be killed and started again with its data."""

    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--data", str(self._data), "--studio", "--grace", "3"]
        return [sys.executable, "-m", "sapwood", "serve", str(self.app), *options]

    def link(self, place: str = "") -> str:
        """Return a link with the token of this start."""
        return f"{self.url}/studio/#t={self.token()}" + (f"&at={quote(place, safe='')}" if place else "")


def events(answer: str) -> list[tuple[str, Any]]:
    """Return the events of a stream that has ended."""
    found = re.findall(r"^event: (\S+)\ndata: (.*)$", answer, re.MULTILINE)
    return [(name, json.loads(data)) for name, data in found]
