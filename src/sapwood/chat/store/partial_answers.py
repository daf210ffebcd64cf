"""What stays in a conversation of a turn that ended before it was complete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sapwood.chat.store.chunks import INTERRUPTED, STOPPED, Chunk
from sapwood.chat.store.model_parts import unreturned
from sapwood.chat.store.transcript import Transcript
from sapwood.chat.store.turn_rows import ToolCall, TurnRow

BROKEN_OFF = {"cancelled": STOPPED, "failed": INTERRUPTED}
"""How turns end before they are complete, and what clients are told of the calls that had not returned."""
CALL_CUT = "The turn {} before this call returned. It may or may not have had an effect."
"""The result of such a call for the model."""


def keep_partial(
    transcript: Transcript, row: TurnRow, calls: Iterable[ToolCall], status: str, chunks: Sequence[Chunk]
) -> None:
    """Store for the model what it had said when it was interrupted, and what became of its tool calls."""
    from pydantic_ai.messages import ModelResponse, TextPart

    history = transcript.history()  # of the whole: messages received during the turn may be the last of it
    return_calls(transcript, row, calls, CALL_CUT.format("was stopped" if status == "cancelled" else "failed"))
    if history and history[-1].kind == "response":
        return
    step = f"{row.steps + 1}-"
    said = [chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta" and chunk["id"].startswith(step)]
    if said:
        transcript.add(row.message, ModelResponse(parts=[TextPart("".join(said))], state="interrupted"))


def bring_back(transcript: Transcript, row: TurnRow) -> None:
    """Make the path active again that a turn left to answer a message again, if the turn has no message."""
    if row.previous_end is not None and not transcript.known([row.message]):
        transcript.go_back(row.previous_end)


def return_calls(transcript: Transcript, row: TurnRow, calls: Iterable[ToolCall], otherwise: str) -> None:
    """Have every tool call of a turn return something, as models want it: what is known, or this text."""
    from pydantic_ai.messages import ModelRequest, ToolReturnPart

    made = {call.id: call for call in calls}
    returns: list[Any] = []
    for part in unreturned(transcript.of(row.message)):
        call = made.get(part.tool_call_id)
        value, outcome = (call and call.returned()) or (otherwise, "interrupted")
        returns.append(ToolReturnPart(part.tool_name, value, tool_call_id=part.tool_call_id, outcome=outcome))
    if returns:
        transcript.add(row.message, ModelRequest(parts=returns))
