"""How often something had which size, such as a duration, counted in buckets, for `/metrics`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from sapwood.clock import Clock
from sapwood.settings import Settings

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of the buckets of durations inside a node, in seconds. One more bucket has the rest."""


class Histogram:
    """How often something had which size."""

    def __init__(self, bounds: Sequence[float] = BOUNDS) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """The sum of all values."""

    def note(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Yield the upper bound of each bucket, and the number of values up to it."""
        below = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self.counts, strict=True):
            below += count
            yield bound, below


class Histograms:
    """What is timed on one node."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.interrupts = Histogram()
        """From a Stop to the end of the last request to a model that it stopped."""
