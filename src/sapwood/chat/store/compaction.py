"""Plans how a long conversation becomes short for a model: old tool results are cleared, old messages summarised.

Clients see all of it still. A tool call is never separated from its result, and pinned messages stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

CHARACTERS_PER_TOKEN = 4
KEPT = 0.5
"""Which part of what is allowed stays as it is."""
ENOUGH = 0.75
"""Which part of what is allowed may be left without a summary: closer to the limit, each turn would clear some."""
CLEARED_ABOVE = 400
"""Characters of a tool result above which it may be cleared: the note in its place is not much shorter."""
SUMMARISE = """\
Summarise the conversation so far. You will continue it with this summary in place of the messages. Use these \
headings, and leave out one that has nothing below it:

## Goal
What the user wants, in the words of the user where they matter.
## Decisions
What was decided or agreed, and why.
## Facts
What was found out, also from tools; numbers exactly.
## Open questions
What is not done or not known.
## Names and ids
People, files, URLs, ids and other names, exactly as they were written.

Write no greeting and no comment."""
SUMMARY = "Summary of the earlier conversation."
BEFORE = (
    f"{SUMMARY} Its {{count}} messages are not in your context any more. They are stored in full, and can be"
    " searched:\n\n"
)


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What is to be done with a history, by the places of its messages."""

    cleared: Mapping[int, ModelMessage] = field(default_factory=dict[int, Any])
    """Messages whose tool results are cleared, as they are then."""
    summarised: Sequence[int] = ()
    """Messages that a summary replaces."""

    def __bool__(self) -> bool:
        return bool(self.cleared or self.summarised)


def size_of(message: ModelMessage) -> int:
    """Return about how many tokens a message has."""
    return sum(len(_text_of(part)) for part in message.parts) // CHARACTERS_PER_TOKEN + 4


def _text_of(part: object) -> str:
    for name in ("content", "args"):
        value = getattr(part, name, None)
        if value is not None:
            return value if isinstance(value, str) else str(value)
    return ""


def plan_of(history: Sequence[tuple[str, ModelMessage]], allowed: int, pinned: Collection[str] = ()) -> CompactionPlan:
    """Return how a history with the ids of its messages fits into so many tokens, about."""
    messages = [message for _, message in history]
    sizes = [size_of(message) for message in messages]
    if sum(sizes) <= allowed:
        return CompactionPlan()
    cleared = _cleared(history, _recent(messages, sizes, allowed), pinned)
    for at, message in cleared.items():
        messages[at], sizes[at] = message, size_of(message)
    if cleared and sum(sizes) <= allowed * ENOUGH:
        return CompactionPlan(cleared)
    cut = _cut(messages, sizes, allowed)
    stays = _staying(history, cut, pinned)
    summarised = [at for at in range(cut) if at not in stays]
    # One message alone would be the last summary.
    return CompactionPlan(cleared, summarised if len(summarised) > 1 else ())


def _recent(messages: Sequence[ModelMessage], sizes: Sequence[int], allowed: int) -> int:
    """Return the place from which on tool results stay: the newest, and those that the model has not seen yet."""
    left, at, is_seen = 0, len(sizes), False
    while at > 0 and (not is_seen or left + sizes[at - 1] <= allowed * KEPT):
        at -= 1
        left += sizes[at]
        is_seen = is_seen or messages[at].kind == "response"
    return at


def _cleared(
    history: Sequence[tuple[str, ModelMessage]], recent: int, pinned: Collection[str]
) -> dict[int, ModelMessage]:
    found: dict[int, ModelMessage] = {}
    for at, (id, message) in enumerate(history[:recent]):
        if message.kind != "request" or id in pinned:
            continue
        parts: list[Any] = [_note(part, id) for part in message.parts]
        if any(part is not old for part, old in zip(parts, message.parts, strict=True)):
            found[at] = replace(message, parts=parts)
    return found


def _note(part: Any, id: str) -> Any:
    if part.part_kind != "tool-return" or len(_text_of(part)) <= CLEARED_ABOVE:
        return part
    note = (
        f"[Cleared: the result of {part.tool_name} had {len(_text_of(part)):,} characters. It is stored with the"
        f" message {id} as the tool call {part.tool_call_id}.]"
    )
    return replace(part, content=note)


def _cut(history: Sequence[ModelMessage], sizes: Sequence[int], allowed: int) -> int:
    """Return how many messages are old: between turns, or within the last one if that alone is too long. 0: none."""
    left, cut, inner = 0, 0, 0
    for at in range(len(history) - 1, 0, -1):
        left += sizes[at]
        if left > allowed * KEPT and (cut or (inner and left > allowed)):
            break
        if begins_turn(history[at]):
            cut = at
        elif (
            history[at].kind == "response"
            and history[at - 1].kind == "request"
            and (left <= allowed * KEPT or not inner)
        ):
            inner = at
        if left > allowed and cut:
            break
    return cut or inner


def _staying(history: Sequence[tuple[str, ModelMessage]], cut: int, pinned: Collection[str]) -> set[int]:
    """Return which of the old messages stay: those that are pinned, and the question of a turn that is cut."""
    stays = {at for at, (id, _) in enumerate(history[:cut]) if id in pinned}
    stays |= {at - 1 for at in stays if at and history[at][1].kind == "response" and begins_turn(history[at - 1][1])}
    if 0 < cut < len(history) and history[cut][1].kind == "response":
        stays |= set([at for at in range(cut) if begins_turn(history[at][1])][-1:])
    return stays


def begins_turn(message: ModelMessage) -> bool:
    """Return whether a message is what a user said, and not what a tool returned, nor a summary."""
    if message.kind != "request" or any(part.part_kind != "user-prompt" for part in message.parts):
        return False
    return not _text_of(message.parts[0]).startswith(SUMMARY) if message.parts else True
