"""Records one model request: what was sent, when the response came, what it used and how it ended."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sapwood.capabilities.spans import Spans, code_of
from sapwood.chat.models import prices
from sapwood.chat.models.loop import LoopTurn
from sapwood.chat.models.request_usage import ModelRequestUsage
from sapwood.chat.models.sent_form import SentForm
from sapwood.chat.store.request_records import RequestRecords
from sapwood.chat.store.sent_files import SentFiles
from sapwood.chat.store.tool_keys import keys_in, keys_left_out
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.chat.turn.cancellation import CancellableTurn
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.ports.work_id import WorkId
from sapwood.kernel.trees.usage import NANO

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

SUMMARY = "summary"
"""The key of a request that compacts the conversation: it is no step of the turn."""


class StepRecord:
    """The request of a turn that is under way."""

    def __init__(self, actor: Actor, running: CancellableTurn) -> None:
        self._actor = actor
        self._running = running
        self._spans = actor.of(Spans)
        self._requests = actor.of(RequestRecords)
        self._span: int | None = None
        self._keys: Sequence[str] = ()
        """The keys of the tools that the provider runs: the record does not hold them."""
        self.files = SentFiles(())
        """The files that the request holds: the record names them."""

    def begin(self, row: TurnRow, turn: LoopTurn, step: int | None) -> None:
        """Record that a request is about to be made: called while there is something to commit, if possible."""
        name = " or ".join(name for _, name in prices.models_of(turn.asked))
        key = SUMMARY if step is None else str(step)
        self._span = self._spans.begin("step", str(WorkId.run(row.id)), name, key=key, step=step) or None

    async def until_stored(self, row: TurnRow, turn: LoopTurn, step: int | None) -> None:
        """Store that a request is made again, or for a summary: nothing else is committed before it."""
        if self._span is None and self._spans.are_kept:
            self.begin(row, turn, step)
            self._spans.write()
            await self._actor.leave()

    @contextmanager
    def attempt(self) -> Generator[None, None, None]:
        """Record the request that is made in this block. One that ends with the process stays open."""
        if not self._spans.are_kept:
            yield
            return
        assert self._span is not None
        self._spans.asked(self._span)
        try:
            yield
        except Exception as error:
            if self._actor.dropped is None:
                status = "cancelled" if self._running.stopped.done() else "failed"
                self._spans.end(self._span, status, error=code_of(error))
            raise
        else:
            self._spans.end(self._span, "completed")
        finally:
            self._span = None

    def first_chunk(self) -> None:
        """The first event of the response has come."""
        if self._span is not None:
            self._spans.first_chunk(self._span)

    def sent(self, url: str, body: bytes) -> None:
        """An HTTP client sends this."""
        if self._span is not None and self._actor.dropped is None:
            self._requests.sent(self._span, url, keys_left_out(self.files.named_in(body), self._keys))

    def asked(self, form: SentForm) -> None:
        """The model is asked this, in the form of Pydantic AI. An HTTP client sends it after that."""
        self._keys = keys_in(form.parameters)
        if self._span is not None and self._actor.dropped is None:
            self._requests.asked(self._span, form)

    def used(self, usage: ModelRequestUsage) -> None:
        """The provider has said what the request used."""
        if self._span is not None:
            self._spans.change(
                self._span,
                model=usage.model,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                nanodollars=None if usage.cost is None else round(usage.cost * NANO),
            )

    def answered(self, response: ModelResponse) -> ModelResponse:
        """Record how a response ended, and return it."""
        if self._span is not None:
            usage = response.usage
            self._spans.change(
                self._span,
                provider=response.provider_name,
                finish_reason=response.finish_reason,
                response_id=response.provider_response_id,
                cache_read_tokens=usage.cache_read_tokens or None,
                cache_write_tokens=usage.cache_write_tokens or None,
                details=dict(usage.details) or None,
            )
        return response
