"""Compares what packages yield of their tables: two sorted rows of entries, matched by their keys."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sapwood.kernel.comparison.shown_values import shown_json, shown_key
from sapwood.kernel.comparison.tree_diff import Change, PartDiff, Place
from sapwood.kernel.ports.compared_parts import ComparedEntry


def compare_entries(
    kind: str, a: Iterable[ComparedEntry], b: Iterable[ComparedEntry], limit: int, show: Callable[[Any], Any]
) -> PartDiff | None:
    """Return what differs between the entries of two agents, or `None` if nothing does."""
    counts: dict[Place, int] = {"only_a": 0, "only_b": 0, "changed": 0}
    listed: list[tuple[int, int, Change]] = []
    for number, (left, right) in enumerate(_matched(iter(a), iter(b))):
        if left is not None and right is not None and left.value == right.value:
            continue
        one = left or right
        assert one is not None
        place: Place = "only_a" if right is None else "only_b" if left is None else "changed"
        counts[place] += 1
        # The heap keeps the first by position, so the last of those comes first in it.
        if len(listed) == limit and (not limit or (-one.position, -number) < listed[0][:2]):
            continue
        shown = [None if entry is None else shown_json(show(entry.value)) for entry in (left, right)]
        change = (-one.position, -number, Change(place, shown_key(one.key), *shown))
        heapq.heappush(listed, change) if len(listed) < limit else heapq.heapreplace(listed, change)
    if not any(counts.values()):
        return None
    return PartDiff(kind, None, **counts, changes=tuple(change for _, _, change in sorted(listed, reverse=True)))


def _matched(
    a: Iterator[ComparedEntry], b: Iterator[ComparedEntry]
) -> Iterator[tuple[ComparedEntry | None, ComparedEntry | None]]:
    """Yield the entries of both in the order of their keys, those with equal keys together."""
    left, right = next(a, None), next(b, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left.key < right.key):
            yield left, None
            left = next(a, None)
        elif left is None or right.key < left.key:
            yield None, right
            right = next(b, None)
        else:
            yield left, right
            left, right = next(a, None), next(b, None)
