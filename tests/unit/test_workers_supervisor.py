"""Whatever becomes of a worker, and whatever the machine lacks for a moment, the supervisor goes on."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sapwood.runtimes.workers.placement import ShardPlan
from sapwood.runtimes.workers.supervisor import Seat, Supervisor
from sapwood.runtimes.workers.worker_messages import DRAINED, END, READY
from sapwood.storage.files import FolderLock
from sapwood.timings import DEFAULTS, Timings

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="there are no such signals here"),
    pytest.mark.realtime("starts, stops and kills real processes, and waits for them"),
]


def supervise(folder: Path, work: Callable[..., None], workers: int, timings: Timings = DEFAULTS) -> int:
    """Run workers, and stop them as soon as all are ready."""
    lock = FolderLock(folder)
    try:
        return Supervisor(
            ShardPlan(workers),
            work,
            (str(folder),),
            folder,
            lock,
            grace=0.2,
            silence=30.0,
            when_ready=lambda: os.kill(os.getpid(), signal.SIGTERM),
            timings=timings,
        ).run()
    finally:
        lock.release()


def stop_but_one(seat: Seat, folder: str) -> None:
    """Be a worker that ends in good order; but the second hangs."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set() if seat.number == 0 else None)
    seat.line.send_bytes(READY)
    while not asked.wait(0.01):
        pass
    seat.line.send_bytes(DRAINED)
    if seat.line.recv_bytes() == END:
        Path(folder, "ended in good order").touch()


def die_once(seat: Seat, folder: str) -> None:
    """Be a worker that is killed by a signal without a name, but not twice; the second waits for that."""
    again = Path(folder, "again")
    if seat.number == 0 and seat.restarts == 0:
        seat.line.send_bytes(READY)
        os.kill(os.getpid(), signal.SIGRTMIN + 3)
    elif seat.number == 0:
        again.touch()
    while not again.exists():
        time.sleep(0.01)
    seat.line.send_bytes(READY)
    signal.pause()


@pytest.mark.slow
def test_a_worker_that_hangs_does_not_keep_the_others_from_ending_in_good_order(tmp_path: Path) -> None:
    assert supervise(tmp_path, stop_but_one, 2, Timings(worker_exit_timeout=1.5)) == 0

    assert (tmp_path / "ended in good order").exists()


def test_what_cannot_be_opened_for_a_worker_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tempfile.TemporaryFile
    times: list[None] = []

    def full(*args: Any, **kwargs: Any) -> Any:
        times.append(None)
        if len(times) == 1:
            raise OSError(24, "Too many open files")
        return made(*args, **kwargs)

    monkeypatch.setattr(tempfile, "TemporaryFile", full)

    assert supervise(tmp_path, stop_but_one, 1, Timings(worker_start_interval=0.01)) == 0


@pytest.mark.slow
def test_a_worker_that_was_killed_by_any_signal_is_started_again(tmp_path: Path) -> None:
    assert supervise(tmp_path, die_once, 2) == 0

    assert (tmp_path / "again").exists()
