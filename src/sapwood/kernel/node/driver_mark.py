"""Stores in a data folder that its app has a driver: commands that open the folder know no app.

A driver decides when turns and runs continue, and does not know those of a fork.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sapwood.storage.files import Files

FILE = "driver"
"""The empty file in the data folder that says so."""


def note_driver(data: Path, files: Files, *, has_driver: bool) -> None:
    """Store whether the app of a data folder has a driver."""
    if has_driver:
        with suppress(FileExistsError):  # of an earlier start, or of another worker
            files.close(files.create(data / FILE, b""))
    elif (data / FILE).exists():
        files.remove(data / FILE)


def has_noted_driver(data: Path) -> bool:
    """Return whether the app that used a data folder last has a driver."""
    return (data / FILE).exists()
