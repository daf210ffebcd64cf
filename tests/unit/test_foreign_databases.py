"""A database that is imported may have the triggers of the framework and of the user, and no others on its tables."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from sapwood.capabilities.call_rows import CALLS
from sapwood.chat.store.transcript import CHAT
from sapwood.errors import StoredDataError
from sapwood.kernel.actors.children_table import CHILDREN
from sapwood.kernel.forks.fork_files import move_subtree
from sapwood.protocols.openai_table import OPENAI
from sapwood.runs.tables.decisions import DECISIONS
from sapwood.storage.engine import CHECKED
from sapwood.storage.file_reader import reading
from sapwood.storage.framework_schema import READ, foreign_rows
from sapwood.storage.image import empty_image
from sapwood.storage.integrity import foreign_in
from sapwood.storage.migrations import framework, scripts_of
from sapwood.storage.offline_edit import editing
from sapwood.types import Address


def test_triggers_of_the_framework_and_of_the_user_may_stay(tmp_path: Path) -> None:
    path = tmp_path / "root.db"
    path.write_bytes(empty_image())
    with editing(path) as edit:
        for schema in (CHAT, OPENAI, DECISIONS):
            edit.ensure(schema)
        edit.execute("CREATE TABLE item (n INTEGER)")
        edit.execute("CREATE TRIGGER mine AFTER DELETE ON item BEGIN INSERT INTO item VALUES (OLD.n + 1); END")
        ((count,),) = edit.execute("SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'")
    assert count == 4
    assert list(foreign_in(tmp_path)) == []

    connection = apsw.Connection(str(path), vfs=CHECKED)
    connection.execute("DROP TRIGGER sapwood_decisions_are_not_deleted")
    connection.execute(
        "CREATE TRIGGER sapwood_decisions_are_not_deleted BEFORE DELETE ON sapwood_decisions BEGIN SELECT 1; END"
    )
    connection.close(True)
    assert [one.split(",")[0] for one in foreign_in(tmp_path)] == [
        "root.db has the trigger 'sapwood_decisions_are_not_deleted'"
    ]


def test_all_tables_of_the_framework_may_stay(tmp_path: Path) -> None:
    for count in (1, 2, 100):  # also of a file that an older version has written
        (tmp_path / str(count)).mkdir()
        path = tmp_path / str(count) / "root.db"
        path.write_bytes(empty_image())
        with editing(path) as edit:
            for owner in sorted(framework()):
                for script in scripts_of(owner)[:count]:
                    edit.execute(script.sql)
                    edit.execute("INSERT INTO sapwood_migrations VALUES (?, ?, ?)", owner, script.number, script.digest)
            edit.execute("CREATE TABLE item (n INTEGER) -- as in sapwood_runs")
        assert list(foreign_in(path.parent)) == []


@pytest.mark.parametrize(
    ("type", "name", "table", "sql"),
    [
        ("Trigger", "zz", "sapwood_calls", "CREATE TRIGGER zz AFTER DELETE ON sapwood_calls BEGIN SELECT 1; END"),
        ("table", "zz", "zz", "CREATE/**/TRIGGER zz AFTER DELETE ON SAPWOOD_calls BEGIN SELECT 1; END"),
        ("table", "zz", "zz", "CREATE TRIGGER zz AFTER DELETE ON sapwood_calls BEGIN SELECT 1; END"),
        ("table", "zz", "zz", "CREATE VIEW zz AS SELECT * FROM sapwood_calls"),
        ("index", "zz", "zz", "CREATE UNIQUE INDEX zz ON sapwood_calls (method)"),
        ("table", "zz", "zz", "CREATE TABLE /**/ sapwood_runs (id TEXT)"),
        ("table", "zz", "zz", 'CREATE TABLE "sapwood_runs" (id TEXT)'),
    ],
)
def test_what_a_row_of_the_schema_does_is_not_read_from_its_type(
    type: str, name: str, table: str, sql: str, tmp_path: Path
) -> None:
    path = tmp_path / "root.db"
    path.write_bytes(empty_image())
    with editing(path) as edit:
        edit.ensure(CALLS)
        edit.execute("CREATE TABLE item (n INTEGER)")
    rows = [*schema_of(path), (type, name, table, sql)]
    versions = {CALLS.owner: len(CALLS.scripts)}
    assert list(foreign_rows(rows, versions)) == [(type, name, table, sql)]


def test_a_table_of_the_framework_that_was_changed_is_foreign(tmp_path: Path) -> None:
    path = tmp_path / "root.db"
    path.write_bytes(empty_image())
    with editing(path) as edit:
        edit.ensure(CALLS)
        edit.execute("ALTER TABLE sapwood_calls ADD COLUMN extra TEXT")
    assert list(foreign_in(tmp_path)) == ["root.db has the table 'sapwood_calls', which uses tables of the framework."]


def test_a_trigger_whose_type_is_hidden_is_foreign(tmp_path: Path) -> None:
    path = tmp_path / "root.db"
    path.write_bytes(empty_image())
    with editing(path) as edit:
        edit.ensure(CALLS)
        edit.execute("CREATE TRIGGER zz AFTER DELETE ON sapwood_calls BEGIN SELECT 1; END")
        edit.execute("PRAGMA writable_schema = ON")
        edit.execute("UPDATE sqlite_schema SET type = 'Trigger' WHERE name = 'zz'")
    assert list(foreign_in(tmp_path)) == ["root.db has the trigger 'zz', which uses tables of the framework."]


@pytest.mark.parametrize("generation", ["../../elsewhere", "1", 1.5, None])
def test_a_child_whose_generation_is_no_number_is_refused(generation: object, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    path = folder / "root.db"
    path.write_bytes(empty_image())
    with editing(path) as edit:
        script = CHILDREN.scripts[0]
        edit.execute("CREATE TABLE sapwood_children (generation, type, name, created_at, deleted_at, trace)")
        edit.execute("INSERT INTO sapwood_children VALUES (?, 'Kid', 'a', 0.0, NULL, NULL)", generation)
        edit.execute("INSERT INTO sapwood_migrations VALUES (?, 1, ?)", script.owner, script.digest)
    with pytest.raises(StoredDataError, match="generation of a child must be a whole number"):
        move_subtree(folder, tmp_path / "new", Address.parse("Trip:a"))


def schema_of(path: Path) -> list[tuple[str, str, str, str | None]]:
    with reading(path) as file:
        return [(str(kind), str(name), str(table), sql) for kind, name, table, sql in file.rows(READ)]
