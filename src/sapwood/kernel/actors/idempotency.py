"""Calls with an idempotency key: however often one is made, it is carried out once.

The outcome is written in the last slice of the method, so it is kept together with what that
slice wrote, or not at all. A call of which nothing is kept, because the process ended or the
call was cancelled, is carried out again by the next one with its key: a method without awaits
takes effect exactly once, one with awaits at least once. Keys of two callers never meet, also if
one was deleted and the other has its address now.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError, Future
from collections.abc import Callable
from typing import Any, NamedTuple

from sapwood.clock import Clock
from sapwood.errors import InvalidResult, KeyReused, SapwoodError, SignatureChanged, UsageError
from sapwood.kernel.actors.actor import THE_END, Actor
from sapwood.kernel.aio import driven
from sapwood.kernel.marshal.agent_class import Method
from sapwood.kernel.marshal.call import Call
from sapwood.kernel.marshal.exceptions import crossing, describe
from sapwood.kernel.marshal.failures import pack_error, unpack_error
from sapwood.settings import Settings
from sapwood.storage.migrations import Schema

IDEMPOTENCY = Schema("sapwood.kernel", "idempotency")
LONGEST_TEXT = 1000
"""Characters that are kept of an error that is too large to be kept whole."""


class CallIdentity(NamedTuple):
    """What a call is recognized by."""

    caller: str
    """The first address and the file of the calling agent; empty for the program itself."""
    key: str

    @classmethod
    def of(cls, caller: Call | None, key: str) -> CallIdentity:
        return cls("" if caller is None else f"{caller.actor.birthplace} {caller.actor.stem}", key)


class Underway(NamedTuple):
    """A call that runs now."""

    call: Call
    method: str
    arguments: bytes
    ended: Future[None]


class Waits:
    """The calls of one process that wait for another call with their key, each with the one it waits for."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.all: dict[Call, Call] = {}

    def is_circle(self, call: Call, other: Call) -> bool:
        """Return whether a call would wait for one that waits for it, or for one that led to it.

        Calls that run at other nodes are not seen.
        """
        awaited, left = {other}, dict(self.all)
        while found := [waiting for waiting in left if not awaited.isdisjoint(waiting.lineage())]:
            awaited.update(left.pop(waiting) for waiting in found)
        return not awaited.isdisjoint(call.lineage())


def keyed(
    actor: Actor, call: Call, method: Method, arguments: list[Any], named: dict[str, Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """Return the function to await for a call with a key, and its arguments."""
    return actor.of(IdempotentCalls).run, [call, method, arguments, named]


class IdempotentCalls:
    """The calls of one agent that were made with an idempotency key."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._db = actor.database
        self._underway: dict[CallIdentity, Underway] = {}
        self._count: int | None = None
        """How many outcomes are stored, at most; `None` until they are counted."""

    async def run(self, call: Call, method: Method, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return what the method returned for this key, or raise what it raised; call it if it was not called."""
        assert call.key is not None
        actor = self._actor
        place = CallIdentity.of(call.caller, call.key)
        arguments = method.signature.digest(args, kwargs, actor.limits.payload_bytes)
        actor.check_live()
        waits = actor.host.shared(Waits).all
        while (other := self._underway.get(place)) is not None:
            self._check_same(place, method, arguments, other.method, other.arguments)
            self._check_no_circle(call, other.call)
            waits[call] = other.call
            try:
                await asyncio.wait({other.ended})
            finally:
                del waits[call]
            actor.check_live()
        if (stored := self._stored(place)) is not None:
            name, digest, is_error, outcome = stored
            self._check_same(place, method, arguments, name, digest)
            return self._outcome(method, place, bool(is_error), outcome)
        ended: Future[None] = actor.host.loop.create_future()
        self._underway[place] = Underway(call, method.name, arguments, ended)
        try:
            return await self._first(place, method, arguments, args, kwargs)
        finally:
            del self._underway[place]
            ended.set_result(None)

    def _check_same(self, place: CallIdentity, method: Method, arguments: bytes, name: str, digest: bytes) -> None:
        if name == method.name and digest == arguments:
            return
        what = "with other arguments" if name == method.name else f"for {name}()"
        raise KeyReused(
            f"The idempotency key {place.key!r} was used before {what}, and now for {method.full_name}(). Use a "
            "separate key for every call."
        )

    def _check_no_circle(self, call: Call, other: Call) -> None:
        """Refuse to wait for a call that waits for this one."""
        if self._actor.host.shared(Waits).is_circle(call, other):
            raise UsageError(
                f"{self._actor.address}.{call.method}() waits for itself: the running call with the idempotency key "
                f"{call.key!r} waits for one that led to this call."
            )
        above = call.caller
        while above is not None and above.caller is not None:
            if above.key == call.key and above.actor.address == self._actor.address:
                same = None if call.caller is None else call.caller.actor.address
                if above.caller.actor.address == same:
                    raise UsageError(
                        f"{self._actor.address}.{call.method}() waits for itself: it was called again, by a call "
                        f"of its own, with the same idempotency key {call.key!r}."
                    )
            above = above.caller

    def _stored(self, place: CallIdentity) -> tuple[str, bytes, int, bytes] | None:
        if not self._db.has(IDEMPOTENCY):
            return None
        rows = self._db.execute(
            "SELECT method, arguments, is_error, outcome FROM sapwood_idempotency"
            " WHERE caller = ? AND key = ? AND ended_at > ?",
            *place,
            self._oldest(),
        )
        return rows[0] if rows else None

    def _oldest(self) -> float:
        return self._actor.host.clock.now() - self._actor.host.settings.idempotency_retention

    def _outcome(self, method: Method, place: CallIdentity, is_error: bool, outcome: bytes) -> Any:
        if is_error:
            raise unpack_error(outcome)
        try:
            return method.signature.result.unpacked(outcome)
        except InvalidResult as error:
            raise SignatureChanged(
                f"The stored result of {method.full_name}() for the idempotency key {place.key!r} does not "
                f"fit its annotation: {error}"
            ) from None

    async def _first(
        self, place: CallIdentity, method: Method, arguments: bytes, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        actor, db = self._actor, self._db
        limit = actor.limits.payload_bytes
        actor.user_database()  # the tables of the user, and ours, are not undone with what the method wrote
        db.ensure(IDEMPOTENCY)
        db.attempt()
        try:
            value = method.function(actor.agent, *args, **kwargs)
            if method.is_async:
                value = await driven(value, db.keep)
                actor.check_live()
            for check in actor.after_call:
                check()
            packed = method.signature.result.packed(value, limit)
        except CancelledError:
            db.undo()
            raise
        except THE_END:
            raise
        except BaseException as error:
            if actor.dropped is not None:
                raise
            if isinstance(error, SapwoodError) and error.retryable:
                db.undo()  # the next call with this key is to do all of it
                raise
            actor.check_live()
            self._store(place, method, arguments, True, self._packed_error(error, limit))
            raise
        self._store(place, method, arguments, False, packed)
        return value

    def _packed_error(self, error: BaseException, limit: int) -> bytes:
        path = self._actor.address.segments
        packed = pack_error(crossing(error, path, limit))
        if len(packed) <= limit:
            return packed
        return pack_error(crossing(RuntimeError(describe(error)[:LONGEST_TEXT]), path, limit))

    def _store(self, place: CallIdentity, method: Method, arguments: bytes, is_error: bool, outcome: bytes) -> None:
        """Keep how a call ended, with what else this slice writes."""
        db, now = self._db, self._actor.host.clock.now()
        db.begin()  # also where the database is full
        try:
            db.ensure(IDEMPOTENCY)
            self._count = self._pruned(self._added(place, method, arguments, is_error, outcome, now))
        except BaseException:
            db.undo()  # no effect without an outcome, where that can still be
            raise
        db.keep()

    def _added(
        self, place: CallIdentity, method: Method, arguments: bytes, is_error: bool, outcome: bytes, now: float
    ) -> int:
        """Add an outcome; return how many there are, at most."""
        db = self._db
        count = db.execute("SELECT count(*) FROM sapwood_idempotency")[0][0] if self._count is None else self._count
        db.execute(
            "INSERT OR REPLACE INTO sapwood_idempotency VALUES (?, ?, ?, ?, ?, ?, ?)",
            *place,
            method.name,
            arguments,
            int(is_error),
            outcome,
            now,
        )
        return count + 1

    def _pruned(self, count: int) -> int:
        """Forget what is too old or too much; return how many outcomes are left, at most."""
        db, most = self._db, self._actor.host.timings.idempotency_keys
        db.execute("DELETE FROM sapwood_idempotency WHERE ended_at <= ?", self._oldest())
        if count > most:
            count = db.execute("SELECT count(*) FROM sapwood_idempotency")[0][0]
            db.execute(
                "DELETE FROM sapwood_idempotency WHERE (caller, key) IN"
                " (SELECT caller, key FROM sapwood_idempotency ORDER BY ended_at LIMIT ?)",
                max(count - most, 0),
            )
        return min(count, most)
