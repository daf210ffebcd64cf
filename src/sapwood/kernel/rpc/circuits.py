"""Circuit breakers: a method that failed again and again is not called for a while.

What is counted is in memory, by class and method, in the process that calls.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import inf

from sapwood.errors import CircuitOpen, UsageError
from sapwood.kernel.marshal.agent_class import AgentClass

MOST_CIRCUITS = 1000
"""Methods whose failures one process counts; those that failed least recently are forgotten first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """When calls of a method are refused at once, because the last ones failed.

    Only failures that are `retryable` count: timeouts, lost connections, agents that are unavailable. What a method
    raises itself is an answer, and closes the circuit.
    """

    failures: int = 5
    """Failures in a row after which the circuit opens."""
    reset_after: float = 30.0
    """Seconds for which it stays open; then one call is let through, and closes it if it succeeds."""

    def __post_init__(self) -> None:
        failures, reset_after = self.failures, self.reset_after
        if type(failures) is not int or failures < 1:
            raise UsageError(f"Breaker(failures) must be a whole number, 1 or more, got {failures!r}.")
        if type(reset_after) not in (int, float) or not 0 < reset_after < inf:
            raise UsageError(f"Breaker(reset_after) must be a number of seconds above 0, got {reset_after!r}.")


class Circuit:
    """The failures of one method in a row."""

    __slots__ = ("_breaker", "_failed", "_name", "_open_until")

    def __init__(self, breaker: Breaker, name: str) -> None:
        self._breaker = breaker
        self._name = name
        self._failed = 0
        self._open_until: float | None = None
        """When the next call is let through; `None` if all are."""

    def enter(self, now: float) -> bool:
        """Return whether the call that begins now decides if the circuit closes; raise `CircuitOpen` if none may."""
        if self._open_until is None:
            return False
        if now < self._open_until:
            wait = min(self._open_until - now, self._breaker.reset_after)  # a sum and its difference are rounded
            error = CircuitOpen(
                f"{self._name} was not called: the circuit breaker is open after {self._failed} failures in a "
                f"row. The next call is tried in {wait:.1f} s."
            )
            error.retry_after = wait
            raise error
        # For as long again: a call that never ends must not keep all others out.
        self._open_until = now + self._breaker.reset_after
        return True

    def fail(self, now: float, *, decides: bool) -> None:
        """Note a failure; those of calls that began before the circuit opened do not keep it open longer."""
        if self._open_until is not None and not decides:
            return
        self._failed += 1
        if self._failed >= self._breaker.failures:
            self._open_until = now + self._breaker.reset_after

    def leave(self, now: float, *, decides: bool) -> None:
        """Note that a call was cancelled: it says nothing, and the next one decides in its place."""
        if decides:
            self._open_until = now

    @property
    def is_open(self) -> bool:
        return self._open_until is not None


class Circuits:
    """The circuits of one process whose methods failed lately."""

    def __init__(self, most: int = MOST_CIRCUITS) -> None:
        self._most = most
        self._failed: OrderedDict[tuple[Breaker, AgentClass, str], Circuit] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failed)

    def enter(self, breaker: Breaker, kind: AgentClass, method: str, now: float) -> bool:
        """Return whether the call that begins now decides if its circuit closes; raise `CircuitOpen` if none may."""
        circuit = self._failed.get((breaker, kind, method))
        return circuit is not None and circuit.enter(now)

    def succeed(self, breaker: Breaker, kind: AgentClass, method: str, *, decides: bool) -> None:
        """Note that a call was answered; those that began before the circuit opened do not close it."""
        circuit = self._failed.get((breaker, kind, method))
        if circuit is not None and (decides or not circuit.is_open):
            del self._failed[breaker, kind, method]

    def fail(self, breaker: Breaker, kind: AgentClass, method: str, now: float, *, decides: bool) -> None:
        """Note that a call failed."""
        place = (breaker, kind, method)
        circuit = self._failed.get(place)
        if circuit is None:
            circuit = self._failed[place] = Circuit(breaker, f"{kind.type}.{method}")
            if len(self._failed) > self._most:
                self._failed.popitem(last=False)
        self._failed.move_to_end(place)
        circuit.fail(now, decides=decides)

    def leave(self, breaker: Breaker, kind: AgentClass, method: str, now: float, *, decides: bool) -> None:
        """Note that a call was cancelled."""
        circuit = self._failed.get((breaker, kind, method))
        if circuit is not None:
            circuit.leave(now, decides=decides)
