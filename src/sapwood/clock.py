"""What time it is, asked of somebody who can be told otherwise.

Nothing in sapwood reads the system's clock itself: it is handed a `Clock`, so a
test owns the time.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time, for what is stored and shown."""

    def now(self) -> float:
        """Return seconds since the epoch, UTC."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()
