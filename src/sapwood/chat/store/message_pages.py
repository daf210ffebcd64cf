"""A conversation page by page: its newest messages, and those before a message, within a number and a size."""

from __future__ import annotations

from typing import Any

from sapwood.errors import InvalidArguments
from sapwood.storage.database import Database


def newest(database: Database, count: int, size: int) -> str:
    """Return the newest messages as JSON, oldest first.

    The page begins with a message of the user's. So it may have fewer messages than `count`, and more than `count` or
    `size` if the last answer alone has more.
    """
    rows = _sizes(database, None, count)
    rows = rows[: _that_fit(rows, size)]
    asked = [at for at, (_, role, _) in enumerate(rows) if role == "user"]
    if asked:
        return _bodies(database, rows[asked[-1]][0], None)
    last = database.execute("SELECT max(position) FROM sapwood_messages WHERE is_active = 1 AND role = 'user'")[0][0]
    return _bodies(database, last or 0, None)


def before(database: Database, id: str, count: int, size: int) -> str:
    """Return the messages before a stored one as JSON, oldest first; at least one, if there is one."""
    end = database.execute("SELECT position FROM sapwood_messages WHERE id = ?", id)[0][0]
    rows = _sizes(database, end, count)
    rows = rows[: max(1, _that_fit(rows, size))]
    return _bodies(database, rows[-1][0], end) if rows else "[]"


def unknown(id: str) -> InvalidArguments:
    return InvalidArguments(
        f"`before` must be the id of a stored message, got {id[:80]!r}. It may have been deleted since, or belong to"
        " another branch."
    )


def limit_of(text: str | None, most: int) -> int:
    """Return the number of messages that a client asked for; `most` if it did not say."""
    if text is None:
        return most
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise InvalidArguments(f"`limit` must be a whole number of at least 1, got {text[:80]!r}.")
    return min(int(text), most)


def _sizes(database: Database, end: int | None, count: int) -> list[tuple[int, str, int]]:
    """Return position, role and size of messages, newest first, without reading them."""
    rows: list[Any] = database.execute(
        "SELECT position, role, octet_length(body) FROM sapwood_messages WHERE is_active = 1 AND position < ?"
        " ORDER BY position DESC LIMIT ?",
        2**62 if end is None else end,
        count,
    )
    return rows


def _that_fit(rows: list[tuple[int, str, int]], size: int) -> int:
    total = 0
    for at, (_, _, one) in enumerate(rows):
        total += one
        if total > size:
            return at
    return len(rows)


def _bodies(database: Database, first: int, end: int | None) -> str:
    rows = database.execute(
        "SELECT body FROM sapwood_messages WHERE is_active = 1 AND position >= ? AND position < ? ORDER BY position",
        first,
        2**62 if end is None else end,
    )
    return f"[{','.join(body for (body,) in rows)}]"
