"""The turns of one conversation: who is next, what became of each, and which tool calls were made."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from sapwood.chat.store.transcript import CHAT
from sapwood.chat.store.turn_rows import JOINED, ToolCall, TurnRow
from sapwood.chat.store.turn_spans import TurnSpans
from sapwood.clock import Clock
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.trees.usage import Spent
from sapwood.runs.questions.questions import Questions
from sapwood.runs.tables.decisions import Decisions
from sapwood.runs.tables.executed_runs_table import CHUNKS
from sapwood.runs.tables.own_questions import OwnQuestions
from sapwood.runs.tables.runnable import O_co
from sapwood.storage.database import Database

ALL = (
    "SELECT number, id, message, prompt_ids, run, user, status, continues, last_kept, new_messages, body, client_tools,"
    " steps, retries, usage, output, error, reason, cancelled, next_seq, recovering_at, created_at, ended_at,"
    " run_hooks, replay_seconds, overrides, last_shown, previous_end"
    " FROM sapwood_turns "
)
IS_OPEN = "status IN ('queued', 'running', 'waiting')"
"""As the index of open turns has it, so that it is used."""
CLIENT_SOON, RUN_SOON = SOON = ("client soon", "run soon")
"""Whom a tool call waits for that a client or another agent does, while our own tools still run."""


@dataclass(frozen=True, slots=True)
class Turn(Generic[O_co]):
    """One answer of a chat agent to a message.

    `Turn[Recipe]` is a turn of a `ChatAgent[Recipe]`: its `output` is a `Recipe`.
    """

    id: str
    """The id of the turn. A client may choose it, so it is unique only in its conversation, until that is cleared."""
    status: str
    """`queued`, `running`, `waiting`, `completed`, `failed`, `cancelled` or `skipped`."""
    text: str = ""
    """All text of the answer."""
    if TYPE_CHECKING:
        output: O_co = None  # type: ignore[assignment]
        """The output, if the turn completed; otherwise `None`. It has the type in the brackets of `ChatAgent[…]`."""
    else:
        output: O_co | None = None  # so that a copy of one without an output fits
    error: str | None = None
    """The error message, if the turn failed."""
    reason: str | None = None
    """Why it was cancelled, or the code of a transient error or of a limit that was reached: `over_limit`. A turn that
    waits until a person allows more has this reason too."""
    steps: int = 0
    """The number of model requests."""
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    """Requests, tokens and cost by model. A cost of `None` means that the price of the model is not known."""
    body: dict[str, Any] = field(default_factory=dict[str, Any])
    """The other fields that the client sent with its request."""
    user: str | None = None
    """The id of the user who sent the message, or whose turn sent it. `None` if no authenticated client began it."""


ALL_CALLS = (
    "SELECT id, turn, name, input, status, result, error, answerer, answer, auto_continue FROM sapwood_tool_calls "
)

ASKED = "EXISTS (SELECT 1 FROM json_each(prompt_ids) AS asked WHERE asked.value IN (SELECT value FROM json_each(?)))"
"""Whether a turn answers one of these messages."""


class TurnsTable:
    """The turns of one conversation. Every change belongs to the open slice.

    The agent is the only writer of its database, so the open turns and their tool calls are kept in memory once they
    were read. What a slice changed there is read again if the slice is undone.
    """

    def __init__(self, database: Database, clock: Clock, spans: TurnSpans | None = None) -> None:
        self._db = database
        self._clock = clock
        self._spans = spans
        """Told what changes; `None`: nothing is recorded."""
        self._open: dict[int, TurnRow] | None = None
        """The open turns by number, in their order; `None`: they were not read."""
        self._calls: dict[str, ToolCall] = {}
        """The tool calls of the open turns."""
        self._ended: TurnRow | None = None
        """The turn that ended last."""
        self._undone = database.undone

    @property
    def exist(self) -> bool:
        return self._db.has(CHAT)

    def _read(self) -> dict[int, TurnRow]:
        """Return the open turns, and see that their tool calls are known."""
        exist, undone = self.exist, self._db.undone  # in this order: the first may undo a block that was suspended
        if self._open is None or self._undone != undone:
            self._open, self._calls, self._ended = None, {}, None
            rows = self._select(f"WHERE {IS_OPEN} ORDER BY number") if exist else []
            calls = self._db.execute(ALL_CALLS) if rows else []
            self._open = {row.number: row for row in rows}
            self._calls = {row[0]: ToolCall(*row) for row in calls}
            self._undone = undone
        return self._open

    def add(
        self,
        id: str,
        message: str,
        said: Sequence[Any],
        *,
        asked: Sequence[str],
        body: str,
        client_tools: str,
        run: str | None = None,
        user: str | None = None,
        replay_seconds: float | None = None,
        overrides: str | None = None,
    ) -> TurnRow:
        """Store a turn that waits for its time, with the messages that join the conversation when it begins."""
        for schema in (CHAT, CHUNKS):
            self._db.ensure(schema)
        opened = self._read()
        row = TurnRow(
            number=0,
            id=id,
            message=message,
            prompt_ids=msgspec.json.encode(asked).decode(),
            run=run,
            user=user,
            status="queued",
            new_messages=msgspec.json.encode(said).decode(),
            body=body,
            client_tools=client_tools,
            created_at=self._clock.now(),
            replay_seconds=replay_seconds,
            overrides=overrides,
        )
        ((number,),) = self._db.execute(
            "INSERT INTO sapwood_turns"
            " (id, message, prompt_ids, run, user, status, new_messages, body, client_tools, created_at,"
            " replay_seconds, overrides) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING number",
            row.id,
            row.message,
            row.prompt_ids,
            row.run,
            row.user,
            row.status,
            row.new_messages,
            row.body,
            row.client_tools,
            row.created_at,
            row.replay_seconds,
            row.overrides,
        )
        opened[number] = row = row._replace(number=number)
        return row

    def _find(self, where: str, *arguments: Any) -> list[TurnRow]:
        return self._select(where, *arguments) if self.exist else []

    def _select(self, where: str, *arguments: Any) -> list[TurnRow]:
        return [TurnRow(*row) for row in self._db.execute(ALL + where, *arguments)]

    def get(self, id: str) -> TurnRow | None:
        rows = [row for row in self._read().values() if row.id == id] or self._find("WHERE id = ?", id)
        return rows[0] if rows else None

    def of(self, number: int) -> TurnRow | None:
        if (row := self._read().get(number, self._ended)) is not None and row.number == number:
            return row
        rows = self._find("WHERE number = ?", number)
        return rows[0] if rows else None

    def last(self) -> TurnRow | None:
        """Return the last turn, but for those that were skipped, or cancelled before they began."""
        never_begun = f"(status = 'skipped' OR (status = 'cancelled' AND new_messages <> '{JOINED}'))"
        rows = self._find(f"WHERE NOT {never_begun} ORDER BY number DESC LIMIT 1")
        return rows[0] if rows else None

    def last_with(self, message: str) -> TurnRow | None:
        """Return the last turn that has written a message, or answers it."""
        asked = msgspec.json.encode([message]).decode()
        rows = self._find(f"WHERE message = ? OR {ASKED} ORDER BY number DESC LIMIT 1", message, asked)
        return rows[0] if rows else None

    def rename_prompts(self, ids: Mapping[str, str]) -> None:
        """Note the new ids of messages in the turns that have answered them."""
        for row in self._find(f"WHERE NOT {IS_OPEN} AND {ASKED}", msgspec.json.encode([*ids]).decode()):
            prompts = [ids.get(id, id) for id in row.prompts()]
            self._db.execute(
                "UPDATE sapwood_turns SET prompt_ids = ? WHERE number = ?",
                msgspec.json.encode(prompts).decode(),
                row.number,
            )
        for row in self.queued():  # a message of the user's follows the version that its client showed
            if row.new_messages != JOINED and (row.last_kept in ids or row.last_shown in ids):
                news = {name: ids.get(getattr(row, name), getattr(row, name)) for name in ("last_kept", "last_shown")}
                self.set(row.number, **news)
        self._ended = None

    def running(self) -> TurnRow | None:
        return next((row for row in self._read().values() if row.status == "running"), None)

    def waiting(self) -> TurnRow | None:
        return next((row for row in reversed(self._read().values()) if row.status == "waiting"), None)

    def named(self, stream: str) -> TurnRow | None:
        """Return the turn whose frames are called by this name now, or whose id it is."""
        going_on = [row for row in (self.running(), self.waiting()) if row is not None and row.stream == stream]
        return going_on[0] if going_on else self.get(stream)

    def all(self) -> list[TurnRow]:
        return self._find("ORDER BY number")

    def open(self) -> list[TurnRow]:
        return list(self._read().values())

    def queued(self) -> list[TurnRow]:
        return [row for row in self._read().values() if row.status == "queued"]

    def set(self, number: int, **news: Any) -> None:
        """Change columns of a turn."""
        opened = self._read()
        self._db.execute(_setting(tuple(news)), *news.values(), number)
        before = opened.get(number)
        if before is not None and (row := before._replace(**news)).is_open:
            opened[number] = row
        elif before is not None:
            self._ended = opened.pop(number)._replace(**news)
        else:
            self._open = None  # it is over; perhaps it is open again
        if self._spans is not None and "status" in news and (row := self.of(number)) is not None:
            self._spans.turn_changed(before, row)

    def end(self, number: int, status: str, error: str | None = None, reason: str | None = None, **news: Any) -> None:
        """A turn is over; its tool calls need not be remembered."""
        self.forget_calls(number)
        self.set(number, status=status, error=error, reason=reason, ended_at=self._clock.now(), **news)

    def forget_ended(self) -> None:
        """Forget the turns that are over."""
        if self.exist:
            self._db.execute(f"DELETE FROM sapwood_turns WHERE NOT {IS_OPEN}")  # noqa: S608 - no value from outside
            self._ended = None

    def count(self, number: int, model: str, spent: Spent) -> None:
        """Add a request to a model to what a turn has used."""
        row = self.of(number)
        usage = row.spent() if row is not None else {}
        usage[model] = usage.get(model, Spent()).plus(spent)
        stored = {model: one._asdict() for model, one in usage.items()}
        self.set(number, usage=msgspec.json.encode(stored).decode())

    def calls(self, number: int) -> list[ToolCall]:
        """Return the tool calls of an open turn, in the order of their ids."""
        self._read()
        return sorted((call for call in self._calls.values() if call.turn == number), key=attrgetter("id"))

    def call(self, id: str) -> ToolCall | None:
        self._read()
        return self._calls.get(id)

    def begin_call(self, id: str, turn: int, name: str, input: str) -> None:
        """Note that a tool is about to run, unless it is known how it ended: that has to survive the next crash too."""
        call = self._known_call(id, turn, name, input)
        self._put_call(call if call.status is not None else call._replace(status="running"))

    def ask_about(self, id: str, turn: int, name: str, input: str, whom: str) -> None:
        """Record that the turn waits for an answer."""
        self._put_call(self._known_call(id, turn, name, input)._replace(answerer=whom))

    def end_call(self, id: str, status: str, result: str | None, error: str | None) -> None:
        """Note how a tool call ended."""
        if (call := self.call(id)) is not None:
            self._put_call(call._replace(status=status, result=result, error=error))

    def answer_call(self, id: str, kind: str, value: Any, *, go_on: bool) -> None:
        """Record the answer to a question."""
        if (call := self.call(id)) is not None:
            answer = msgspec.json.encode([kind, value]).decode()
            self._put_call(call._replace(answer=answer, auto_continue=int(go_on)))

    def forget_calls(self, number: int, *, but: Sequence[str] = ()) -> None:
        """The tool calls of a turn are part of the conversation now, but for these."""
        for call in self.calls(number):
            if call.id not in but:
                self._db.execute("DELETE FROM sapwood_tool_calls WHERE id = ?", call.id)
                del self._calls[call.id]

    def _known_call(self, id: str, turn: int, name: str, input: str) -> ToolCall:
        return self.call(id) or ToolCall(id, turn, name, input)

    def begin_call_again(self, id: str) -> None:
        """Note that a tool runs again that a crash interrupted."""
        call = self.call(id)
        if self._spans is not None and call is not None and (turn := self.of(call.turn)) is not None:
            self._spans.tool_begins_again(turn, call)

    def _put_call(self, call: ToolCall) -> None:
        before = self._calls.get(call.id)
        if call == before:
            return
        self._db.execute(
            "INSERT INTO sapwood_tool_calls"
            " (id, turn, name, input, status, result, error, answerer, answer, auto_continue, created_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET status = excluded.status,"
            " result = excluded.result, error = excluded.error, answerer = excluded.answerer, answer = excluded.answer,"
            " auto_continue = excluded.auto_continue",
            *call,
            self._clock.now(),
        )
        self._calls[call.id] = call
        if self._spans is not None and (turn := self.of(call.turn)) is not None:
            self._spans.call_changed(turn, before, call)


@functools.cache
def _setting(columns: tuple[str, ...]) -> str:
    """Return the statement that changes these columns of a turn."""
    news = ", ".join(f"{column} = ?" for column in columns)
    return f"UPDATE sapwood_turns SET {news} WHERE number = ?"  # noqa: S608 - the names of columns, from our code


class CallJournal:
    """The tool calls of one turn: each is begun once, and its end remembered."""

    def __init__(self, actor: Actor, turns: TurnsTable, number: int) -> None:
        self._actor = actor
        self._turns = turns
        self._number = number

    async def begun(self, id: str, name: str, input: str) -> tuple[str, str | None, str | None] | None:
        self._actor.check_live()
        found = self._turns.call(id)
        self._turns.begin_call(id, self._number, name, input)
        return None if found is None or found.status is None else (found.status, found.result, found.error)

    def begun_again(self, id: str) -> None:
        self._turns.begin_call_again(id)

    async def ended(self, id: str, *, result: str | None = None, error: str | None = None) -> None:
        self._actor.check_live()
        self._turns.end_call(id, "done" if error is None else "failed", result, error)
        self._actor.of(Decisions).came_of(id, result=result, error=error)
        if self._actor.of(OwnQuestions).close_call(id):  # of a tool that did not wait for the answer
            self._actor.of(Questions).answered()

    async def kept(self) -> None:
        await self._actor.leave()

    async def until_leased(self) -> None:
        await self._actor.until_leased()
