"""Numbered scripts, in order, known by their text."""

from __future__ import annotations

from pathlib import Path

from sapwood.capabilities.state import STATE
from sapwood.kernel.actors.children_table import CHILDREN
from sapwood.kernel.trees.quota import LEDGER
from sapwood.storage.migrations import of_user


def test_a_list_of_scripts_is_numbered_from_one() -> None:
    first, second = of_user(["CREATE TABLE a (x)", "CREATE TABLE b (x)"])

    assert (first.number, first.name, first.owner) == (1, "migration 1", "user")
    assert (second.number, second.sql) == (2, "CREATE TABLE b (x)")


def test_a_folder_of_scripts_is_taken_in_the_order_of_the_names(tmp_path: Path) -> None:
    for name in ("0010_c.sql", "0002_b.sql", "0001_a.sql", "notes.txt"):
        (tmp_path / name).write_text(f"-- {name}")

    scripts = of_user(tmp_path)

    assert [script.name for script in scripts] == ["0001_a.sql", "0002_b.sql", "0010_c.sql"]
    assert [script.number for script in scripts] == [1, 2, 3]
    assert scripts[0].sql == "-- 0001_a.sql"


def test_an_edited_script_has_another_digest() -> None:
    (one,) = of_user(["CREATE TABLE a (x)"])
    (same,) = of_user(["CREATE TABLE a (x)"])
    (edited,) = of_user(["CREATE TABLE a (x )"])

    assert one.digest == same.digest != edited.digest


def test_every_part_of_the_framework_finds_its_own_scripts() -> None:
    for schema in (STATE, CHILDREN, LEDGER):
        scripts = schema.scripts

        assert [script.number for script in scripts] == list(range(1, len(scripts) + 1))
        assert all(script.owner == schema.owner and script.name.startswith(schema.owner) for script in scripts)
        assert f"CREATE TABLE sapwood_{schema.owner}" in scripts[0].sql
