"""`diff`: what differs between two agents and those below them."""

from __future__ import annotations

from typing import Any

import msgspec

from sapwood.address import Address
from sapwood.admin.content import REDACTED, SECRET, hidden
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.admin.moments import Given, moment_of
from sapwood.kernel.comparison.comparison import DEFAULT_LIMIT, compare
from sapwood.kernel.comparison.tree_diff import Change, PartDiff

ALWAYS_SHOWN = frozenset({"spending"})
"""Parts that have only names of models, and numbers."""


class Diff(OneAgent):
    other: str
    at: Given = None
    other_at: Given = None
    limit: int = DEFAULT_LIMIT


async def _diff(call: AdminCall, params: Diff) -> Answer:
    parts = call.node.read_models.compared
    a, b = Address.parse(params.address), Address.parse(params.other)
    at, other_at = moment_of(params.at, a), moment_of(params.other_at, b)
    found = await compare(call.node, a, b, parts, params.limit, at, other_at)
    answer: Answer = msgspec.to_builtins(found)
    answer["agents_changed"] = [
        {"path": agent.path, "parts": [_part(call, part) for part in agent.parts]} for agent in found.agents_changed
    ]
    return answer


def _part(call: AdminCall, part: PartDiff) -> dict[str, Any]:
    changes = [_change(call, part, change) for change in part.changes]
    told: dict[str, Any] = msgspec.to_builtins(part)
    del told["key_columns"]
    return told | {"changes": changes, "problem": call.content.text("error", part.problem)}


def _change(call: AdminCall, part: PartDiff, change: Change) -> dict[str, Any]:
    kind = part.kind
    if kind in ALWAYS_SHOWN:
        return msgspec.to_builtins(change)
    content, is_shown = call.content, kind != "table" or "sql" in call.access.scopes

    def shown(value: Any) -> Any:
        if value is None:
            return None
        if content.is_shown and kind == "state" and _is_secret(change.key):
            return REDACTED
        return content.value(kind, value) if is_shown else hidden(value)

    key = content.text("key", _key(part, change)) if is_shown else hidden(change.key)
    return {"kind": change.kind, "key": key, "a": shown(change.a), "b": shown(change.b)}


def _key(part: PartDiff, change: Change) -> str:
    """Return the key of a change without the values of columns whose names say that they are secret."""
    if not change.key or not any(SECRET.search(name) for name in part.key_columns):
        return change.key
    if len(part.key_columns) == 1:
        return REDACTED
    values = zip(part.key_columns, msgspec.json.decode(change.key, type=list[Any]), strict=True)
    return msgspec.json.encode([REDACTED if SECRET.search(name) else value for name, value in values]).decode()


def _is_secret(pointer: str) -> bool:
    return any(SECRET.search(name) for name in pointer.split("/"))


DIFF = Endpoint("diff", "look", Diff, _diff, is_of_any_node=True)
