"""Measures how long a slice of the loop ran, without the time that the machine took from it.

Wall time is the sum of four things: the thread computed, it slept in a blocking call, it was ready to run and waited
for a core, or it had a core that the hypervisor gave to another machine. The first two count. The other two are the
machine's, and the kernel knows them: the run delay of the thread, and the time of its core.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import NamedTuple, Protocol

CORE = 36
"""Index of the core that a thread last ran on in `/proc/…/stat`, counted after the thread's name."""
STEAL = 7
"""Index of the stolen time of a core in `/proc/stat`. The times before it add up to the core's own time; those after
it are parts of them."""
STEAL_CHECK = 10.0
"""Seconds between two reads of `/proc/stat` while it reports no stolen time."""


class StolenTime(NamedTuple):
    """The time that the machine took from a thread."""

    seconds: float
    """Seconds since the first reading in which the thread was ready to run and did not run."""
    is_ready: bool
    """Whether the thread is ready to run at this moment: then it may have waited longer than `seconds` says."""


class ThreadTime(Protocol):
    """The clocks of one thread, in seconds; another thread reads them."""

    def wall(self) -> float:
        """Return the time."""
        ...

    def computed(self) -> float:
        """Return how long the thread has computed so far."""
        ...

    def wait(self) -> StolenTime:
        """Return the time that the machine took from the thread so far."""
        ...


class _Reading(NamedTuple):
    """The clocks of a thread and of its core at one moment."""

    wall: float
    computed: float
    queued: float
    core: bytes
    missing: float | None
    """How far the core's own time is behind the wall clock. `None` means unknown."""


class KernelTime:
    """The clocks of the thread that creates it, as the kernel keeps them. A time that the kernel does not know is 0."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._thread = threading.get_ident()
        self._proc = proc
        self._folder = proc / f"self/task/{threading.get_native_id()}"
        self._tick = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.0
        self._queued: float | None = None
        """The run delay at the last reading."""
        self._waited = 0.0
        """The run delay and the stolen time since the first reading."""
        self._base: _Reading | None = None
        """The reading up to which stolen time is settled."""
        self._late = 0.0
        """Run delay that was reported after its time was settled."""
        self._next_steal_check = 0.0

    def wall(self) -> float:
        return time.monotonic()

    def computed(self) -> float:
        clock = getattr(time, "pthread_getcpuclockid", None)
        return time.clock_gettime(clock(self._thread)) if clock is not None else 0.0

    def wait(self) -> StolenTime:
        try:
            queued = int((self._folder / "schedstat").read_bytes().split()[1]) / 1e9
            thread = (self._folder / "stat").read_bytes().rpartition(b")")[2].split()
            state, core = thread[0], thread[CORE]
        except (OSError, IndexError, ValueError):
            return StolenTime(self._waited, is_ready=False)
        if self._queued is not None:
            self._waited += queued - self._queued
        self._queued = queued
        now = self.wall()
        reading = _Reading(now, self.computed(), queued, core, self._missing_time(core, now))
        self._waited += self._settle_steal(reading, is_ready=state == b"R")
        return StolenTime(self._waited, is_ready=state == b"R")

    def _settle_steal(self, now: _Reading, *, is_ready: bool) -> float:
        """Return the time that the hypervisor took from the thread since the base, and move the base.

        The time that is missing in the core's own time counts, and not its counter of stolen time: the core adds to
        that only when it runs again. Run delay includes stolen time, so only the rest of the time has a share in it.
        """
        base = self._base
        if base is None or base.core != now.core or base.missing is None or now.missing is None:
            self._base = now
            return 0.0
        has_computed = now.computed > base.computed
        if is_ready and not has_computed:
            return 0.0  # the thread is queued, or its core is stolen: the run delay will tell, when it has a core
        self._base = now
        passed = now.wall - base.wall
        if not has_computed or passed <= 0:
            return 0.0  # the thread slept: it did not miss the core
        # The kernel reports a run delay when it is over, possibly after the time in which it began was settled.
        on_core = passed - (now.queued - base.queued) - self._late
        self._late = max(0.0, -on_core)
        return (now.missing - base.missing) * min(1.0, max(0.0, on_core) / passed)

    def _missing_time(self, core: bytes, now: float) -> float | None:
        """Return how far the core's own time is behind. Returns `None` if the machine reports no stolen time."""
        if now < self._next_steal_check:
            return None
        try:
            for line in (self._proc / "stat").read_bytes().splitlines():
                name, *ticks = line.split()
                if name == b"cpu" + core and int(ticks[STEAL]):
                    return now - sum(map(int, ticks[:STEAL])) * self._tick
        except (OSError, IndexError, ValueError):
            pass
        self._next_steal_check = now + STEAL_CHECK
        return None


class SliceTimer:
    """Measures how long the current slice of the loop has run, each time that a watcher looks at it."""

    def __init__(self, thread: ThreadTime, *, beat: float, slow: float) -> None:
        self.seconds = 0.0
        """How long the current slice has run."""
        self.previous = 0.0
        """How long the slice before it ran."""
        self._thread = thread
        self._beat = beat
        self._slow = slow
        self._slice: tuple[object, int] = (None, -1)
        self._now, self._computed = thread.wall(), thread.computed()
        self._since = self._now
        self._waited: float | None = None
        """The wait of the thread at the last look. `None` means that this slice was looked at only once."""

    def look(self, task: object, beats: int) -> bool:
        """Measure the slice of the task that runs now. Returns `True` if it is another one than at the last look.

        Within one round of the loop a task takes one step: another task, or a beat, ends the slice.
        """
        now, computed_so_far = self._thread.wall(), self._thread.computed()
        last_look = self._now
        passed, computed = now - last_look, computed_so_far - self._computed
        self._now, self._computed = now, computed_so_far
        if is_new := task is None or (task, beats) != self._slice:
            if self._waited is not None:
                self._forgive(passed, computed, self._thread.wait().seconds)
            self.previous = max(0.0, now - self._since)
            # Only a call into C that holds the GIL keeps the watcher from looking while the loop computes, and it
            # lets the watcher run again the moment it is over.
            was_blind = computed >= self._slow and beats - self._slice[1] <= 1
            self._slice, self._waited = (task, beats), None
            self._since = now - computed if was_blind else now
        else:
            # Read only now, because reading it releases the GIL, and the loop may run.
            waited, is_ready = self._thread.wait()
            if self._waited is None:
                self._since, self._waited = max(self._since, self._thread.wall() - self._beat), waited
            elif is_ready and not computed:  # it waits for a core: it is judged when it has one
                self._now = last_look
                return False
            else:
                self._forgive(passed, computed, waited)
            if is_ready:  # it may wait for a core right now: for how long is known when it has one
                self.seconds = min(now - self._since, self.seconds + computed)
                return False
        self.seconds = now - self._since
        return is_new

    def _forgive(self, passed: float, computed: float, waited: float) -> None:
        """Subtract from the slice the time that the machine took from it since the last look."""
        assert self._waited is not None
        lost = waited - self._waited
        # The machine, or the whole process, stood still: the watcher is late itself, and the loop computed nothing.
        ahead = max(0.0, self._since - (self._now - passed))  # that is taken out already
        stood_still = max(0.0, passed - ahead - 2 * self._beat - computed - max(0.0, lost))
        # Cores count in ticks, and what is lost is read a little later than the time: from one look to the next it may
        # be more than has passed, or less than nothing. Over several looks that evens out.
        self._since += lost + stood_still
        self._waited = waited
