"""Opens a data folder, in which a file names the newest release of sapwood that has opened it.

An older release reads it at its start: it tells the operator that it cannot read what the newer one has migrated,
before a client gets the error. The databases decide what can be read. Without the file, only this advice is missing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import msgspec

from sapwood.kernel.node.data_folder import TREES
from sapwood.storage.files import Files
from sapwood.storage.migrations import ROLL_BACK, framework

log = logging.getLogger(__name__)

FILE = "release.json"


class ReleaseRecord(msgspec.Struct, frozen=True):
    """A release, and the number of the last migration of each part that it has."""

    sapwood: str
    migrations: dict[str, int]

    def newer_than(self, known: Mapping[str, int]) -> str | None:
        """Return in a sentence what this release has and another lacks, or `None` if it lacks nothing."""
        newer = [f"{owner} {last}" for owner, last in sorted(self.migrations.items()) if last > known.get(owner, 0)]
        if not newer:
            return None
        return f"sapwood {self.sapwood} has opened it, with migrations that this version lacks: {', '.join(newer)}."


REMEDY = f"Agents that have been migrated do not start. {ROLL_BACK} `sapwood upgrade-check` names these agents."


def newer_release(folder: Path) -> str | None:
    """Return in a sentence which newer release has opened a data folder, or `None` if none is known."""
    record = _read(folder)
    return None if record is None else record.newer_than(framework())


def open_folder(folder: Path, files: Files, *, synced: bool, has_data: bool) -> None:
    """Create the folder of the trees. If it `has_data`, warn of a newer release, or store that this one opened it."""
    files.make_folder(folder / TREES)
    if synced:
        files.sync_folder(folder)
    if has_data:
        if (newer := newer_release(folder)) is not None:
            log.warning("data folder is newer than this server: %s %s", newer, REMEDY, extra={"folder": folder})
        _record_release(folder, files)


def _record_release(folder: Path, files: Files) -> None:
    known, record = framework(), _read(folder)
    if record is not None and (record.migrations == known or record.newer_than(known) is not None):
        return
    content = msgspec.json.encode(ReleaseRecord(version("sapwood"), dict(known)))
    half = files.unused_path(folder / FILE, ".half")
    with contextlib.suppress(OSError):  # the first write of an agent reports what is wrong with the disk
        files.close(files.create(half, content))
        files.rename(half, folder / FILE)


def _read(folder: Path) -> ReleaseRecord | None:
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=ReleaseRecord)
    except (OSError, msgspec.DecodeError):
        return None
