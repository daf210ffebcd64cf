"""Reads what a dead process left of conversations, with nothing but SQLite, and says what is wrong with it as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import msgspec
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from tests.faults import chat_rules
from tests.faults.reading import has, walk
from tests.faults.span_checker import Records, read_records

from sapwood.address import Address
from sapwood.chat.store.turn_rows import ToolCall, TurnRow
from sapwood.chat.store.turns import ALL, ALL_CALLS
from sapwood.kernel.node.data_folder import TREES, roots_in


@dataclass(slots=True)
class Left:
    """What is left of one conversation."""

    address: Address
    turns: list[TurnRow] = field(default_factory=list[TurnRow])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    chunks: dict[int, list[tuple[int, str]]] = field(default_factory=dict[int, list[tuple[int, str]]])
    """What each turn has streamed: numbers and chunks, in the order they are stored in."""
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Those of all branches."""
    tree: list[tuple[int, int | None, int]] = field(default_factory=list[tuple[int, int | None, int]])
    """Of each message its position, that of the message before it, and 1 on the active path."""
    model_said: list[tuple[str, ModelMessage]] = field(default_factory=list[tuple[str, ModelMessage]])
    """What was said to the model or by it, in all branches and before any summary, each with its message."""
    history: list[tuple[str, ModelMessage]] = field(default_factory=list[tuple[str, ModelMessage]])
    """What the model sees, each with the message it is part of."""
    fibers: Counter[int] = field(default_factory=Counter[int])
    """How many fibers drive each turn."""
    begins: int = 0
    """How many calls are to come that begin the next turn."""
    runs: Counter[str] = field(default_factory=Counter[str])
    """How often a tool call has left its mark."""
    ends: Counter[str] = field(default_factory=Counter[str])
    """How often the agent was told that a turn is over."""
    records: Records = field(default_factory=Records)

    @property
    def place(self) -> str:
        return str(self.address)

    def of_status(self, *statuses: str) -> list[TurnRow]:
        return [row for row in self.turns if row.status in statuses]

    def returned(self) -> dict[str, Any]:
        """Return what the model was told of each tool call."""
        return {
            part.tool_call_id: part.content
            for _, message in self.history
            for part in message.parts
            if part.part_kind == "tool-return"
        }

    def problems(self) -> list[str]:
        """Return what can be seen to be wrong without knowing what happened."""
        history = [message for _, message in self.history]
        found = chat_rules.broken(history, is_asked=False)
        open_calls = _open_calls(history)
        if open_calls and not self.of_status("running", "waiting"):
            found.append(f"{', '.join(sorted(open_calls))} did not return, and no turn is open")
        ids = [message["id"] for message in self.messages]
        if len(set(ids)) < len(ids):
            found.append("a message is there twice")
        parts = [part["toolCallId"] for message in self.messages for part in message["parts"] if "toolCallId" in part]
        if len(set(parts)) < len(parts):
            found.append("a tool call is there twice")
        found += self._broken_tree()
        running, queued = self.of_status("running"), self.of_status("queued")
        if len(running) > 1 or len(self.of_status("waiting")) > 1:
            found.append(f"{len(running)} turns run, {len(self.of_status('waiting'))} wait")
        if queued and not running and not self.begins and not self.of_status("waiting"):
            found.append(f"{queued[0].id} is queued, and nobody will begin it")
        for row in self.turns:
            if self.fibers[row.number] != 1 and row.status == "running":
                found.append(f"{row.id} runs, and {self.fibers[row.number]} fibers drive it")
            stored = [seq for seq, _ in self.chunks.get(row.number, ())]
            if stored != sorted(set(stored)):
                found.append(f"the chunks of {row.id} are numbered {stored}")
            if stored and row.status not in ("running", "failed"):
                found.append(f"{row.id} is {row.status}, and its chunks are still there")
            if requests_of(row) < row.steps:
                found.append(f"{row.id} has asked the model {row.steps} times, and used {row.usage}")
        found += self.records.problems() + self.records.of_turns(self.turns, self.calls)
        return [f"{self.place}: {problem}" for problem in found]

    def _broken_tree(self) -> list[str]:
        """Return what is wrong with the branches: each message follows an older one, and one path is active."""
        found: list[str] = []
        positions, last = set[int](), None
        for position, parent, is_active in self.tree:
            if parent is not None and parent not in positions:
                found.append(f"the message at {position} follows {parent}, which is not there")
            if is_active and parent != last:
                found.append(f"the message at {position} is active and follows {parent}, and the path is at {last}")
            positions.add(position)
            last = position if is_active else last
        return found


def requests_of(row: TurnRow) -> int:
    """Return how many requests a turn has used: those that were broken off, and those for summaries, count too."""
    return sum(one["requests"] for one in msgspec.json.decode(row.usage).values())


def _open_calls(history: list[ModelMessage]) -> set[str]:
    called = {part.tool_call_id for one in history for part in one.parts if part.part_kind == "tool-call"}
    returned: set[Any] = {
        getattr(part, "tool_call_id", None)
        for one in history
        for part in one.parts
        if part.part_kind in chat_rules.RETURNS
    }
    return called - returned


def read_folder(data: Path) -> dict[str, Left]:
    """Return the conversations of a data folder, by address."""
    found: dict[str, Left] = {}

    def read(address: Address, stem: str, database: apsw.Connection | None) -> None:
        left = found[str(address)] = Left(address)
        if database is not None:
            _read(database, left)

    for root in roots_in(data) if (data / TREES).exists() else ():
        walk(data, root, read)
    return found


def _read(database: apsw.Connection, left: Left) -> None:
    left.records = read_records(database)
    if has(database, "sapwood_turns"):
        left.turns = [TurnRow(*row) for row in database.execute(ALL + "ORDER BY number")]
        left.calls = [ToolCall(*row) for row in database.execute(ALL_CALLS)]
        for turn, first, body in database.execute(
            "SELECT stream, first, body FROM sapwood_chunks ORDER BY stream, first"
        ):
            for at, chunk in enumerate(msgspec.json.decode(body, type=list[msgspec.Raw])):
                left.chunks.setdefault(turn, []).append((first + at, bytes(chunk).decode()))
        for position, parent, is_active, body in database.execute(
            "SELECT position, parent, is_active, body FROM sapwood_messages ORDER BY position"
        ):
            left.messages.append(msgspec.json.decode(body))
            left.tree.append((position, parent, is_active))
        columns = "SELECT message, body FROM sapwood_model_messages"
        left.history = _model_messages(
            database.execute(f"{columns} WHERE is_active = 1 ORDER BY coalesce(place, position)")
        )
        left.model_said = _model_messages(database.execute(f"{columns} WHERE replaces IS NULL ORDER BY position"))
    if has(database, "sapwood_fibers"):
        for name, arguments in database.execute("SELECT method, arguments FROM sapwood_fibers"):
            if name == "_sapwood_drive_turn":
                left.fibers[msgspec.msgpack.decode(arguments)["number"]] += 1
    if has(database, "sapwood_calls"):
        ((left.begins,),) = database.execute("SELECT count(*) FROM sapwood_calls WHERE method = '_sapwood_begin_turn'")
    if has(database, "runs"):
        left.runs.update(str(key) for (key,) in database.execute("SELECT key FROM runs"))
        left.ends.update(str(turn) for (turn,) in database.execute("SELECT turn FROM ends"))


def _model_messages(rows: Iterable[Any]) -> list[tuple[str, ModelMessage]]:
    found = list(rows)
    messages = ModelMessagesTypeAdapter.validate_json(f"[{','.join(str(body) for _, body in found)}]")
    return [(str(id), message) for (id, _), message in zip(found, messages, strict=True)]
