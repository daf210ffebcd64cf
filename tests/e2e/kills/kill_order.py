"""An order in a file: the process of a server that passes a crash point for the n-th time kills itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from sapwood.testing.faults import CrashPoints

FILE = "kill-order"


class SelfKill(CrashPoints):
    """Counts the crash points that this process passes since an order was given, and obeys it.

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
            except FileNotFoundError:  # another worker has obeyed it
                return
            os.kill(os.getpid(), signal.SIGKILL)


class KillOrders:
    """Gives orders, and knows whether the last one is still open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / FILE
        self._count = 0

    def give(self, point: str, nth: int) -> None:
        """Have the process die that passes this crash point for the n-th time from now on."""
        self._count += 1
        new = self._folder / f"{FILE}.new"
        new.write_text(f"{self._count}\n{point}\n{nth}")
        new.rename(self._file)

    @property
    def is_open(self) -> bool:
        return self._file.exists()
