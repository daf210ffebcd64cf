"""The later releases that upgrades are tried with can still be made from this checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest
from scripts import releases, try_releases
from scripts.releases import CHANGES, FIRST, LAST, NEXT, ROOT, Added, Changed


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the files that the changes touch, and of all migrations."""
    for change in (change for changes in CHANGES.values() for change in changes):
        path = Path(change.path)
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(change, Changed):
            shutil.copyfile(ROOT / path, tmp_path / path)
        else:
            shutil.copytree(ROOT / path.parent, tmp_path / path.parent, dirs_exist_ok=True)
    return tmp_path


def test_the_changes_of_each_release_apply_to_this_checkout(source: Path) -> None:
    for version, changes in CHANGES.items():
        for change in changes:
            change.apply(source)
        connection = apsw.Connection(":memory:")
        for script in sorted(source.glob("src/sapwood/*/schema/*.sql")):
            try:
                connection.execute(script.read_text()).fetchall()
            except apsw.SQLError as error:
                pytest.fail(f"{version}: {script.name}: {error}")
        compile((source / "src/sapwood/wire/frames.py").read_text(), "frames.py", "exec")


def test_a_release_adds_migrations_in_all_packages_that_have_them() -> None:
    packages = {Path(one.path).parts[2] for one in CHANGES[NEXT] if isinstance(one, Added)}

    assert packages >= {"kernel", "capabilities", "runs", "chat"}
    assert list(CHANGES) == [FIRST, NEXT, LAST]


def test_a_number_that_is_taken_and_a_line_that_is_gone_are_named(source: Path) -> None:
    taken = Added("src/sapwood/chat/schema/chat_0001.sql", "")
    gone = Changed("src/sapwood/wire/frames.py", "no such line", "")

    with pytest.raises(SystemExit, match=r"chat_0001\.sql must have the number \d{4}: correct it in releases\.py"):
        taken.apply(source)
    with pytest.raises(SystemExit, match=r"frames\.py has 'no such line' 0 times, expected 1"):
        gone.apply(source)
    with pytest.raises(SystemExit, match=r"'0\.0\.1' is none of the releases"):
        releases.write_source("0.0.1", source / "copy")


def test_the_page_has_the_commands_to_go_back_that_are_tried() -> None:
    before, back = try_releases.commands()

    assert "sapwood backup" in before
    assert "sapwood upgrade-check" in back
