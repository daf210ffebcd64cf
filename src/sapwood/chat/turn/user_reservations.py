"""Reserves what a request to a model may use with the ledger of the user it is made for, and settles it."""

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from sapwood.capabilities.queue import Queue
from sapwood.chat.models.user_ledger import TurnUsage, UserLedger, UserRequest
from sapwood.chat.models.user_limits import UserLimit, UserLimits, ledger_name
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.chat.turn.request_owner import owner_of
from sapwood.errors import SapwoodError, Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.randomness import new_id
from sapwood.when import Retry

QUEUE = "sapwood limits"
SETTLE = "_sapwood_settle_user"
"""The method that settles with a ledger that could not be reached."""
LEDGER = Retry(max_attempts=10, initial_delay=timedelta(seconds=1), max_delay=timedelta(seconds=30))
"""How often a ledger is asked that cannot be reached. No request is sent before it answers."""

Pause = Callable[[float], Awaitable[None]]


class UserReservations:
    """The reservations of one conversation with the ledgers of users."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._turns = actor.of(ConversationRecord).turns
        self._limits = actor.host.shared(UserLimits)

    @property
    def is_on(self) -> bool:
        """Whether the app limits users at all."""
        return self._limits.function is not None

    def _user(self, row: TurnRow) -> str | None:
        owner = owner_of(self._actor, row)
        return owner.id if owner.kind == "user" else None

    def _usage(self, row: TurnRow, reservation: str, limits: list[UserLimit]) -> TurnUsage:
        stored = self._turns.of(row.number) or row
        spent = stored.spent().values()
        tokens, cost = sum(one.tokens for one in spent), sum(one.nanodollars for one in spent)
        # Not its stem or its number: an agent that is deleted and made anew must not take its place.
        return TurnUsage(f"{self._actor.birthplace} {row.id} {row.created_at}", tokens, cost, reservation, limits)

    @asynccontextmanager
    async def reserved(
        self,
        row: TurnRow,
        stopped: Future[None],
        pause: Pause,
        estimate: Callable[[bool], tuple[str, int, int | None]],
    ) -> AsyncGenerator[None, None]:
        """Reserve what a request may use while it is made, if its user has limits. Fails if the ledger cannot say."""
        user = self._user(row) if self.is_on else None
        limits = [] if user is None else await self._limits.of(user)
        if user is None or not limits:
            yield
            return
        model, tokens, nanodollars = estimate(any(one.field == "dollars" for one in limits))
        request = UserRequest(user, str(self._actor.address), model, tokens, nanodollars)
        usage = self._usage(row, new_id(self._actor.host.random), limits)
        for failed in range(1, LEDGER.max_attempts + 1):
            try:
                await (await self._ledger(user)).reserve(request, usage)
                break
            except Unavailable:
                self._actor.check_live()
                if failed == LEDGER.max_attempts or stopped.done():
                    raise
            await pause(LEDGER.wait(failed, self._actor.host.random))
        try:
            yield
        finally:
            if self._actor.dropped is None:
                await self._settle(user, self._usage(row, usage.reservation, limits))

    async def put_right(self, row: TurnRow) -> None:
        """Settle a turn that is begun again: the process may have died before the ledger knew of its last request."""
        user = self._user(row) if self.is_on else None
        limits = [] if user is None or not row.spent() else await self._limits.of(user)
        if user is not None and limits:
            await self._settle(user, self._usage(row, "", limits))

    async def _settle(self, user: str, usage: TurnUsage) -> None:
        try:
            await self.deliver(user, usage)
        except SapwoodError:  # the queue delivers it
            self._actor.check_live()
            self._actor.of(Queue).call_back(QUEUE, SETTLE, "settlement", (user, usage))

    async def deliver(self, user: str, usage: TurnUsage) -> None:
        """Settle with the ledger of a user. If that fails, the queue repeats it."""
        await (await self._ledger(user)).settle(usage)

    async def _ledger(self, user: str) -> UserLedger:
        return await self._actor.agent.get_agent(UserLedger, ledger_name(user))
