"""A message received during a turn joins it: the model gets it with its next request.

It waits in the row of the turn until then. If the model was about to end, the turn continues
with it instead. A turn that is stopped, or fails, leaves it in the conversation, unanswered.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.transcript import UIMessage
from sapwood.chat.store.user_messages import add_request, ids_of
from sapwood.chat.turn.cancellation import Interrupts
from sapwood.kernel.actors.actor import Actor
from sapwood.runs.execution.contract import Steered


class MidTurnMessages:
    """Takes the messages received during the turns of one conversation."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        record = self._record = actor.of(ConversationRecord)
        self._transcript, self._turns = record.transcript, record.turns
        self._interrupts = actor.of(Interrupts)

    def say(self, run: str, key: str, text: str) -> Steered:
        """Have something join the turn that does a run, once for each key."""
        row, message = self._turns.get(run), _message(run, key, text)
        if message["id"] in self._transcript.known([message["id"]]) or any(
            message["id"] in ids_of(one.new_messages) for one in self._turns.open()
        ):
            return "joined"
        if row is None or not row.is_open or row.output is not None or self._interrupts.is_cancelled(row):
            return "over"
        if self._actor.kind.overrides("respond") and row.status == "running":
            return "deaf"
        said: list[UIMessage] = msgspec.json.decode(row.new_messages)
        self._turns.set(row.number, new_messages=msgspec.json.encode([*said, message]).decode())
        self._record.tell_all()
        return "joined"

    def join(self, number: int) -> bool:
        """Add the messages received during the turn to the conversation, in this slice. Returns `False` without any."""
        said: list[UIMessage] = msgspec.json.decode(self._record.row(number).new_messages)
        for message in said:
            self._transcript.put(message)
        if said:
            add_request(self._transcript, said)
            self._turns.set(number, new_messages="[]")
        return bool(said)


def _message(run: str, key: str, text: str) -> dict[str, Any]:
    return {
        "id": f"msg-{key}",
        "role": "user",
        "parts": [{"type": "text", "text": text}],
        "metadata": {"source": "steer", "run": run},
    }
