"""Sees from outside when one agent's code holds up all others.

A thread looks at the loop every few milliseconds. As long as the loop's own heartbeat
goes on, nothing is wrong and nothing is written down: agents pay nothing for being
watched. When the heart stands still, the task that runs is the one to name.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import sys
import threading
import time
import traceback
from asyncio import Task
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from sapwood.address import Address
from sapwood.clock import Timer, call_in_real_time
from sapwood.kernel.slice_time import KernelTime, SliceTimer, ThreadTime
from sapwood.settings import Settings
from sapwood.storage.files import make_private_folder, open_private

log = logging.getLogger(__name__)

BEAT = 0.02
ONE_WARNING_PER = 60.0
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
EXIT_CODE = 70
STRIKES = "strikes.jsonl"
HOUR = 3600.0
MOST_TOLD = 100
"""Trees of which other nodes are told: more than a few are a program that cannot be run at all."""
PATIENCE = 2.0
"""Seconds that the log is given to take what is said."""


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


class Watchdog:
    """Watches one loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        folder: Path,
        running: Callable[[Task[Any]], tuple[Address, str] | None],
        thread_time: ThreadTime | None = None,
    ) -> None:
        self.histogram: Counter[float] = Counter()
        """How many slow slices there were, by the upper bound of their duration in seconds."""
        self.ready = True
        """False while a slice runs longer than `stuck_after`."""
        self.on_slow: list[Callable[[SlowSlice], None]] = []
        """Told, on the watchdog's thread, of every slow slice when it is first seen."""
        self.slow: dict[str, tuple[int, float]] = {}
        """The methods that held up the loop: how often, and how many seconds at most."""
        self.elsewhere: Callable[[], Iterable[Struck]] = lambda: ()
        """What trees did to other nodes."""
        self._loop = loop
        self._settings = settings
        self._folder = folder
        self._running = running
        self._loop_thread = threading.get_ident()
        self._time: ThreadTime = thread_time or KernelTime()
        self._beats = 0
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
        self._timer = call_in_real_time(self._loop, BEAT, self._beat)

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
        while not self._running_on.acquire(timeout=BEAT):
            task = asyncio.current_task(self._loop)
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
                    self._report(seen, time.monotonic())
            if lasted >= self._settings.stuck_after:
                self.ready = False
            if lasted >= self._settings.fatal_after:
                self._end(self._name(task, lasted))

    def _ended(self, seen: SlowSlice, seconds: float) -> None:
        self.histogram[next((bound for bound in BUCKETS if seconds <= bound), float("inf"))] += 1
        times, longest = self.slow[seen.key]
        self.slow[seen.key] = (times, max(longest, seconds))

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
        if now - self._warned.get(key, -ONE_WARNING_PER) >= ONE_WARNING_PER:
            self._warned[key] = now
            extra = {"address": str(slow.address), "method": slow.method}
            _is_said(lambda: log.warning("%s", slow, extra=extra))

    def _end(self, stuck: SlowSlice | None) -> None:
        """Write down what is stuck, and end the process: whoever supervises it starts it again."""
        if not self._ending.acquire(blocking=False):
            return  # the other thread, this one's or the loop's, is doing so
        text = str(stuck) if stuck is not None else "The event loop is blocked outside of any agent.\n"
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        stacks = "\n".join("".join(traceback.format_stack(frame)) for frame in frames.values())
        write_crash(self._folder, os.getpid(), f"{text}\nAll threads:\n{stacks}")
        if stuck is not None:
            _append(self._folder / STRIKES, {"root": str(stuck.address.root), "at": time.time()})
        _say_at_last(f"{text}\nThe process exits.", *self._verdict(stuck))
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
    """Log something; return whether that was possible: what is stuck may be whoever holds the log."""
    saying = threading.Thread(target=say, name="sapwood-watchdog-log", daemon=True)
    saying.start()
    saying.join(PATIENCE)
    return not saying.is_alive()


def write_crash(folder: Path, process: int, text: str) -> None:
    """Keep what is known of a process that had to end."""
    crashes = folder / "crashes"
    make_private_folder(crashes)
    file = crashes / f"{time.strftime('%Y%m%dT%H%M%S')}-{process}.txt"
    with open_private(file, "w") as out:
        out.write(text)


class Struck(NamedTuple):
    """What nodes with folders of their own tell each other: a tree is held back for what it did to any of them."""

    strikes: Mapping[str, Sequence[float]]
    """When each tree ended the process, by its root."""
    released: Mapping[str, float]
    """When each was let run again: what it did before counts no more."""


class Strikes:
    """Which trees ended their process, and which are held back for it."""

    def __init__(self, folder: Path, allowed: int) -> None:
        self._file = folder / STRIKES
        self._allowed = allowed
        self._at: dict[str, list[float]] = {}
        self._released: dict[str, float] = {}
        self._size = 0
        self.elsewhere: Callable[[], Iterable[Struck]] = lambda: ()
        """What other nodes tell."""
        self.when_released: Callable[[], object] = lambda: None
        self._read()

    def _read(self) -> None:
        """Read what is new in the file, if it is: other processes on the folder write to it too."""
        try:
            size = self._file.stat().st_size
        except FileNotFoundError:
            return
        if size != self._size:
            self._size = size
            self._at.clear()
            self._released.clear()
            for line in self._file.read_text().splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue  # a crash cut it short
                if "at" in entry:
                    self._at.setdefault(entry["root"], []).append(entry["at"])
                else:
                    self._at.pop(entry["root"], None)
                    self._released[entry["root"]] = entry["released"]

    def quarantined(self, root: Address) -> bool:
        """Return whether the last strikes of this tree came within one hour."""
        self._read()
        last = self._counted(str(root))[-self._allowed :]
        return len(last) == self._allowed and last[-1] - last[0] <= HOUR

    def _counted(self, root: str) -> list[float]:
        """Return when a tree ended a process since it was last released."""
        own, others = self._at.get(root, []), list(self.elsewhere())
        if not others:
            return own
        released = max(other.released.get(root, -inf) for other in others)
        theirs = [at for other in others for at in other.strikes.get(root, ()) if at > self._released.get(root, -inf)]
        return sorted(at for at in {*own, *theirs} if at > released)

    def release(self, root: Address) -> bool:
        """Let a tree run again; return whether it had any strikes."""
        self._read()
        if not self._counted(str(root)):
            return False
        self._note_release(str(root), time.time())
        self.when_released()
        return True

    def told(self) -> Struck:
        """Return what to tell other nodes. What they have released is noted here too: they may be gone tomorrow."""
        self._read()
        for other in self.elsewhere():
            for root, at in other.released.items():
                if root in self._at and self._at[root][-1] <= at:
                    self._note_release(root, at)
        strikes = {root: at[-self._allowed :] for root, at in list(self._at.items())[-MOST_TOLD:]}
        return Struck(strikes, dict(list(self._released.items())[-MOST_TOLD:]))

    def _note_release(self, root: str, at: float) -> None:
        self._at.pop(root, None)
        self._released[root] = at
        _append(self._file, {"root": root, "released": at})


def _append(file: Path, entry: dict[str, object]) -> None:
    with open_private(file, "a") as out:
        out.write(f"\n{json.dumps(entry)}\n")  # on a line of its own, even if a crash cut the last one short
        out.flush()
        os.fsync(out.fileno())
