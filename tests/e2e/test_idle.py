"""A server in which nothing happens leaves the machine alone."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
from tests.e2e.command import serving

APP = """
from sapwood import Agent, App


class Quiet(Agent):
    pass


app = App(agents=[Quiet])
"""
SECONDS = 5.0


def wakes(process: int) -> int:
    """Return how often the threads of a process have woken up by themselves."""
    told = "".join(path.read_text() for path in Path(f"/proc/{process}/task").glob("*/status"))
    return sum(map(int, re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", told, re.MULTILINE)))


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel counts it in /proc")
@pytest.mark.realtime("how often a process wakes is a rate")
def test_an_idle_server_wakes_about_fifty_times_a_second(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving(tmp_path, "serve", "app:app", "--studio") as server:
        time.sleep(1)
        before, start = wakes(server.process.pid), time.monotonic()
        time.sleep(SECONDS)

        assert (wakes(server.process.pid) - before) / (time.monotonic() - start) < 75
