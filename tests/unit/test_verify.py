"""Damage is found by every backup, verification and restore, told with its tree, and contained there."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.cases import slow
from tests.unit.stored_folder import NAMES, StoredBox, address, copy_of, deepest, fold, folder_of, make_folder

from sapwood import App, NotFound, Settings
from sapwood.admin.admin import Admin
from sapwood.cli.commands import cli
from sapwood.errors import SapwoodError, StoredDataError, UsageError
from sapwood.kernel.node.data_folder import roots_in
from sapwood.kernel.node.tree_check import LEFT_OUT, check_folder
from sapwood.runs.tables.decisions import DECISIONS, broken_chain
from sapwood.storage.engine import CHECKED
from sapwood.storage.file_reader import reading
from sapwood.storage.integrity import damage_in

GOOD = {"StoredBox:good", "StoredBox:other"}
ALL = {f"StoredBox:{name}" for name in NAMES}


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def foreign(path: Path) -> None:
    path.unlink()
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE t (x)")
    connection.close()


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def middle(path: Path) -> None:
    overwrite(path, 2 * 2048, b"\xa5" * (path.stat().st_size - 2 * 2048))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "deepest child missing": lambda tree: deepest(tree).unlink(),
    "header of the root": lambda tree: overwrite(tree / "root.db", 0, b"\xff" * 100),
    "middle of the root": lambda tree: middle(tree / "root.db"),
    "root cut in half": lambda tree: truncate(tree / "root.db"),
    "root missing": lambda tree: (tree / "root.db").unlink(),
    "root empty": lambda tree: os.truncate(tree / "root.db", 0),
    "root is a folder": lambda tree: to_folder(tree / "root.db"),
    "root is another database": lambda tree: foreign(tree / "root.db"),
    "header of the deepest child": lambda tree: overwrite(deepest(tree), 0, b"\xff" * 100),
    "middle of the deepest child": lambda tree: middle(deepest(tree)),
    "deepest child cut in half": lambda tree: truncate(deepest(tree)),
    "deepest child is a folder": lambda tree: to_folder(deepest(tree)),
}
each_damage = pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "data"
    make_folder(folder)
    make_folder(folder)  # from the second start on it has an index of alarms
    fold(folder)
    return folder


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    return copy_of(made, tmp_path / "data")


def command(*words: str) -> int:
    """Return the exit code of a command."""
    try:
        code = cli(words)
    except SapwoodError:
        return 1
    return code if isinstance(code, int) else 0


def listed(data: Path) -> set[str]:
    return {str(root) for root in roots_in(data)}


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@each_damage
@pytest.mark.parametrize("as_backup", [False, *slow([True])])
def test_verify_names_the_damaged_tree_and_changes_nothing(
    data: Path, damage: Callable[[Path], Any], as_backup: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if as_backup:
        (data / "lock").unlink()
    words = ["verify", str(data)] if as_backup else ["verify", "--data", str(data)]
    assert command(*words) == 0
    assert "3 trees are intact." in capsys.readouterr().out
    damage(folder_of(data, "bad"))
    before = content(data)

    assert command(*words) == 1

    said = capsys.readouterr()
    assert "2 trees are intact, 1 not." in said.out
    assert "StoredBox:bad is damaged. " in said.err
    assert not any(name in said.err for name in GOOD)
    assert content(data) == before


@each_damage
def test_verify_of_one_tree_tells_only_of_that_tree(data: Path, damage: Callable[[Path], Any]) -> None:
    damage(folder_of(data, "bad"))

    assert command("verify", str(data), "--tree", "StoredBox:bad") == 1
    assert command("verify", str(data), "--tree", "StoredBox:good") == 0
    with pytest.raises(NotFound, match="has no StoredBox:nobody"):
        cli(["verify", str(data), "--tree", "StoredBox:nobody"])


@pytest.fixture
def damaged(made: Path, tmp_path: Path) -> Path:
    """A data folder with a good tree, and one for each way to damage a tree."""
    data = tmp_path / "damaged"
    original = folder_of(made, "bad")
    for name in ("good", *DAMAGE):
        tree = copy_of(original, folder_of(data, name))
        (tree / "address").write_text(str(address(name)))
        if name in DAMAGE:
            DAMAGE[name](tree)
    shutil.copyfile(made / "alarms.db", data / "alarms.db")  # or a start would open every tree
    return data


@pytest.mark.slow
def test_a_backup_names_every_damaged_tree_and_copies_the_others_and_remembers_what_it_lacks(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("backup", str(tmp_path / "copy"), "--data", str(damaged)) == 1

    said = capsys.readouterr()
    assert "Copied 1 tree to" in said.out
    assert all(f"{address(name)} is damaged. " in said.err for name in DAMAGE)
    assert listed(tmp_path / "copy") == {"StoredBox:good"}
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [LEFT_OUT, "trees"]
    assert len(list((tmp_path / "copy" / "trees").iterdir())) == 1
    assert command("verify", str(tmp_path / "copy")) == 1
    assert "It was damaged when the backup was made, and is not in it." in capsys.readouterr().err


@pytest.mark.slow
def test_a_backup_of_one_damaged_tree_leaves_no_copy(data: Path, tmp_path: Path) -> None:
    overwrite(folder_of(data, "bad") / "root.db", 0, b"\xff" * 100)

    assert command("backup", str(tmp_path / "copy"), "StoredBox:bad", "--data", str(data)) == 1
    assert command("backup", str(tmp_path / "copy"), "StoredBox:good", "--data", str(data)) == 0

    assert listed(tmp_path / "copy") == {"StoredBox:good"}
    assert command("verify", str(tmp_path / "copy")) == 0


@pytest.mark.slow
async def test_a_running_app_backs_up_and_verifies_the_others(damaged: Path, tmp_path: Path) -> None:
    async with App(agents=[StoredBox], settings=Settings(data=damaged)) as running:
        await (await running.get_agent(StoredBox, "good")).put()
        with pytest.raises(StoredDataError, match="1 trees were copied to"):
            await running.backup(tmp_path / "copy")
        report = await Admin(running.node).verify()

    assert listed(tmp_path / "copy") == {"StoredBox:good"}
    assert report["trees"] == 1
    assert {one["root"] for one in report["damaged"]} == {str(address(name)) for name in DAMAGE}
    assert not [path for path in (damaged / "trees").iterdir() if path.suffix]  # no copy is left


def marked(data: Path) -> set[str]:
    """Return the trees that were not replaced since `mark`."""
    return {name for name in NAMES if (folder_of(data, name) / "mark").exists()}


def mark(data: Path) -> None:
    for name in NAMES:
        (folder_of(data, name) / "mark").touch()


@pytest.mark.slow
def test_a_restore_refuses_a_damaged_backup_or_skips_the_damaged_trees(
    damaged: Path, made: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark(data)
    with pytest.raises(StoredDataError, match=r"nothing was restored\. StoredBox:.* is damaged"):
        cli(["restore", str(damaged), "--data", str(data)])
    assert marked(data) == set(NAMES)

    assert command("restore", str(damaged), "--damaged", "skip", "--data", str(data)) == 0

    said = capsys.readouterr().err
    assert all(f"{address(name)} is damaged. " in said for name in DAMAGE)
    assert marked(data) == {"bad", "other"}


@pytest.mark.slow
@pytest.mark.parametrize("in_use", ["backup", "data"])
def test_a_restore_refuses_a_folder_that_another_process_uses(made: Path, data: Path, in_use: str) -> None:
    backup = copy_of(made, data.parent / "backup")
    mark(data)
    with (data.parent / in_use / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        with pytest.raises(UsageError, match=f"{in_use}' is in use by process"):
            cli(["restore", str(backup), "--data", str(data)])

    assert marked(data) == set(NAMES)
    assert command("restore", str(backup), "--data", str(data)) == 0
    assert marked(data) == set()


def test_a_restore_without_a_server_says_nothing_of_one(
    made: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("restore", str(copy_of(made, data.parent / "backup")), "--data", str(data)) == 0

    assert "kept running" not in capsys.readouterr().out


LOST: dict[str, Callable[[Path, Path], object]] = {
    "deleted": lambda file, older: file.unlink(),
    "emptied": lambda file, older: os.truncate(file, 0),
    "older copy": lambda file, older: shutil.copyfile(older, file),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", LOST)
def test_a_child_that_is_lost_or_replaced_in_a_backup_is_noticed(
    data: Path, tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    older, backup = tmp_path / "older", tmp_path / "backup"
    assert command("backup", str(older), "--data", str(data)) == 0
    make_folder(data)
    assert command("backup", str(backup), "--data", str(data)) == 0
    assert command("verify", str(backup)) == 0
    file = deepest(folder_of(backup, "bad"))
    capsys.readouterr()

    LOST[how](file, folder_of(older, "bad") / file.name)

    assert command("verify", str(backup)) == 1
    assert file.name in capsys.readouterr().err
    assert command("restore", str(backup), "--data", str(data)) == 1
    assert command("restore", str(backup), "--damaged", "skip", "--data", str(data)) == 0


@pytest.mark.slow
async def test_a_file_that_is_lost_between_a_restore_and_the_first_call_is_noticed(data: Path, tmp_path: Path) -> None:
    async with App(agents=[StoredBox], settings=Settings(data=data)) as running:
        await running.backup(tmp_path / "backup")
        await running.restore(tmp_path / "backup", StoredBox, "bad")
    deepest(folder_of(data, "bad")).unlink()

    async with App(agents=[StoredBox], settings=Settings(data=data)) as running:
        with pytest.raises(StoredDataError, match="missing"):
            await (await running.get_agent(StoredBox, "bad")).deep_count()
        assert await (await running.get_agent(StoredBox, "good")).deep_count() > 0


@pytest.mark.slow
def test_a_damaged_tree_is_restored_if_that_is_wanted(made: Path, data: Path) -> None:
    backup = copy_of(made, data.parent / "copy")
    overwrite(folder_of(backup, "bad") / "root.db", 0, b"\xff" * 100)
    mark(data)

    assert command("restore", str(backup), "StoredBox:bad", "--data", str(data)) == 1
    assert marked(data) == set(NAMES)
    assert command("restore", str(backup), "StoredBox:good", "--data", str(data)) == 0
    assert marked(data) == {"bad", "other"}
    assert command("restore", str(backup), "--damaged", "restore", "--data", str(data)) == 0

    assert marked(data) == set()
    assert (folder_of(data, "bad") / "root.db").read_bytes().startswith(b"\xff" * 100)


@pytest.mark.nightly
def test_a_restore_heals_a_damaged_tree(made: Path, data: Path) -> None:
    backup = copy_of(made, data.parent / "copy")
    for name, damage in DAMAGE.items():
        damage(folder_of(data, "bad"))
        assert command("verify", "--data", str(data)) == 1, name

        assert command("restore", str(backup), "StoredBox:bad", "--data", str(data)) == 0

        assert command("verify", "--data", str(data)) == 0, name


@pytest.mark.slow
async def test_the_data_folder_of_the_server_is_not_a_backup_of_it(data: Path) -> None:
    async with App(agents=[StoredBox], settings=Settings(data=data)) as running:
        with pytest.raises(UsageError, match="is the data folder of this server"):
            await running.restore(data)


@pytest.mark.slow
@pytest.mark.parametrize("has_data", [False, True])
def test_an_odd_entry_is_named_and_counts_only_if_it_has_data(
    data: Path, tmp_path: Path, has_data: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = folder_of(data, "bad") if has_data else data / "trees" / "stray"
    if has_data:
        (odd / "address").write_bytes(b"\xff")
    else:
        odd.write_text("notes")
    code = 1 if has_data else 0

    for words in (["verify", "--data", str(data)], ["backup", str(tmp_path / "copy"), "--data", str(data)]):
        assert command(*words) == code
        assert f"trees/{odd.name} " in capsys.readouterr().err
    assert listed(tmp_path / "copy") == (GOOD if has_data else ALL)
    assert command("verify", str(tmp_path / "copy")) == code
    assert command("restore", str(tmp_path / "copy"), "--data", str(data)) == code
    assert command("restore", str(tmp_path / "copy"), "--damaged", "skip", "--data", str(data)) == 0


@pytest.mark.slow
async def test_a_log_that_was_damaged_while_it_is_used_is_found(data: Path, tmp_path: Path) -> None:
    """The server has the right rows in memory; the disk has not, and the next start would lose them."""
    async with App(agents=[StoredBox], settings=Settings(data=data)) as running:
        for name in NAMES:
            await (await running.get_agent(StoredBox, name)).put()
        log = folder_of(data, "bad") / "root.db-wal"
        overwrite(log, log.stat().st_size // 2, b"\xff" * 64)

        report = await Admin(running.node).verify()
        with pytest.raises(StoredDataError, match="StoredBox:bad is damaged"):
            await running.backup(tmp_path / "copy")

    (damaged,) = report["damaged"]
    assert damaged["root"] == "StoredBox:bad"
    assert "frames, and only" in damaged["problems"][0]
    assert listed(tmp_path / "copy") == GOOD


def test_an_incomplete_backup_is_not_intact(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "unfinished").touch()

    assert command("verify", str(data)) == 1
    assert "The backup is incomplete: trees are missing." in capsys.readouterr().err


def test_a_list_of_missing_trees_that_cannot_be_read_is_damage(data: Path) -> None:
    (data / LEFT_OUT).write_text("{")

    assert not check_folder(data).is_whole


def test_a_folder_that_is_no_backup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a backup nor a data folder"):
        cli(["verify", str(tmp_path)])


def test_a_changed_decision_is_found(data: Path) -> None:
    path = deepest(folder_of(data, "bad"))
    connection = apsw.Connection(str(path), vfs=CHECKED)
    for script in DECISIONS.scripts:
        connection.execute(script.sql)
    connection.execute("INSERT INTO sapwood_migrations VALUES (?, 1, x'00')", (DECISIONS.owner,))
    connection.execute(
        "INSERT INTO sapwood_decisions (kind, question, tool, digest, shown, channel, at, previous, hash)"
        " VALUES ('approved', 'q', 'pay', 'd', '{}', 'http', 1.0, '', 'forged')"
    )
    connection.close()

    with reading(path) as file:
        said = f"Decision 1 in the database {path.name} was changed, or one before it was removed."
        assert list(broken_chain(file)) == [said]
    assert command("verify", "--data", str(data)) == 1
    assert damage_in(path.parent) == []  # the database itself is whole


# Retention


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each backup a time of its own."""
    numbers = iter(range(100))
    monkeypatch.setattr(
        "sapwood.cli.rotation.next_backup", lambda folder: folder / f"2026-01-01T0000{next(numbers):02}Z"
    )


def numbers(backups: Path) -> list[int]:
    return sorted(int(path.name[-3:-1]) for path in backups.iterdir() if path.name.endswith("Z"))


@pytest.mark.slow
def test_old_backups_are_removed(data: Path, tmp_path: Path, times: None) -> None:
    backups = tmp_path / "backups"
    for _ in range(3):
        assert command("backup", str(backups), "--keep", "2", "--data", str(data)) == 0

    assert numbers(backups) == [1, 2]
    assert command("verify", str(backups / "2026-01-01T000002Z")) == 0


@pytest.mark.slow
@pytest.mark.parametrize("odd", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_the_last_intact_copy_of_a_damaged_tree_is_never_removed(
    data: Path, tmp_path: Path, times: None, odd: bool
) -> None:
    backups = tmp_path / "backups"
    for _ in range(2):
        command("backup", str(backups), "--keep", "2", "--data", str(data))
    if odd:
        (folder_of(data, "bad") / "address").write_bytes(b"\xff")
    else:
        overwrite(folder_of(data, "bad") / "root.db", 0, b"\xff" * 100)
    for _ in range(3):
        assert command("backup", str(backups), "--keep", "2", "--data", str(data)) == 1
    assert numbers(backups) == [1, 3, 4]

    copied = backups / "2026-01-01T000001Z"
    overwrite(folder_of(copied, "good") / "root.db", 0, b"\xff" * 100)  # another tree: this copy still counts
    command("backup", str(backups), "--keep", "2", "--data", str(data))
    assert numbers(backups) == [1, 4, 5]
    command("restore", str(copied), "StoredBox:bad", "--data", str(data))
    for _ in range(2):
        assert command("backup", str(backups), "--keep", "2", "--data", str(data)) == 0
    assert numbers(backups) == [6, 7]


@pytest.mark.nightly
def test_a_copy_that_is_damaged_itself_does_not_count(data: Path, tmp_path: Path, times: None) -> None:
    backups = tmp_path / "backups"
    for _ in range(2):
        command("backup", str(backups), "--keep", "3", "--data", str(data))
    for folder in (data, backups / "2026-01-01T000001Z"):
        overwrite(folder_of(folder, "bad") / "root.db", 0, b"\xff" * 100)
    for _ in range(3):
        command("backup", str(backups), "--keep", "1", "--data", str(data))

    assert numbers(backups) == [0, 4]


@pytest.mark.slow
def test_a_backup_without_trees_removes_none(data: Path, tmp_path: Path, times: None) -> None:
    backups, empty = tmp_path / "backups", tmp_path / "empty"
    command("backup", str(backups), "--keep", "1", "--data", str(data))
    (empty / "trees").mkdir(parents=True)

    command("backup", str(backups), "--keep", "1", "--data", str(empty))

    assert numbers(backups) == [0, 1]


@pytest.mark.parametrize("words", [["--keep", "0"], ["StoredBox:good", "--keep", "1"]])
def test_a_retention_that_makes_no_sense_is_refused(data: Path, tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(UsageError, match="--keep"):
        cli(["backup", str(tmp_path / "copy"), *words, "--data", str(data)])
    assert not (tmp_path / "copy").exists()
