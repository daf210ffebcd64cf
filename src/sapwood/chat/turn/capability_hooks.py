"""Calls the run-level hooks of capabilities at the start and the end of a turn, each once, also across a crash.

What was done is stored with what came of it: `before_run` with the messages that it enqueued, and `after_run` with
the output of the turn. A hook during which the process dies is called again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sapwood.chat.models.loop import LoopTurn
from sapwood.chat.store.chunks import INTERRUPTED, closing, json_of
from sapwood.chat.store.partial_answers import keep_partial
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.turn_rows import BEGUN, ENDED, TurnRow
from sapwood.chat.turn.cancellation import CancellableTurn
from sapwood.chat.turn.model_requests import LOOP
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.copier import json_to_copy

if TYPE_CHECKING:
    from sapwood.chat.models.turn_capabilities import TurnCapabilities


class CapabilityHooks:
    """The run-level hooks of one turn, from its start or its resumption."""

    def __init__(self, actor: Actor, running: CancellableTurn) -> None:
        self._actor = actor
        self._running = running
        record = self._record = actor.of(ConversationRecord)
        self._transcript, self._turns, self._stream = record.transcript, record.turns, record.stream
        self._capabilities: TurnCapabilities | None = None
        self._result: Any = None
        """What Pydantic AI has for the output; `None` after a crash."""

    async def start(self, row: TurnRow, turn: LoopTurn) -> bool:
        """Call `before_run` of a new turn. Return `False` if a capability has answered in place of the model."""
        history = self._transcript.history()
        if turn.capabilities is None or not turn.capabilities.has_run_hooks or not history:
            return True
        self._capabilities = turn.capabilities
        with self._running.own_code():
            result = await LOOP.start(turn, history, is_new=row.run_hooks is None)
        self._actor.check_live()
        row = self._running.going_on()
        if result is not None and row.output is None:
            self._answer(row, result.output)
            return False
        if row.run_hooks is None and turn.capabilities.has_started:
            for message in turn.capabilities.enqueued():
                self._transcript.add(row.message, message)
            self._turns.set(row.number, run_hooks=BEGUN)
            await self._actor.leave()
            self._actor.check_live()
            self._running.going_on()
        return True

    def made(self, result: Any) -> None:
        """The loop has this result for the output of the turn."""
        self._result = result

    async def end(self, row: TurnRow) -> None:
        """Call `after_run` of a turn that has an output: what it makes of that is the output."""
        if self._capabilities is None or not self._capabilities.has_started or row.run_hooks == ENDED:
            return
        try:
            with self._running.own_code():
                output = await self._capabilities.end(self._record.output.read(row.output or "null"), self._result)
            self._actor.check_live()
            self._running.going_on()
            self._set(row.number, output)
        except Exception:
            if self._actor.dropped is None:
                self._turns.set(row.number, output=None)  # it has none: it fails, or is cancelled
            raise

    async def fail(self, row: TurnRow, error: Exception, *, cancelled: bool) -> bool:
        """Call `on_run_error`; return whether the turn has an output after all. Raise the error that counts."""
        if self._capabilities is None or not self._capabilities.has_started:
            return False
        if cancelled:
            await self._capabilities.cancel(self._actor.host.timings.hook_cancel_timeout)
            return False
        with self._running.own_code():
            result = await self._capabilities.fail(error)
        self._actor.check_live()
        self._running.going_on()
        self._stream.put(*closing(self._stream.stored(row.number), INTERRUPTED))
        chunks = self._stream.stored(row.number)
        keep_partial(self._transcript, row, self._turns.calls(row.number), "failed", chunks)
        self._answer(row, result.output)
        return True

    async def close(self) -> None:
        """The turn waits, or ends here: what `wrap_run` holds is let go."""
        if self._capabilities is not None:
            timeout = None if self._actor.dropped is not None else self._actor.host.timings.hook_cancel_timeout
            await self._capabilities.close(timeout)

    def _answer(self, row: TurnRow, output: Any) -> None:
        """Answer what no model has said."""
        from pydantic_ai.messages import ModelResponse, TextPart

        text = output if isinstance(output, str) else json_to_copy(json_of(output), "The output of a turn").decode()
        id = f"{row.steps + 1}-capability"
        said = [{"type": "text-delta", "id": id, "delta": text}]
        self._stream.put(
            {"type": "start-step"}, {"type": "text-start", "id": id}, *said, {"type": "text-end", "id": id}
        )
        self._stream.put({"type": "finish-step"}, {"type": "finish"})
        self._stream.flush()
        self._transcript.add(row.message, ModelResponse(parts=[TextPart(text)]))
        self._set(row.number, output)

    def _set(self, number: int, output: Any) -> None:
        text = json_to_copy(json_of(output), "The output of a turn").decode()
        self._record.output.read(text)  # an output that could not be read again fails here
        self._turns.set(number, output=text, run_hooks=ENDED)
