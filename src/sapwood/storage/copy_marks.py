"""Marks the databases of a copy, so that one that is lost or replaced in it is noticed as in a data folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sapwood.errors import StoredDataError
from sapwood.storage.file_reader import reading
from sapwood.storage.files import Files
from sapwood.storage.marks import MARKS, Marks, clear_log_after, position, stored_version


def mark_copies(folder: Path, *, is_durable: bool) -> None:
    """Store how far each database in a copy of a tree is written. A damaged one gets no mark.

    What a power loss left behind the end of a write-ahead log is overwritten: it is not damage, but would look like it.
    """
    files = Files()
    marks = Marks(folder, files)
    for path in sorted(folder.glob("*.db")):
        with suppress(StoredDataError):
            frames = 0
            if path.with_name(f"{path.name}-wal").exists():
                with reading(path) as file:
                    frames = file.frames
                clear_log_after(path, frames, files)
            marks.write(path.stem, position(path, frames, stored_version(path), files.boot, is_durable=is_durable))
    with suppress(FileNotFoundError):
        files.sync_file(folder / MARKS)
