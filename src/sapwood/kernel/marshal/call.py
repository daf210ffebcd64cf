"""Which call is running now, and who asked for it.

Every call runs in a task of its own; the chain of callers, the deadline and the trace
travel with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context, ContextVar, Token, copy_context
from typing import Any, Final, NamedTuple, Protocol

from sapwood import tracing
from sapwood.address import Address
from sapwood.errors import CallTooDeep, TimedOut

MAX_DEPTH = 128


class Incarnation(Protocol):
    """The incarnation of an agent that a call runs in."""

    @property
    def address(self) -> Address: ...

    @property
    def birthplace(self) -> Address:
        """The first address that it had. A tree that is moved gets another address."""
        ...

    @property
    def stem(self) -> str:
        """The name of its file. Agents that had its address before have other names."""
        ...

    @property
    def agent(self) -> object: ...

    def check_live(self) -> None:
        """Raise if this incarnation was dropped."""
        ...


class Reply(Protocol):
    """What a caller learns from how a call ended: a future, or what stands for one."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...

    def exception(self) -> BaseException | None: ...

    def add_done_callback(self, act: Callable[[Any], object], /) -> None: ...


def id_of(user: Any) -> str | None:
    """Return the id of a user, or a user that is a string; `None` for any other user without an `id` that is one."""
    id: Any = user if isinstance(user, str) else getattr(user, "id", None)
    return id if isinstance(id, str) else None


class Call:
    """One method running, or about to run, in one agent."""

    __slots__ = (
        "actor",
        "caller",
        "client",
        "deadline",
        "depth",
        "ended",
        "is_done",
        "is_start",
        "key",
        "method",
        "reply",
        "trace",
        "user",
        "work",
    )

    def __init__(self, actor: Incarnation, method: str, caller: Call | None) -> None:
        self.actor = actor
        self.method = method
        self.caller = caller
        self.reply: Reply | None = None
        """What the caller waits for; `None` for work that no caller waits for."""
        self.client: object = None
        """The connection that caused it, if a client did; `OPERATOR` if an operator did."""
        self.user: str | None = None if caller is None else caller.user
        """The id of the user whose message began the turn that it is a part of."""
        self.work: object = None
        """The durable work it is part of, if any: what its steps are remembered by."""
        self.trace: Any = None if tracing.tracer is None else tracing.carried()
        """The trace that what it does belongs to, or `None` without tracing."""
        self.key: str | None = None
        """The idempotency key it was made with, if any."""
        self.is_start = False
        """Whether it is the start of its agent."""
        self.is_done = False
        """Whether only the answer has still to wait until what was written is kept."""
        self.ended = False
        """Whether the caller waits no longer; callbacks that came with the call end with it."""
        limit = until.get()
        if caller is None:
            self.client = outside.get()
            self.depth = 1
            self.deadline = limit
        else:
            self.depth = depth = caller.depth + 1
            if depth > MAX_DEPTH:
                raise CallTooDeep(f"A chain of calls exceeds the limit of {MAX_DEPTH}: … → {self.chain()}.")
            above = caller.deadline
            self.deadline = above if limit is None or (above is not None and above < limit) else limit

    def enter(self) -> Token[Call | None]:
        """Have the rest of this task be this call."""
        if self.trace is not None:
            tracing.enter(self.trace)
        return current.set(self)

    def tighten(self) -> None:
        """Have no more time than there is where the call is awaited; it may have been made somewhere else."""
        limit = until.get()
        if limit is not None and (self.deadline is None or limit < self.deadline):
            self.deadline = limit

    def lineage(self) -> Iterator[Call]:
        """Yield this call and those that led to it."""
        call: Call | None = self
        while call is not None:
            yield call
            call = call.caller

    def starting(self) -> list[Incarnation]:
        """Return the agents whose `on_start` this call descends from."""
        return [call.actor for call in self.lineage() if call.is_start]

    def chain(self, last: int = 6) -> str:
        """Return the last calls that led here, oldest first, as a person reads them."""
        steps: list[str] = []
        call: Call | None = self
        while call is not None and len(steps) < last:
            steps.append(f"{call.actor.address}.{call.method}")
            call = call.caller
        return " → ".join(reversed(steps))


current: ContextVar[Call | None] = ContextVar("sapwood_call", default=None)
until: ContextVar[float | None] = ContextVar("sapwood_deadline", default=None)


class Step(NamedTuple):
    """A step or tool call: the same however often it is repeated, in whichever process."""

    agent: Address
    """The first address that the agent had."""
    stem: str
    """The file of the agent. Another agent that later has the same address has another one."""
    work: str
    """The fiber, stored call or turn that it belongs to."""
    created_at: float
    """When that was created. Its number may be given again if it was lost with the power."""
    name: str


running_step: ContextVar[Step | None] = ContextVar("sapwood_step", default=None)


class OperatorClient:
    """Stands for an operator who calls an agent, as `sapwood call` does."""


OPERATOR: Final = OperatorClient()
outside: ContextVar[OperatorClient | None] = ContextVar("sapwood_outside", default=None)
"""Who makes the calls here that no agent makes."""


@contextmanager
def as_operator() -> Generator[None, None, None]:
    """Make the calls in this block for an operator."""
    token = outside.set(OPERATOR)
    try:
        yield
    finally:
        outside.reset(token)


def deadline_of(caller: Call | None) -> float | None:
    """Return until when a call made here and now has time."""
    limit = until.get()
    if caller is None or caller.deadline is None:
        return limit
    return caller.deadline if limit is None else min(limit, caller.deadline)


@asynccontextmanager
async def in_time(deadline: float | None, address: Address) -> AsyncGenerator[None, None]:
    """Raise `TimedOut` if the agent that the block wakes is not awake by the deadline; it wakes on for others."""
    limit = asyncio.timeout_at(deadline)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():  # a timeout of the agent's own
            raise
        raise TimedOut(f"{address} did not start before the deadline.", path=address.segments) from None


@contextmanager
def deadline(seconds: float) -> Generator[None, None, None]:
    """Give every call made in this block, and every call those make, at most this long.

    The deadline travels down: work that is still running when it passes is cancelled, and the caller gets `TimedOut`.
    """
    at = asyncio.get_running_loop().time() + seconds
    before = until.get()
    token = until.set(at if before is None else min(at, before))
    try:
        yield
    finally:
        until.reset(token)


def context_outside_of_calls() -> Context:
    """Return a copy of the context without the call that runs now, whose agent may have started another app."""
    context = copy_context()
    # Only where needed: each variable makes every call more expensive.
    if current.get() is not None:
        context.run(current.set, None)
    if until.get() is not None:
        context.run(until.set, None)
    return context
