"""Where backups of a data folder were made, so that an erasure can say which of them still hold a tree.

Each line of the file is a backup, or says that one was removed. In a cluster, each note is an object in the archive.
Copies that were made without sapwood have no note.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from sapwood.kernel.actors.quarantine import append_entry
from sapwood.kernel.ports.log import Archive
from sapwood.storage.availability import refusals

NOTES = "backups.jsonl"
ARCHIVED = "backups"
"""Where in the archive the notes are."""


class BackupNote(NamedTuple):
    """One backup that was made."""

    folder: Path
    at: float
    """When it began: seconds since the epoch, UTC."""
    node: str = ""
    """In a cluster, the node or machine that has the folder."""


def note_backup(data: Path, folder: Path, at: float) -> None:
    """Note that a backup is about to be made in a folder."""
    with refusals():
        append_entry(data / NOTES, {"folder": str(folder.resolve()), "at": at})


def note_removed_backup(data: Path, folder: Path) -> None:
    """Note that a backup was removed."""
    if (data / NOTES).exists():
        append_entry(data / NOTES, {"folder": str(folder.resolve()), "removed": True})


def noted_backups(data: Path) -> list[BackupNote]:
    """Return the folders that got a backup and of which no removal is noted, oldest first."""
    try:
        lines = (data / NOTES).read_text().splitlines()
    except FileNotFoundError:
        return []
    found: dict[str, BackupNote] = {}
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # a crash cut it short
        if "at" in entry:
            found.setdefault(entry["folder"], BackupNote(Path(entry["folder"]), entry["at"]))
        else:
            found.pop(entry["folder"], None)
    return list(found.values())


async def note_archived_backup(archive: Archive, folder: Path, at: float, node: str) -> None:
    """Note in the archive of a cluster that a backup is about to be made in a folder, an absolute path, of a node."""
    note = json.dumps({"folder": str(folder), "at": at, "node": node}).encode()
    await archive.put(f"{ARCHIVED}/{int(at):010}-{hashlib.sha256(note).hexdigest()[:16]}", note)


async def noted_archived_backups(archive: Archive) -> list[BackupNote]:
    """Return the backups that were made of a cluster, oldest first."""
    found: dict[tuple[str, str], BackupNote] = {}
    async for key in archive.keys(f"{ARCHIVED}/"):
        if (data := await archive.get(key)) is not None:
            note = json.loads(data)
            found.setdefault((note["folder"], note["node"]), BackupNote(Path(note["folder"]), note["at"], note["node"]))
    return list(found.values())
