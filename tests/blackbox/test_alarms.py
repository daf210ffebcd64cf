"""The index of due trees, `alarms.db`, is derived: without it, or with a damaged one, every schedule still comes.

The trees sleep: no client calls them after the damage. `sapwood sql` reads their databases without waking them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import apsw
import pytest
from tests.blackbox import folder as files
from tests.blackbox.client import call
from tests.blackbox.events import wait_until
from tests.blackbox.folder import DataFolder, wal_of
from tests.blackbox.server import Server

from sapwood.storage.engine import CHECKED

ROOTS = ("first", "second")
DELAY = 4.0
"""Seconds until the schedules are due: the next server has to be there before."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Server, None]:
    started = Server(tmp_path)
    await started.start_beside()
    yield started
    started.kill()


def damage_header(alarms: Path) -> None:
    files.remove_sides(alarms)
    files.damage_header(alarms)


def damage_log(alarms: Path) -> None:
    files.overwrite(wal_of(alarms), 0, wal_of(alarms).stat().st_size)


def forget_rows(alarms: Path) -> None:
    connection = apsw.Connection(str(alarms), vfs=CHECKED)
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
    for (name,) in tables.fetchall():
        connection.execute(f'DELETE FROM "{name}"')
    connection.close()


def remove_with_mark(alarms: Path) -> None:
    files.remove(alarms)
    (alarms.parent / "stopped").unlink(missing_ok=True)


DAMAGES = [
    pytest.param(damage_header, id="header"),
    pytest.param(files.remove, id="removed", marks=pytest.mark.nightly),
    pytest.param(files.empty, id="empty", marks=pytest.mark.nightly),
    pytest.param(files.zero, id="zeroed", marks=pytest.mark.nightly),
    pytest.param(files.cut_in_half, id="cut-in-half", marks=pytest.mark.nightly),
    pytest.param(files.remove_sides, id="log-removed", marks=pytest.mark.nightly),
    pytest.param(damage_log, id="log-damaged", marks=pytest.mark.nightly),
    pytest.param(forget_rows, id="rows-removed", marks=pytest.mark.nightly),
    pytest.param(remove_with_mark, id="removed-with-mark", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("end", ["kill", pytest.param("stop", marks=pytest.mark.nightly)])
async def test_every_schedule_comes_without_its_index(damage: Callable[[Path], None], end: str, server: Server) -> None:
    for root in ROOTS:
        await call(server, root, "ring_later", f"ring-{root}", DELAY, False)
    await asyncio.to_thread(server.kill if end == "kill" else server.stop)
    damage(DataFolder(server.data).alarms)
    await server.start_beside()
    for root in ROOTS:
        await wait_until(lambda root=root: rings(server, root) == 1, f"the schedule of {root} comes")


def rings(server: Server, root: str) -> int:
    found = server.command("sql", f"Root:{root}", "SELECT count(*) AS rings FROM rings", "--json")
    assert found.returncode == 0, found.stderr
    ((count,),) = [row.values() for row in json.loads(found.stdout)]
    return count
