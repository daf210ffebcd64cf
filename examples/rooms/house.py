"""The agents: an inbox for each user, and its rooms, which are conversations."""

import os
import re
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from sapwood import Agent, ChatAgent, Connection, Refused, Turn, expose

from small_talk import SmallTalk

MARKDOWN = re.compile(r"^\s*(?:[-•]|\d+\.) |[*_`#>|]+", re.MULTILINE)
MODEL = os.environ.get("MODEL")
MAX_ROOMS = 100
"""The number of rooms that pages receive, the latest first. A search finds all."""
MAX_WORDS = 16
"""The number of words in a search. A very long query would block other agents."""
LIST = "SELECT id, title, preview, at, busy, at > seen AS unread FROM rooms"
UNUSED = """
    SELECT id FROM rooms JOIN words ON number = words.rowid
    WHERE rooms.title = '' AND text IS NULL
    """


@dataclass(frozen=True)
class RoomInfo:
    """A room in the list."""

    id: str
    title: str
    preview: str
    at: float
    busy: bool
    unread: bool


@dataclass(frozen=True)
class InboxState:
    """The state that pages receive."""

    model: str = ""
    rooms: tuple[RoomInfo, ...] = ()
    total: int = 0


class Inbox(Agent[InboxState]):
    """The rooms of one user. Its name is the name of the user."""

    initial_state = InboxState()
    migrations = (
        """
        CREATE TABLE rooms (
            number  INTEGER PRIMARY KEY,
            id      TEXT NOT NULL UNIQUE,        -- the name of the sub-agent
            title   TEXT NOT NULL DEFAULT '',
            preview TEXT NOT NULL DEFAULT '',
            busy    INTEGER NOT NULL DEFAULT 0,  -- 1 during a turn
            at      REAL NOT NULL,               -- the time of the last message
            seen    REAL NOT NULL                -- the `at` that the user saw last
        ) STRICT;
        CREATE INDEX rooms_by_time ON rooms (at);
        CREATE VIRTUAL TABLE words USING fts5 (title, text);
        """,
    )

    # --8<-- [start:rooms]
    # --8<-- [start:create]
    @expose
    async def create(self) -> str:
        """Return the name of a new room, or of an existing room without messages."""
        if rows := self.sql(UNUSED):
            return rows.scalar(str)
        id, now = uuid4().hex[:12], time.time()
        self.sql("INSERT INTO rooms (id, at, seen) VALUES (?, ?, ?)", id, now, now)
        self.sql("INSERT INTO words (rowid) VALUES (?)", self._number(id))
        self._publish()
        # No await before this one: the row and the sub-agent are one commit.
        await self.sub_agent(Room, id)
        return id

    # --8<-- [end:create]
    @expose
    async def rename(self, room: str, title: str) -> None:
        self._set_title(self._number(room), truncate(title, 80))
        self._publish()

    @expose
    async def delete(self, room: str) -> None:
        """Delete a room with its messages. Open pages of the room are closed."""
        number = self._number(room)
        self.sql("DELETE FROM words WHERE rowid = ?", number)
        self.sql("DELETE FROM rooms WHERE number = ?", number)
        self._publish()
        await self.children.delete(Room, room)

    # --8<-- [end:rooms]
    @expose
    async def mark_seen(self, room: str) -> RoomInfo:
        """Mark the messages of a room as seen, and return the room."""
        number = self._number(room)
        seen = "UPDATE rooms SET seen = at WHERE number = ? AND seen < at RETURNING 1"
        if self.sql(seen, number):
            self._publish()
        (info,) = self.sql(f"{LIST} WHERE number = ?", number).into(RoomInfo)
        return info

    # --8<-- [start:search]
    @expose
    async def search(self, query: str) -> list[dict[str, Any]]:
        """Return the rooms with these words in their title or messages. Wakes none."""
        words = query.replace("\0", " ").split()[:MAX_WORDS]
        quoted = [word.replace('"', '""') for word in words]
        statement = """
            SELECT id, rooms.title, at,
                snippet(words, 1, char(2), char(3), '…', 12) AS snippet
            FROM words JOIN rooms ON number = words.rowid
            WHERE words MATCH ? ORDER BY at DESC LIMIT ?
            """
        prefixes = " ".join(f'"{word}"*' for word in quoted)
        return list(self.sql(statement, prefixes, MAX_ROOMS)) if words else []

    # --8<-- [end:search]
    # --8<-- [start:listen]
    @expose
    async def listen(self, room: str) -> AsyncGenerator[str, None]:
        """Yield the answer of a room while it streams, until the turn ends."""
        async with aclosing(self.subscribe("children")) as events:
            async for event in events:
                if event.path[-1].name != room:
                    continue
                if event.kind == "chunk" and event.body["type"] == "text-delta":
                    yield event.body["delta"]
                elif event.kind in ("completed", "failed", "cancelled"):
                    break

    # --8<-- [end:listen]
    # --8<-- [start:update]
    async def update(
        self, room: str, messages: list[tuple[str, str]], *, busy: bool
    ) -> None:
        """Index the messages of a room, as (role, text). The room calls this.

        It is idempotent: after a crash the room may call it twice.
        """
        number, text = self._number(room), "\n".join(text for _, text in messages)
        old = self.sql("SELECT title, text FROM words WHERE rowid = ?", number).one()
        self.sql("UPDATE rooms SET busy = ? WHERE number = ?", busy, number)
        if messages and text != old["text"]:
            role, last = messages[-1]
            preview = plain(f"You: {last}" if role == "user" else last, 120)
            self.sql("UPDATE words SET text = ? WHERE rowid = ?", text, number)
            self.sql(
                "UPDATE rooms SET preview = ?, at = ? WHERE number = ?",
                *(preview, time.time(), number),
            )
            if role == "user":  # a user's own message is not unread
                self.sql("UPDATE rooms SET seen = at WHERE number = ?", number)
            if not old["title"]:
                self._set_title(number, plain(messages[0][1], 48) or "Untitled")
        self._publish()

    # --8<-- [end:update]
    # --8<-- [start:state]
    async def on_start(self) -> None:
        self._publish()

    async def rooms(self) -> tuple[RoomInfo, ...]:
        """Return the rooms that pages receive, the latest first."""
        return self.state.rooms

    def _publish(self) -> None:
        """Send the list of rooms to all pages of the user."""
        rooms = self.sql(f"{LIST} ORDER BY at DESC LIMIT ?", MAX_ROOMS).into(RoomInfo)
        total = self.sql("SELECT count(*) FROM rooms").scalar(int)
        self.set_state(InboxState(MODEL or "offline script", tuple(rooms), total))

    def is_readonly(self, connection: Connection) -> bool:
        return True  # pages read the state, and change it with the methods above

    # --8<-- [end:state]
    def _number(self, room: str) -> int:
        rows = self.sql("SELECT number FROM rooms WHERE id = ?", room)
        if not rows:
            raise Refused("There is no such room.")
        return rows.scalar(int)

    def _set_title(self, number: int, title: str) -> None:
        if not title:
            raise Refused("The title must not be empty.")
        self.sql("UPDATE rooms SET title = ? WHERE number = ?", title, number)
        self.sql("UPDATE words SET title = ? WHERE rowid = ?", title, number)


# --8<-- [start:room]
class Room(ChatAgent):
    """A conversation that reports its messages to its inbox."""

    model = MODEL or SmallTalk(pause=float(os.environ.get("PAUSE", "0.04")))
    instructions = "You are good company. Be brief, and use Markdown where it helps."

    async def before_turn(self, turn: Turn) -> None:
        await self._report(busy=True)

    async def after_turn(self, turn: Turn) -> None:
        await self._report(busy=False)

    async def _report(self, *, busy: bool) -> None:
        inbox = await self.parent_agent(Inbox)
        messages = await self.conversation.messages()
        texts = [(message["role"], text_of(message)) for message in messages]
        await inbox.update(self.name, texts, busy=busy)


# --8<-- [end:room]
def text_of(message: dict[str, Any]) -> str:
    return " ".join(part["text"] for part in message["parts"] if part["type"] == "text")


def plain(text: str, length: int) -> str:
    """Return the first words of a Markdown text as plain text, on one line."""
    return truncate(re.sub(MARKDOWN, "", text), length)


def truncate(text: str, length: int) -> str:
    """Return the first words of a text, on one line."""
    text = " ".join(text.split())
    if len(text) <= length:
        return text
    cut = text[:length].rpartition(" ")[0] or text[:length]
    return cut.rstrip(",;:.") + "…"
