"""Places where a process may die, found by counting what it asks of the disk.

Every commit and every step in the file system passes a port, so a port that counts can
end the process at exactly the third commit, or before the first file is removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from sapwood.errors import Unavailable
from sapwood.kernel.durability.gate_layer import GateLayer
from sapwood.kernel.ports.durability import Commit, Gate
from sapwood.storage.database import Database
from sapwood.storage.files import Files

POINTS = (
    "committed",
    "before make_folder",
    "after make_folder",
    "before create",
    "after create",
    "before sync",
    "after sync",
    "before rename",
    "after rename",
    "before remove",
    "after remove",
)
"""The names of all crash points. Each may be passed many times."""


class Dead(Unavailable, OSError):
    """The process crashed: its further writes do not reach the disk."""


class CrashPoints:
    """Counts the crash points that a process passes, and acts at one of them."""

    def __init__(self) -> None:
        self.passed: Counter[str] = Counter()
        """How often each place was passed."""
        self.ended = False
        """Whether this life is over."""
        self._at: tuple[str, int] | None = None
        self._act: Callable[[], None] = lambda: None

    def arm(self, point: str, nth: int, act: Callable[[], None]) -> None:
        """Call `act` when `point` is passed for the n-th time from now on."""
        if point not in POINTS:
            raise ValueError(f"Unknown crash point {point!r}. Expected one of {', '.join(POINTS)}.")
        self._at = (point, self.passed[point] + nth)
        self._act = act

    def disarm(self) -> None:
        """Act at no crash point any more."""
        self._at = None

    def passing(self, point: str) -> None:
        self.check_alive()
        self.passed[point] += 1
        if self._at == (point, self.passed[point]):
            self._at = None
            self._act()

    def check_alive(self) -> None:
        """Raise if the process has crashed."""
        if self.ended:
            raise Dead


class CountingFiles(Files):
    """The file system, with a crash point before and after every step."""

    def __init__(self, points: CrashPoints, below: Files | None = None) -> None:
        self._points = points
        self._below = below or Files()

    @property
    def vfs(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - only read, when a file is opened
        self._points.check_alive()
        return self._below.vfs

    def unused_path(self, path: Path, suffix: str) -> Path:
        return self._below.unused_path(path, suffix)

    def make_folder(self, path: Path) -> None:
        self._points.passing("before make_folder")
        self._below.make_folder(path)
        self._points.passing("after make_folder")

    def create(self, path: Path, content: bytes) -> int:
        self._points.passing("before create")
        descriptor = self._below.create(path, content)
        self._points.passing("after create")
        return descriptor

    def open(self, path: Path) -> int:
        return self._below.open(path)

    def overwrite(self, path: Path, content: bytes) -> None:
        self._below.overwrite(path, content)

    def patch(self, path: Path, pages: Iterable[tuple[int, memoryview]], length: int) -> None:
        self._below.patch(path, pages, length)

    def write_at(self, path: Path, place: int, content: bytes) -> None:
        self._points.check_alive()
        self._below.write_at(path, place, content)

    @property
    def boot(self) -> int:
        return self._below.boot

    def close(self, descriptor: int) -> None:
        self._below.close(descriptor)

    def sync_descriptor(self, path: Path, descriptor: int) -> None:
        self._points.passing("before sync")
        self._below.sync_descriptor(path, descriptor)
        self._points.passing("after sync")

    def sync_file(self, path: Path) -> None:
        self._points.passing("before sync")
        self._below.sync_file(path)
        self._points.passing("after sync")

    def sync_folder(self, path: Path) -> None:
        self._points.passing("before sync")
        self._below.sync_folder(path)
        self._points.passing("after sync")

    def rename(self, old: Path, new: Path) -> None:
        self._points.passing("before rename")
        self._below.rename(old, new)
        self._points.passing("after rename")

    def remove(self, path: Path) -> None:
        self._points.passing("before remove")
        self._below.remove(path)
        self._points.passing("after remove")

    def remove_folder(self, path: Path) -> None:
        self._points.passing("before remove")
        self._below.remove_folder(path)
        self._points.passing("after remove")


class CountingGate(GateLayer):
    """A gate with a crash point after every commit."""

    def __init__(self, points: CrashPoints, below: Gate) -> None:
        super().__init__(below)
        self._points = points
        self._open: set[Database] = set()

    @property
    def is_flushing(self) -> bool:
        """Whether the disk does not have everything yet."""
        return not all(self._below.is_quiet(database) for database in self._open)

    def opened(self, database: Database) -> None:
        self._open.add(database)
        super().opened(database)

    def committed(self, commit: Commit) -> None:
        self._points.passing("committed")
        super().committed(commit)

    def forget(self, database: Database) -> None:
        self._open.discard(database)
        super().forget(database)
