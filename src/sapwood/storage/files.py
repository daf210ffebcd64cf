"""Everything sapwood asks of the file system, beside what SQLite does itself.

One small port: creating, syncing, renaming and removing files go through `Files`, so
a test can put a disk below it that loses power, and count every step as a place to die.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from sapwood.errors import FolderInUse


class Files:
    """The real file system."""

    vfs: str | None = None
    """The SQLite VFS that databases are opened with; None is SQLite's own."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def create(self, path: Path, content: bytes) -> int:
        """Write a new file and return its descriptor, still open."""
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        try:
            while content:
                content = content[os.write(descriptor, content) :]
        except OSError:
            os.close(descriptor)
            path.unlink()  # half a file would be in the way of the next try
            raise
        return descriptor

    def open(self, path: Path) -> int:
        """Return a descriptor of an existing file, to sync it with."""
        return os.open(path, os.O_RDONLY)

    def overwrite(self, path: Path, content: bytes) -> None:
        """Write over the beginning of an existing file that nobody has open."""
        with path.open("r+b") as file:
            file.write(content)

    def patch(self, path: Path, pieces: Iterable[tuple[int, memoryview]], length: int) -> None:
        """Write each of these at its place into an existing file that nobody has open, and have it be so long."""
        with path.open("r+b") as file:
            for place, content in pieces:
                file.seek(place)
                file.write(content)
            file.truncate(length)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def sync_descriptor(self, path: Path, descriptor: int) -> None:
        """Return when what was written to the open file at `path` is on the disk."""
        os.fdatasync(descriptor)

    def sync_file(self, path: Path) -> None:
        """Return when what was written to this file is on the disk.

        Never for a file SQLite holds a lock on: closing any descriptor of it would
        drop the lock of the whole process.
        """
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Return when the names created, renamed and removed in this folder are on the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        path.rmdir()


class FolderLock:
    """Holds a data folder for the life of the process, by a lock of the operating system.

    The lock goes with the process however it dies; the pid in the file only serves the
    sentence a second process is refused with.
    """

    def __init__(self, folder: Path, name: str = "lock") -> None:
        import fcntl

        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / name).open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            pid = self._file.read().strip() or "unknown"
            self._file.close()
            raise FolderInUse(
                f"The data folder {str(folder)!r} is in use by process {pid}. "
                "Stop that process, or give this one a folder of its own with --data or Settings(data=…)."
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    @property
    def descriptor(self) -> int:
        """The open file that holds the lock: whoever inherits it holds it too."""
        return self._file.fileno()

    def release(self) -> None:
        self._file.close()


@contextmanager
def held_still(folder: Path) -> Generator[None, None, None]:
    """Hold a data folder so that no process may run on it, and change nothing in it."""
    import fcntl

    try:
        file = (folder / "lock").open()
    except FileNotFoundError:  # nobody ever ran on it: it is a backup
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = file.read().strip() or "unknown"
            raise FolderInUse(f"The data folder {str(folder)!r} is in use by process {pid}.") from None
        yield
