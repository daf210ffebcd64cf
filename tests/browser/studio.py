"""A studio, opened as its user does: with `sapwood dev` and the link that it prints."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

from tests.browser.serving import Example
from tests.machine import patience

APP = Path(__file__).with_name("studio_app.py")


class StudioServer(Example):
    """`sapwood dev`, with agents of all kinds."""

    def __init__(self, folder: Path, **environment: str) -> None:
        super().__init__("studio", folder, **environment)

    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--data", str(self._data), "--log-level", "info"]
        return [sys.executable, "-m", "sapwood", "dev", str(APP), *options]

    def link(self) -> str:
        """Return the link to the studio, as it is printed."""
        end = time.monotonic() + patience()
        while time.monotonic() < end:
            if found := re.findall(r"studio: (http://\S+)", self._log.read_text()):
                return found[-1]
            time.sleep(0.02)
        raise RuntimeError(f"No link to the studio: {self.log()}")

    def token(self) -> str:
        """Return the token of the data folder."""
        return json.loads((self._data / "operator.json").read_text())["token"]
