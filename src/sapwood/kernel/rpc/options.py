"""Options of a call through a stub: a timeout, retries, an idempotency key, a circuit breaker."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any, TypeVar, cast

from sapwood.errors import CircuitOpen, NotCopyable, SapwoodError, UsageError
from sapwood.kernel.marshal.agent_class import Method
from sapwood.kernel.marshal.call import Call, current, deadline, deadline_of
from sapwood.kernel.marshal.signatures import is_callback
from sapwood.kernel.marshal.values import UNLIMITED
from sapwood.kernel.rpc.circuits import Breaker, Circuits
from sapwood.kernel.rpc.stub import Route, Stub
from sapwood.randomness import Random
from sapwood.when import Retry

A = TypeVar("A")

LONGEST_KEY = 255
"""Characters of an idempotency key."""


def with_options(
    stub: A,
    *,
    timeout: float | None = None,
    retry: Retry | None = None,
    idempotency_key: str | None = None,
    breaker: Breaker | None = None,
) -> A:
    """Return a stub of the same agent whose calls have these options; the given stub stays as it is.

    `timeout` is the number of seconds for the call, all its retries and waits included. It acts as `deadline` does: it
    travels down, and work that has not ended by then is cancelled.

    `retry` repeats a call that failed with an error that is `retryable`. It is unknown how far the failed call got:
    without an idempotency key, the method may take effect more than once.

    `idempotency_key` names what the call is to achieve, such as an order number. The agent keeps the outcome of the
    call with the key. A second call of the same caller with the same key returns that outcome, and one made while the
    first still runs waits for it. With another method or other arguments it raises `KeyReused`.

    `breaker` refuses calls at once with `CircuitOpen` after the method failed several times in a row.

    Options of a stub that has some already stay, unless they are given again.
    """
    if not isinstance(stub, Stub):
        raise UsageError(f"with_options() expected a stub, such as sub_agent() returns, got {type(stub).__name__}.")
    way = stub.__dict__["_line"]
    way, options = (way.way, way.options) if isinstance(way, OptionWay) else (way, Options())
    given = Options(timeout=timeout, retry=retry, idempotency_key=idempotency_key, breaker=breaker)
    changed = {name: value for name in NAMES if (value := getattr(given, name)) is not None}
    return cast(A, Stub(OptionWay(way, replace(options, **changed))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the calls of one stub are made with; `None` means without."""

    timeout: float | None = None
    retry: Retry | None = None
    idempotency_key: str | None = None
    breaker: Breaker | None = None

    def __post_init__(self) -> None:
        timeout, retry, key, breaker = self.timeout, self.retry, self.idempotency_key, self.breaker
        if timeout is not None and (type(timeout) not in (int, float) or not 0 <= timeout < inf):
            raise UsageError(f"timeout must be a number of seconds, 0 or more, got {timeout!r}.")
        if retry is not None and type(retry) is not Retry:
            raise UsageError(f"retry must be Retry(…), got {retry!r}.")
        if breaker is not None and type(breaker) is not Breaker:
            raise UsageError(f"breaker must be Breaker(…), got {breaker!r}.")
        if key is not None:
            _check_key(key)


NAMES = [field.name for field in fields(Options)]


def _check_key(key: object) -> None:
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        raise UsageError(f"idempotency_key must be a string of 1 to {LONGEST_KEY} characters, got {key!r:.300}.")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise UsageError(f"idempotency_key must be valid Unicode, got {key!r}.") from None


class OptionWay:
    """The way from a stub with options to its agent."""

    __slots__ = ("address", "kind", "options", "way")

    def __init__(self, way: Route, options: Options) -> None:
        self.address = way.address
        self.kind = way.kind
        self.way = way
        self.options = options

    @property
    def circuits(self) -> Circuits:
        return self.way.circuits

    @property
    def random(self) -> Random:
        return self.way.random

    def call(self, method: Method, key: str | None, /, *args: Any, **kwargs: Any) -> Any:
        if self.options.idempotency_key is not None and any(map(is_callback, (*args, *kwargs.values()))):
            raise NotCopyable(
                f"{method.full_name}() takes no function together with an idempotency key: functions cannot be "
                "compared with those of an earlier call."
            )
        # Copied now, not when it is awaited; each attempt gets a copy of its own.
        copied, named = method.signature.copy_arguments(args, kwargs, cast(Any, None), UNLIMITED, _as_it_is)
        work = self._perform(method, copied, named)
        work.__qualname__ = method.full_name  # what Python says when it was never awaited
        return work

    async def _perform(self, method: Method, args: list[Any], kwargs: dict[str, Any]) -> Any:
        timeout, retry = self.options.timeout, self.options.retry
        failed = 0
        with nullcontext() if timeout is None else deadline(timeout):
            while True:
                try:
                    return await self._attempt(method, args, kwargs)
                except CircuitOpen as error:
                    error.path = error.path or self.address.segments
                    raise
                except SapwoodError as error:
                    failed += 1
                    if retry is None or not error.retryable or failed >= retry.max_attempts:
                        raise
                    wait = retry.wait(failed, self.random)
                    end = deadline_of(current.get())
                    if end is not None and asyncio.get_running_loop().time() + wait >= end:
                        raise  # there would be no time left to try again
                await asyncio.sleep(wait)

    async def _attempt(self, method: Method, args: list[Any], kwargs: dict[str, Any]) -> Any:
        options, breaker = self.options, self.options.breaker
        if breaker is None:
            return await self.way.call(method, options.idempotency_key, *args, **kwargs)
        circuits, loop = self.circuits, asyncio.get_running_loop()
        decides = circuits.enter(breaker, self.kind, method.name, loop.time())
        try:
            value = await self.way.call(method, options.idempotency_key, *args, **kwargs)
        except CancelledError:
            circuits.leave(breaker, self.kind, method.name, loop.time(), decides=decides)
            raise
        except BaseException as error:
            if isinstance(error, SapwoodError) and error.retryable:
                circuits.fail(breaker, self.kind, method.name, loop.time(), decides=decides)
            else:
                circuits.succeed(breaker, self.kind, method.name, decides=decides)
            raise
        circuits.succeed(breaker, self.kind, method.name, decides=decides)
        return value

    def stream(self, method: Method, /, *args: Any, **kwargs: Any) -> Any:
        refused = [name for name in NAMES if name != "timeout" and getattr(self.options, name) is not None]
        if refused:
            raise UsageError(
                f"{method.full_name}() is a generator and accepts no {' and no '.join(refused)}: yielded items "
                "cannot be taken back. Generators accept only timeout."
            )
        with nullcontext() if self.options.timeout is None else deadline(self.options.timeout):
            return self.way.stream(method, *args, **kwargs)


def _as_it_is(target: Any, call: Call, limit: int) -> Any:
    """Return a callback unchanged: it is lent to each attempt."""
    return target
