"""What operators read of the files of an agent, without waking it."""

from __future__ import annotations

from sapwood.kernel.ports.read_models import StoredFile, has_table
from sapwood.storage.database import Database

PLACE = "CASE WHEN body IS NOT NULL THEN 'database' WHEN object IS NOT NULL THEN 'archive' ELSE 'folder' END"
HOLDERS = (
    "(SELECT ifnull(group_concat(DISTINCT CASE WHEN holder IN ('code', 'upload') THEN holder ELSE 'messages' END), '')"
    " FROM sapwood_file_references AS held WHERE held.digest = file.digest)"
)


def stored_files(database: Database, before: int | None, most: int) -> list[StoredFile]:
    """Return up to `most` files, the newest first: those before a number."""
    if not has_table(database, "sapwood_files"):
        return []
    _, rows = database.look(
        f"SELECT number, digest, name, media_type, size, created_at, {PLACE}, replace({HOLDERS}, ',', ' ')"  # noqa: S608 - ours
        " FROM sapwood_files AS file WHERE ?1 IS NULL OR number < ?1 ORDER BY number DESC",
        (before,),
        most,
    )
    return [StoredFile(*row) for row in rows]


def file_totals(database: Database) -> tuple[int, int, int]:
    """Return the number of files, their size, and the number of uploads that are not complete."""
    if not has_table(database, "sapwood_files"):
        return 0, 0, 0
    sql = (
        "SELECT count(*), ifnull(sum(size), 0), (SELECT count(*) FROM sapwood_uploads WHERE digest IS NULL)"
        " FROM sapwood_files"
    )
    return database.look(sql, (), 1)[1][0]
