"""`upgrade`: replace the running server by one with the code that is installed now, without a gap."""

from __future__ import annotations

import json
import time
from pathlib import Path

from sapwood.cli import remote
from sapwood.cli.operator_file import FILE
from sapwood.cli.parameters import Data
from sapwood.cli.terminal import say
from sapwood.errors import Unavailable

LOOK = 0.05
PATIENCE = 60.0


def upgrade(*, data: Data = "sapwood-data") -> int:
    """Replace the running server by one with the code that is installed now.

    The new server imports the app while the old one still serves; then it takes over the listening socket, the
    connections and the data. If it cannot start, the old server continues, and the command exits with 1.
    """
    before = _start_of(data)
    answer = remote.ask(data, "upgrade")
    say(f"sapwood {answer['to']} is prepared and takes over from {answer['from']}.")
    end = time.monotonic() + PATIENCE
    while (now := _start_of(data)) == before and time.monotonic() < end:
        time.sleep(LOOK)
    if now == before:
        raise Unavailable(
            f"The new server has not taken over within {PATIENCE:.0f} seconds. See the log of the server. To cancel "
            f"the upgrade, end process {answer['pid']}, the new server: the old one then serves again."
        )
    session = remote.ask_soon(data, "session")
    if now[1] == before[1]:
        raise Unavailable("The new server could not start, and the old one serves again. See the log of the server.")
    say(f"Process {now[1]} serves with sapwood {session['version']}.")
    return 0


def _start_of(data: str) -> tuple[str, int]:
    """Return the id of the last start of the server, and its process."""
    try:
        found = json.loads((Path(data) / FILE).read_text())
        return found["start"], found["pid"]
    except (OSError, ValueError, KeyError):
        return "", 0
