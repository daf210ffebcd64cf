"""Metrics with labels use bounded memory, and each series stays on one line."""

from __future__ import annotations

from sapwood.kernel.metric_families import MAX_LABEL_LENGTH, MAX_SERIES, OTHER, CounterFamily, HistogramFamily


def test_names_above_the_limit_are_counted_together_and_nothing_is_lost() -> None:
    family = CounterFamily("requests", "", ("agent", "model"), ("outcome",))

    for number in range(10_000):
        family.add(1, "Desk", f"model-{number}", "completed" if number % 2 else "failed")

    assert len(family.series) == MAX_SERIES + 2
    assert sum(family.series.values()) == 10_000
    assert {labels for labels in family.series if labels[0] == OTHER} == {
        (OTHER, OTHER, "completed"),
        (OTHER, OTHER, "failed"),
    }


def test_a_series_that_exists_is_still_counted_when_the_limit_is_reached() -> None:
    family = HistogramFamily("seconds", "", ("tool",))
    family.note(0.1, "search")
    for number in range(MAX_SERIES):
        family.note(0.1, f"tool-{number}")

    family.note(0.1, "search")

    assert sum(family.series[("search",)].counts) == 2


def test_a_label_is_short_and_has_no_line_ends() -> None:
    family = CounterFamily("requests", "", ("model",))

    family.add(1, "a\u2028b\nc" + "d" * 1000)

    ((label,),) = family.series
    assert label.startswith("a?b?cddd")
    assert len(label) == MAX_LABEL_LENGTH
