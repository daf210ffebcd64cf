"""A program that an agent starts may outlive the server: it inherits neither the port nor the data folder's lock."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command import serving

APP = """
from sapwood import Agent, App

class Starter(Agent):
    pass

app = App(agents=[Starter])
"""
CLOSED_ON_EXEC = 0o2000000


def below(process: int) -> Iterator[int]:
    """Yield a process and all that it has started."""
    yield process
    for stat in Path("/proc").glob("[0-9]*/stat"):
        if int(stat.read_text().rpartition(")")[2].split()[1]) == process:
            yield from below(int(stat.parent.name))


def listening(port: int) -> str:
    """Return how a file descriptor of the socket that listens on a port is shown."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[1].endswith(f":{port:04X}") and words[3] == "0A":
            return f"socket:[{words[9]}]"
    raise AssertionError(f"No socket listens on port {port}.")


def flags_of(process: int, held: set[str]) -> Iterator[int]:
    """Yield the flags with which a process has these files open."""
    for link in Path(f"/proc/{process}/fd").iterdir():
        if str(link.readlink()) in held:
            text = Path(f"/proc/{process}/fdinfo/{link.name}").read_text()
            found = re.search(r"flags:\s*(\d+)", text)
            assert found is not None
            yield int(found[1], 8)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("serve", "app:app"), id="one process"),
        pytest.param(("serve", "app:app", "--workers", "2"), id="two workers"),
        pytest.param(("dev", "app:app"), id="dev", marks=pytest.mark.nightly),
    ],
)
def test_a_program_that_an_agent_starts_holds_neither_the_port_nor_the_data(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving(tmp_path, *command) as server:
        held = {listening(server.port), str(tmp_path / "sapwood-data/lock")}
        flags = [one for process in below(server.process.pid) for one in flags_of(process, held)]
        server.stop()

    assert len(flags) >= 2
    assert [one for one in flags if not one & CLOSED_ON_EXEC] == []
