"""What is recorded of a turn beside the conversation, for a test that repeats it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from sapwood.admin.agent_lookup import MOST_ROWS
from sapwood.admin.endpoint import AdminCall
from sapwood.admin.redacted_turn import RedactedTurn
from sapwood.chat.store.turn_copies import TurnCopy
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.tables.decisions import ASK
from sapwood.runs.tables.run_reads import ToolCallRun, runs_of_tool_calls
from sapwood.storage.database import Database

DECIDED = ("approved", "denied")
ANSWERED = ("answered", "denied")
"""The kinds of decisions about tool calls, and about what code asks."""

WROTE, ASKED_FOR = "what a person wrote", "what a person was asked"


class TurnRecords(NamedTuple):
    """The records of one turn."""

    spans: list[dict[str, Any]]
    decisions: list[dict[str, Any]]
    runs: dict[str, list[ToolCallRun]]
    """The runs that tool calls have started, by the ids of the calls."""

    @classmethod
    def read(cls, call: AdminCall, database: Database, copy: TurnCopy) -> TurnRecords:
        reads = call.node.read_models
        spans = reads.spans(database, str(WorkId.run(copy.id)), MOST_ROWS)
        return cls(spans, reads.decisions(database, MOST_ROWS) or [], runs_of_tool_calls(database, copy.id))

    def model_error(self, copy: TurnCopy) -> str | None:
        """Return with what the last request to the model failed; `None` if it did not."""
        if copy.status != "failed":
            return None
        requests = [one for one in self.spans if one["kind"] == "step" and one["step"] is not None]
        if requests:
            last = requests[-1]
            return str(last["facts"].get("error", "failed")) if last["status"] in ("failed", "interrupted") else None
        # Nothing is recorded. Without an answer to the last message or result, it was the model.
        return "failed" if not copy.steps or copy.steps[-1].calls or copy.steps[-1].is_cut else None

    def step_comments(self, *, has_failed: bool) -> dict[int, str]:
        """Return the attempts that steps needed, by the numbers of the steps; not the one that ended the turn."""
        found: dict[int, list[str]] = {}
        requests = [one for one in self.spans if one["kind"] == "step" and one["step"] is not None]
        for one in requests[:-1] if has_failed else requests:
            if one["status"] in ("failed", "interrupted"):
                why = one["facts"].get("error")
                how = one["status"] if why is None else f"{one['status']} ({why})"
                found.setdefault(one["step"], []).append(f"attempt {one['attempt']} {how}")
        return {step: ", ".join(attempts) for step, attempts in found.items()}

    def call_comments(self, copy: TurnCopy, redacted: RedactedTurn) -> dict[str, str]:
        """Return what is recorded of tool calls, by their ids in the copy."""
        found: dict[str, list[str]] = {}
        for one in self.spans:
            if one["kind"] == "tool" and one["attempt"] > 1:
                found.setdefault(one["facts"].get("key", ""), []).append(f"attempt {one['attempt']}")
        for one in self.decisions:
            if one["kind"] not in DECIDED or one["tool"] == ASK or one["question"] not in copy.ids:
                continue
            what = one["kind"]
            if one["arguments"] is not None:
                what += f" with {_json(redacted.value('arguments', msgspec.json.decode(one['arguments']), WROTE))}"
            found.setdefault(one["question"], []).append(what)
        return {copy.ids[id]: ", ".join(dict.fromkeys(notes)) for id, notes in found.items() if id in copy.ids}

    def answers(self, copy: TurnCopy, redacted: RedactedTurn) -> list[str]:
        """Return what people answered during the turn that code has asked them."""
        found: list[str] = []
        for one in self.decisions:
            if one["kind"] not in ANSWERED or one["tool"] != ASK or not copy.began_at <= one["at"] <= copy.ended_at:
                continue
            prompt = redacted.value("message", msgspec.json.decode(one["shown"]).get("prompt"), ASKED_FOR)
            answer = None if one["arguments"] is None else msgspec.json.decode(one["arguments"])
            said = _json(redacted.value("message", answer, WROTE)) if one["kind"] == "answered" else "no answer"
            found.append(f"A person was asked: {prompt} Answer: {said}")
        return found


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
