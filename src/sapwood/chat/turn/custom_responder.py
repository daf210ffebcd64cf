"""Lets an agent that overrides `respond` answer with its own code, without a model of Pydantic AI's."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from sapwood.chat.store.chat_behavior import ChatBehavior
from sapwood.chat.store.chunks import Chunk
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.chat.turn.cancellation import CancellableTurn, Interrupts, TurnCancelled
from sapwood.chat.turn.model_requests import PROVIDER, ModelRequests, ModelStalled
from sapwood.kernel.actors.actor import Actor


class ResponseFailed(Exception):
    """An answer says of itself that it failed."""


class CustomResponder:
    """Answers one turn with the `respond` of its agent."""

    def __init__(self, actor: Actor, running: CancellableTurn, requests: ModelRequests) -> None:
        self._actor = actor
        self._agent: ChatBehavior = actor.agent
        record = self._record = actor.of(ConversationRecord)
        self._transcript, self._turns, self._stream = record.transcript, record.turns, record.stream
        self._running = running
        self._asking = requests

    async def respond(self, row: TurnRow) -> None:
        """Let the agent's own `respond` answer; again if it falls silent."""
        for failed in range(1, PROVIDER.max_attempts + 1):
            try:
                await self._respond(row)
            except ModelStalled:
                if failed == PROVIDER.max_attempts:
                    raise
                await self._asking.begin_again(row, 1)
            else:
                return

    async def _respond(self, row: TurnRow) -> None:
        """Let the agent's own `respond` answer."""
        from pydantic_ai.messages import ModelResponse, TextPart

        self._stream.forget_from(1)
        self._stream.begin_step(1)
        self._stream.put({"type": "start-step"})
        await self._actor.leave()
        texts, has_part = list[str](), False  # the texts of chunks are part of the answer too
        answer: AsyncGenerator[str | Chunk, None] = self._agent.respond(self._record.shown(row))
        # Without a wish of the class there is no timeout: this code may wait for something other than a model.
        seconds = self._agent.stall_timeout if self._actor.kind.overrides("stall_timeout") else None
        silence = self._asking.listen_for(self._running.cut_own_code, seconds)
        try:
            with self._running.own_code():
                try:
                    async for said in answer:
                        self._running.going_on()
                        if silence is not None:
                            silence.broken()
                        if not isinstance(said, str) and said["type"] == "error":
                            raise ResponseFailed(str(said["errorText"]))
                        if not isinstance(said, str):
                            said = await self._record.files.stored_chunk(said)
                            self._running.going_on()
                        self._stream.put(*_chunks_of(said, first=not has_part))
                        if isinstance(said, str):
                            has_part = True
                            texts.append(said)
                        elif said["type"] == "text-delta":
                            texts.append(str(said["delta"]))
                finally:
                    await answer.aclose()
        except TurnCancelled:
            self._actor.check_live()
            if (
                silence is None
                or not silence.is_too_long
                or self._actor.of(Interrupts).is_cancelled(self._turns.of(row.number))
            ):
                raise
            raise ModelStalled(ModelStalled.__doc__) from None
        finally:
            if silence is not None:
                silence.end()
        if has_part:
            self._stream.put({"type": "text-end", "id": "1-0"})
        text = "".join(texts)
        self._record.check_answer(row, text)
        self._stream.put({"type": "finish-step"}, {"type": "finish"})
        self._actor.check_live()
        self._transcript.add(row.message, ModelResponse(parts=[TextPart(text)]))
        self._turns.set(row.number, output=msgspec.json.encode(text).decode(), steps=1)


def _chunks_of(said: str | Chunk, *, first: bool) -> list[Chunk]:
    if not isinstance(said, str):
        return [said]
    start: list[Chunk] = [{"type": "text-start", "id": "1-0"}] if first else []
    return [*start, {"type": "text-delta", "id": "1-0", "delta": said}]
