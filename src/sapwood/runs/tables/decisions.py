"""The decisions of people about the questions of one agent: appended, never changed, and chained by hashes.

A row that was changed, or taken out from between others, breaks the chain. Rows cut off at the end do not: compare the
last hash with a copy that is kept elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from sapwood.kernel.actors.actor import Actor
from sapwood.runs.tables.question import Answer, Author, Question
from sapwood.storage.database import Database
from sapwood.storage.file_reader import FileReader
from sapwood.storage.migrations import Schema

DECISIONS = Schema("sapwood.runs", "decisions")
LONGEST_TEXT = 2000
"""Characters of a reason, a result or an error that are kept."""
ASK = "ask"
"""What stands for the tool in decisions about what code asks."""
COLUMNS = "kind, question, tool, digest, shown, arguments, reason, user, authentication, channel, at, previous, hash"


class Decision(NamedTuple):
    """One row: an answer, or what came of it."""

    number: int
    kind: str
    question: str
    tool: str
    digest: str
    shown: str
    arguments: str | None
    reason: str | None
    user: str | None
    authentication: str | None
    channel: str
    at: float
    previous: str
    hash: str

    def expected_hash(self) -> str:
        """Return the hash that the other columns have."""
        return _hash(self[1:-1])

    def told(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        told = self._asdict()
        told["shown"] = msgspec.json.decode(self.shown)
        told["arguments"] = None if self.arguments is None else msgspec.json.decode(self.arguments)
        return told


class Decisions:
    """The decisions about the questions of one agent."""

    def __init__(self, actor: Actor) -> None:
        self._database = actor.database
        self._clock = actor.host.clock

    def answered(self, question: Question, answer: Answer, author: Author) -> None:
        """Keep an answer, in this slice."""
        reason = answer.value if answer.kind in ("denied", "failed") else None
        arguments = answer.value if answer.kind in ("approved", "done") else None
        kind: str = answer.kind
        if question.is_from_code:
            kind = "answered" if answer.kind == "done" else "denied"
        self._append(
            kind,
            question.id,
            ASK if question.is_from_code else question.tool,
            question.digest,
            _json(question.shown() if question.is_from_code else question.arguments),
            None if arguments is None else _json(arguments),
            None if reason is None else str(reason)[:LONGEST_TEXT],
            author.user,
            author.authentication,
            author.channel,
        )

    def came_of(self, id: str, *, result: str | None, error: str | None) -> None:
        """Keep what came of an approved call, in this slice; of other calls, nothing."""
        if not self._database.has(DECISIONS):
            return
        found = read(self._database, "WHERE question = ? ORDER BY number DESC LIMIT 1", id)
        if found and found[0].kind == "approved":
            text, how = (result, "completed") if error is None else (error, "failed")
            about = found[0]
            text = None if text is None else text[:LONGEST_TEXT]
            self._append("outcome", id, about.tool, about.digest, about.shown, about.arguments, text, None, None, how)

    def _append(self, *values: Any) -> None:
        self._database.ensure(DECISIONS)
        last = self._database.execute("SELECT hash FROM sapwood_decisions ORDER BY number DESC LIMIT 1")
        row = (*values, self._clock.now(), last[0][0] if last else "")
        self._database.execute(
            f"INSERT INTO sapwood_decisions ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - ours
            *row,
            _hash(row),
        )

    def all(self) -> list[Decision]:
        """Return all decisions, oldest first."""
        return read(self._database)


def read(database: Database, where: str = "ORDER BY number", *arguments: Any) -> list[Decision]:
    """Return decisions of an agent, asleep or awake."""
    if not (database.exists and database.has(DECISIONS)):
        return []
    rows = database.execute(f"SELECT number, {COLUMNS} FROM sapwood_decisions {where}", *arguments)  # noqa: S608 - ours
    return [Decision(*row) for row in rows]


def broken_at(decisions: Iterable[Decision]) -> int | None:
    """Return the number of the first row that does not follow from the one before; `None` if all do."""
    last = ""
    for decision in decisions:
        if decision.previous != last or decision.hash != decision.expected_hash():
            return decision.number
        last = decision.hash
    return None


def broken_chain(file: FileReader) -> Iterator[str]:
    """Yield what is wrong with the decisions in a database, for backups and verifications."""
    if file.has(DECISIONS):
        rows = file.rows(f"SELECT number, {COLUMNS} FROM sapwood_decisions ORDER BY number")  # noqa: S608 - ours
        number = broken_at(Decision(*row) for row in rows)
        if number is not None:
            yield f"Decision {number} in the database {file.stem}.db was changed, or one before it was removed."


def _hash(values: tuple[Any, ...]) -> str:
    return hashlib.sha256(msgspec.json.encode(values)).hexdigest()


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
