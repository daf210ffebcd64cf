"""A disk that fills up under load, and a server that is killed and started on it: nothing is lost, and it is told.

One scenario for each level of durability; the tests look at what was seen in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2 as httpx
import pytest
from tests.blackbox.checker import Checker
from tests.blackbox.events import wait_until
from tests.blackbox.server import Server
from tests.blackbox.workload import Workload
from tests.machine import patience

pytestmark = [pytest.mark.nightly, pytest.mark.needs("mount")]
SIZE = "300m"
CHUNK = bytes(256 * 1024)
ENOUGH = 100
"""Calls to wait for, before the disk is full and after there is room again."""


@dataclass
class Seen:
    """What was seen in the scenario."""

    readiness: httpx.Response
    existing: httpx.Response
    """The response to a write to an agent that exists."""
    new: httpx.Response
    """The response to a write to a new agent."""
    exit_code_on_full_disk: int | None
    """The exit code of a server that was started on the full disk; `None` if it started."""
    log_on_full_disk: str
    violations: list[str]
    troubles: list[str]


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_up(file: Path) -> None:
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as opened:
        while opened.write(CHUNK):
            pass


@pytest.fixture(scope="module", params=["process", "disk"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Seen, None, None]:
    home = tmp_path_factory.mktemp("full")
    with small_disk(home / "disk") as disk:
        variables = {"SAPWOOD_DURABILITY": request.param, "SAPWOOD_SLEEP_AFTER": "2"}
        server = Server(home, data=disk / "data", variables=variables)
        try:
            yield asyncio.run(fill_and_free(server, disk / "ballast"))
        finally:
            server.kill()


async def fill_and_free(server: Server, ballast: Path) -> Seen:
    workload = Workload([server.url], seed=1)
    history = workload.history
    await server.start_beside()
    workload.start()
    await wait_until(lambda: history.answered.total() > ENOUGH, "the workload writes")
    await asyncio.to_thread(fill_up, ballast)
    async with httpx.AsyncClient(base_url=server.url, timeout=patience(10.0)) as client:

        async def write(root: str) -> httpx.Response:
            return await client.post(f"/agents/root/{root}", json={"id": "on-a-full-disk"})

        async def is_refused() -> bool:
            return (await write("full")).status_code != 200

        await wait_until(is_refused, "a write is refused")
        existing, new, readiness = await write("full"), await write("newcomer"), await client.get("/readyz")
    assert server.exit_code is None
    server.kill()
    before = len(server.log())
    server.launch()
    is_ready = await asyncio.to_thread(server.wait_until_ready)
    exit_code, log = server.exit_code, server.log()[before:]
    await asyncio.to_thread(ballast.unlink)
    if not is_ready:
        await server.start_beside()
    answered = history.answered.total()
    await wait_until(lambda: history.answered.total() > answered + ENOUGH, "the workload writes again")
    await workload.stop()
    violations = await Checker(workload, server.effects).check()
    server.kill()
    return Seen(readiness, existing, new, exit_code, log, violations, server.troubles())


def test_nothing_acknowledged_is_lost(seen: Seen) -> None:
    assert [violation for violation in seen.violations if " ended as " not in violation] == []


def test_runs_and_fibers_wait_for_room(seen: Seen) -> None:
    assert [violation for violation in seen.violations if " ended as " in violation] == []


def test_the_server_is_not_ready_and_says_why(seen: Seen) -> None:
    assert seen.readiness.status_code == 503
    assert "disk" in seen.readiness.text


def test_clients_are_told_to_retry_later(seen: Seen) -> None:
    for response in (seen.existing, seen.new):
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0


def test_a_server_that_cannot_start_says_why(seen: Seen) -> None:
    assert seen.exit_code_on_full_disk in (None, 3)
    assert "Traceback" not in seen.log_on_full_disk


def test_the_log_has_a_line_for_each_cause(seen: Seen) -> None:
    assert len(seen.troubles) < 60, seen.troubles[:60]
