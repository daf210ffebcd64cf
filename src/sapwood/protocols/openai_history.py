"""The history that a client sends with its request, and where in the stored conversation its last message belongs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from sapwood.chat.store.branches import PlacedMessage
from sapwood.protocols.openai_errors import ApiError
from sapwood.protocols.openai_ids import AgentId, derived, read_call_id

Json = dict[str, Any]

EARLIER, NOW = "[Earlier in this conversation]", "[Now]"
META = "openai"
"""The key of the digest in the metadata of a message."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the last message of a history belongs."""

    digest: str
    """What stands for the message and all before it."""
    message: str | None = None
    """The id of the stored message that it is; `None` for a new one."""
    is_known: bool = False
    """Whether it is that message, and is to be answered again."""
    is_last: bool = False
    """Whether the stored message is the last one of the active path."""
    after: str | None = None
    """The id of the stored message that a new one follows; `None` means the last one of the active path."""
    with_earlier: bool = False
    """Whether the history is quoted, because the conversation has none of it."""

    @property
    def metadata(self) -> Json:
        """The metadata of the message."""
        return {META: {"history": self.digest}}


@dataclass(slots=True)
class ChatHistory:
    """The messages of a request."""

    lines: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Who said what."""
    users: list[list[Json]] = field(default_factory=list[list[Json]])
    """The parts of each message of the user, the last one included."""
    instructions: list[str] = field(default_factory=list[str])
    answers: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """The results of tools at the end: the id of the call, the result, and where in the request it is."""
    calls: list[str] = field(default_factory=list[str])
    """The ids of all tool calls."""
    has_earlier: bool = False
    """Whether it has something that the agent said."""

    def said(self, parts: list[Json]) -> None:
        """Add a message of the user."""
        self.users.append(parts)
        self.lines.append(("user", "".join(part.get("text", "[a file]") for part in parts)))

    def heard(self, who: str, text: str) -> None:
        """Add something that the agent said or did: a text, or without one, something that is not quoted."""
        self.has_earlier = True
        if text:
            self.lines.append((who, text))

    def digests(self) -> list[str]:
        """Return for each message of the user what stands for it and all before it."""
        found: list[str] = []
        for parts in self.users:
            found.append(next_digest(found[-1] if found else "", parts))
        return found

    def called(self) -> AgentId | None:
        """Return the response that has made the last tool call; `None` if no id names one."""
        found = (read_call_id(id) for id in reversed(self.calls))
        return next((one[0] for one in found if one is not None), None)

    def last(self, *, with_earlier: bool) -> list[Json]:
        """Return the last message of the user, perhaps after a part that quotes what was said before it."""
        if not with_earlier or len(self.lines) < 2:
            return self.users[-1]
        lines = [f"{who.capitalize()}: {text}" for who, text in self.lines[:-1]]
        return [{"type": "text", "text": "\n\n".join([EARLIER, *lines, NOW, ""])}, *self.users[-1]]


def next_digest(before: str, parts: list[Json]) -> str:
    """Return what stands for a message of the user and all before it."""
    said = [part["text"] if part["type"] == "text" else part["url"] for part in parts]
    return derived("history", before, *said)


def placed(history: ChatHistory, stored: Sequence[PlacedMessage], *, resends: bool) -> Placement:
    """Return where the last message belongs: `stored` are the messages that the conversation has, of all branches.

    `resends` says that the client sends the whole history each time.
    """
    known, mine = _Known(stored), history.digests()
    if known.last is None:
        return Placement(mine[-1], with_earlier=True)
    if len(mine) == 1 and not resends:  # it leaves the history to the server
        return Placement(next_digest(known.digests[known.last], history.users[0]))
    if (found := known.ids.get(mine[-1])) is not None:
        return Placement(mine[-1], found, is_known=True, is_last=found == known.last)
    if len(mine) > 1 and (before := known.ids.get(mine[-2])) is not None:
        return Placement(mine[-1], after=None if before == known.last else known.ends[before])
    raise ApiError(
        "The history is not that of this conversation. Send the messages as they were, or begin a new one.",
        param="messages",
        code="history_mismatch",
        status=409,
    )


class _Known:
    """What a conversation has of histories: of each branch its messages of the user."""

    def __init__(self, stored: Sequence[PlacedMessage]) -> None:
        self.ids: dict[str, str] = {}
        """The message of the user that a digest stands for: one of the active path, if there are several."""
        self.digests: dict[str, str] = {}
        """What stands for each message of the user and all before it."""
        self.ends: dict[str, str] = {}
        """The last message that answers each message of the user, or itself."""
        self.last: str | None = None
        """The last message of the user on the active path."""
        asked: dict[str | None, str] = {}
        active = {one.message["id"] for one in stored if one.is_active}
        for after, message, is_active in stored:
            id, before = message["id"], asked.get(after)
            if message["role"] == "user":
                digest = _digest(message, self.digests[before] if before is not None else "")
                asked[id], self.digests[id], self.ends[id] = id, digest, id
                if is_active or self.ids.get(digest) not in active:
                    self.ids[digest] = id
                if is_active:
                    self.last = id
            elif before is not None:
                asked[id] = before
                if is_active or self.ends[before] not in active:
                    self.ends[before] = id


def _digest(message: Json, before: str) -> str:
    """Return what stands for a stored message of the user and all before it."""
    metadata: Any = message.get("metadata")
    noted: Any = cast("Json", metadata).get(META) if isinstance(metadata, dict) else None
    digest: Any = cast("Json", noted).get("history") if isinstance(noted, dict) else None
    if isinstance(digest, str):
        return digest
    return next_digest(before, [part for part in message["parts"] if part["type"] == "text"])
