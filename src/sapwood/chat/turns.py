"""The turns of one conversation: who is next, what became of each, and which tool calls were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple

import msgspec

from sapwood.chat.transcript import CHAT
from sapwood.clock import Clock
from sapwood.kernel.actor import Actor
from sapwood.kernel.spending import Spent
from sapwood.runs.decisions import Decisions
from sapwood.runs.kept import CHUNKS
from sapwood.runs.own_questions import OwnQuestions
from sapwood.runs.questions import Questions
from sapwood.runs.runnable import O_co
from sapwood.storage.database import Database

ALL = (
    "SELECT number, id, message, prompt_ids, run, status, continues, last_kept, new_messages, body, client_tools,"
    " steps, retries, usage, output, error, reason, next_seq, recovering_at, created_at, ended_at FROM sapwood_turns "
)
OPEN = ("queued", "running", "waiting")
JOINED = "[]"
"""What is still to join the conversation with a turn that has begun: nothing."""
CLIENT_SOON, RUN_SOON = SOON = ("client soon", "run soon")
"""Whom a tool call waits for that a client or another agent does, while our own tools still run."""
Outcome = Literal["success", "failed", "denied", "interrupted"]
"""How a tool call ended, as Pydantic AI has it."""


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
    """Why it was cancelled, or the code of a transient error or of a limit that was reached: `over_limit`."""
    steps: int = 0
    """The number of model requests."""
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    """Requests, tokens and cost by model. A cost of `None` means that the price of the model is not known."""
    body: dict[str, Any] = field(default_factory=dict[str, Any])
    """The other fields that the client sent with its request."""


class Row(NamedTuple):
    """One turn, as it is stored."""

    number: int
    id: str
    message: str
    prompt_ids: str
    run: str | None
    status: str
    continues: int
    last_kept: str | None
    new_messages: str
    body: str
    client_tools: str
    steps: int
    retries: int
    usage: str
    output: str | None
    error: str | None
    reason: str | None
    next_seq: int
    recovering_at: float | None
    created_at: float
    ended_at: float | None

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def stream(self) -> str:
        """What its frames are called by: each time it goes on after a wait, by another name."""
        return self.id if not self.continues else f"{self.id}-{self.continues}"

    def prompts(self) -> list[str]:
        return msgspec.json.decode(self.prompt_ids)

    def tools(self) -> list[dict[str, Any]]:
        return msgspec.json.decode(self.client_tools)

    def spent(self) -> dict[str, Spent]:
        """Return what it has used, by model."""
        return {model: Spent(**spent) for model, spent in msgspec.json.decode(self.usage).items()}


class ToolCall(NamedTuple):
    """One tool call of an open turn."""

    id: str
    turn: int
    name: str
    input: str
    status: str | None
    result: str | None
    error: str | None
    answerer: str | None
    """`approval`, `client` or `run`; `client soon` or `run soon` while other tools of the same answer still run."""
    answer: str | None
    auto_continue: int

    @property
    def is_open(self) -> bool:
        """Whether the call waits for an answer."""
        return self.answerer is not None and self.answer is None

    def returned(self) -> tuple[Any, Outcome] | None:
        """Return the result or the answer of the call and how it ended, or `None` if that is unknown."""
        if self.status == "done":
            return msgspec.json.decode(self.result or "null"), "success"
        if self.status == "failed":
            return self.error or "", "failed"
        kind, value = msgspec.json.decode(self.answer) if self.answer is not None else ("", None)
        if kind == "denied":
            return value or "The user does not allow this call.", "denied"
        return (value, "failed" if kind == "failed" else "success") if kind in ("done", "failed") else None


ALL_CALLS = (
    "SELECT id, turn, name, input, status, result, error, answerer, answer, auto_continue FROM sapwood_tool_calls "
)


class Turns:
    """The turns of one conversation. Every change belongs to the open slice."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._db = database
        self._clock = clock

    @property
    def exist(self) -> bool:
        return self._db.has(CHAT)

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
    ) -> Row:
        """Store a turn that waits for its time, with the messages that join the conversation when it begins."""
        for schema in (CHAT, CHUNKS):
            self._db.ensure(schema)
        self._db.execute(
            "INSERT INTO sapwood_turns"
            " (id, message, prompt_ids, run, status, new_messages, body, client_tools, created_at)"
            " VALUES (?, ?, ?, ?, 'queued', ?, ?, ?, ?)",
            id,
            message,
            msgspec.json.encode(asked).decode(),
            run,
            msgspec.json.encode(said).decode(),
            body,
            client_tools,
            self._clock.now(),
        )
        found = self.get(id)
        assert found is not None
        return found

    def _find(self, where: str, *arguments: Any) -> list[Row]:
        return [Row(*row) for row in self._db.execute(ALL + where, *arguments)] if self.exist else []

    def get(self, id: str) -> Row | None:
        rows = self._find("WHERE id = ?", id)
        return rows[0] if rows else None

    def of(self, number: int) -> Row | None:
        rows = self._find("WHERE number = ?", number)
        return rows[0] if rows else None

    def last(self) -> Row | None:
        """Return the last turn, but for those that were skipped, or cancelled before they began."""
        never_begun = f"(status = 'skipped' OR (status = 'cancelled' AND new_messages <> '{JOINED}'))"
        rows = self._find(f"WHERE NOT {never_begun} ORDER BY number DESC LIMIT 1")
        return rows[0] if rows else None

    def running(self) -> Row | None:
        rows = self._find("WHERE status = 'running' ORDER BY number LIMIT 1")
        return rows[0] if rows else None

    def waiting(self) -> Row | None:
        rows = self._find("WHERE status = 'waiting' ORDER BY number DESC LIMIT 1")
        return rows[0] if rows else None

    def named(self, stream: str) -> Row | None:
        """Return the turn whose frames are called by this name now, or whose id it is."""
        going_on = [row for row in (self.running(), self.waiting()) if row is not None and row.stream == stream]
        return going_on[0] if going_on else self.get(stream)

    def all(self) -> list[Row]:
        return self._find("ORDER BY number")

    def open(self) -> list[Row]:
        return self._find("WHERE status IN ('queued', 'running', 'waiting') ORDER BY number")

    def queued(self) -> list[Row]:
        return self._find("WHERE status = 'queued' ORDER BY number")

    def set(self, number: int, **news: Any) -> None:
        """Change columns of a turn."""
        for column, value in news.items():
            self._db.execute(SETTING[column], value, number)

    def end(self, number: int, status: str, error: str | None = None, reason: str | None = None) -> None:
        """A turn is over; its tool calls need not be remembered."""
        self._db.execute(
            "UPDATE sapwood_turns SET status = ?, error = ?, reason = ?, ended_at = ? WHERE number = ?",
            status,
            error,
            reason,
            self._clock.now(),
            number,
        )
        self._db.execute("DELETE FROM sapwood_tool_calls WHERE turn = ?", number)

    def forget_ended(self) -> None:
        """Forget the turns that are over."""
        if self.exist:
            self._db.execute("DELETE FROM sapwood_turns WHERE status NOT IN ('queued', 'running', 'waiting')")

    def count(self, number: int, model: str, spent: Spent) -> None:
        """Add a request to a model to what a turn has used."""
        row = self.of(number)
        usage = row.spent() if row is not None else {}
        usage[model] = usage.get(model, Spent()).plus(spent)
        stored = {model: one._asdict() for model, one in usage.items()}
        self.set(number, usage=msgspec.json.encode(stored).decode())

    def calls(self, number: int) -> list[ToolCall]:
        """Return the tool calls of a turn."""
        rows = self._db.execute(ALL_CALLS + "WHERE turn = ?", number) if self.exist else []
        return [ToolCall(*row) for row in rows]

    def call(self, id: str) -> ToolCall | None:
        rows = self._db.execute(ALL_CALLS + "WHERE id = ?", id) if self.exist else []
        return ToolCall(*rows[0]) if rows else None

    def begin_call(self, id: str, turn: int, name: str, input: str) -> None:
        """Note that a tool is about to run, unless it is known how it ended: that has to survive the next crash too."""
        self._put_call(id, turn, name, input)
        self._db.execute("UPDATE sapwood_tool_calls SET status = 'running' WHERE id = ? AND status IS NULL", id)

    def ask_about(self, id: str, turn: int, name: str, input: str, whom: str) -> None:
        """Record that the turn waits for an answer."""
        self._put_call(id, turn, name, input)
        self._db.execute("UPDATE sapwood_tool_calls SET answerer = ? WHERE id = ?", whom, id)

    def _put_call(self, id: str, turn: int, name: str, input: str) -> None:
        self._db.execute(
            "INSERT INTO sapwood_tool_calls (id, turn, name, input, created_at) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO NOTHING",
            id,
            turn,
            name,
            input,
            self._clock.now(),
        )

    def end_call(self, id: str, status: str, result: str | None, error: str | None) -> None:
        """Note how a tool call ended."""
        self._db.execute(
            "UPDATE sapwood_tool_calls SET status = ?, result = ?, error = ? WHERE id = ?", status, result, error, id
        )

    def answer_call(self, id: str, kind: str, value: Any, *, go_on: bool) -> None:
        """Record the answer to a question."""
        self._db.execute(
            "UPDATE sapwood_tool_calls SET answer = ?, auto_continue = ? WHERE id = ?",
            msgspec.json.encode([kind, value]).decode(),
            int(go_on),
            id,
        )

    def forget_calls(self, number: int, *, but: Sequence[str] = ()) -> None:
        """The tool calls of a turn are part of the conversation now, but for these."""
        for call in self.calls(number):
            if call.id not in but:
                self._db.execute("DELETE FROM sapwood_tool_calls WHERE id = ?", call.id)


SETTING = {
    column: f"UPDATE sapwood_turns SET {column} = ? WHERE number = ?"  # noqa: S608 - the names are these
    for column in (
        "status",
        "run",
        "continues",
        "new_messages",
        "last_kept",
        "prompt_ids",
        "usage",
        "steps",
        "retries",
        "output",
        "error",
        "reason",
        "next_seq",
        "recovering_at",
        "client_tools",
    )
}


class CallJournal:
    """The tool calls of one turn: each is begun once, and its end remembered."""

    def __init__(self, actor: Actor, turns: Turns, number: int) -> None:
        self._actor = actor
        self._turns = turns
        self._number = number

    async def begun(self, id: str, name: str, input: str) -> tuple[str, str | None, str | None] | None:
        self._actor.check_live()
        found = self._turns.call(id)
        self._turns.begin_call(id, self._number, name, input)
        return None if found is None or found.status is None else (found.status, found.result, found.error)

    async def ended(self, id: str, *, result: str | None = None, error: str | None = None) -> None:
        self._actor.check_live()
        self._turns.end_call(id, "done" if error is None else "failed", result, error)
        self._actor.of(Decisions).came_of(id, result=result, error=error)
        if self._actor.of(OwnQuestions).close_call(id):  # of a tool that did not wait for the answer
            self._actor.of(Questions).answered()

    async def kept(self) -> None:
        await self._actor.leave()
