"""A turn and a tool call, as they are stored."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from sapwood.errors import OverLimit
from sapwood.kernel.trees.usage import Spent

OPEN = ("queued", "running", "waiting")
JOINED = "[]"
"""What is still to join the conversation with a turn that has begun: nothing."""
BEGUN, ENDED = "begun", "ended"
"""How far the run-level hooks of the capabilities of a turn have come."""
Outcome = Literal["success", "failed", "denied", "interrupted"]
"""How a tool call ended, as Pydantic AI has it."""


class TurnRow(NamedTuple):
    """One turn, as it is stored."""

    number: int
    id: str
    message: str
    prompt_ids: str
    run: str | None
    user: str | None
    status: str
    continues: int = 0
    last_kept: str | None = None
    new_messages: str = JOINED
    body: str = "{}"
    client_tools: str = "[]"
    steps: int = 0
    retries: int = 0
    usage: str = "{}"
    output: str | None = None
    error: str | None = None
    reason: str | None = None
    cancelled: str | None = None
    next_seq: int = 0
    recovering_at: float | None = None
    created_at: float = 0.0
    ended_at: float | None = None
    run_hooks: str | None = None
    replay_seconds: float | None = None
    overrides: str | None = None
    last_shown: str | None = None
    previous_end: str | None = None

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def waits_for_limit(self) -> bool:
        """Whether it waits until a person allows more of a limit."""
        return self.status == "waiting" and self.reason == OverLimit.code

    @property
    def stream(self) -> str:
        """The id in its frames: another one each time it continues after a wait."""
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
    status: str | None = None
    result: str | None = None
    error: str | None = None
    answerer: str | None = None
    """`approval`, `client` or `run`; `client soon` or `run soon` while other tools of the same answer still run."""
    answer: str | None = None
    auto_continue: int = 0

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
