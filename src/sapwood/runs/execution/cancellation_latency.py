"""The latency of a cancellation: from its request until nothing below sends model requests any more.

A cancellation passes all turns and runs below in one pass. Each that is in the middle of a
model request reports whether its provider is informed already, or when it will be.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from time import perf_counter

from sapwood.clock import Clock
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.histogram import Histogram, Histograms
from sapwood.settings import Settings


class Stop:
    """One Stop, while it is timed."""

    def __init__(self, timing: Histogram) -> None:
        self._timing = timing
        self._began = perf_counter()
        self._open = 1
        self._requests = 0

    def begun(self) -> None:
        """A request to a model is stopped."""
        self._open += 1
        self._requests += 1

    def ended(self) -> None:
        """The provider of one of them knows, or the pass is over."""
        self._open -= 1
        if not self._open and self._requests:
            self._timing.note(perf_counter() - self._began)


class Stops:
    """The Stop that goes through the agents of a node now."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.now: Stop | None = None
        """`None` means that nothing is stopped now, or that no caller requested it."""


@contextmanager
def stopping(actor: Actor) -> Generator[None, None, None]:
    """Stop something, and what is below it, in this block, which does not wait for anything."""
    stops = actor.host.shared(Stops)
    if stops.now is not None:
        yield  # it is part of one from above
        return
    stop = stops.now = Stop(actor.host.shared(Histograms).interrupts)
    try:
        yield
    finally:
        stops.now = None
        stop.ended()
