"""The responses of one agent, as its database has them."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import msgspec

from sapwood.kernel.actors.actor import Actor
from sapwood.storage.migrations import Schema

OPENAI = Schema("sapwood.protocols", "openai")
COLUMNS = "number, id, turn, user, digest, request, first, part, spent, last, result, created_at, ended_at"
ALL = f"SELECT {COLUMNS} FROM sapwood_openai_responses "  # noqa: S608 - names of columns


class ResponseRow(NamedTuple):
    """One response."""

    number: int
    id: str
    turn: str
    user: str | None
    digest: str
    request: str
    first: int
    part: int
    spent: str
    last: int | None
    result: str | None
    created_at: float
    ended_at: float | None

    @property
    def is_over(self) -> bool:
        """Whether it has ended. Its turn may continue."""
        return self.result is not None

    def asked(self) -> dict[str, Any]:
        """Return the fields of its request that it repeats."""
        return msgspec.json.decode(self.request)

    def outcome(self) -> dict[str, Any]:
        """Return how it ended."""
        return msgspec.json.decode(self.result or "{}")


class ResponsesTable:
    """The responses of one agent. Every change belongs to the open slice."""

    def __init__(self, actor: Actor) -> None:
        self._db = actor.database
        self._clock = actor.host.clock
        self.continuing = asyncio.Lock()
        """Held by the request that gives answers: the next one finds the response that follows them."""

    def get(self, id: str) -> ResponseRow | None:
        """Return a response by the last part of its id."""
        return self._one("WHERE id = ?", id)

    def last(self) -> ResponseRow | None:
        """Return the newest response."""
        return self._one("ORDER BY number DESC LIMIT 1")

    def last_of(self, turn: str) -> ResponseRow | None:
        """Return the newest response of a turn."""
        return self._one("WHERE turn = ? ORDER BY number DESC LIMIT 1", turn)

    def after(self, number: int) -> list[ResponseRow]:
        """Return the responses that are newer than this one."""
        return self._find("WHERE number > ? ORDER BY number", number)

    def has_user(self, user: str | None) -> bool:
        """Return whether a user has had a response here."""
        return self._one("WHERE user IS ? LIMIT 1", user) is not None

    def add(
        self,
        id: str,
        turn: str,
        user: str | None,
        digest: str,
        request: dict[str, Any],
        *,
        first: int = 0,
        part: int = 0,
        spent: dict[str, Any] | None = None,
    ) -> ResponseRow:
        """Store a response that begins after an event of its turn. If it exists, return it."""
        self._db.ensure(OPENAI)
        self._db.execute(
            "INSERT OR IGNORE INTO sapwood_openai_responses"
            " (id, turn, user, digest, request, first, part, spent, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            id,
            turn,
            user,
            digest,
            _text(request),
            first,
            part,
            _text(spent or {}),
            self._clock.now(),
        )
        return self._known(id)

    def end(self, id: str, last: int, result: dict[str, Any]) -> ResponseRow:
        """Store how a response ended, and return it as it is stored: the first end counts."""
        self._db.execute(
            "UPDATE sapwood_openai_responses SET last = ?, result = ?, ended_at = ? WHERE id = ? AND result IS NULL",
            last,
            _text(result),
            self._clock.now(),
            id,
        )
        return self._known(id)

    def forget(self, id: str) -> None:
        """Delete a response."""
        self._db.execute("DELETE FROM sapwood_openai_responses WHERE id = ?", id)

    def _known(self, id: str) -> ResponseRow:
        row = self.get(id)
        assert row is not None
        return row

    def _one(self, where: str, *arguments: Any) -> ResponseRow | None:
        rows = self._find(where, *arguments)
        return rows[0] if rows else None

    def _find(self, where: str, *arguments: Any) -> list[ResponseRow]:
        if not (self._db.exists and self._db.has(OPENAI)):
            return []
        return [ResponseRow(*row) for row in self._db.execute(ALL + where, *arguments)]


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
