"""Removes what is older than the past that is kept, of trees that are not written to."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from sapwood.address import Address
from sapwood.errors import SapwoodError
from sapwood.kernel.history.chain import LABEL, Retention, remove_old
from sapwood.kernel.history.removed_files import sweep_removed
from sapwood.kernel.history.segments import SegmentReader, closed_state, segments_in
from sapwood.kernel.history.unrecorded import REMOVED


def sweep(
    folder: Path, busy: Collection[str], owns: Callable[[Address], bool], now: float, retention: Retention
) -> None:
    """Go through the histories in a folder. Those of other processes, and the busy ones, stay as they are."""
    if not folder.exists():
        return
    for past in sorted(folder.iterdir()):
        if past.suffix == REMOVED:
            shutil.rmtree(past, ignore_errors=True)
        elif past.name not in busy and _is_own(past, owns):
            _sweep_one(past, now, retention)


def _is_own(past: Path, owns: Callable[[Address], bool]) -> bool:
    try:
        return owns(Address.parse((past / LABEL).read_text()))
    except (OSError, SapwoodError, ValueError):
        return False


def _sweep_one(past: Path, now: float, retention: Retention) -> None:
    remove_old(past, now, retention)
    sweep_removed(past, now - retention.seconds, retention.max_bytes)
    segments = segments_in(past)
    if len(segments) == 1 and _last_at(segments[0]) <= now - retention.seconds:
        shutil.rmtree(past, ignore_errors=True)


def _last_at(segment: Path) -> float:
    """Return when the last line of a segment was written."""
    if (state := closed_state(segment)) is not None:
        return state.at
    last = 0.0
    for line in SegmentReader(segment).lines():
        last = line.at
    return last
