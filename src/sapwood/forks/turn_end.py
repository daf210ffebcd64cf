"""Ends a turn in a file that no process has open: what it said so far stays in the conversation."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from sapwood.chat.store.chunks import assembled, closed
from sapwood.chat.store.partial_answers import BROKEN_OFF, bring_back, keep_partial
from sapwood.chat.store.transcript import Transcript
from sapwood.chat.store.turn_rows import ToolCall, TurnRow
from sapwood.clock import Timer
from sapwood.runs.tables.executed_runs_table import CHUNKS
from sapwood.storage.database import Database
from sapwood.storage.offline_edit import OfflineEdit


class FixedClock:
    """The time at which a fork is made."""

    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Any) -> Timer:
        raise NotImplementedError


def end_turn(edit: OfflineEdit, row: TurnRow, calls: list[ToolCall], now: float, reason: str) -> None:
    """Cancel a turn, for this reason."""
    if row.status != "queued":
        _store_answer(edit, row, calls, now)
    edit.execute("DELETE FROM sapwood_tool_calls WHERE turn = ?", row.number)
    edit.execute(
        "UPDATE sapwood_turns SET status = 'cancelled', cancelled = 'cancelled', reason = ?, recovering_at = NULL,"
        " ended_at = ? WHERE number = ?",
        reason,
        now,
        row.number,
    )
    if edit.has(CHUNKS) and row.replay_seconds is None and row.run is None:
        edit.execute("DELETE FROM sapwood_chunks WHERE stream = ?", row.number)


def _store_answer(edit: OfflineEdit, row: TurnRow, calls: list[ToolCall], now: float) -> None:
    # It reads and writes rows only, as of a database that is open.
    transcript = Transcript(cast("Database", edit), FixedClock(now))
    chunks = _chunks(edit, row)
    message = assembled(chunks, transcript.get(row.message) or {"id": row.message, "role": "assistant", "parts": []})
    message = closed(message, BROKEN_OFF["cancelled"])
    keep_partial(transcript, row, calls, "cancelled", chunks)
    if any(part["type"] != "step-start" for part in message["parts"]):
        transcript.put(message)
    else:
        bring_back(transcript, row)


def _chunks(edit: OfflineEdit, row: TurnRow) -> list[dict[str, Any]]:
    if not edit.has(CHUNKS):
        return []
    rows = edit.execute("SELECT body FROM sapwood_chunks WHERE stream = ? AND step >= 0 ORDER BY first", row.number)
    return [chunk for (body,) in rows for chunk in msgspec.json.decode(body)]
