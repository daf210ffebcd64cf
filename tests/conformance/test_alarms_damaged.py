"""The index of alarms is derived: whatever happens to its file, it is made again, and every alarm fires."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import apsw
import pytest
from tests.cases import slow
from tests.conformance.planners import NAMES, Planner, planner
from tests.conformance.worlds import Probe, Run

from sapwood.kernel.alarms.node_index import remove_index
from sapwood.storage.engine import CHECKED
from sapwood.storage.files import Files
from sapwood.testing import World

TREES = ("a", "b", "c")
REBUILT = "rebuilding it from"


def indexes(world: World) -> list[Path]:
    return sorted(path for path in world.data.glob("alarms*") if path.suffix == ".db")


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def remove(path: Path) -> None:
    for file in (path, log_of(path)):
        file.unlink(missing_ok=True)


def empty(path: Path) -> None:
    remove(path)
    path.touch()


def text(path: Path) -> None:
    remove(path)
    path.write_text("not a database " * 1000)


def header(path: Path) -> None:
    content = bytearray(path.read_bytes())
    remove(path)
    content[:100] = bytes(100)
    path.write_bytes(content)


def folder(path: Path) -> None:
    remove(path)
    (path / "more").mkdir(parents=True)


def folder_for_log(path: Path) -> None:
    remove(path)
    log_of(path).mkdir()


def other_database(path: Path) -> None:
    remove(path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE sapwood_node_alarms (colour TEXT)")


def other_tables(path: Path) -> None:
    """Its tables are not those that it says it has."""
    with closing(apsw.Connection(str(path), vfs=CHECKED)) as database, database:
        database.execute("DROP TABLE IF EXISTS sapwood_node_alarms")
        database.execute("CREATE TABLE sapwood_node_alarms (colour TEXT)")


def other_entries(path: Path) -> None:
    with closing(apsw.Connection(str(path), vfs=CHECKED)) as database, database:
        database.execute("UPDATE sapwood_node_alarms SET root = 'nothing', due_at = 0 WHERE root = 'Planner:a'")


def log_alone(path: Path) -> None:
    """The file is gone, and its log is there."""
    path.unlink()


DAMAGE = (
    remove,
    empty,
    text,
    header,
    folder,
    folder_for_log,
    other_database,
    other_tables,
    other_entries,
    log_alone,
)


async def plan(world: World) -> None:
    """Have three trees do something in ten seconds: the root, a child, and a grandchild."""
    for depth, name in enumerate(TREES):
        await (await planner(world, depth, name=name)).after(10, f"of {name}")


def done(probe: Probe) -> list[str]:
    return sorted(entry for entry in probe.log if " of " in entry)


EXPECTED = sorted(f"{('a', *NAMES)[depth]}: of {name}" for depth, name in enumerate(TREES))


@pytest.mark.promise("CF-187")
@pytest.mark.parametrize("stop", ["killed", *slow(["stopped"])])
@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_start_rebuilds_a_damaged_index_and_says_so_once(
    run: Run, probe: Probe, damage: Callable[[Path], None], stop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with run(Planner, deps=probe) as world:
        await plan(world)
        if stop == "killed":
            await world.node.die()
        await world.app.__aexit__()
        for path in indexes(world):
            damage(path)
        caplog.set_level("INFO")
        caplog.clear()

        await world.start()
        await world.clock.advance(timedelta(seconds=10))

        assert done(probe) == EXPECTED
        assert len([record for record in caplog.records if REBUILT in record.message]) == 1
        assert not [record for record in caplog.records if record.exc_info]
        assert world.node.alarms.is_whole
        await world.restart()
        assert len([record for record in caplog.records if REBUILT in record.message]) == 1


def older_copy(path: Path, older: dict[str, bytes]) -> None:
    remove(path)
    for file in (path, log_of(path)):
        if file.name in older:
            file.write_bytes(older[file.name])


def cut_log(path: Path, older: dict[str, bytes]) -> None:
    """The end of the log is gone."""
    log = log_of(path)
    log.write_bytes(log.read_bytes()[: len(older[log.name])])


def bit_in_log(path: Path, older: dict[str, bytes]) -> None:
    """Behind the first entries, one bit of the log is another."""
    log = log_of(path)
    content = bytearray(log.read_bytes())
    content[(len(older[log.name]) + len(content)) // 2] ^= 1
    log.write_bytes(content)


@pytest.mark.parametrize(
    ("stop", "damage"),
    [("stopped", older_copy), ("killed", older_copy), ("killed", cut_log), ("killed", bit_in_log)],
)
async def test_an_index_that_lost_its_last_entries_is_rebuilt(
    run: Run, probe: Probe, damage: Callable[[Path, dict[str, bytes]], None], stop: str
) -> None:
    async with run(Planner, deps=probe) as world:
        await (await planner(world, name="early")).after(1000, "of early")
        await asyncio.sleep(6)  # until it is marked
        older = {path.name: path.read_bytes() for path in world.data.glob("alarms*.db*")}
        await plan(world)
        await asyncio.sleep(6)
        if stop == "killed":
            await world.node.die()
        await world.app.__aexit__()
        for path in indexes(world):
            damage(path, older)

        await world.start()
        await world.clock.advance(timedelta(seconds=10))

        assert done(probe) == EXPECTED


@pytest.mark.promise("CF-187")
@pytest.mark.parametrize("first", ["an alarm rings", "an alarm is set", "the operator asks"])
async def test_an_index_that_is_damaged_while_it_is_used_is_rebuilt(
    run: Run, probe: Probe, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with run(Planner, deps=probe) as world:
        await plan(world)
        database = world.node.alarms.database
        database.execute("PRAGMA shrink_memory")  # what is read next is read from the file
        for path in (database.path, database.wal):
            with path.open("r+b") as file:
                file.write(b"\xff" * path.stat().st_size)
        caplog.clear()

        if first == "an alarm is set":
            await (await planner(world, name="d")).after(5, "of d")
        elif first == "the operator asks":
            assert world.node.alarms.with_dead_letters() == []
        await world.clock.advance(timedelta(seconds=10))

        assert done(probe) == sorted([*EXPECTED, *(["d: of d"] if first == "an alarm is set" else [])])
        assert len([record for record in caplog.records if REBUILT in record.message]) == 1
        assert not [record for record in caplog.records if record.exc_info]
        await world.crash()
        await (await planner(world, name="a")).after(5, "of a again")
        await world.clock.advance(timedelta(seconds=5))
        assert "a: of a again" in probe.log


@pytest.mark.nightly
@pytest.mark.slow
async def test_an_index_that_another_process_uses_is_not_taken_for_damaged(run: Run, probe: Probe) -> None:
    async with run(Planner, deps=probe) as world:
        await plan(world)
        (path,) = indexes(world)
        before = path.stat().st_ino
        (world.data / "lock").unlink()
        with pytest.raises(Exception, match="is locked by another process"):
            await second_start(world)

        assert path.stat().st_ino == before
        (world.data / "stopped").unlink()


async def second_start(world: World) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sapwood", "tree", "--data", str(world.data), stderr=asyncio.subprocess.PIPE
    )
    _, error = await process.communicate()
    if process.returncode:
        raise RuntimeError(error.decode())


class Cut(Files):
    """The file system of a process that dies after so many removals."""

    def __init__(self, removals: int) -> None:
        self.left = removals

    def remove(self, path: Path) -> None:
        if not self.left:
            raise ConnectionAbortedError
        self.left -= 1
        super().remove(path)


@pytest.mark.parametrize("removals", range(4))
def test_a_removal_that_a_crash_cuts_short_leaves_all_of_an_index_or_no_database(tmp_path: Path, removals: int) -> None:
    path = tmp_path / "alarms.db"
    files = [path, log_of(path), path.with_name("alarms.db-shm"), path.with_suffix(".marks")]
    for file in files:
        file.touch()

    with pytest.raises(ConnectionAbortedError):
        remove_index(path, Cut(removals))

    assert not path.exists() or all(file.exists() for file in files)
