"""How fast this machine is now, beside the one that the limits of the gate were measured on.

A shared machine is slower at one hour than at another, also when no other program is seen to run on it: cores share
caches, memory and clock rate with strangers. The same small piece of work, done every second beside the tests, takes
as much longer as they do.
"""

from __future__ import annotations

import json
import statistics
import time

EVERY = 1.0
REFERENCE = 0.0085
"""Seconds of CPU time that a probe takes on our machine while the tests of `.ci/run` keep both cores busy."""
MOST = 2.5
"""Slower than this is a fault of the gate, not of the machine."""


class MachineSpeed:
    """Probes taken while parts of the gate run."""

    def __init__(self) -> None:
        self._probes: list[float] = []
        self._next = 0.0

    def look(self) -> None:
        """Take a probe if the last one is a second old."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            self._probes.append(probe())

    @property
    def slowness(self) -> float:
        """How many times slower than our machine this one was: at least 1, so that no limit becomes stricter."""
        return min(MOST, max(1.0, statistics.median(self._probes) / REFERENCE)) if self._probes else 1.0


def probe() -> float:
    """Return the CPU time that a fixed piece of work takes: a loop, objects, memory, text."""
    began = time.thread_time()
    for _ in range(50_000):
        pass
    rows = [{"number": number, "text": str(number) * 3} for number in range(2_000)]
    json.loads(json.dumps(rows))
    sorted(rows, key=lambda row: row["text"])
    return time.thread_time() - began


if __name__ == "__main__":
    print(f"{statistics.median(probe() for _ in range(200)) * 1000:.2f} ms")
