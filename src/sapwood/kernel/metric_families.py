"""Counters and histograms with labels, for `/metrics`: packages add to them, and the server reads them.

Each is a dict in memory. The number of label sets is limited, because some labels, such as the name of a model, can
come from users: what exceeds the limit is counted with the label value `other`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from sapwood.clock import Clock
from sapwood.kernel.histogram import BOUNDS, Histogram
from sapwood.settings import Settings

MAX_SERIES = 500
"""Maximum number of label sets of one metric."""
MAX_LABEL_LENGTH = 100
OTHER = "other"
"""The label value of everything above the limit."""

S = TypeVar("S")


class MetricFamily(Generic[S]):
    """One metric, with one series for each set of label values.

    The values of `open_labels` are names without a fixed set of values. Those of `closed_labels` are few and fixed.
    """

    def __init__(self, name: str, text: str, open_labels: Sequence[str], closed_labels: Sequence[str] = ()) -> None:
        self.name = name
        self.text = text
        self.labels = (*open_labels, *closed_labels)
        self._open = len(open_labels)
        self.series: dict[tuple[str, ...], S] = {}

    def key(self, *values: str) -> tuple[str, ...]:
        """Return the label set to count with: the values as they are, or `other` if there are too many already."""
        if values in self.series:
            return values
        values = tuple(label_value(value) for value in values)
        if values in self.series or len(self.series) < MAX_SERIES:
            return values
        return (*[OTHER] * self._open, *values[self._open :])


class CounterFamily(MetricFamily[float]):
    """A sum that only grows."""

    def add(self, amount: float, *values: str) -> None:
        key = self.key(*values)
        self.series[key] = self.series.get(key, 0.0) + amount


class HistogramFamily(MetricFamily[Histogram]):
    """How often something had which size."""

    def __init__(
        self,
        name: str,
        text: str,
        open_labels: Sequence[str],
        closed_labels: Sequence[str] = (),
        *,
        bounds: Sequence[float] = BOUNDS,
    ) -> None:
        super().__init__(name, text, open_labels, closed_labels)
        self._bounds = bounds

    def note(self, value: float, *values: str) -> None:
        key = self.key(*values)
        if (histogram := self.series.get(key)) is None:
            histogram = self.series[key] = Histogram(self._bounds)
        histogram.note(value)


class MetricFamilies:
    """The metrics of one node that packages above the kernel count."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.counters: list[CounterFamily] = []
        self.histograms: list[HistogramFamily] = []


def label_value(text: str) -> str:
    """Return a name as the value of a label: short, and on one line."""
    shown = text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)
    return shown[:MAX_LABEL_LENGTH]
