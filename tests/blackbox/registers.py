"""Checks the reads and writes of one register for stale reads, lost writes and reads that go back in time.

Every write has a value of its own. This is not a full search for a linear order: it finds a read that is surely wrong,
whatever order the concurrent calls took effect in.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence

from tests.blackbox.history import RegisterCall


def check_register(calls: Sequence[RegisterCall]) -> Iterator[str]:
    """Yield what is wrong with the calls to one register."""
    writes = {call.value: call for call in calls if call.is_write}
    reads = sorted((call for call in calls if not call.is_write), key=lambda call: call.began)
    latest_answered = LatestWrite(call for call in writes.values() if call.is_answered)
    for read in reads:
        if not read.value:
            if latest_answered.before(read.began) is not None:
                yield "a read found nothing after an acknowledged write"
            continue
        source = writes.get(read.value)
        if source is None:
            yield f"a read returned {read.value}, which was never written"
        elif source.began > read.ended:
            yield f"a read returned {read.value} before it was written"
        elif source.is_answered and (newer := latest_answered.before(read.began)) and newer.began > source.ended:
            yield f"a read returned {read.value}, although {newer.value} was acknowledged before"
    yield from _backward_reads(reads, writes)


class LatestWrite:
    """Answers which write, among those that ended before a moment, began last."""

    def __init__(self, calls: Iterable[RegisterCall]) -> None:
        by_end = sorted(calls, key=lambda call: call.ended)
        self._ends = [call.ended for call in by_end]
        self._latest = list(itertools.accumulate(by_end, lambda one, other: max(one, other, key=lambda c: c.began)))

    def before(self, moment: float) -> RegisterCall | None:
        place = bisect.bisect_left(self._ends, moment)
        return self._latest[place - 1] if place else None


def _backward_reads(reads: Sequence[RegisterCall], writes: dict[str, RegisterCall]) -> Iterator[str]:
    """Yield reads of a value that is surely older than one that an earlier read returned."""
    by_end = sorted((read for read in reads if read.value in writes), key=lambda read: read.ended)
    place, latest = 0, None
    for read in reads:
        while place < len(by_end) and by_end[place].ended < read.began:
            seen = writes[by_end[place].value]
            latest = seen if latest is None or seen.began > latest.began else latest
            place += 1
        source = writes.get(read.value)
        if latest and source and source.is_answered and source.ended < latest.began:
            yield f"a read returned {read.value} after an earlier read returned {latest.value}, which is newer"
