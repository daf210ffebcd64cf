"""Whether the operating system lets this process write: a full or read-only disk, a quota, too many open files.

None of this is damage: once the cause is gone, everything continues.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Generator
from pathlib import Path

from sapwood.errors import Unavailable

LEAST_FREE = 1024 * 1024
"""Free bytes below which a disk counts as full: the next commit may need as many."""
PROBE = ".sapwood-probe"
CAUSES = {
    errno.ENOSPC: ("The disk is full.", "Free disk space."),
    errno.EDQUOT: ("The disk quota is exceeded.", "Free disk space, or raise the quota."),
    errno.EROFS: ("The file system is read-only.", "Check the disk, and mount it writable."),
    errno.EMFILE: ("The process has too many open files.", "Raise its limit: `ulimit -n`, or LimitNOFILE= in systemd."),
    errno.ENFILE: ("The system has too many open files.", "Raise its limit: `sysctl fs.file-max`."),
    errno.EIO: ("The disk reports an error.", "Check the disk."),
    errno.EFBIG: ("A file has reached the largest size that is allowed.", "Raise the limit: `ulimit -f`."),
}


class StorageUnavailable(Unavailable):
    """The operating system refuses to write, or to open files. Nothing is damaged."""

    def __init__(self, message: str | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or str(self)
        """What is wrong, in one sentence without a remedy."""


def refused_by(error: OSError) -> StorageUnavailable | None:
    """Return the error to raise for one of the operating system's, or `None` if it is of another kind."""
    cause = CAUSES.get(error.errno or 0)
    return None if cause is None else StorageUnavailable(" ".join(cause), cause[0])


@contextlib.contextmanager
def refusals() -> Generator[None, None, None]:
    """Raise `StorageUnavailable` where the operating system refuses something in the block."""
    try:
        yield
    except OSError as error:
        if (refused := refused_by(error)) is None:
            raise
        raise refused from error


def probe(folder: Path) -> StorageUnavailable | None:
    """Return why nothing can be written to a folder now, or `None` if it can be."""
    path = folder / f"{PROBE}-{os.getpid()}"
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, bytes(4096))
            is_full = shutil.disk_usage(folder).free < LEAST_FREE
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)
    except OSError as error:
        return refused_by(error)
    return refused_by(OSError(errno.ENOSPC, "")) if is_full else None
