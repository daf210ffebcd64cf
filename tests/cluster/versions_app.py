"""What the nodes of test_versions.py serve: the second version of the program has one migration more."""

from __future__ import annotations

import os

from sapwood import Agent, App, expose

MIGRATIONS = (
    "CREATE TABLE lines (text TEXT NOT NULL) STRICT",
    "ALTER TABLE lines ADD COLUMN who TEXT NOT NULL DEFAULT 'nobody'",
)
VERSION = int(os.environ.get("BOOK_VERSION", "1"))


class VersionedBook(Agent):
    """Keeps lines."""

    migrations = MIGRATIONS[:VERSION]

    @expose
    async def write(self, text: str) -> int:
        """Return which version of the program wrote it."""
        self.sql("INSERT INTO lines (text) VALUES (?)", text)
        return VERSION

    @expose
    async def lines(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM lines ORDER BY rowid")]


app = App(agents=[VersionedBook])
