"""Runs that a chat agent does: each is a turn of its conversation, under the run's own id."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from sapwood.chat.accepting import Accepting
from sapwood.chat.conversation import Conversation
from sapwood.chat.record import Record
from sapwood.chat.steering import Steering
from sapwood.kernel.actor import Actor
from sapwood.runs.contract import Steered


class ChatRuns:
    """The runs that the turns of one conversation do."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def start(self, run: str, input: Any) -> int:
        message = {"id": f"msg-{run}", "role": "user", "parts": [{"type": "text", "text": _in_words(input)}]}
        return self._actor.of(Accepting).ask([message], id=run, body={"input": input}, run=run).number

    def cut(self, run: str, reason: str) -> None:
        self._actor.of(Conversation).cut(run, reason)

    def steer(self, run: str, key: str, text: str) -> Steered:
        return self._actor.of(Steering).say(run, key, text)

    def wants(self, work: str) -> bool:
        return self._actor.of(Conversation).is_wanted(work)

    def waits(self, run: str) -> bool:
        row = self._actor.of(Record).turns.get(run)
        return row is not None and row.status == "waiting"

    def current(self) -> str | None:
        row = self._actor.of(Record).turns.running()
        return None if row is None else row.run


def _in_words(input: Any) -> str:
    """Return what the agent is told; what is one text with a name, such as a query, is said as that text."""
    if isinstance(input, dict) and len(fields := cast("dict[str, Any]", input)) == 1:
        (input,) = fields.values()
        return input if isinstance(input, str) else msgspec.json.encode(fields).decode()
    return input if isinstance(input, str) else msgspec.json.encode(input).decode()
