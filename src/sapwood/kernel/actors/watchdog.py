"""Sees from outside when one agent's code holds up all others.

A thread looks at the loop every few milliseconds. As long as the loop's own heartbeat
continues, nothing is wrong and nothing is written down: agents pay nothing for being
watched. When the heart stands still, the task that runs is the one to name. While the
thread sees no task run, it looks less often and the heart beats more slowly, because
each of these wakes an idle process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
import threading
import traceback
from asyncio import Task
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sapwood.address import Address
from sapwood.clock import Clock, SystemClock, Timer, call_in_real_time
from sapwood.kernel.actors.quarantine import STRIKES, StrikeReport, Strikes, append_entry
from sapwood.kernel.durability.slice_time import KernelTime, SliceTimer, ThreadTime
from sapwood.settings import Settings
from sapwood.storage.files import make_private_folder, open_private

log = logging.getLogger(__name__)
BEAT = 0.02
"""Seconds between two looks, and between two beats, while a task runs."""
REST = 0.4
"""Seconds between two of them otherwise, as a share of `slow_after`: two beats fit into a slow slice."""
LONGEST_REST = 0.5
ONE_WARNING_PER = 60.0
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
EXIT_CODE = 70
RECENT = 50
"""Slow slices that are remembered with their stacks."""
PATIENCE = 2.0
"""Seconds that the log may take to write a message."""


@dataclass(frozen=True, slots=True)
class SlowSlice:
    """Code of one method that ran too long without an await."""

    address: Address
    """The agent it ran in."""
    method: str
    """The method that was called."""
    seconds: float
    """How long it had run when it was seen; it may have gone on."""
    stack: str
    """Where it was then."""

    @property
    def key(self) -> str:
        """What all slow slices of one method have in common."""
        return f"{self.address.type}.{self.method}"

    def __str__(self) -> str:
        return (
            f"{self.address}.{self.method} blocked the event loop for {self.seconds:.2f} s, and every agent of "
            "the process waited. Use in_thread() for blocking I/O, in_process() for heavy computing, or "
            f"read_sql() for a slow query.\n{self.stack}"
        )


@dataclass(slots=True)
class RecentSlice:
    """A slow slice, and how long it took in the end."""

    slow: SlowSlice
    at: float
    """When it was first seen, in seconds since the epoch, UTC."""
    seconds: float


class Watchdog:
    """Watches one loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        folder: Path,
        running: Callable[[Task[Any]], tuple[Address, str] | None],
        thread_time: ThreadTime | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.histogram: Counter[float] = Counter()
        """How many slow slices there were, by the upper bound of their duration in seconds."""
        self.ready = True
        """False while a slice runs longer than `stuck_after`."""
        self.on_slow: list[Callable[[SlowSlice], None]] = []
        """Told, on the watchdog's thread, of every slow slice when it is first seen."""
        self.slow: dict[str, tuple[int, float]] = {}
        """The methods that held up the loop: how often, and how many seconds at most."""
        self.recent: deque[RecentSlice] = deque(maxlen=RECENT)
        """The last slow slices, oldest first. They are added on the watchdog's thread: copy it to go through it."""
        self.elsewhere: Callable[[], Iterable[StrikeReport]] = lambda: ()
        """What trees did to other nodes."""
        self._loop = loop
        self._settings = settings
        self._folder = folder
        self._running = running
        self._loop_thread = threading.get_ident()
        self._time: ThreadTime = thread_time or KernelTime()
        self._clock = clock or SystemClock()
        self._beats = 0
        self._rest = max(BEAT, min(REST * settings.slow_after, LONGEST_REST))
        self._pause = BEAT
        """Seconds until the next look, and from one beat to the next."""
        self._last_beat = self._time.wall(), self._time.computed()
        """When the heart beat last, and how long the loop's thread had computed then."""
        # A bare lock, held until `stop`: between waking up and looking there must be as little code as can be.
        self._running_on = threading.Lock()
        self._running_on.acquire()
        self._ending = threading.Lock()
        self._warned: dict[str, float] = {}
        self._timer: Timer = loop.call_soon(self._beat)
        self._thread = threading.Thread(target=self._watch, name="sapwood-watchdog", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        self._beats += 1
        self._last_beat = self._time.wall(), self._time.computed()
        self._timer = call_in_real_time(self._loop, self._pause, self._beat)

    def stop(self) -> None:
        self._timer.cancel()
        self._running_on.release()
        self._thread.join()

    def end_if_stuck(self) -> None:
        """Name what runs and end the process, if the loop has computed since its heart last beat, and not stood still.

        For a supervisor that waits in vain for a heartbeat, by way of a signal: a call into C that holds the
        GIL keeps the watchdog from looking, but many of those let the handlers of signals run.
        """
        when, cpu = self._last_beat
        computed = self._time.computed() - cpu  # on a busy machine that may be far less than the time that has passed
        task = asyncio.current_task(self._loop)
        if task is not None and computed >= self._settings.slow_after:
            self._end(self._name(task, self._time.wall() - when))

    def _watch(self) -> None:
        timer = SliceTimer(self._time, beat=BEAT, slow=self._settings.slow_after)
        seen: SlowSlice | None = None
        while not self._running_on.acquire(timeout=self._pause):
            task = asyncio.current_task(self._loop)
            self._pause = BEAT if task is not None else self._rest
            if timer.look(task, self._beats):
                if seen is not None:
                    self._ended(seen, timer.previous)
                seen = None
                self.ready = True
            lasted = timer.seconds
            if lasted < self._settings.slow_after or task is None:
                continue
            if seen is None:
                seen = self._name(task, lasted)
                if seen is not None:
                    self._report(seen, self._time.wall())
            if lasted >= self._settings.stuck_after:
                self.ready = False
            if lasted >= self._settings.fatal_after:
                self._end(self._name(task, lasted))

    def _ended(self, seen: SlowSlice, seconds: float) -> None:
        self.histogram[next((bound for bound in BUCKETS if seconds <= bound), float("inf"))] += 1
        times, longest = self.slow[seen.key]
        self.slow[seen.key] = (times, max(longest, seconds))
        if self.recent and self.recent[-1].slow is seen:
            self.recent[-1].seconds = max(seen.seconds, seconds)

    def _name(self, task: Task[Any], seconds: float) -> SlowSlice | None:
        found = self._running(task)
        if found is None:
            return None
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
        stack = "".join(traceback.format_stack(frame)[-12:]) if frame is not None else ""
        return SlowSlice(*found, seconds, stack)

    def _report(self, slow: SlowSlice, now: float) -> None:
        for tell in self.on_slow:
            tell(slow)
        key = slow.key
        times, longest = self.slow.get(key, (0, 0.0))
        self.slow[key] = (times + 1, max(longest, slow.seconds))
        self.recent.append(RecentSlice(slow, self._clock.now(), slow.seconds))
        if now - self._warned.get(key, -ONE_WARNING_PER) >= ONE_WARNING_PER:
            self._warned[key] = now
            extra = {"address": str(slow.address), "method": slow.method}
            _is_said(lambda: log.warning("%s", slow, extra=extra))

    def _end(self, stuck: SlowSlice | None) -> None:
        """Write down what is stuck, and end the process: its supervisor restarts it."""
        # Never released: if the other of the two threads is ending the process, this one waits for that. The thread of
        # the loop must not go back to a call that holds the GIL, or the other one would never get to the end.
        self._ending.acquire()
        text = str(stuck) if stuck is not None else "The event loop is blocked outside of any agent.\n"
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        stacks = "\n".join("".join(traceback.format_stack(frame)) for frame in frames.values())
        last = [f"{text}\nThe process exits."]
        try:
            now = self._clock.now()
            write_crash(self._folder, os.getpid(), f"{text}\nAll threads:\n{stacks}", now)
            if stuck is not None:
                append_entry(self._folder / STRIKES, {"root": str(stuck.address.root), "at": now})
            last += self._verdict(stuck)
        except OSError as error:
            last.append(f"The crash could not be recorded: {error}")
        finally:
            _say_at_last(*last)
            os._exit(EXIT_CODE)

    def _verdict(self, stuck: SlowSlice | None) -> list[str]:
        """Return what is to be said of a tree if this was one strike too many."""
        if stuck is None:
            return []
        root, strikes = stuck.address.root, self._settings.strikes
        known = Strikes(self._folder, strikes)
        known.elsewhere = self.elsewhere
        if not known.quarantined(root):
            return []
        times = f"{strikes} times within an hour" if strikes > 1 else "once"
        why = f"{root} is in quarantine: it blocked its process {times}, last in {stuck.address}.{stuck.method}."
        return [f"{why} Fix the method, then release the tree: sapwood release {shlex.quote(str(root))}"]


def _say_at_last(*texts: str) -> None:
    def say() -> None:
        for text in texts:
            log.error("%s", text)

    if not _is_said(say):
        sys.stderr.write("\n".join(texts) + "\n")
    sys.stderr.flush()


def _is_said(say: Callable[[], None]) -> bool:
    """Log something; return `False` if that timed out: the blocked thread may hold the lock of the log."""
    saying = threading.Thread(target=say, name="sapwood-watchdog-log", daemon=True)
    saying.start()
    saying.join(PATIENCE)
    return not saying.is_alive()


def write_crash(folder: Path, process: int, text: str, at: float) -> None:
    """Keep what is known of a process that had to end."""
    crashes = folder / "crashes"
    make_private_folder(crashes)
    local = datetime.fromtimestamp(at, UTC).astimezone()
    file = crashes / f"{local:%Y%m%dT%H%M%S}-{process}.txt"
    with open_private(file, "w") as out:
        out.write(text)
