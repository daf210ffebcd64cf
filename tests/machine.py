"""How slow this machine is now, measured once in each process: what a test waits for at most depends on it.

A test waits for an event, never for a duration. A bound exists only so that a test that hangs fails with a sentence.
"""

from __future__ import annotations

import os
import time
from functools import cache

ROUNDS = 20
STEPS = 100_000
REFERENCE = 0.004
"""Seconds that a round takes on a machine of ours that has nothing else to do."""
SPARE = 2.0
"""How much slower it may become while the tests run."""
MOST = 10.0
"""A test that hangs has to end as well."""


def patience(seconds: float = 30.0) -> float:
    """Return how long to wait at most for what an idle machine does within these seconds."""
    return seconds * slowness()


@cache
def slowness() -> float:
    """Return how many times slower than an idle machine of ours this one is taken to be: from twice to ten times."""
    began = time.perf_counter()
    for _ in range(ROUNDS):
        for _ in range(STEPS):
            pass
        time.sleep(0)  # let those go first that wait for a core: they are part of what slows us down
    measured = (time.perf_counter() - began) / (ROUNDS * REFERENCE)
    beside = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) / (os.cpu_count() or 1)
    return min(MOST, SPARE * max(1.0, measured, beside))
