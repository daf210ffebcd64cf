"""The table of damage is complete: it has one row for each damage to each file, and for all that tests play."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from tests.blackbox import test_alarms, test_damage

PAGE = Path(__file__).parents[2] / "docs/explanation/damage.md"
HEADER = "| file | damage | noticed | affected | repaired by |"
DAMAGES = {"header", "middle", "tail", "truncation", "zeroing", "deletion", "older copy", "one bit"}
OTHERS = "other files (`lock`, `operator.json`, `release.json`, `stopped`, `workers`)"
FILES = {
    "root database",
    "child database",
    "write-ahead log",
    "`alarms.db`",
    "label (`address`)",
    "`marks`",
    OTHERS,
    "backup",
    "archive objects",
    "NATS stores",
}
PLAYED_FILES = {
    "root": "root database",
    "child": "child database",
    "log": "write-ahead log",
    "label": "label (`address`)",
    "stray": OTHERS,
    "lock": OTHERS,
    "alarms": "`alarms.db`",
}
PLAYED_DAMAGES = {
    "header": "header",
    "middle": "middle",
    "damaged": "middle",
    "log-damaged": "middle",
    "tail": "tail",
    "cut-in-half": "truncation",
    "empty": "truncation",
    "log-removed": "truncation",
    "zeroed": "zeroing",
    "removed": "deletion",
    "rows-removed": "deletion",
    "removed-with-mark": "deletion",
    "older": "older copy",
    "bit": "one bit",
    "is-a-folder": "folder in its place",
    "entries": "stray entry",
}
"""The kinds of damage in the names of the tests."""


class Row(NamedTuple):
    """A row of the table."""

    file: str
    damages: list[str]
    noticed: str
    affected: str
    repaired_by: str


def table() -> list[Row]:
    _, _, text = PAGE.read_text().partition(f"{HEADER}\n")
    found: list[Row] = []
    for line in text.splitlines()[1:]:
        if not line.startswith("|"):
            break
        file, damages, *rest = (cell.strip() for cell in line.strip("|").split("|"))
        found.append(Row(file, damages.split(", "), *rest))
    return found


def played() -> set[str]:
    """Return what the black-box tests do to files, by name: the file, then the damage."""
    lists = (
        test_damage.TO_DATABASES,
        test_damage.TO_CHILDREN,
        test_damage.NOT_READ,
        test_damage.TO_LOGS,
        test_damage.TO_CHILD_LOGS,
        test_damage.ODD_ENTRIES,
    )
    return {one.id for some in lists for one in some} | {f"alarms-{one.id}" for one in test_alarms.DAMAGES}


@pytest.mark.parametrize("file", sorted(FILES))
def test_each_damage_to_each_file_has_one_row(file: str) -> None:
    damages = [damage for row in table() if row.file == file for damage in row.damages]

    assert set(damages) >= DAMAGES
    assert len(damages) == len(set(damages))


def test_the_table_has_no_other_files() -> None:
    assert {row.file for row in table()} == FILES


@pytest.mark.parametrize("name", sorted(played()))
def test_what_the_black_box_tests_play_has_its_row(name: str) -> None:
    file, _, damage = name.partition("-")

    rows = [row for row in table() if row.file == PLAYED_FILES[file] and PLAYED_DAMAGES[damage] in row.damages]

    assert len(rows) == 1


def test_what_is_not_noticed_has_its_reason() -> None:
    for row in table():
        assert row.noticed
        assert "not noticed" not in row.noticed or "because" in row.noticed or ": " in row.noticed
        assert row.repaired_by or "older copy" in row.damages, row
