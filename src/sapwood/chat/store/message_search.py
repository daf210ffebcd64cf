"""The words of the messages of one conversation, in all branches. The index is made with the first search."""

from __future__ import annotations

from typing import Any

import msgspec

from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

SEARCH = Schema("sapwood.chat", "search")


class MessageSearch:
    """The index of one conversation. Every change belongs to the open slice."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def find(self, words: str, limit: int, *, all_branches: bool) -> list[dict[str, Any]]:
        """Return the messages with these words, best first: those of the active path, or of all branches."""
        if not self._db.has(SEARCH):
            self._db.ensure(SEARCH)
            for (body,) in self._db.execute("SELECT body FROM sapwood_messages ORDER BY position"):
                self._add(msgspec.json.decode(body))
        wanted = " ".join('"' + word.replace('"', '""') + '"' for word in words.split())
        if not wanted:
            return []
        rows = self._db.execute(
            "SELECT body FROM sapwood_message_words JOIN sapwood_messages USING (id)"
            " WHERE sapwood_message_words MATCH ? AND is_active >= ? ORDER BY rank LIMIT ?",
            wanted,
            int(not all_branches),
            limit,
        )
        return [msgspec.json.decode(body) for (body,) in rows]

    def put(self, message: dict[str, Any]) -> None:
        """Note the words of a message that is stored or changed."""
        if self._db.has(SEARCH):
            self.forget(msgspec.json.encode([message["id"]]).decode())
            self._add(message)

    def _add(self, message: dict[str, Any]) -> None:
        text = "\n".join(str(part["text"]) for part in message["parts"] if part.get("type") == "text")
        self._db.execute("INSERT INTO sapwood_message_words (id, text) VALUES (?, ?)", message["id"], text)

    def rename(self, id: str, new: str) -> None:
        if self._db.has(SEARCH):
            self._db.execute("UPDATE sapwood_message_words SET id = ? WHERE id = ?", new, id)

    def forget(self, ids: str) -> None:
        """Forget messages, by their ids as JSON."""
        if self._db.has(SEARCH):
            self._db.execute("DELETE FROM sapwood_message_words WHERE id IN (SELECT value FROM json_each(?))", ids)

    def clear(self) -> None:
        if self._db.has(SEARCH):
            self._db.execute("DELETE FROM sapwood_message_words")
