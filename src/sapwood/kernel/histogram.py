"""How long what happens inside a node took, counted in buckets, for `/metrics`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from sapwood.clock import Clock
from sapwood.settings import Settings

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds up to which each bucket goes; one more has the rest."""


class Histogram:
    """How often something took how long."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0
        """Seconds, of all together."""

    def note(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Yield up to how many seconds, and how often it took no longer."""
        below = 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self.counts, strict=True):
            below += count
            yield bound, below


class Histograms:
    """What is timed on one node."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.interrupts = Histogram()
        """From a Stop to the end of the last request to a model that it stopped."""
