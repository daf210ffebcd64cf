"""Records the turns of one conversation and their tool calls, as their rows change."""

from __future__ import annotations

import hashlib

import msgspec

from sapwood.capabilities.redaction import Redaction
from sapwood.capabilities.spans import SpanRow, Spans
from sapwood.chat.store.turn_rows import ToolCall, TurnRow
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.ports.work_id import WorkId

LONGEST_ARGUMENTS = 4000
"""Characters of the arguments of a tool call that a record holds."""
CUT = {"completed": "skipped", "failed": "interrupted", "cancelled": "cancelled", "skipped": "skipped"}
"""How what is open ends when its turn ends, by the status of the turn."""
INTERRUPTED = "call was interrupted: the process"
"""What the errors of tool calls say that a crash interrupted, and that are not repeated."""
WAITS = {"approval": "approval", "client": "client", "client soon": "client"}
"""What a turn waits for, by the answerer of a tool call. A run has a span of its own."""


class TurnSpans:
    """The spans of the turns of one conversation."""

    def __init__(self, actor: Actor) -> None:
        self._spans = actor.of(Spans)
        self._redaction = actor.host.shared(Redaction)
        self._type = actor.kind.type

    def turn_changed(self, before: TurnRow | None, after: TurnRow) -> None:
        """Record that a turn begins, waits, continues or ends."""
        if not self._spans.are_kept or (before is not None and before.status == after.status):
            return
        work = str(WorkId.run(after.id))
        found = self._spans.open(work, "turn")
        if after.status == "running":
            self._begin(after, work, found)
        elif after.status == "waiting" and found:
            self._spans.change(found[0].number, status="waiting")
        elif not after.is_open and found:
            for row in self._spans.open(work):
                if row.number != found[0].number and row.kind != "run":
                    self._spans.end(row.number, CUT[after.status])
            self._spans.end(found[0].number, after.status, steps=after.steps, reason=after.reason)

    def _begin(self, turn: TurnRow, work: str, found: list[SpanRow]) -> None:
        if found:
            self._spans.change(found[0].number, status="running")
        elif not turn.continues or self._spans.reopen(work, "turn") is None:
            self._spans.begin(
                "turn", work, self._type, turn=turn.id, queued_at=turn.created_at, user=turn.user, run=turn.run
            )

    def call_changed(self, turn: TurnRow, before: ToolCall | None, after: ToolCall) -> None:
        """Record that a tool call begins, waits for an answer, is answered or ends."""
        if not self._spans.are_kept:
            return
        work = str(WorkId.run(turn.id))
        if after.status == "running" and (before is None or before.status is None):
            self.tool_begins(turn, after)
        if after.is_open and (wait := WAITS.get(after.answerer or "")) is not None:
            if self._spans.find(work, "wait", after.id) is None:
                self._spans.begin(
                    "wait",
                    work,
                    wait,
                    key=after.id,
                    step=turn.steps,
                    tool=self._name(after),
                    arguments=self._short(after.input),
                )
        elif after.answer is not None and (before is None or before.answer is None):
            self._answered(work, turn, after)
        if after.status in ("done", "failed") and (row := self._spans.find(work, "tool", after.id)) is not None:
            was_cut = self._spans.is_from_before(row) and INTERRUPTED in (after.error or "")
            failed = "interrupted" if was_cut else "failed"
            self._spans.end(row.number, "completed" if after.status == "done" else failed, **_outcome(after))

    def tool_begins(self, turn: TurnRow, call: ToolCall) -> None:
        """Record that a tool is called: for the first time, or again after a crash."""
        if not self._spans.are_kept:
            return
        work = str(WorkId.run(turn.id))
        if (row := self._spans.find(work, "tool", call.id)) is not None:
            self._spans.end(row.number, "interrupted")
        self._spans.begin(
            "tool",
            work,
            self._name(call),
            key=call.id,
            step=turn.steps,
            arguments=self._short(call.input),
            decision=_decision(call),
        )

    def tool_begins_again(self, turn: TurnRow, call: ToolCall) -> None:
        """Record, in this slice, that a tool is called again: nothing else is committed before it acts."""
        self.tool_begins(turn, call)
        self._spans.write()

    def _answered(self, work: str, turn: TurnRow, call: ToolCall) -> None:
        """Record the end of a wait. A call that no tool of ours ran has its tool span here."""
        kind = _decision(call)
        if (row := self._spans.find(work, "wait", call.id)) is not None:
            self._spans.end(row.number, "completed", decision=kind)
        if kind == "approved" or call.answerer in ("run", "run soon"):
            return
        number = self._spans.begin(
            "tool",
            work,
            self._name(call),
            key=call.id,
            step=turn.steps,
            arguments=self._short(call.input),
            decision=kind,
        )
        status = {"denied": "skipped", "failed": "failed"}.get(kind or "", "completed")
        self._spans.end(number, status, **_outcome(call))

    def _name(self, call: ToolCall) -> str:
        return self._redaction.apply("name", call.name)

    def _short(self, arguments: str) -> str:
        text = self._redaction.apply("arguments", arguments)
        return text if len(text) <= LONGEST_ARGUMENTS else text[:LONGEST_ARGUMENTS] + "…"


def _decision(call: ToolCall) -> str | None:
    return None if call.answer is None else msgspec.json.decode(call.answer)[0]


def _outcome(call: ToolCall) -> dict[str, str | int]:
    """Return the size and digest of what a call returned."""
    text = call.result if call.result is not None else call.error if call.error is not None else call.answer or ""
    body = text.encode()
    return {"result_bytes": len(body), "result_digest": hashlib.sha256(body).hexdigest()[:32]}
