"""What a test needs that repeats a turn: the messages before it, the answers of the model, the results of the tools.

It is read from the stored conversation; the agent stays asleep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec

from sapwood.chat.store.compaction import SUMMARY
from sapwood.chat.store.file_references import digest_in
from sapwood.chat.store.turn_rows import JOINED
from sapwood.kernel.ports.read_models import has_table
from sapwood.storage.database import Database

MOST_BEFORE = 20
"""Messages before the turn that a copy has."""
MOST_ROWS = 10_000
LONGEST_ID = 12
"""Characters of the id of a tool call that a copy keeps."""
CLEARED = "[Cleared: the result of "
"""How the note begins that stands for a tool result in a compacted conversation."""
FILE_KINDS = ("binary", "image-url", "audio-url", "video-url", "document-url", "uploaded-file")
NAMES = {
    "thinking": "reasoning",
    "file": "files that the model made",
    "builtin-tool-call": "calls of tools of the provider",
    "builtin-tool-return": "results of tools of the provider",
}
"""What is left out of a response, by the kind of the part."""

PATH = (
    "WITH RECURSIVE path (position) AS"
    " (VALUES (?1) UNION ALL SELECT parent FROM sapwood_messages JOIN path USING (position)"
    " WHERE parent < position) "  # in a damaged file it may be a cycle
)
"""The messages of the path that ends with one."""

Ending: TypeAlias = Literal["returned", "failed", "denied", "retried", "interrupted"]


class CopiedCall(NamedTuple):
    """A tool call of the model."""

    id: str
    tool: str
    arguments: dict[str, Any] | str
    """A text if the model wrote no JSON object."""


class CopiedResult(NamedTuple):
    """How a tool call ended."""

    ending: Ending
    value: Any
    is_invalid: bool = False
    """Whether the arguments did not fit, so that the call was not made."""


@dataclass(slots=True)
class CopiedStep:
    """A response of the model."""

    number: int
    """From 1, as in the records."""
    text: str
    calls: list[CopiedCall]
    is_cut: bool = False
    """Whether the turn ended before the response did."""
    continues: bool = False
    """Whether the turn had an answer before this step, and was continued."""


@dataclass(slots=True)
class TurnCopy:
    """A turn that has ended."""

    id: str
    status: str
    error: str | None
    output: Any
    """The output as JSON has it; `None` if the turn did not complete."""
    text: str
    """All text of the answer, as clients see it."""
    began_at: float
    ended_at: float
    before: list[dict[str, Any]]
    """The last messages before the turn."""
    asked: list[dict[str, Any]]
    """The messages that it answers."""
    steps: list[CopiedStep] = field(default_factory=list[CopiedStep])
    results: dict[str, CopiedResult] = field(default_factory=dict[str, CopiedResult])
    """By the ids of tool calls."""
    missing: list[str] = field(default_factory=list[str])
    """What the copy leaves out, as nouns."""
    ids: dict[str, str] = field(default_factory=dict[str, str])
    """The ids of tool calls in the copy, by the stored ones."""


class _Row(NamedTuple):
    id: str
    status: str
    message: str
    prompt_ids: str
    run: str | None
    steps: int
    output: str | None
    error: str | None
    body: str
    new_messages: str
    created_at: float
    ended_at: float | None

    @property
    def has_ended(self) -> bool:
        """Whether the turn has begun and ended."""
        if self.status == "cancelled":
            return self.new_messages == JOINED
        return self.status in ("completed", "failed")


def turn_copy(database: Database, id: str) -> TurnCopy | str | None:
    """Return a turn that has ended; the status of one that cannot be copied; `None` if there is no such turn."""
    if not has_table(database, "sapwood_turns"):
        return None
    _, found = database.look(f"SELECT {', '.join(_Row._fields)} FROM sapwood_turns WHERE id = ?", (id,), 1)  # noqa: S608 - ours
    if not found:
        return None
    row = _Row(*found[0])
    return _Reader(database, row).read() if row.has_ended else row.status


class _Reader:
    """Reads one turn."""

    def __init__(self, database: Database, row: _Row) -> None:
        self._database = database
        self._row = row
        self._missing: dict[str, None] = {}

    def read(self) -> TurnCopy:
        row = self._row
        answer = self._messages("id = ?", row.message)
        parts: list[dict[str, Any]] = answer[0][1]["parts"] if answer else []
        asked = self._messages("id IN (SELECT value FROM json_each(?))", row.prompt_ids)
        copy = TurnCopy(
            row.id,
            row.status,
            row.error,
            None if row.output is None else msgspec.json.decode(row.output),
            "".join(part["text"] for part in parts if part["type"] == "text"),
            row.created_at,
            row.ended_at or row.created_at,
            [],
            [],
        )
        if row.run is None and msgspec.json.decode(row.body):
            self._leave_out("other fields of the request")
        rows = self._model_messages(answer[0][0] if answer else None)
        if sum(kind == "response" and message.get("state") != "interrupted" for _, kind, message in rows) < row.steps:
            self._leave_out("what only the model saw, because the conversation was compacted since")
            self._read_parts(copy, parts)
        else:
            self._read_model_messages(copy, rows, parts)
            if asked:
                copy.before = self._before(asked[0][0])
        copy.asked = [self._plain(message) for _, message in asked]
        for number, message in enumerate([*copy.before, *copy.asked], 1):
            message["id"] = f"m{number}"
        copy.missing = list(self._missing)
        _shorten_ids(copy)
        return copy

    def _leave_out(self, what: str) -> None:
        self._missing[what] = None

    def _messages(self, where: str, *arguments: Any, most: int = MOST_ROWS) -> list[tuple[int, dict[str, Any]]]:
        path = PATH if "path" in where else ""
        sql = f"{path}SELECT position, body FROM sapwood_messages WHERE {where} ORDER BY position DESC"  # noqa: S608 - ours
        rows = self._database.look(sql, arguments, most)[1]
        return [(position, msgspec.json.decode(body)) for position, body in reversed(rows)]

    def _model_messages(self, position: int | None) -> list[tuple[str, str, dict[str, Any]]]:
        """Return what the model saw of the turn, with what it received during it: not what other branches received."""
        sql = PATH + (  # noqa: S608 - ours
            "SELECT message, kind, body FROM sapwood_model_messages WHERE position BETWEEN"
            " (SELECT min(position) FROM sapwood_model_messages WHERE message = ?2)"
            " AND (SELECT max(position) FROM sapwood_model_messages WHERE message = ?2) AND replaces IS NULL AND"
            " (?1 IS NULL OR message IN (SELECT id FROM sapwood_messages JOIN path USING (position)))"
            " ORDER BY position"
        )
        rows = self._database.look(sql, (position, self._row.message), MOST_ROWS)[1]
        return [(message, kind, msgspec.json.decode(body)) for message, kind, body in rows]

    def _before(self, position: int) -> list[dict[str, Any]]:
        """Return the last messages before the turn, on its path, that no summary replaced."""
        sql = PATH + (  # noqa: S608 - ours
            "SELECT max(m.position) FROM path JOIN sapwood_messages m USING (position)"
            " JOIN sapwood_model_messages s ON s.message = m.id"
            " WHERE m.position < ?1 AND s.kind = 'request' AND s.body ->> '$.parts[0].content' GLOB ?2"
        )
        ((summarised,),) = self._database.look(sql, (position, f"{SUMMARY}*"), 1)[1]
        rows = self._messages(
            "position < ?1 AND position > ?2 AND position IN path", position, summarised or 0, most=MOST_BEFORE
        )
        first = rows[0][0] if rows else position
        count = PATH + "SELECT count(position) - 1 FROM path"  # noqa: S608 - ours
        if older := self._database.look(count, (first,), 1)[1][0][0]:
            self._leave_out(f"{older} older messages of the conversation")
        found = [self._plain(message) for _, message in rows]
        return [message for message in found if message["parts"]]

    def _plain(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message with its texts, and a note in the place of each file."""
        parts: list[dict[str, Any]] = []
        for part in message["parts"]:
            if part["type"] == "text":
                parts.append({"type": "text", "text": part["text"]})
            elif part["type"] == "file":
                self._leave_out("files in messages")
                parts.append({"type": "text", "text": f"[a file: {part.get('mediaType')}]"})
        return {"id": message["id"], "role": message["role"], "parts": parts}

    def _read_model_messages(self, copy: TurnCopy, rows: Sequence[tuple[str, str, Any]], parts: Sequence[Any]) -> None:
        shown = {part["toolCallId"]: part for part in parts if "toolCallId" in part}
        continues, number = False, 0
        for owner, kind, message in rows:
            if kind == "response":
                number += 1
                step = self._step(number, message)
                if step.text or step.calls:
                    step.continues = continues
                    copy.steps.append(step)
                    continues = False
                continue
            for part in message["parts"]:
                if (result := self._result(part, shown)) is not None:
                    copy.results[part["tool_call_id"]] = result
                elif part["part_kind"] == "user-prompt":
                    continues = bool(copy.steps) and not copy.steps[-1].calls
                    if owner != self._row.message:
                        self._leave_out("messages received during the turn")

    def _step(self, number: int, message: dict[str, Any]) -> CopiedStep:
        step = CopiedStep(number, "", [], is_cut=message.get("state") == "interrupted")
        for part in message["parts"]:
            kind = part["part_kind"]
            if kind == "text":
                step.text += part["content"]
            elif kind == "tool-call":
                step.calls.append(CopiedCall(part["tool_call_id"], part["tool_name"], _arguments(part["args"])))
            else:
                self._leave_out(NAMES.get(kind, f"parts of the kind {kind}"))
        return step

    def _result(self, part: dict[str, Any], shown: dict[str, Any]) -> CopiedResult | None:
        """Return the result of a tool call; `None` if the part is none."""
        kind, value = part["part_kind"], part.get("content")
        if kind == "retry-prompt" and part.get("tool_name"):
            return CopiedResult("retried", _text(value))
        if kind != "tool-return":
            return None
        match part.get("outcome", "success"):
            case "success":
                if isinstance(value, str) and value.startswith(CLEARED):
                    value = shown.get(part["tool_call_id"], {}).get("output", value)
                return CopiedResult("returned", self._named_files(value))
            case "retried":
                retry: dict[str, Any] = part.get("retry") or {}
                return CopiedResult("retried", _text(value), retry.get("cause") == "validation_error")
            case "failed" | "denied" | "interrupted" as ending:
                return CopiedResult(ending, _text(value))
            case other:
                return CopiedResult("failed", f"{other}: {_text(value)}")

    def _named_files(self, value: Any) -> Any:
        """Return a value with a note in the place of each file."""
        if isinstance(value, list):
            return [self._named_files(one) for one in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        fields = cast("dict[str, Any]", value)
        is_part = fields.get("type") == "file" and digest_in(fields.get("url")) is not None
        if is_part or (fields.get("kind") in FILE_KINDS and ("media_type" in fields or "url" in fields)):
            self._leave_out("files in results of tools")
            return f"[a file: {fields.get('media_type') or fields.get('mediaType') or fields.get('kind')}]"
        return {name: self._named_files(one) for name, one in fields.items()}

    def _read_parts(self, copy: TurnCopy, parts: Sequence[dict[str, Any]]) -> None:
        """Read the steps from what clients see of them."""
        for part in parts:
            if part["type"] == "step-start" or not copy.steps:
                copy.steps.append(CopiedStep(len(copy.steps) + 1, "", []))
            step, id = copy.steps[-1], part.get("toolCallId")
            if part["type"] == "text":
                step.text += part["text"]
            elif id is not None and not part.get("providerExecuted"):
                step.calls.append(CopiedCall(id, part["type"].removeprefix("tool-"), _arguments(part.get("input"))))
                if (result := self._shown_result(part)) is not None:
                    copy.results[id] = result
        copy.steps = [step for step in copy.steps if step.text or step.calls]

    def _shown_result(self, part: dict[str, Any]) -> CopiedResult | None:
        match part.get("state"):
            case "output-available":
                return CopiedResult("returned", self._named_files(part.get("output")))
            case "output-error":
                return CopiedResult("failed", str(part.get("errorText")))
            case "output-denied":
                return CopiedResult("denied", "The user does not allow this call.")
            case _:
                return None


def _shorten_ids(copy: TurnCopy) -> None:
    """Give tool calls ids that people can read, unless all have."""
    ids = [call.id for step in copy.steps for call in step.calls]
    if all(len(id) <= LONGEST_ID for id in ids):
        copy.ids = {id: id for id in ids}
        return
    copy.ids = {id: f"c{number}" for number, id in enumerate(ids, 1)}
    for step in copy.steps:
        step.calls = [call._replace(id=copy.ids[call.id]) for call in step.calls]
    copy.results = {copy.ids[id]: result for id, result in copy.results.items() if id in copy.ids}


def _arguments(args: Any) -> dict[str, Any] | str:
    if not isinstance(args, str):
        return cast("dict[str, Any]", args or {})
    try:
        return msgspec.json.decode(args or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, ValueError):
        return args


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
