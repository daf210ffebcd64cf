"""The nodes' own files in a data folder, when other processes share it than did the last time.

Trees lie where they lie. But each node keeps an index of the alarms of its own trees, and a mark
that it ended in good order. A file in the folder says how many shared it; whoever
starts with another number takes over what those left. Only the holder of the folder's
lock may do so.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from sapwood.address import Address
from sapwood.clock import SystemClock
from sapwood.errors import StoredDataError
from sapwood.kernel.alarms import Alarms, alarms_file
from sapwood.kernel.gate import ProcessGate
from sapwood.kernel.node import RESTORED, STOPPED, TREES, roots_in, unfinished
from sapwood.runtimes.workers.placement import Part
from sapwood.storage.files import Files

FILE = "workers"
"""The file that says how many share the folder; none: one process has it all."""

Parts = Mapping[str, Callable[[Address], bool]]
"""What the files of each node are called by, and which trees it runs."""

ALONE: Parts = {"": lambda root: True}


def parts_of(count: int) -> Parts:
    """Return the parts of so many workers; 0: of one process alone."""
    parts = [Part(number, count) for number in range(count)]
    return {part.suffix: part.is_here for part in parts} or ALONE


def last_count(folder: Path) -> int:
    """Return how many workers shared the folder the last time; 0: one process had it all."""
    try:
        return int((folder / FILE).read_text())
    except FileNotFoundError:
        return 0
    except ValueError:
        raise StoredDataError(
            f"The file {FILE!r} in the data folder has to be the number of workers that share it, and is not. Write "
            "the number that served it last; if nobody knows it, remove the file and all that begin with 'alarms'."
        ) from None


def arrange(folder: Path, count: int, files: Files) -> None:
    """Have the folder be shared by so many workers; 0: by one process alone. Needs a running loop."""
    before = last_count(folder)
    if before == count:
        return
    old, new = parts_of(before), parts_of(count)
    rows, is_whole = _indexed(folder, old, files)
    ended_well = all((folder / f"{STOPPED}{part}").exists() for part in old)
    for part, is_here in new.items():
        path = folder / alarms_file(part)
        _remove(files, path)  # if it exists, it is from a time before the last
        index = _open(path, files)
        index.take_over([row for row in rows if is_here(Address.parse(row[0]))], is_whole=is_whole)
        index.close()
        for written in (path, _wal(path)):
            if written.exists():
                files.sync_file(written)
    for part in (*old, *new):
        files.remove(folder / f"{STOPPED}{part}")
    if ended_well:
        for part in new:
            files.close(files.create(folder / f"{STOPPED}{part}", b""))
    _write_count(folder, count, files)
    for part in old:
        _remove(files, folder / alarms_file(part))


def tidy(folder: Path) -> None:
    """Finish what a crash interrupted. Workers do so for their own trees, where they can tell whose they are."""
    if not (folder / TREES).exists():
        return
    for one in unfinished(folder):
        if one.suffix == RESTORED and not one.with_suffix("").exists():
            one.rename(one.with_suffix(""))
        else:
            shutil.rmtree(one)


def _indexed(folder: Path, parts: Parts, files: Files) -> tuple[list[tuple[str, float | None, int]], bool]:
    """Return what the indexes say, and whether they say all."""
    rows: list[tuple[str, float | None, int]] = []
    is_whole = True
    for part in parts:
        path = folder / alarms_file(part)
        if not path.exists():
            is_whole = False
            continue
        index = _open(path, files)
        rows += index.rows()
        is_whole = is_whole and index.is_whole
        index.close()
    return rows, is_whole or not _has_trees(folder)


def _has_trees(folder: Path) -> bool:
    try:
        return any(True for _ in roots_in(folder))
    except FileNotFoundError:
        return False


def _open(path: Path, files: Files) -> Alarms:
    return Alarms(path, files=files, gate=ProcessGate(), clock=SystemClock(), loop=asyncio.get_running_loop())


def _write_count(folder: Path, count: int, files: Files) -> None:
    path, half = folder / FILE, folder / f"{FILE}.new"
    if count:
        files.remove(half)
        files.close(files.create(half, str(count).encode()))
        files.sync_file(half)
        files.rename(half, path)
    else:
        files.remove(path)
    files.sync_folder(folder)


def _remove(files: Files, path: Path) -> None:
    for one in (_wal(path), path.with_name(f"{path.name}-shm"), path):
        files.remove(one)


def _wal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")
