"""A conversation, kept twice: as its clients see it, and as the model does.

Clients hold one message for each answer, made of parts; a model wants requests and
responses that alternate. Each model message belongs to one message of the clients', so
that both see the same branch. All of this is about the active path, unless it says otherwise.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from sapwood.chat.store import message_pages
from sapwood.chat.store.branches import BranchTree
from sapwood.chat.store.message_search import MessageSearch
from sapwood.chat.store.model_parts import without_files
from sapwood.chat.store.size_limits import LARGEST, fitted
from sapwood.clock import Clock
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

CHAT = Schema("sapwood.chat", "chat")
COMPACTION = Schema("sapwood.chat", "compaction")

UIMessage = dict[str, Any]
"""A message as the AI SDK has it: id, role, parts, perhaps metadata."""


AT_ONCE = 250
"""Messages that are read in one batch: more would block other agents."""


@functools.cache
def _adapter() -> Any:
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    return ModelMessagesTypeAdapter


class Transcript:
    """The messages of one conversation."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._db = database
        self._clock = clock
        self.tree = BranchTree(database)
        self._words = MessageSearch(database)
        self._history: list[tuple[str, ModelMessage]] | None = None
        self._body: tuple[str, str | None] = ("", None)
        """The id and the text of the message that was last read or written; no text: there is no such message."""
        self._undone = database.undone
        self._changes = 0
        """How often what the model sees was changed."""
        self.on_stored: Callable[[UIMessage], None] | None = None
        """Called in the slice in which a message is stored."""
        self.on_added: Callable[[str, ModelMessage], None] | None = None
        """Called in the slice in which the model's history grows, with the id of the message that it belongs to."""
        self.on_changed: Callable[[Collection[str]], None] | None = None
        """Called in the slice in which messages are deleted or changed."""
        self._rewrites = 0
        """How often what the model sees was changed in another way than at its end."""

    @property
    def exists(self) -> bool:
        return self._db.has(CHAT)

    def text(self) -> str:
        """Return all messages as JSON."""
        if not self.exists:
            return "[]"
        rows = self._db.execute("SELECT body FROM sapwood_messages WHERE is_active = 1 ORDER BY position")
        return f"[{','.join(body for (body,) in rows)}]"

    def page(self, before: str | None, count: int, size: int) -> str:
        """Return the newest messages, or those before one, as JSON: at most so many, of at most so many bytes."""
        if before is None:
            return message_pages.newest(self._db, count, size) if self.exists else "[]"
        if not self.is_active(before):
            raise message_pages.unknown(before)
        return message_pages.before(self._db, before, count, size)

    def messages(self) -> list[UIMessage]:
        """Return all messages."""
        return msgspec.json.decode(self.text())

    def get(self, id: str) -> UIMessage | None:
        """Return a message of any branch."""
        if not self.exists:
            return None
        self._forget_undone()
        if self._body[0] != id:
            rows = self._db.execute("SELECT body FROM sapwood_messages WHERE id = ?", id)
            self._body = (id, rows[0][0] if rows else None)
        text = self._body[1]
        return None if text is None else msgspec.json.decode(text)

    def last(self) -> UIMessage | None:
        if not self.exists:
            return None
        rows = self._db.execute("SELECT body FROM sapwood_messages WHERE is_active = 1 ORDER BY position DESC LIMIT 1")
        return msgspec.json.decode(rows[0][0]) if rows else None

    def ids(self) -> list[tuple[str, str]]:
        """Return the id and the role of every message."""
        if not self.exists:
            return []
        return self._db.execute("SELECT id, role FROM sapwood_messages WHERE is_active = 1 ORDER BY position")

    def known(self, ids: Iterable[str]) -> set[str]:
        """Return which of these are ids of messages, of any branch."""
        asked = list(ids)
        if not asked or not self.exists:
            return set()
        rows = self._db.execute(
            "SELECT id FROM sapwood_messages WHERE id IN (SELECT value FROM json_each(?))",
            msgspec.json.encode(asked).decode(),
        )
        return {id for (id,) in rows}

    def last_said(self) -> list[str]:
        """Return the id of the user's last message, if there is one."""
        if not self.exists:
            return []
        rows = self._db.execute(
            "SELECT id FROM sapwood_messages WHERE is_active = 1 AND role = 'user' ORDER BY position DESC LIMIT 1"
        )
        return [id for (id,) in rows]

    def is_active(self, id: str) -> bool:
        """Return whether a message is on the active path."""
        return self.exists and bool(
            self._db.execute("SELECT 1 FROM sapwood_messages WHERE id = ? AND is_active = 1", id)
        )

    def is_left(self, id: str) -> bool:
        """Return whether a message is stored, and belongs to another branch."""
        return bool(self.known([id])) and not self.is_active(id)

    def is_unanswered(self, id: str) -> bool:
        """Return whether a message is on the active path, and no answer follows it there."""
        return self.exists and bool(
            self._db.execute(
                "SELECT 1 FROM sapwood_messages AS one WHERE id = ? AND is_active = 1 AND NOT EXISTS"
                " (SELECT 1 FROM sapwood_messages WHERE is_active = 1 AND position > one.position"
                " AND role = 'assistant')",
                id,
            )
        )

    def go_back(self, id: str) -> None:
        """Let the active path end with a message of any branch. What followed is stored: a sibling of it may follow."""
        rows: list[Any] = self._db.execute(
            "SELECT position, position = (SELECT max(position) FROM sapwood_messages WHERE is_active = 1)"
            " AND NOT EXISTS (SELECT 1 FROM sapwood_model_messages"
            " WHERE message NOT IN (SELECT id FROM sapwood_messages)) FROM sapwood_messages WHERE id = ?",
            id,
        )
        for position, is_end in rows:
            if not is_end:
                self._activate(position)

    def switch(self, id: str) -> None:
        """Make the path through a message active, up to the newest message after it."""
        ((position,),) = self._db.execute("SELECT position FROM sapwood_messages WHERE id = ?", id)
        self._activate(self.tree.newest_of(position))

    def _activate(self, position: int | None) -> None:
        self.tree.activate(position)
        self._forget_history()

    def replace_in_branch(self, ids: Mapping[str, str]) -> None:
        """Begin a branch with messages that take the place of others, and their ids: these get other ones."""
        rows = self._db.execute(
            "SELECT parent FROM sapwood_messages WHERE id IN (SELECT value FROM json_each(?))"
            " ORDER BY position LIMIT 1",
            msgspec.json.encode([*ids]).decode(),
        )
        for id, new in ids.items():
            self._rename(id, new)
        self._activate(rows[0][0])

    def _rename(self, id: str, new: str) -> None:
        message = self.get(id)
        assert message is not None
        message = {**message, "id": new}
        body = msgspec.json.encode(message).decode()
        self._db.execute("UPDATE sapwood_messages SET id = ?, body = ? WHERE id = ?", new, body, id)
        self._db.execute("UPDATE sapwood_model_messages SET message = ? WHERE message = ?", new, id)
        self._words.rename(id, new)
        if self._db.has(COMPACTION):
            self._db.execute("UPDATE sapwood_pinned_messages SET id = ? WHERE id = ?", new, id)
        self._forget_history()
        if self.on_stored is not None:
            self.on_stored(message)
        self._tell_changed([id])

    def put(self, message: UIMessage) -> None:
        """Store a message: at the end of the active path, or in the place of the one with its id."""
        self._db.ensure(CHAT)
        body = msgspec.json.encode(message)
        if len(body) > LARGEST:
            body = msgspec.json.encode(fitted(message))
        text = body.decode()
        self._db.execute(
            "INSERT INTO sapwood_messages (id, role, parent, created_at, body)"
            " VALUES (?, ?, (SELECT max(position) FROM sapwood_messages WHERE is_active = 1), ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET body = excluded.body",
            message["id"],
            message["role"],
            self._clock.now(),
            text,
        )
        self._forget_undone()
        self._body = (message["id"], text)
        if self.on_stored is not None:
            self.on_stored(message)
        self._words.put(message)

    def search(self, words: str, limit: int, *, all_branches: bool = False) -> list[UIMessage]:
        """Return the messages with these words, best first: those of the active path, or of all branches."""
        if not self.exists:
            return []
        return self._words.find(words, limit, all_branches=all_branches)

    def remove(self, ids: Iterable[str]) -> None:
        """Delete messages, and with them what the model saw of them. What followed one follows the one before it."""
        gone = set(ids)
        if not gone:
            return
        given = msgspec.json.encode(gone).decode()
        self.tree.detach(given)
        self._db.execute("DELETE FROM sapwood_messages WHERE id IN (SELECT value FROM json_each(?))", given)
        self._db.execute("DELETE FROM sapwood_model_messages WHERE message IN (SELECT value FROM json_each(?))", given)
        self._words.forget(given)
        if self._db.has(COMPACTION):
            self._db.execute("DELETE FROM sapwood_pinned_messages WHERE id IN (SELECT value FROM json_each(?))", given)
        self._forget_history()
        self._tell_changed(gone)

    def _tell_changed(self, ids: Collection[str]) -> None:
        if self.on_changed is not None:
            self.on_changed(ids)

    def clear(self) -> None:
        """Forget everything that was said."""
        if self.exists:
            self._tell_changed([id for (id,) in self._db.execute("SELECT id FROM sapwood_messages")])
            self._db.execute("DELETE FROM sapwood_messages")
            self._db.execute("DELETE FROM sapwood_model_messages")
            self._words.clear()
            if self._db.has(COMPACTION):
                self._db.execute("DELETE FROM sapwood_pinned_messages")
        self._forget_history()

    def entries(self) -> list[tuple[str, ModelMessage]]:
        """Return the conversation as the model sees it, each with the id of the message that it is part of."""
        return self._loaded()

    @property
    def revision(self) -> tuple[int, int]:
        """What changes with everything that is not added at the end, and if a message is pinned."""
        return (self._rewrites, self._db.undone)

    def history(self) -> list[ModelMessage]:
        """Return the conversation as the model sees it."""
        return [message for _, message in self._loaded()]

    async def load(self) -> None:
        """Read the conversation as the model sees it, with pauses if it is long: `history` has it then."""
        if self._is_loaded():
            return
        rows, changes = self._rows(), (self._changes, self._db.undone)
        if len(rows) <= AT_ONCE:
            return
        found: list[tuple[str, ModelMessage]] = []
        for first in range(0, len(rows), AT_ONCE):
            found += _read(rows[first : first + AT_ONCE])
            await asyncio.sleep(0)
        if changes == (self._changes, self._db.undone):  # if not, it is read again in one go
            self._history = found

    def _loaded(self) -> list[tuple[str, ModelMessage]]:
        if not self._is_loaded() or self._history is None:
            self._history = _read(self._rows())
        return self._history

    def _is_loaded(self) -> bool:
        self._forget_undone()
        return self._history is not None

    def _forget_undone(self) -> None:
        if self._undone != self._db.undone:
            self._undone, self._history, self._body = self._db.undone, None, ("", None)

    def _rows(self) -> list[tuple[str, str]]:
        """Return what the model sees, each with the id of its message."""
        return [(message, body) for _, _, message, body in self._view()] if self.exists else []

    def _view(self) -> list[tuple[int, int, str, str]]:
        """Return place, position, message and body of what the model sees, in order."""
        rows: list[Any] = self._db.execute(
            "SELECT coalesce(place, position), position, message, body FROM sapwood_model_messages"
            " WHERE is_active = 1 ORDER BY position"
        )
        rows.sort(key=itemgetter(0))  # they are nearly in order
        return rows

    def _forget_history(self) -> None:
        self._history, self._body = None, ("", None)
        self._changes += 1
        self._rewrites += 1

    def add(self, id: str, message: ModelMessage, joined: Mapping[str, ModelMessage] = MappingProxyType({})) -> None:
        """Store what was said to the model or by it, as part of a message.

        `joined` has what it consists of, by message: branches with only some of these messages have their part of it.
        """
        self._db.ensure(CHAT)
        replaced = [self._insert(one, part, is_active=0) for one, part in joined.items()]
        self._insert(id, message, replaces=msgspec.json.encode(replaced).decode() if replaced else None)
        self._changes += 1
        if self._is_loaded() and self._history is not None:
            self._history.append((id, message))
        if self.on_added is not None:
            self.on_added(id, message)

    def _insert(
        self,
        id: str,
        message: ModelMessage,
        *,
        is_active: int = 1,
        place: int | None = None,
        replaces: str | None = None,
    ) -> int:
        """Store a row of what the model sees; return its position."""
        body: bytes = _adapter().dump_json([message])
        ((position,),) = self._db.execute(
            "INSERT INTO sapwood_model_messages (message, kind, is_active, place, replaces, body)"
            " VALUES (?, ?, ?, ?, ?, ?) RETURNING position",
            id,
            message.kind,
            is_active,
            place,
            replaces,
            body[1:-1].decode(),
        )
        return position

    def exported(self) -> list[Any]:
        """Return the conversation as the model sees it, as what JSON has."""
        return [msgspec.json.decode(body) for _, body in self._rows()]

    def of(self, id: str) -> list[ModelMessage]:
        """Return what the model saw of one message."""
        return [message for one, message in self._loaded() if one == id]

    def shorten(self, places: Sequence[int], summary: ModelMessage, writes: str) -> None:
        """Put a summary in the place of these messages that the model sees; clients see all of them still.

        `writes` is the id of the message of the turn. The summary is also that of branches that begin later, and of no
        other that exists.
        """
        self._replace(self._view(), places, summary, writes, self.tree.own_since())

    def clear_results(self, changes: Mapping[int, ModelMessage], writes: str) -> None:
        """Put messages without the results of tools in the place of those that the model sees, in the same way."""
        rows, since = self._view(), self.tree.own_since() if changes else None
        for at, message in changes.items():
            self._replace(rows, [at], message, writes, since)

    def _replace(
        self,
        rows: Sequence[tuple[int, int, str, str]],
        places: Sequence[int],
        new: ModelMessage,
        writes: str,
        since: int | None,
    ) -> None:
        replaced = msgspec.json.encode([rows[at][1] for at in places]).decode()
        self._db.execute(
            "UPDATE sapwood_model_messages SET is_active = 0 WHERE position IN (SELECT value FROM json_each(?))",
            replaced,
        )
        owner = self._owner(rows[places[-1]][2], writes, since)
        self._insert(owner, new, place=rows[places[0]][0], replaces=replaced)
        self._forget_history()

    def _owner(self, last: str, writes: str, since: int | None) -> str:
        """Return the message whose paths see what replaces messages up to `last`: no other branch goes through it."""
        if since is None:
            return last
        rows = self._db.execute(
            "SELECT id FROM sapwood_messages WHERE is_active = 1"
            " AND position >= max(?, (SELECT position FROM sapwood_messages WHERE id = ?)) ORDER BY position LIMIT 1",
            since,
            last,
        )
        return rows[0][0] if rows else writes

    def pin(self, id: str) -> bool:
        """Have no summary replace a message. Return `False` if the model does not see it."""
        if id not in {one for one, _ in self._loaded()}:
            return False
        self._db.ensure(COMPACTION)
        self._db.execute("INSERT OR IGNORE INTO sapwood_pinned_messages (id) VALUES (?)", id)
        self._rewrites += 1  # a summary that is being written may be about it
        return True

    def unpin(self, id: str) -> bool:
        """Let a summary replace a message. Return `False` if it is not pinned."""
        if not self._db.has(COMPACTION):
            return False
        return bool(self._db.execute("DELETE FROM sapwood_pinned_messages WHERE id = ? RETURNING 1", id))

    def pinned(self) -> set[str]:
        """Return the ids of the messages that no summary replaces."""
        if not self._db.has(COMPACTION):
            return set()
        return {id for (id,) in self._db.execute("SELECT id FROM sapwood_pinned_messages")}

    def rewrite(self, changes: Mapping[int, ModelMessage]) -> None:
        """Change messages that the model sees, in all branches, by their places in the history."""
        positions = [position for _, position, _, _ in self._view()]
        for at, message in changes.items():
            if at >= len(positions):
                break  # the conversation was cleared
            body: bytes = _adapter().dump_json([message])
            self._db.execute(
                "UPDATE sapwood_model_messages SET body = ? WHERE position = ?", body[1:-1].decode(), positions[at]
            )
        if changes:
            self._forget_history()

    def leave_out_files(self) -> bool:
        """Replace files that the model could not be sent by a note; return `False` if there are none.

        These are the files of the messages that have no answer yet. If those have no files, it is every file that is
        sent as a URL: a URL that once worked may be gone.
        """
        from pydantic_ai.messages import BinaryContent, FileUrl

        history = self._loaded()
        answered = max((at for at, (_, message) in enumerate(history) if message.kind == "response"), default=-1)
        return self._leave_out(answered + 1, (BinaryContent, FileUrl)) or self._leave_out(0, (FileUrl,))

    def _leave_out(self, first: int, kinds: tuple[type, ...]) -> bool:
        history = self._loaded()
        changes: dict[int, ModelMessage] = {}
        for at, (_, message) in enumerate(history[first:], first):
            if message.kind != "request":
                continue
            parts = [
                replace(part, content=without_files(part.content, kinds)) if part.part_kind == "user-prompt" else part
                for part in message.parts
            ]
            if parts != list(message.parts):
                changes[at] = replace(message, parts=parts)
        self.rewrite(changes)
        return bool(changes)


def _read(rows: Sequence[tuple[str, str]]) -> list[tuple[str, ModelMessage]]:
    found: Sequence[ModelMessage] = _adapter().validate_json(f"[{','.join(body for _, body in rows)}]")
    return [(id, message) for (id, _), message in zip(rows, found, strict=True)]
