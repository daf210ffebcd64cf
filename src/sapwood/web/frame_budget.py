"""How much memory the large frames of all sockets of a process may take together: those beyond it wait, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class FrameBudget:
    """Bytes for frames that are larger than others."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.free = size
        """Bytes that no frame has taken."""
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def take(self, size: int, granted: Callable[[], None]) -> bool:
        """Take bytes now, or return `False`, and call `granted` once they are taken. A larger size counts as all."""
        if self._waiting or not self._fits(size):
            self._waiting.append((size, granted))
            return False
        self.free -= min(size, self._size)
        return True

    @property
    def waiting(self) -> int:
        """How many frames wait."""
        return len(self._waiting)

    def _fits(self, size: int) -> bool:
        return self.free >= min(size, self._size)

    def give(self, size: int) -> None:
        """Return bytes that were taken."""
        self.free += min(size, self._size)
        while self._waiting and self._fits(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            self.free -= min(size, self._size)
            granted()

    def forget(self, granted: Callable[[], None]) -> None:
        """Wait no more."""
        self._waiting = deque(one for one in self._waiting if one[1] != granted)
