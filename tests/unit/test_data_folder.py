"""One odd entry in a data folder harms nothing else: every tool names it, and continues with the rest."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.unit.stored_folder import NAMES, StoredBox, address, copy_of, deepest, fold, folder_of, make_folder

from sapwood import App, Settings
from sapwood.cli.commands import cli
from sapwood.errors import StoredDataError
from sapwood.kernel.node.data_folder import OddEntry, entries, odd_in, roots_in

GOOD = ("good", "other")


class Odd(NamedTuple):
    """An entry that is not as sapwood wrote it."""

    make: Callable[[Path], Path]
    """Makes it in a data folder, and returns its path."""
    says: str
    """What the tools say of it."""
    has_data: bool
    lists_bad: bool
    """Whether the tree `bad` is listed all the same."""


def stray_file(data: Path, name: str = "stray") -> Path:
    path = data / "trees" / name
    path.write_text("notes")
    return path


def stray_folder(data: Path) -> Path:
    path = data / "trees" / "old"
    path.mkdir()
    (path / "notes").write_text("notes")
    return path


def copied_tree(data: Path) -> Path:
    return copy_of(folder_of(data, "bad"), data / "trees" / "copy of bad")


def file_for_tree(data: Path) -> Path:
    path = folder_of(data, "bad")
    shutil.rmtree(path)
    path.write_text("notes")
    return path


def label(content: bytes | None) -> Callable[[Path], Path]:
    def make(data: Path) -> Path:
        path = folder_of(data, "bad") / "address"
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        return path.parent

    return make


def folder_for_label(data: Path) -> Path:
    path = label(None)(data)
    (path / "address" / "more").mkdir(parents=True)
    return path


ODD = {
    "stray file": Odd(stray_file, "is not a folder", False, True),
    "stray file with a suffix": Odd(lambda data: stray_file(data, "stray.removed.txt"), "is not a folder", False, True),
    "stray folder": Odd(stray_folder, "it has no databases", False, True),
    "copy of a tree": Odd(copied_tree, "has the label of StoredBox:bad", True, True),
    "file for a tree": Odd(file_for_tree, "is not a folder", False, False),
    "label not text": Odd(label(b"\xff\xfe"), "is not text", True, False),
    "label empty": Odd(label(b""), "is empty", True, False),
    "label missing": Odd(label(None), "is missing", True, False),
    "label a folder": Odd(folder_for_label, "is not a file", True, False),
    "label without an address": Odd(label(b"nothing"), "has no address", True, False),
    "label of a child": Odd(label(b"StoredBox:bad/StoredBox:in"), "which is not a root", True, False),
    "label of another tree": Odd(label(b"StoredBox:good"), "has the label of StoredBox:good", True, False),
}
SIMILAR = {"stray file with a suffix", "label empty", "label a folder", "label of a child"}
"""Entries like another one: `.ci/run` tries them."""
odd_entries = pytest.mark.parametrize(
    "odd", [pytest.param(odd, id=name, marks=[pytest.mark.slow] * (name in SIMILAR)) for name, odd in ODD.items()]
)


def folder_for_file(path: Path) -> None:
    for file in (path, path.with_name(f"{path.name}-wal")):
        file.unlink(missing_ok=True)
    path.mkdir()


UNREADABLE = {
    "root is a folder": lambda tree: folder_for_file(tree / "root.db"),
    "child is a folder": lambda tree: folder_for_file(deepest(tree)),
    "root is no database": lambda tree: (tree / "root.db").write_bytes(b"x" * 9000),
    "child is no database": lambda tree: deepest(tree).write_bytes(b"x" * 9000),
    "log is a folder": lambda tree: (tree / "root.db-wal").mkdir(),
}
unreadable_files = pytest.mark.parametrize("damage", UNREADABLE.values(), ids=UNREADABLE.keys())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "data"
    make_folder(folder)
    fold(folder)
    return folder


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    return copy_of(made, tmp_path / "data")


@odd_entries
def test_the_walk_names_an_odd_entry_and_continues(data: Path, odd: Odd) -> None:
    path = odd.make(data)

    found = list(entries(data))

    (entry,) = [one for one in found if isinstance(one, OddEntry)]
    assert (entry.path, entry.has_data) == (f"trees/{path.name}", odd.has_data)
    assert odd.says in entry.problem
    expected = {address(name) for name in NAMES if name != "bad" or odd.lists_bad}
    assert {one for one in found if not isinstance(one, OddEntry)} == expected


def test_a_tree_whose_birth_the_power_cut_short_is_not_odd(data: Path) -> None:
    torn = data / "trees" / ("0" * 40)
    torn.mkdir()
    (torn / "address").touch()
    (torn / "root.db").touch()

    assert odd_in(data) == []


@odd_entries
def test_the_doctor_names_an_odd_entry(data: Path, odd: Odd, capsys: pytest.CaptureFixture[str]) -> None:
    path = odd.make(data)

    code = cli(["doctor", "--data", str(data)])

    (line,) = [line for line in capsys.readouterr().out.splitlines() if path.name in line and "entry of it" in line]
    assert odd.says in line
    assert line.startswith("bad" if odd.has_data else "warn")
    assert code == (1 if odd.has_data else 0)


@odd_entries
def test_upgrade_check_names_an_odd_entry_and_checks_the_rest(
    data: Path, odd: Odd, capsys: pytest.CaptureFixture[str]
) -> None:
    path = odd.make(data)

    code = cli(["upgrade-check", "tests.unit.stored_folder:app", "--data", str(data)])

    said = capsys.readouterr().out
    assert odd.says in next(line for line in said.splitlines() if path.name in line)
    assert f"{3 if odd.lists_bad else 2} trees" in said
    assert code == (1 if odd.has_data else 0)


@odd_entries
def test_the_tree_command_names_an_odd_entry_and_shows_the_rest(
    data: Path, odd: Odd, capsys: pytest.CaptureFixture[str]
) -> None:
    path = odd.make(data)

    cli(["tree", "--json", "--data", str(data)])

    seen = json.loads(capsys.readouterr().out)
    (entry,) = seen["odd"]
    assert path.name in entry["path"]
    assert odd.says in entry["problem"]
    listed = {root["address"] for root in seen["roots"]}
    assert listed == {f"StoredBox:{name}" for name in NAMES if name != "bad" or odd.lists_bad}
    assert all(root["children"] == 1 and root["last_error"] is None for root in seen["roots"])


@odd_entries
def test_sql_of_another_tree_works_beside_an_odd_entry(
    data: Path, odd: Odd, capsys: pytest.CaptureFixture[str]
) -> None:
    odd.make(data)

    cli(["sql", "StoredBox:good", "SELECT count(*) AS n FROM things", "--json", "--data", str(data)])

    assert json.loads(capsys.readouterr().out) == [{"n": 20}]


@odd_entries
async def test_an_app_serves_every_tree_beside_an_odd_entry(data: Path, odd: Odd) -> None:
    path = odd.make(data)

    async with App(agents=[StoredBox], settings=Settings(data=data)) as running:
        for name in GOOD:
            assert await (await running.get_agent(StoredBox, name)).deep_count() == 80
        if path.is_file() and path == folder_of(data, "bad"):
            with pytest.raises(StoredDataError, match="must be a folder"):
                await (await running.get_agent(StoredBox, "bad")).put()
        else:
            assert await (await running.get_agent(StoredBox, "bad")).deep_count() == 80
            assert address("bad") in roots_in(data)  # the app has written its label again
    assert path.exists()


@unreadable_files
def test_a_tree_that_cannot_be_read_is_named_and_the_others_are_shown(
    data: Path, damage: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(folder_of(data, "bad"))

    cli(["tree", "--json", "--data", str(data)])

    seen = json.loads(capsys.readouterr().out)
    by_address = {root["address"]: root for root in seen["roots"]}
    assert sorted(by_address) == [f"StoredBox:{name}" for name in NAMES]
    assert [errors_in(by_address[f"StoredBox:{name}"]) for name in GOOD] == [[], []]
    assert len(errors_in(by_address["StoredBox:bad"])) == 1


def errors_in(branch: dict[str, Any]) -> list[str]:
    """Return what is wrong with an agent and those under it."""
    own = [branch["last_error"]] if branch["last_error"] else []
    return own + [error for below in branch["below"] for error in errors_in(below)]


@unreadable_files
async def test_a_tree_that_cannot_be_read_raises_a_final_error_and_harms_no_other(
    data: Path, damage: Callable[[Path], Any]
) -> None:
    damage(folder_of(data, "bad"))

    async with App(agents=[StoredBox], settings=Settings(data=data)) as running:
        with pytest.raises(StoredDataError):
            await (await running.get_agent(StoredBox, "bad")).deep_count()
        for name in GOOD:
            assert await (await running.get_agent(StoredBox, name)).deep_count() == 80


async def test_a_start_removes_only_what_sapwood_left_behind(data: Path) -> None:
    stray = stray_file(data, "notes.txt")
    kept = data / "trees" / "monday.d"
    kept.mkdir()
    left = data / "trees" / f"{folder_of(data, 'bad').name}-1.removed"
    (left / "root.db").mkdir(parents=True)

    async with App(agents=[StoredBox], settings=Settings(data=data)):
        async with asyncio.timeout(10):
            while left.exists():  # noqa: ASYNC110 - removed in the background
                await asyncio.sleep(0)

    assert stray.exists()
    assert kept.exists()
