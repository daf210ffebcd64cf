"""Measures how long a slice of the loop ran, without the time that the machine took from it.

What the wall clock shows is the sum of four things: the thread computed, it slept in a blocking call, it was ready to
run and waited for a core, or it had a core that the hypervisor gave to another machine. The first two count. The
other two are the machine's, and the kernel knows them: the run delay of the thread, and the time of its core.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import NamedTuple, Protocol

CORE = 36
"""Where `/proc/…/stat` names the core that a thread last ran on, counted from behind the thread's name."""
STEAL = 7
"""Which of the times of a core in `/proc/stat` is the one that the hypervisor took; those before it make up the rest
of the core's time, and those behind it are part of them."""


class Wait(NamedTuple):
    """What the machine took from a thread."""

    seconds: float
    """For how long it kept the thread from running so far, although the thread was ready to run."""
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

    def wait(self) -> Wait:
        """Return what the machine took from the thread so far."""
        ...


class KernelTime:
    """The clocks of the thread that makes it, as the kernel keeps them. What it cannot tell is 0."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._thread = threading.get_ident()
        self._proc = proc
        self._folder = proc / f"self/task/{threading.get_native_id()}"
        self._tick = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.0
        self._stolen = 0.0
        self._core: tuple[bytes, float] | None = None
        """The core that the thread was on when it was last looked at, and how much of its time was missing then."""

    def wall(self) -> float:
        return time.monotonic()

    def computed(self) -> float:
        clock = getattr(time, "pthread_getcpuclockid", None)
        return time.clock_gettime(clock(self._thread)) if clock is not None else 0.0

    def wait(self) -> Wait:
        try:
            queued = int((self._folder / "schedstat").read_bytes().split()[1]) / 1e9
            thread = (self._folder / "stat").read_bytes().rpartition(b")")[2].split()
            self._note_stolen(thread[CORE])
        except (OSError, IndexError, ValueError):
            return Wait(0.0, is_ready=False)
        return Wait(queued + self._stolen, is_ready=thread[0] == b"R")

    def _note_stolen(self, core: bytes) -> None:
        """Add what the hypervisor took from the core of the thread since the last time, if the thread stayed on it.

        What is missing in the core's own time counts, and not what it says was stolen: it learns that only when it is
        given back. An idle core misses nothing, so a thread that sleeps is forgiven little.
        """
        missing = self._missing_in(core)
        if missing is None:
            self._core = None
            return
        if self._core is not None and self._core[0] == core:
            self._stolen += missing - self._core[1]
        self._core = core, missing

    def _missing_in(self, core: bytes) -> float | None:
        """Return how far the core's own time is behind; None where no hypervisor ever says that it took something."""
        now = self.wall()
        for line in (self._proc / "stat").read_bytes().splitlines():
            name, *ticks = line.split()
            if name == b"cpu" + core:
                return now - sum(map(int, ticks[:STEAL])) * self._tick if int(ticks[STEAL]) else None
        return None


class SliceTimer:
    """Tells how long the current slice of the loop has run, to a watcher that looks again and again."""

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
        """What the machine had taken from the thread at the last look; None if this slice was looked at only once."""

    def look(self, task: object, beats: int) -> bool:
        """Measure the slice of the task that runs now; return `True` if it is another one than at the last look.

        Within one round of the loop a task takes one step: another task, or a beat, ends the slice.
        """
        now, computed_so_far = self._thread.wall(), self._thread.computed()
        passed, computed = now - self._now, computed_so_far - self._computed
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
            # Asked only now, because reading it lets the loop go on.
            waited, is_ready = self._thread.wait()
            if self._waited is None:
                self._since, self._waited = max(self._since, self._thread.wall() - self._beat), waited
            else:
                self._forgive(passed, computed, waited)
            if is_ready:  # it may wait for a core right now: for how long is known when it has one
                self.seconds = min(now - self._since, self.seconds + computed)
                return False
        self.seconds = now - self._since
        return is_new

    def _forgive(self, passed: float, computed: float, waited: float) -> None:
        """Take out of the slice what the machine took from it since the last look."""
        assert self._waited is not None
        lost = waited - self._waited
        # The machine, or the whole process, stood still: the watcher is late itself, and the loop computed nothing.
        ahead = max(0.0, self._since - (self._now - passed))  # that is taken out already
        stood_still = max(0.0, passed - ahead - 2 * self._beat - computed - max(0.0, lost))
        # Cores count in ticks, and what is lost is read a little later than the time: from one look to the next it may
        # be more than has passed, or less than nothing. Over several looks that evens out.
        self._since += lost + stood_still
        self._waited = waited
