"""The nodes' own files in a data folder, when other processes share it than did the last time.

Trees lie where they lie. But each node keeps an index of the alarms of its own trees, and a mark
that it shut down cleanly. A file in the folder says how it was shared; a server that shares
it otherwise takes over what those left. Only the holder of the folder's
lock may do so.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import msgspec

from sapwood.address import Address
from sapwood.clock import SystemClock
from sapwood.kernel.alarms.index_file import alarms_file, remove_index
from sapwood.kernel.alarms.node_index import NodeAlarms
from sapwood.kernel.durability.local_gates import ProcessGate
from sapwood.kernel.node.data_folder import RESTORED, TREES, roots_in, unfinished
from sapwood.kernel.node.node import STOPPED
from sapwood.runtimes.workers.placement import ShardPlan
from sapwood.storage.files import Files

log = logging.getLogger(__name__)

FILE = "workers"
"""The file with the number of workers and the pools that share the folder. Without it, the folder is not shared."""
ALONE = ShardPlan(0)
"""One process has it all."""
Row = tuple[str, float | None, int]
"""What an index has of a tree: its address, when it is due, and how many dead letters it has."""


def suffixes(sharing: ShardPlan) -> list[str]:
    """Return what the files of each node are called by, beside their name."""
    return [part.suffix for part in sharing.parts] or [""]


def last_sharing(folder: Path) -> ShardPlan | None:
    """Return how the folder was shared the last time. `None` means that the file cannot be read."""
    try:
        found = msgspec.json.decode((folder / FILE).read_bytes(), type=int | ShardPlan)
    except FileNotFoundError:
        return ALONE
    except (msgspec.DecodeError, IsADirectoryError):
        return None
    return ShardPlan(found) if isinstance(found, int) else found


def arrange(folder: Path, sharing: ShardPlan, files: Files) -> None:
    """Have the folder be shared like this from now on. Needs a running loop."""
    before = last_sharing(folder)
    if before is None:
        log.warning("file %r in the data folder is damaged; rebuilding the alarm indexes from the trees", FILE)
        _forget_sharing(folder, files)
        before = ALONE
    if before == sharing:
        return
    old, new = suffixes(before), suffixes(sharing)
    rows, is_whole = _indexed(folder, old, files)
    dealt: list[list[Row]] = [[] for _ in new]
    for row in rows:
        dealt[sharing.worker(Address.parse(row[0])) if sharing.count else 0].append(row)
    ended_well = all((folder / f"{STOPPED}{part}").exists() for part in old)
    for part, own in zip(new, dealt, strict=True):
        path = folder / alarms_file(part)
        remove_index(path, files)  # if it exists, it is from a time before the last
        index = _open(path, files)
        index.take_over(own, is_whole=is_whole)
        index.close()
        for written in (path, _wal(path)):
            if written.exists():
                files.sync_file(written)
    for part in (*old, *new):
        files.remove(folder / f"{STOPPED}{part}")
    if ended_well:
        for part in new:
            files.close(files.create(folder / f"{STOPPED}{part}", b""))
    _write(folder, sharing, files)
    for part in old:
        remove_index(folder / alarms_file(part), files)


def _forget_sharing(folder: Path, files: Files) -> None:
    """Remove what belongs to nodes that are not known: it is made again, from the trees."""
    for path in [*folder.glob("alarms*.db"), *folder.glob("alarms*.db-wal"), *folder.glob("alarms*.marks")]:
        remove_index(path, files)
    for path in folder.glob(f"{STOPPED}*"):
        files.remove(path)
    if (path := folder / FILE).is_dir():
        files.rename(path, files.unused_path(path, ".odd"))
    else:
        files.remove(path)


def tidy(folder: Path) -> None:
    """Finish what a crash interrupted. Workers do so for their own trees, where they can tell whose they are."""
    if not (folder / TREES).exists():
        return
    for one in unfinished(folder):
        if one.suffix == RESTORED and not one.with_suffix("").exists():
            one.rename(one.with_suffix(""))
        else:
            shutil.rmtree(one)


def _indexed(folder: Path, parts: list[str], files: Files) -> tuple[list[Row], bool]:
    """Return what the indexes say, and whether they say all."""
    rows: list[Row] = []
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


def _open(path: Path, files: Files) -> NodeAlarms:
    return NodeAlarms(path, files=files, gate=ProcessGate(), clock=SystemClock(), loop=asyncio.get_running_loop())


def _write(folder: Path, sharing: ShardPlan, files: Files) -> None:
    path, half = folder / FILE, folder / f"{FILE}.new"
    if sharing.count:
        files.remove(half)
        files.close(files.create(half, msgspec.json.encode(sharing if sharing.pools else sharing.workers)))
        files.sync_file(half)
        files.rename(half, path)
    else:
        files.remove(path)
    files.sync_folder(folder)


def _wal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")
