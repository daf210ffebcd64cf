"""The history that a client sends with its request, and where in the stored conversation its last message belongs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

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
    """The id of the stored message in whose place it stands; `None` for a new one."""
    is_known: bool = False
    """Whether it is that message, and is to be answered again."""
    is_last: bool = False
    """Whether the stored message is the last one."""
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


def placed(history: ChatHistory, stored: Sequence[Json], *, resends: bool) -> Placement:
    """Return where the last message belongs: `stored` are the messages of the user that the conversation has.

    `resends` says that the client sends the whole history each time.
    """
    known, mine = _digests(stored), history.digests()
    if not stored:
        return Placement(mine[-1], with_earlier=True)
    if len(mine) == 1 and not resends:  # it leaves the history to the server
        return Placement(next_digest(known[-1], history.users[0]))
    if mine[-1] in known:
        at = known.index(mine[-1])
        return Placement(mine[-1], stored[at]["id"], is_known=True, is_last=at == len(known) - 1)
    if len(mine) > 1 and mine[-2] in known:
        at = known.index(mine[-2]) + 1
        return Placement(mine[-1], stored[at]["id"] if at < len(stored) else None)
    raise ApiError(
        "The history is not that of this conversation. Send the messages as they were, or begin a new one.",
        param="messages",
        code="history_mismatch",
        status=409,
    )


def _digests(stored: Sequence[Json]) -> list[str]:
    """Return for each stored message of the user what stands for it and all before it."""
    found: list[str] = []
    for message in stored:
        metadata: Any = message.get("metadata")
        noted: Any = cast("Json", metadata).get(META) if isinstance(metadata, dict) else None
        digest: Any = cast("Json", noted).get("history") if isinstance(noted, dict) else None
        texts = [part for part in message["parts"] if part["type"] == "text"]
        found.append(digest if isinstance(digest, str) else next_digest(found[-1] if found else "", texts))
    return found
