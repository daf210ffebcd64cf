"""Everything sapwood asks of the file system, beside what SQLite does itself.

One small port: creating, syncing, renaming and removing files go through `Files`, so
a test can put a disk below it that loses power, and count every step as a place to die.

Folders have the mode 0700 and files 0600, whatever the umask: other users of the machine read nothing. SQLite gives a
log the mode of its database.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import zlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from sapwood.errors import FolderInUse
from sapwood.randomness import SYSTEM, Random, new_id
from sapwood.storage.engine import CHECKED, write_pages
from sapwood.storage.image import PAGE_SIZE

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
OTHERS = 0o077
"""The permissions of group and others."""
OWN_ENTRIES = ("trees", "history", "moved", "erasures", "crashes", "alarms*", "*.jsonl")
"""What a data folder holds of agents: narrowed even where the folder itself belongs to another user."""


def make_private_folder(path: Path) -> None:
    """Create a folder that only this user can enter, and the missing folders above it."""
    if not path.parent.exists():
        make_private_folder(path.parent)
    path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file; if it is new, only this user can read it."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, PRIVATE_FILE))


def narrow_access(folder: Path) -> None:
    """Take the permissions of group and others from a data folder that was made with more.

    A folder that is narrow already is not looked into: other users cannot enter it.
    """
    if os.name != "posix":
        return
    if not folder.stat().st_mode & stat.S_ISVTX:  # unlike /tmp, which belongs to all users
        _narrow(folder, deep=False)
    for name in OWN_ENTRIES:
        for path in folder.glob(name):
            _narrow(path, deep=True)


def is_open_to_others(folder: Path) -> bool:
    """Return whether other users of the machine may enter a folder."""
    return os.name == "posix" and bool(folder.stat().st_mode & OTHERS)


def _narrow(path: Path, *, deep: bool) -> None:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode) or not mode & OTHERS:
        return
    with contextlib.suppress(OSError):  # another user's, or a file system without modes: `sapwood doctor` reports it
        path.chmod(stat.S_IMODE(mode) & ~OTHERS)
    if deep and stat.S_ISDIR(mode):
        for below in path.iterdir():
            _narrow(below, deep=True)


@functools.cache
def boot_of_machine() -> int:
    """Return a number that changes with each boot; where the system does not tell, with each process."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        text = os.urandom(16)
    return zlib.crc32(text) >> 2


class Files:
    """The real file system."""

    vfs: str = CHECKED
    """The SQLite VFS that databases are opened with."""
    random: Random = SYSTEM
    """The source of new names."""

    def __init__(self, random: Random = SYSTEM) -> None:
        self.random = random

    def unused_path(self, path: Path, suffix: str) -> Path:
        """Return a new path beside this one: its name, a random id and the suffix."""
        return path.with_name(f"{path.name}-{new_id(self.random, 8)}{suffix}")

    def make_folder(self, path: Path) -> None:
        make_private_folder(path)

    def create(self, path: Path, content: bytes) -> int:
        """Write a new file and return its descriptor, still open."""
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE_FILE)
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
        """Overwrite the beginning of an existing file that no process has open."""
        with path.open("r+b") as file:
            file.write(content)

    def patch(self, path: Path, pages: Iterable[tuple[int, memoryview]], length: int) -> None:
        """Write each page, with its checksum, at its place into a database that no process has open; set its length."""
        write_pages(path, pages, length)

    def create_database(self, path: Path, content: bytes | bytearray) -> None:
        """Write a new database, and the checksum of each page."""
        self.close(self.create(path, b""))
        view = memoryview(content)
        self.patch(path, [(at, view[at : at + PAGE_SIZE]) for at in range(0, len(content), PAGE_SIZE)], len(content))

    def write_at(self, path: Path, place: int, content: bytes) -> None:
        """Write into an existing file that SQLite does not use."""
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(descriptor, content, place)
        finally:
            os.close(descriptor)

    def append(self, path: Path, content: bytes) -> None:
        """Write to the end of an existing file that SQLite does not use."""
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            while content:
                content = content[os.write(descriptor, content) :]
        finally:
            os.close(descriptor)

    @property
    def boot(self) -> int:
        """Tells the boots of the machine apart, in 30 bits: what was written in this one is lost only by damage."""
        return boot_of_machine()

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

    def __init__(self, folder: Path, name: str = "lock", *, inherited: int | None = None) -> None:
        """Take the lock, or with `inherited`, an open file of another process that has it, share that process's."""
        import fcntl

        if inherited is not None:
            self._file = os.fdopen(inherited, "a+")
            self._write_pid()
            return
        make_private_folder(folder)
        self._file = open_private(folder / name, "a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            pid = self._file.read().strip() or "unknown"
            self._file.close()
            raise FolderInUse(
                f"The data folder {str(folder)!r} is in use by process {pid}. Stop that process, or choose "
                "another folder with --data or Settings(data=…)."
            ) from None
        self._write_pid()
        narrow_access(folder)

    def _write_pid(self) -> None:
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    @property
    def descriptor(self) -> int:
        """The open file that holds the lock: a process that inherits it holds it too."""
        return self._file.fileno()

    def release(self) -> None:
        self._file.close()


@contextmanager
def held_still(folder: Path) -> Generator[None, None, None]:
    """Hold a data folder so that no process may run on it, and change nothing in it."""
    import fcntl

    try:
        file = (folder / "lock").open()
    except FileNotFoundError:  # no server ever ran on it: it is a backup
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = file.read().strip() or "unknown"
            raise FolderInUse(f"The data folder {str(folder)!r} is in use by process {pid}.") from None
        yield
