"""Asks a model, when its provider may be asked; again if it could not answer now, or fell silent."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

from sapwood.chat.models import prices, token_estimates
from sapwood.chat.models.call_ids import CallIds
from sapwood.chat.models.genai_metrics import CANCELLED, RequestTimer
from sapwood.chat.models.loop import LoopTurn, PydanticLoop
from sapwood.chat.models.provider_errors import retry_after
from sapwood.chat.models.provider_sockets import ProviderSocket
from sapwood.chat.models.providers import Providers
from sapwood.chat.models.request_usage import ModelRequestUsage
from sapwood.chat.store.chat_behavior import ChatBehavior
from sapwood.chat.store.chunks import Projection
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.sent_files import SentFiles
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.chat.turn.cancellation import CancellableTurn
from sapwood.chat.turn.replay import Replay
from sapwood.chat.turn.request_owner import owner_of
from sapwood.chat.turn.step_record import StepRecord
from sapwood.chat.turn.user_reservations import UserReservations
from sapwood.clock import Clock
from sapwood.errors import Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.trees.budgets import NANO
from sapwood.kernel.trees.tree import tree_of
from sapwood.kernel.trees.usage import Reservation, Spent
from sapwood.runs.execution.contract import code_of
from sapwood.when import Retry

if TYPE_CHECKING:
    from pydantic_ai import CancellationToken
    from pydantic_ai.messages import ModelMessage, ModelResponse

T = TypeVar("T")

log = logging.getLogger(__name__)

LOOP = PydanticLoop()
PROVIDER = Retry(max_attempts=5, initial_delay=timedelta(seconds=1), max_delay=timedelta(seconds=30))
"""How often a provider is asked that cannot answer now."""


class ModelStalled(Exception):
    """The model stopped answering."""


def reason_of(error: Exception) -> str | None:
    """Return the code of what went wrong if the same may go well another time, or a limit was reached."""
    is_passing = isinstance(error, ModelStalled) or retry_after(error, 0) is not None
    return Unavailable.code if is_passing else code_of(error)


def run_of(row: TurnRow, actor: Actor) -> str:
    """Return what the use of models in a turn is counted for: its run, or itself, or all turns of a root together."""
    return row.run or ("" if actor.parent is None else row.id)


class Silence:
    """Cuts off what has said nothing for so many seconds."""

    def __init__(self, clock: Clock, seconds: float, cut: Callable[[], object]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._cut = cut
        self._heard_at = clock.now()
        self.is_too_long = False
        self._timer = clock.call_at(self._heard_at + seconds, self._look)

    def broken(self) -> None:
        """Something was said."""
        self._heard_at = self._clock.now()

    def _look(self) -> None:
        due = self._heard_at + self._seconds
        if self._clock.now() < due:
            self._timer = self._clock.call_at(due, self._look)
        else:
            self.is_too_long = True
            self._cut()

    def end(self) -> None:
        self._timer.cancel()


class ModelRequests:
    """Asks the model in one turn."""

    def __init__(self, actor: Actor, running: CancellableTurn) -> None:
        self._actor = actor
        self._running = running
        self._agent: ChatBehavior = actor.agent
        record = actor.of(ConversationRecord)
        self._transcript, self._turns, self._stream = record.transcript, record.turns, record.stream
        self._files = record.files
        self._silence: Silence | None = None
        """Notes how long nothing has come of what the model is asked for now."""
        self.said = 0
        """How many events have come of what the model is asked for now."""
        self._reserved: Reservation | None = None
        """What the request that is under way may use."""
        self.failure: Exception | None = None
        """What the last request to a model raised."""
        self._timer: RequestTimer | None = None
        """Counts the request that is under way, for `/metrics`."""
        self._users = actor.of(UserReservations)
        tree = tree_of(actor)
        self._spending = tree.spending
        self._step = StepRecord(actor, running)
        """Records the request that is under way."""

    def begin(self, row: TurnRow, turn: LoopTurn) -> None:
        """Record that the next step is about to begin."""
        self._step.begin(row, turn, row.steps + 1)

    async def answer(self, row: TurnRow, turn: LoopTurn, history: Sequence[ModelMessage]) -> ModelResponse:
        """Send one request to the model, and stream its response to all clients."""
        stream, projection, ids = self._stream, Projection(row.steps + 1), CallIds(history, row.steps)

        def hear(event: Any) -> None:
            if not self.said:
                self._step.first_chunk()
            self.said += 1
            if self.said == 1 and self._timer is not None:
                self._timer.first_chunk()
            if self._silence is not None:
                self._silence.broken()
            stream.put(*projection.event(ids.of_event(event)))

        for failed in range(1, PROVIDER.max_attempts + 1):
            try:
                response = await self._provided(
                    row, turn, history, row.steps + 1, lambda token: self._watched(row, turn, history, token, hear)
                )
                return ids.of_response(response)
            except ModelStalled:
                if failed == PROVIDER.max_attempts:
                    raise
                await self.begin_again(row, row.steps + 1)
                projection, ids = Projection(row.steps + 1), CallIds(history, row.steps)
                stream.put({"type": "start-step"})
                await self._actor.leave()
        raise AssertionError

    async def summary(self, row: TurnRow, turn: LoopTurn, old: Sequence[ModelMessage]) -> str:
        """Have the model say in short what was said."""
        return await self._provided(row, turn, old, None, lambda token: self._summarised(row, turn, old, token))

    async def _summarised(
        self, row: TurnRow, turn: LoopTurn, old: Sequence[ModelMessage], token: CancellationToken
    ) -> str:
        """Ask for a summary, and no longer than a model may be silent: what it says is not streamed."""
        sent = await self._files.filled(old)
        self._actor.check_live()
        self._step.files = SentFiles(sent)
        silence = self.listen_for(token.cancel, self._agent.stall_timeout)
        try:
            return await LOOP.summarise(turn, sent, token, self._counting(row))
        except Exception:
            if silence is None or not silence.is_too_long:
                raise
            self._running.renew()
            raise ModelStalled(ModelStalled.__doc__) from None
        finally:
            if silence is not None:
                silence.end()

    async def _watched(
        self,
        row: TurnRow,
        turn: LoopTurn,
        history: Sequence[ModelMessage],
        token: CancellationToken,
        hear: Callable[[Any], None],
    ) -> ModelResponse:
        """Ask the model, and no longer if it falls silent."""
        sent = await self._files.filled(history)
        self._actor.check_live()
        self._step.files = SentFiles(sent)
        rewrite = partial(self._rewrite, history, sent)
        self._silence = silence = self.listen_for(token.cancel, self._agent.stall_timeout)
        try:
            return self._step.answered(
                await LOOP.ask(turn, sent, token, hear, self._counting(row), self._step.asked, rewrite)
            )
        except Exception:
            if silence is None or not silence.is_too_long:
                raise
            raise ModelStalled(ModelStalled.__doc__) from None
        finally:
            self._silence = None
            if silence is not None:
                silence.end()

    def listen_for(self, cut: Callable[[], object], seconds: float | None) -> Silence | None:
        return None if seconds is None else Silence(self._actor.host.clock, seconds, cut)

    async def begin_again(self, row: TurnRow, step: int) -> None:
        """Have a step be begun again that fell silent."""
        self._actor.check_live()
        self._running.going_on()
        log.warning(
            "model request stalled, retrying address=%s stall_timeout=%s",
            self._actor.address,
            self._agent.stall_timeout,
            extra={"address": str(self._actor.address)},
        )
        self._running.renew()
        self._actor.of(Replay).begin_again(row.number, step)

    def _counting(self, row: TurnRow) -> Callable[[ModelRequestUsage], None]:
        """Return what counts the use of a model, whatever becomes of its answer."""

        def count(used: ModelRequestUsage) -> None:
            if self._timer is not None:
                self._timer.used(used)
            if self._actor.dropped is None:
                self._count(row, used)

        return count

    def _count(self, row: TurnRow, used: ModelRequestUsage) -> None:
        """Count, in this slice, what was used: of the turn, and then at the root of the tree."""
        cost = 0 if used.cost is None else round(used.cost * NANO)
        spent = Spent(1, used.input_tokens, used.output_tokens, cost, int(used.cost is None))
        self._turns.count(row.number, used.model, spent)
        self._step.used(used)
        self._spending.add(self._actor, run_of(row, self._actor), used.model, spent)
        self._release()

    def _rewrite(
        self, history: Sequence[ModelMessage], sent: Sequence[ModelMessage], changes: dict[int, ModelMessage]
    ) -> None:
        """Store what capabilities have made of prompts: the next step is to send that too."""
        self._actor.check_live()
        stored = {at: self._files.emptied(one, sent[at], history[at]) for at, one in changes.items()}
        self._transcript.rewrite(stored)

    async def put_right(self, row: TurnRow) -> None:
        """A turn is begun again: the process may have ended before the root or the user's ledger knew of a request."""
        await self._users.put_right(row)
        if self._actor.parent is None:
            return  # it is one database, and was one commit
        self._spending.put_right(self._actor, run_of(row, self._actor), row.spent())

    def _reserve(self, turn: LoopTurn, messages: Sequence[ModelMessage]) -> None:
        """Set aside what a request may use, if there is any limit to that."""
        limits = self._actor.limits
        if limits.tokens is None and limits.dollars is None:
            return
        names, tokens, nanodollars = self._estimate(turn, messages, limits.dollars is not None)
        self._reserved = self._spending.reserve(self._actor, tokens, nanodollars, names)

    def _estimate(
        self, turn: LoopTurn, messages: Sequence[ModelMessage], has_price: bool
    ) -> tuple[str, int, int | None]:
        """Return the models that may answer, and the tokens and nanodollars that a request may use at most."""
        read, written = token_estimates.read(turn, messages), token_estimates.written(turn)
        cost = prices.most(turn.asked, read, written, turn.prices) if has_price else None
        names = " or ".join(name for _, name in prices.models_of(turn.asked))
        return names, read + written, None if cost is None else ceil(cost * NANO)

    def _release(self) -> None:
        if self._reserved is not None:
            self._spending.release(self._reserved)
            self._reserved = None

    async def _provided(
        self,
        row: TurnRow,
        turn: LoopTurn,
        messages: Sequence[ModelMessage],
        step: int | None,
        ask: Callable[[CancellationToken], Awaitable[T]],
    ) -> T:
        """Ask the provider, with a reservation for the user if there are limits of users."""
        if not self._users.is_on:
            return await self._asked(row, turn, messages, step, ask)
        limiter = self._actor.host.shared(Providers).of(turn.asked)

        async def pause(seconds: float) -> None:
            await limiter.pause(seconds, self._waits, self._running.stopped)
            self._actor.check_live()
            self._running.going_on()

        def estimate(has_price: bool) -> tuple[str, int, int | None]:
            return self._estimate(turn, messages, has_price)

        async with self._users.reserved(row, self._running.stopped, pause, estimate):
            return await self._asked(row, turn, messages, step, ask)

    async def _asked(
        self,
        row: TurnRow,
        turn: LoopTurn,
        messages: Sequence[ModelMessage],
        step: int | None,
        ask: Callable[[CancellationToken], Awaitable[T]],
    ) -> T:
        """Ask the provider, when it may be asked; again if it could not answer now and has said nothing yet."""
        limiter = self._actor.host.shared(Providers).of(turn.asked)
        owner = owner_of(self._actor, row)
        self.said = 0
        for failed in range(1, PROVIDER.max_attempts + 1):
            try:
                async with limiter.request(owner, self._waits, self._running.stopped):
                    await self._actor.until_leased()
                    self._actor.check_live()
                    await self._step.until_stored(row, turn, step)
                    self._actor.check_live()
                    self._running.going_on()
                    self._reserve(turn, messages)
                    with self._step.attempt():
                        return await self._over_wire(turn, ask)
            except Exception as error:
                wait = retry_after(error, PROVIDER.wait(failed, self._actor.host.random))
                if wait is None or self.said or failed == PROVIDER.max_attempts:
                    raise
                log.info("model provider unavailable, retrying in %.1f s: %s", wait.seconds, error)
            if wait.for_all:
                limiter.close_for(wait.seconds)
            else:
                await limiter.pause(wait.seconds, self._waits, self._running.stopped)
        raise AssertionError

    async def _over_wire(self, turn: LoopTurn, ask: Callable[[CancellationToken], Awaitable[T]]) -> T:
        self._running.socket = socket = ProviderSocket(self._step.sent)
        self._timer, problem = RequestTimer(self._actor, turn.asked), CANCELLED
        try:
            with socket.used():
                answer = await ask(self._running.token)
            problem = ""
            return answer
        except Exception as error:
            self.failure, problem = error, type(error).__name__
            raise
        finally:
            self._running.socket = None
            self._release()
            self._timer.end(CANCELLED if self._running.stopped.done() else problem)
            self._timer = None

    def _waits(self, seconds: float | None) -> None:
        if not self._running.is_streamed:
            return
        self._stream.put({"type": "data-waiting", "transient": True, "data": {"seconds": seconds}})
        self._stream.try_flush()
