"""A house: an inbox for everybody who lives here, and rooms in it to talk in."""

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
LISTED = 100
"""Rooms that pages are shown, the latest first. The others are found by searching."""
SEARCHED = 16
"""Words that are searched for at once: very many would hold up everybody."""
LIST = "SELECT id, title, preview, at, busy, at > seen AS unread FROM rooms"
UNUSED = """
    SELECT id FROM rooms JOIN words ON number = words.rowid
    WHERE rooms.title = '' AND said IS NULL
    """


@dataclass(frozen=True)
class Listed:
    """A room, as a list shows it."""

    id: str
    title: str
    preview: str
    at: float
    busy: bool
    unread: bool


@dataclass(frozen=True)
class Shown:
    """What pages see of an inbox."""

    model: str = ""
    rooms: tuple[Listed, ...] = ()
    total: int = 0


class Inbox(Agent[Shown]):
    """The rooms of one person; it is called what the person is called."""

    initial_state = Shown()
    migrations = (
        """
        CREATE TABLE rooms (
            number  INTEGER PRIMARY KEY,
            id      TEXT NOT NULL UNIQUE,        -- the name of the sub-agent
            title   TEXT NOT NULL DEFAULT '',
            preview TEXT NOT NULL DEFAULT '',
            busy    INTEGER NOT NULL DEFAULT 0,  -- 1 while an answer is on its way
            at      REAL NOT NULL,               -- when something was said last
            seen    REAL NOT NULL                -- the `at` of what was seen last
        ) STRICT;
        CREATE INDEX rooms_by_time ON rooms (at);
        CREATE VIRTUAL TABLE words USING fts5 (title, said);
        """,
    )

    # --8<-- [start:rooms]
    # --8<-- [start:create]
    @expose
    async def create(self) -> str:
        """Return the name of a new room, or of one that nobody has used yet."""
        if rows := self.sql(UNUSED):
            return rows.scalar(str)
        id, now = uuid4().hex[:12], time.time()
        self.sql("INSERT INTO rooms (id, at, seen) VALUES (?, ?, ?)", id, now, now)
        self.sql("INSERT INTO words (rowid) VALUES (?)", self._number(id))
        self._show()
        # No await until here: after a crash row and room are there, or neither.
        await self.sub_agent(Room, id)
        return id

    # --8<-- [end:create]
    @expose
    async def rename(self, room: str, title: str) -> None:
        self._entitle(self._number(room), clipped(title, 80))
        self._show()

    @expose
    async def delete(self, room: str) -> None:
        """Delete a room with all that was said in it. Whoever has it open is told."""
        number = self._number(room)
        self.sql("DELETE FROM words WHERE rowid = ?", number)
        self.sql("DELETE FROM rooms WHERE number = ?", number)
        self._show()
        await self.children.delete(Room, room)

    # --8<-- [end:rooms]
    @expose
    async def look(self, room: str) -> Listed:
        """Return a room, and take note that what is new in it has been seen."""
        number = self._number(room)
        seen = "UPDATE rooms SET seen = at WHERE number = ? AND seen < at RETURNING 1"
        if self.sql(seen, number):
            self._show()
        (shown,) = self.sql(f"{LIST} WHERE number = ?", number).into(Listed)
        return shown

    # --8<-- [start:search]
    @expose
    async def search(self, wanted: str) -> list[dict[str, Any]]:
        """Return the rooms with these words in their title or talk; it wakes none."""
        asked = wanted.replace("\0", " ").split()[:SEARCHED]
        words = [word.replace('"', '""') for word in asked]
        found = """
            SELECT id, rooms.title, at,
                snippet(words, 1, char(2), char(3), '…', 12) AS found
            FROM words JOIN rooms ON number = words.rowid
            WHERE words MATCH ? ORDER BY at DESC LIMIT ?
            """
        each = " ".join(f'"{word}"*' for word in words)
        return list(self.sql(found, each, LISTED)) if words else []

    # --8<-- [end:search]
    # --8<-- [start:listen]
    @expose
    async def listen(self, room: str) -> AsyncGenerator[str, None]:
        """Yield the words of an answer while a room says them, until it has ended."""
        async with aclosing(self.subscribe("children")) as events:
            async for event in events:
                if event.path[-1].name != room:
                    continue
                if event.kind == "chunk" and event.body["type"] == "text-delta":
                    yield event.body["delta"]
                elif event.kind in ("completed", "failed", "cancelled"):
                    break

    # --8<-- [end:listen]
    # --8<-- [start:heard]
    async def heard(
        self, room: str, said: list[tuple[str, str]], *, busy: bool
    ) -> None:
        """Take note of what was said in a room: who, and what. The room calls this.

        After a crash it may do so twice; what is not new changes nothing.
        """
        number, text = self._number(room), "\n".join(text for _, text in said)
        old = self.sql("SELECT title, said FROM words WHERE rowid = ?", number).one()
        self.sql("UPDATE rooms SET busy = ? WHERE number = ?", busy, number)
        if said and text != old["said"]:
            role, last = said[-1]
            preview = shortened(f"You: {last}" if role == "user" else last, 120)
            self.sql("UPDATE words SET said = ? WHERE rowid = ?", text, number)
            self.sql(
                "UPDATE rooms SET preview = ?, at = ? WHERE number = ?",
                *(preview, time.time(), number),
            )
            if role == "user":  # one's own words are no news
                self.sql("UPDATE rooms SET seen = at WHERE number = ?", number)
            if not old["title"]:
                self._entitle(number, shortened(said[0][1], 48) or "Without words")
        self._show()

    # --8<-- [end:heard]
    # --8<-- [start:state]
    async def on_start(self) -> None:
        self._show()

    async def rooms(self) -> tuple[Listed, ...]:
        """Return what pages see, the latest room first."""
        return self.state.rooms

    def _show(self) -> None:
        """Let every page of this person see the rooms."""
        rooms = self.sql(f"{LIST} ORDER BY at DESC LIMIT ?", LISTED).into(Listed)
        total = self.sql("SELECT count(*) FROM rooms").scalar(int)
        self.set_state(Shown(MODEL or "offline script", tuple(rooms), total))

    def is_readonly(self, connection: Connection) -> bool:
        return True  # pages see the state, and change it by the methods above

    # --8<-- [end:state]
    def _number(self, room: str) -> int:
        rows = self.sql("SELECT number FROM rooms WHERE id = ?", room)
        if not rows:
            raise Refused("There is no such room.")
        return rows.scalar(int)

    def _entitle(self, number: int, title: str) -> None:
        if not title:
            raise Refused("A room needs a title.")
        self.sql("UPDATE rooms SET title = ? WHERE number = ?", title, number)
        self.sql("UPDATE words SET title = ? WHERE rowid = ?", title, number)


# --8<-- [start:room]
class Room(ChatAgent):
    """A conversation, which tells its inbox what is said in it."""

    model = MODEL or SmallTalk(pause=float(os.environ.get("PAUSE", "0.04")))
    instructions = "You are good company. Be brief, and use Markdown where it helps."

    async def before_turn(self, turn: Turn) -> None:
        await self._tell(busy=True)

    async def after_turn(self, turn: Turn) -> None:
        await self._tell(busy=False)

    async def _tell(self, *, busy: bool) -> None:
        inbox = await self.parent_agent(Inbox)
        messages = await self.conversation.messages()
        said = [(message["role"], text_of(message)) for message in messages]
        await inbox.heard(self.name, said, busy=busy)


# --8<-- [end:room]
def text_of(message: dict[str, Any]) -> str:
    return " ".join(part["text"] for part in message["parts"] if part["type"] == "text")


def shortened(text: str, length: int) -> str:
    """Return the first words of a text, without Markdown, on one line."""
    return clipped(re.sub(MARKDOWN, "", text), length)


def clipped(text: str, length: int) -> str:
    """Return the first words of a text, on one line."""
    text = " ".join(text.split())
    if len(text) <= length:
        return text
    cut = text[:length].rpartition(" ")[0] or text[:length]
    return cut.rstrip(",;:.") + "…"
