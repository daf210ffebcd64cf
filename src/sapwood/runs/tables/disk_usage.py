"""How much of the disk the sub-agents take that do runs."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from sapwood.kernel.trees.deletion import child_stem
from sapwood.runs.tables.runs_table import RUNS
from sapwood.storage.blobs import SUFFIX, blob_folder, folder_bytes
from sapwood.storage.database import Database


def held(database: Database) -> int:
    """Return what an agent holds, with what the runs held that it has given, when they were over."""
    below = 0
    if database.exists and database.has(RUNS):
        ((below,),) = database.execute("SELECT coalesce(sum(bytes), 0) FROM sapwood_runs")
    return _size(database.path) + _size(database.wal) + folder_bytes(blob_folder(database.path)) + below


def held_below(folder: Path, parent: str, generations: list[int]) -> list[int]:
    """Return what each of these children of an agent holds, with all below it: from one look at the tree's folder."""
    sizes: dict[str, int] = defaultdict(int)
    below: dict[str, list[str]] = defaultdict(list)
    with os.scandir(folder) as entries:
        for entry in entries:
            stem, _, _ = entry.name.partition(".")
            try:
                size = folder_bytes(Path(entry.path)) if entry.name.endswith(SUFFIX) else entry.stat().st_size
            except FileNotFoundError:
                continue
            if stem not in sizes:
                below[_family(stem)].append(stem)
            sizes[stem] += size
    totals: list[int] = []
    for generation in generations:
        total, left = 0, [child_stem(parent, generation)]
        while left:
            stem = left.pop()
            total += sizes.get(stem, 0)
            left += below.get(_family(child_stem(stem, 0)), ())
        totals.append(total)
    return totals


def _family(stem: str) -> str:
    """Return what the file names of all children of one agent begin with."""
    return stem.rpartition("-")[0]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
