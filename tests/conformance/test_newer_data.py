"""Data that a newer release of sapwood has opened: an older one tells the operator, and changes nothing."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from pathlib import Path

import apsw
import pytest
from tests import loops

from sapwood import After, Agent, App
from sapwood.cli import deployment_check, doctor
from sapwood.errors import MigrationFailed
from sapwood.kernel.node.release_record import FILE
from sapwood.kernel.node.tree_check import check_folder
from sapwood.storage.engine import CHECKED
from sapwood.storage.marks import MARKS
from sapwood.storage.migrations import framework
from sapwood.testing import running

NEWER = ("fibers", "labels")
"""A part of which a newer release has one migration more, and one that only a newer release has."""


class Leaf(Agent):
    """Stores something, so that it has a database."""

    async def grow(self) -> None:
        await (await self.sub_agent(Leaf, "below")).write()

    async def write(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS notes (text TEXT)")
        self.sql("INSERT INTO notes VALUES ('kept')")

    async def write_later(self) -> None:
        self.schedule(After(LATER), self.write)

    async def notes(self) -> int:
        return self.sql("SELECT count(*) FROM notes").scalar(int)


LATER = timedelta(days=1)
APP = App(agents=[Leaf])


async def fill(data: Path) -> None:
    async with running(APP, data=data) as world:
        for name in ("old", "new"):
            await (await world.get_agent(Leaf, name)).grow()


def newer_record(sapwood: str = "0.9.0") -> str:
    return json.dumps({"sapwood": sapwood, "migrations": {**framework(), "fibers": 99, "labels": 1}})


@pytest.fixture(params=NEWER)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A data folder in which a newer release has opened one of two trees."""
    folder = tmp_path / "data"
    loops.play(fill(folder))
    (label,) = (path for path in folder.glob("trees/*/address") if path.read_text() == "Leaf:new")
    connection = apsw.Connection(str(label.with_name("root.db")), vfs=CHECKED)
    connection.execute("INSERT INTO sapwood_migrations VALUES (?, 99, x'00')", (request.param,))
    connection.close()
    label.with_name(MARKS).unlink()
    (folder / FILE).write_text(newer_record())
    return folder


def test_the_check_before_an_upgrade_names_the_trees_that_a_newer_release_has_migrated(data: Path) -> None:
    (found,) = deployment_check.examine(data, APP).misfits

    assert found.agent == "Leaf:new"
    assert found.why.startswith("This database was written by a newer version of sapwood: it has ")
    assert found.remedy == "Run the newer version, or restore a backup that was made before the upgrade."


def test_a_verification_names_the_trees_that_a_newer_release_has_migrated(data: Path) -> None:
    report = check_folder(data)

    assert report.trees == 1
    (tree,) = report.damaged
    assert tree.root == "Leaf:new"
    assert "root.db: this database was written by a newer version of sapwood" in str(tree)


def test_doctor_names_the_newer_release(data: Path) -> None:
    (found,) = (one for one in doctor.examine(data) if one.what == "release of its data")

    assert found.found.startswith("sapwood 0.9.0 has opened it, with migrations that this version lacks: fibers 99, ")
    assert found.remedy is not None
    assert "restore a backup that was made before the upgrade" in found.remedy


async def test_the_server_tells_it_at_its_start_and_refuses_only_what_was_migrated(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with running(APP, data=data) as world:
            (told,) = (one.getMessage() for one in caplog.records)
            assert told.startswith("data folder is newer than this server: sapwood 0.9.0 has opened it, ")
            with pytest.raises(MigrationFailed, match="written by a newer version of sapwood"):
                await (await world.get_agent(Leaf, "new")).write()
            await (await world.get_agent(Leaf, "old")).write()

    assert (data / FILE).read_text() == newer_record()


async def test_an_index_of_alarms_that_a_newer_release_has_written_is_rebuilt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(APP, data=tmp_path) as world:
        await (await world.get_agent(Leaf, "old")).write_later()
    connection = apsw.Connection(str(tmp_path / "alarms.db"), vfs=CHECKED)
    connection.execute(
        "ALTER TABLE sapwood_node_alarms RENAME COLUMN due_at TO other;"
        "ALTER TABLE sapwood_node_alarms ADD COLUMN due_at REAL;"
        "INSERT INTO sapwood_migrations VALUES ('node', 99, x'00')"
    )
    connection.close()
    (tmp_path / "alarms.marks").unlink()

    async with running(APP, data=tmp_path) as world:
        await world.clock.advance(LATER)
        assert await (await world.get_agent(Leaf, "old")).notes() == 1

    assert "alarm index cannot be used; rebuilding it from the trees: a newer version" in caplog.text


def left_of_record(data: Path) -> list[str]:
    return [path.name for path in data.glob(f"{FILE}*")]


async def test_a_release_records_its_migrations_and_a_damaged_record_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for damaged in ("", "{", '{"sapwood": 1}', json.dumps({"sapwood": "0.0.1", "migrations": {}})):
        (tmp_path / FILE).write_text(damaged)
        async with running(APP, data=tmp_path):
            pass

        assert json.loads((tmp_path / FILE).read_text())["migrations"] == framework()
    assert not caplog.records
    assert left_of_record(tmp_path) == [FILE]
