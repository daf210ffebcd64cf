"""Scheduled and queued calls of one process that fail again and again: an operator looks for them."""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.kernel.node.node import Node
from sapwood.settings import Settings

FEWEST = 3
"""Failures in a row from which a call counts."""
MOST = 1000
"""Calls that are remembered."""
GRACE = 10.0
"""Seconds after its next attempt was due until a call that has not failed again is forgotten."""


@dataclass(frozen=True, slots=True)
class FailingCall:
    """One stored call that failed several times in a row, and is retried."""

    address: str
    method: str
    failures: int
    """Attempts that failed."""
    due_at: float
    """When the next attempt is due."""


class FailingCalls:
    """The failing calls of one process, by the agent and the number of the call."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._calls: dict[tuple[str, int], FailingCall] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no call is remembered."""
        return not self._calls

    def note(self, number: int, call: FailingCall) -> None:
        """Remember a call that failed again."""
        if call.failures < FEWEST:
            return
        key = call.address, number
        self._calls.pop(key, None)
        self._calls[key] = call
        if len(self._calls) > MOST:
            self._forget()
        if len(self._calls) > MOST:
            del self._calls[next(iter(self._calls))]

    def forget(self, address: str, number: int) -> None:
        """List a call no more: it is over, or was cancelled."""
        self._calls.pop((address, number), None)

    def erase(self, address: str) -> int:
        """Forget the calls of an agent and those below it; return how many."""
        gone = [key for key in self._calls if key[0] == address or key[0].startswith(f"{address}/")]
        for key in gone:
            del self._calls[key]
        return len(gone)

    def list(self, limit: int) -> list[FailingCall]:
        """Return those that failed most often. Calls of agents that were deleted or have moved are forgotten soon."""
        self._forget()
        return sorted(self._calls.values(), key=lambda one: -one.failures)[:limit]

    def _forget(self) -> None:
        now = self._clock.now()
        self._calls = {key: one for key, one in self._calls.items() if now <= one.due_at + GRACE}


def erase_failing_calls(node: Node, subject: Address) -> int:
    """Forget which calls of an agent and those below it have failed; return how many."""
    return node.shared(FailingCalls).erase(str(subject))
