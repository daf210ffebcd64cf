"""Functions that run once, however often the work they belong to is started again.

The result of a step is stored under the work and the step's name before the caller gets it.
When the work starts again after a crash, it passes the same steps and gets the stored results.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import FunctionType
from typing import Any, NamedTuple

import msgspec

from sapwood.clock import sleep_until
from sapwood.errors import InvalidResult, OverLimit, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.call import Call, Step, current, running_step
from sapwood.kernel.marshal.copier import Copier
from sapwood.kernel.marshal.signatures import Signature
from sapwood.kernel.node.upgrade_check import RESTORE, Misfit, StoredAgent
from sapwood.kernel.ports.work_id import WorkId
from sapwood.storage.migrations import Schema
from sapwood.when import Retry, aware, is_a

STEPS = Schema("sapwood.capabilities", "steps")
SLEEP = "sleep_until "
"""What the names of sleeps begin with."""
BEGUN = "_sapwood_begun "
"""What the names of rows begin with that say that a step has begun, and returned nothing yet. There is one only while
other code of the same work waits for people or for runs: without it, the work would look as if it did nothing else."""
NO_RETRY = Retry(max_attempts=1)
TIMES = Copier(float, "The time of a sleep", InvalidResult)
NOTHING = msgspec.msgpack.encode(None)


@dataclass(frozen=True, slots=True)
class StepOptions:
    """The name, retries and timeout of a step."""

    name: str
    """The name of the step, unique within the fiber or call."""
    retry: Retry = field(default=NO_RETRY, kw_only=True)
    """How the step is retried if it raises. By default, it is not retried."""
    timeout: timedelta | None = field(default=None, kw_only=True)
    """The timeout of one attempt."""

    def __post_init__(self) -> None:
        _checked(self.name)
        if not is_a(self.retry, Retry):
            raise UsageError(f"retry={self.retry!r}: expected Retry(…).")
        if self.timeout is not None and not is_a(self.timeout, timedelta):
            raise UsageError(f"timeout={self.timeout!r}: expected a timedelta.")


class Work:
    """One run of something durable: what its steps are remembered by, and which it came by."""

    __slots__ = (
        "begun",
        "created_at",
        "fiber",
        "id",
        "known",
        "marked",
        "method",
        "names",
        "owner",
        "park",
        "progressed",
        "recovered",
        "resumed",
        "runs",
        "sleeps",
        "waits",
    )

    def __init__(
        self,
        id: WorkId,
        created_at: float,
        *,
        fiber: int | None = None,
        method: str | None = None,
        owner: WorkId | None = None,
        recovered: bool = False,
        progressed: Callable[[], None] = lambda: None,
        park: Callable[[float], BaseException | None] = lambda until: None,
    ) -> None:
        self.id = id
        self.created_at = created_at
        self.fiber = fiber
        """The number of the fiber, if it is one."""
        self.method = method
        """The method of the fiber, if it has one."""
        self.owner = owner
        """What the runs that it gives are part of, and stop with; None: nothing."""
        self.recovered = recovered
        """Whether it was interrupted, and has not progressed since."""
        self.names: set[str] = set()
        """The steps this run came by."""
        self.known: set[str] | None = None
        """The steps that were stored when this run reached its first one, or `None` if it has not yet."""
        self.begun: set[str] = set()
        """The steps that run now."""
        self.marked: set[str] = set()
        """Those of them of which it is stored that they have begun."""
        self.waits = False
        """Whether code of it waits, or has waited, for people or for runs."""
        self.sleeps = 0
        self.resumed = False
        """Whether it slept, and continues."""
        self.runs = 0
        """How many runs it has given so far."""
        self.progressed = progressed
        """Called in the slice that stores what a step returned, and when a run it waits for has ended."""
        self.park = park
        """Returns what to raise to have the work begun again then; None: it cannot be."""


class Steps:
    """The steps of one agent's unfinished work."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._db = actor.database

    async def run(
        self, how: str | StepOptions, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return what `function` returned the first time."""
        self._actor.check_use()
        options = how if isinstance(how, StepOptions) else None
        name = _checked(how) if options is None else options.name
        work = self._work("step()")
        if name in work.names:
            raise UsageError(
                f"Two steps have the name {name!r}. Results are stored by name: give each step a unique name, "
                "for example with a number in a loop."
            )
        work.names.add(name)
        copier = _copier_of(function)
        stored = self._stored(work, name)
        if stored is not None:
            return copier.unpack(stored)
        actor = self._actor
        began_at = actor.host.clock.now()
        work.begun.add(name)
        if work.waits:
            self.note_waiting(work)
        token = running_step.set(Step(actor.birthplace, actor.stem, str(work.id), work.created_at, name))
        try:
            if options is not None:
                value = await self._tried(options, function, args, kwargs)
            else:
                await actor.until_leased()
                value = function(*args, **kwargs)
                if not copier.takes(value) and inspect.isawaitable(value):
                    value = await value
        except Exception:
            if actor.dropped is None:
                self._forget_begun(work, name)
            raise
        finally:
            work.begun.discard(name)
            running_step.reset(token)
        actor.check_live()
        packed = copier.pack(value)
        if len(packed) > self._actor.limits.payload_bytes:
            raise OverLimit(
                f"The result of the step {name!r} must have at most {self._actor.limits.payload_bytes} bytes, got "
                f"{len(packed)}. Store it in a table, and return its key.",
                limit="payload_bytes",
            )
        self._store(work, name, packed, began_at, actor.host.clock.now())
        await self._actor.leave()
        return value if copier.takes(value) else copier.unpack(packed)

    async def sleep_until(self, time: datetime) -> None:
        """Return once it is this late; what was asked for the first time counts."""
        self._actor.check_use()
        work = self._work("sleep_until()")
        when = aware(time).timestamp()
        work.sleeps += 1
        name = f"{SLEEP}{work.sleeps}"
        stored = self._stored(work, name)
        if stored is not None:
            when = TIMES.unpack(stored)
        else:
            self._store(work, name, TIMES.pack(when), self._actor.host.clock.now(), when)
        await self._actor.leave()
        parked = work.park(when)
        if parked is not None:
            raise parked
        await sleep_until(self._actor.host.clock, when)

    def place(self, what: str) -> StoredProgress | None:
        """Return the next position for `what` in the current work, or `None` outside of any work."""
        call = current.get()
        if call is None or call.actor is not self._actor or not isinstance(call.work, Work):
            return None
        work, number = call.work, 1
        while f"{what} {number}" in work.names:
            number += 1
        name = f"{what} {number}"
        work.names.add(name)
        return StoredProgress(self._actor, work, name)

    def forget(self, work: WorkId) -> None:
        """Forget what the steps of a work returned, and close its questions: it is over."""
        self._actor.hooks.close_questions(work)
        if self._db.has(STEPS):
            self._db.execute("DELETE FROM sapwood_steps WHERE work = ?", str(work))

    def note_waiting(self, work: Work) -> None:
        """Code of a work waits for people or for runs. Store, in this slice, which of its steps run beside it."""
        work.waits = True
        for name in sorted(work.begun - work.marked):
            self._db.ensure(STEPS)
            self._db.execute(
                "INSERT OR REPLACE INTO sapwood_steps (work, name, result) VALUES (?, ?, ?)",
                str(work.id),
                f"{BEGUN}{name}",
                NOTHING,
            )
            work.marked.add(name)

    def _forget_begun(self, work: Work, name: str) -> None:
        mark = f"{BEGUN}{name}"
        if name in work.marked or mark in (work.known or ()):  # of an earlier attempt
            work.marked.discard(name)
            self._db.execute("DELETE FROM sapwood_steps WHERE work = ? AND name = ?", str(work.id), mark)

    @property
    def exist(self) -> bool:
        """Whether this agent ever stored one."""
        return self._db.has(STEPS)

    def times(self, work: WorkId, most: int) -> list[StepTimes]:
        """Return the first steps and sleeps of a work that are stored, in the order in which they began."""
        rows = self._db.execute(STEP_TIMES, str(work), most) if self._db.has(STEPS) else []
        return [StepTimes(*row) for row in rows]

    def in_fiber(self, what: str) -> Work:
        """Return the work of the fiber that runs now."""
        call = current.get()
        if call is not None and call.actor is self._actor and isinstance(call.work, Work) and call.work.fiber:
            return call.work
        raise UsageError(
            f"{what} must be called in a fiber, a run or a turn: only these continue after a crash. Start a fiber "
            "with start_fiber()."
        )

    def _work(self, what: str) -> Work:
        call: Call | None = current.get()
        if call is None or call.actor is not self._actor or not isinstance(call.work, Work):
            raise UsageError(
                f"{what} must be called in a fiber, or in a method that was scheduled or queued: only these continue "
                "after a crash. Start a fiber with start_fiber() or fibers.run()."
            )
        return call.work

    def _stored(self, work: Work, name: str) -> bytes | None:
        if work.known is None:
            there = self._db.has(STEPS)
            rows = self._db.execute("SELECT name FROM sapwood_steps WHERE work = ?", str(work.id)) if there else []
            work.known = {name for (name,) in rows}
        if name not in work.known:
            return None
        rows = self._db.execute("SELECT result FROM sapwood_steps WHERE work = ? AND name = ?", str(work.id), name)
        return rows[0][0] if rows else None

    def _store(self, work: Work, name: str, packed: bytes, began_at: float, ended_at: float) -> None:
        self._db.ensure(STEPS)
        self._db.execute(
            "INSERT INTO sapwood_steps VALUES (?, ?, ?, ?, ?)", str(work.id), name, packed, began_at, ended_at
        )
        self._forget_begun(work, name)
        work.progressed()

    async def _tried(
        self, options: StepOptions, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        failed = 0
        while True:
            await self._actor.until_leased()
            try:
                return await _called(options, function, args, kwargs)
            except Exception:
                failed += 1
                if failed >= options.retry.max_attempts or self._actor.dropped is not None:
                    raise
            await asyncio.sleep(options.retry.wait(failed, self._actor.host.random))


class StepTimes(NamedTuple):
    """When a step began and returned, or a sleep began and is over."""

    name: str
    began_at: float
    ended_at: float

    @property
    def is_sleep(self) -> bool:
        return self.name.startswith(SLEEP)


STEP_TIMES = (
    "SELECT name, began_at, ended_at FROM sapwood_steps WHERE work = ? AND began_at IS NOT NULL ORDER BY began_at"
    " LIMIT ?"
)
"""Reads the times of the first steps and sleeps of a work."""


class StoredProgress:
    """Where something that takes long keeps how far it got: like the result of a step, but written again and again."""

    def __init__(self, actor: Actor, work: Work, name: str) -> None:
        self.actor = actor
        self.work = work
        self.name = name
        self._db = actor.database

    def read(self) -> bytes | None:
        """Return what was written last, in this life or in one before."""
        if not self._db.has(STEPS):
            return None
        rows = self._db.execute(
            "SELECT result FROM sapwood_steps WHERE work = ? AND name = ?", str(self.work.id), self.name
        )
        return rows[0][0] if rows else None

    def put_back(self, packed: bytes | None) -> None:
        """Store again what was read before, in this slice; `None` means nothing."""
        if packed is not None:
            self.write(packed)
        elif self._db.has(STEPS):
            self._db.execute("DELETE FROM sapwood_steps WHERE work = ? AND name = ?", str(self.work.id), self.name)

    def write(self, packed: bytes) -> None:
        """Keep this, in this slice, instead of what was kept before."""
        self._db.ensure(STEPS)
        self._db.execute(
            "INSERT OR REPLACE INTO sapwood_steps (work, name, result) VALUES (?, ?, ?)",
            str(self.work.id),
            self.name,
            packed,
        )
        self.work.progressed()


def _checked(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise UsageError(f"The name of a step must be a non-empty string, got {name!r}.")
    return name


async def _called(
    options: StepOptions, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    value = function(*args, **kwargs)
    if not inspect.isawaitable(value):
        return value
    if options.timeout is None:
        return await value
    async with asyncio.timeout(options.timeout.total_seconds()):
        return await value


def _copier_of(function: Callable[..., Any]) -> Copier:
    """Return what stores and reads back the results of a function, by its annotation."""
    plain = function if type(function) is FunctionType else getattr(function, "__func__", function)
    copier = getattr(plain, "__dict__", {}).get(KEPT)
    if copier is None:
        copier = Copier(_returned(plain), f"What {getattr(plain, '__qualname__', 'a step')}() returned", InvalidResult)
        with contextlib.suppress(AttributeError, TypeError):  # a builtin, or a stub's method: made again the next time
            setattr(plain, KEPT, copier)
    return copier


KEPT = "_sapwood_step"


def _returned(function: Any) -> Any:
    try:
        return Signature(getattr(function, "__qualname__", "a step"), function, {}, bound=False).returned
    except (UsageError, ValueError, TypeError):
        return Any  # it has no signature, or names what cannot be found: then it is what msgpack has


def unfit(stored: StoredAgent) -> Iterator[Misfit]:
    """Read what the steps of an agent that sleeps returned. Whether it still has the right type only its step knows."""
    if not stored.file.has(STEPS):
        return
    for work, name, result in stored.file.rows("SELECT work, name, result FROM sapwood_steps"):
        stored.counts["steps"] += 1
        if not is_msgpack(result):
            yield stored.misfit(
                "step", f"The stored result of step {name!r} of {work} is damaged.", RESTORE, id=f"{work}, {name}"
            )


def is_msgpack(stored: bytes) -> bool:
    """Return whether something can be read at all."""
    try:
        msgspec.msgpack.decode(stored)
    except msgspec.MsgspecError:
        return False
    return True
