"""Removes what is older than the past that is kept, of trees that are not written to."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sapwood.address import Address
from sapwood.errors import SapwoodError
from sapwood.kernel.history.chain import LABEL, Retention, remove_old
from sapwood.kernel.history.removed_files import sweep_removed
from sapwood.kernel.history.segments import SegmentReader, closed_state, segments_in
from sapwood.kernel.history.unrecorded import REMOVED


class ExpiredPast(NamedTuple):
    """A past that is too old as a whole, as it was when the sweep saw it."""

    folder: Path
    segment: Path
    """The last one."""
    size: int

    def is_unchanged(self) -> bool:
        """Return whether nothing was added to it since."""
        return segments_in(self.folder)[-1:] == [self.segment] and self.segment.stat().st_size == self.size


def sweep(
    folder: Path, is_busy: Callable[[str], bool], owns: Callable[[Address], bool], now: float, retention: Retention
) -> list[ExpiredPast]:
    """Go through the histories in a folder, and return those that are too old as a whole. They are not removed here:
    their trees may wake at any time.

    Those of other processes, and the busy ones, stay as they are.
    """
    expired: list[ExpiredPast] = []
    if not folder.exists():
        return expired
    for past in sorted(folder.iterdir()):
        if past.suffix == REMOVED:
            shutil.rmtree(past, ignore_errors=True)
        elif not is_busy(past.name) and _is_own(past, owns):
            expired += _sweep_one(past, now, retention)
    return expired


def _is_own(past: Path, owns: Callable[[Address], bool]) -> bool:
    try:
        return owns(Address.parse((past / LABEL).read_text()))
    except (OSError, SapwoodError, ValueError):
        return False


def _sweep_one(past: Path, now: float, retention: Retention) -> list[ExpiredPast]:
    remove_old(past, now, retention)
    sweep_removed(past, now - retention.seconds, retention.max_bytes)
    segments = segments_in(past)
    if len(segments) != 1:
        return []
    size = segments[0].stat().st_size
    return [ExpiredPast(past, segments[0], size)] if _last_at(segments[0]) <= now - retention.seconds else []


def _last_at(segment: Path) -> float:
    """Return when the last line of a segment was written."""
    if (state := closed_state(segment)) is not None:
        return state.at
    last = 0.0
    for line in SegmentReader(segment).lines():
        last = line.at
    return last
