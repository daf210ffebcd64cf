"""A database that is imported may have the triggers of the framework and of the user, and no others on its tables."""

from __future__ import annotations

from pathlib import Path

import apsw

from sapwood.chat.store.transcript import CHAT
from sapwood.protocols.openai_table import OPENAI
from sapwood.runs.tables.decisions import DECISIONS
from sapwood.storage.engine import CHECKED
from sapwood.storage.image import empty_image
from sapwood.storage.integrity import foreign_in
from sapwood.storage.offline_edit import editing


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
