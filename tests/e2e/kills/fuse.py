"""A file that says at which crash point the next process of a server is to kill itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from sapwood.testing.faults import CrashPoints

FILE = "fuse"


class Fuse(CrashPoints):
    """Counts the crash points that a process passes since the fuse was lit, and dies at the one it names.

    Of several workers, the first one to get there dies.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._file = folder / FILE
        self._known = ""
        self._count = 0

    def passing(self, point: str) -> None:
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            return
        if text != self._known:
            self._known, self._count = text, 0
        _, wanted, nth = text.split("\n")
        if point != wanted:
            return
        self._count += 1
        if self._count >= int(nth):
            try:
                self._file.unlink()
            except FileNotFoundError:  # another worker has taken it
                return
            os.kill(os.getpid(), signal.SIGKILL)


class Matches:
    """Lights fuses, and knows whether the last one is still burning."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / FILE
        self._count = 0

    def light(self, point: str, nth: int) -> None:
        """Let the process die that passes this crash point for the n-th time from now on."""
        self._count += 1
        new = self._folder / f"{FILE}.new"
        new.write_text(f"{self._count}\n{point}\n{nth}")
        new.rename(self._file)

    @property
    def is_burning(self) -> bool:
        return self._file.exists()

    def put_out(self) -> None:
        self._file.unlink(missing_ok=True)
