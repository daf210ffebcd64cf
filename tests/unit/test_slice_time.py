"""What counts as a slice's own time, told by clocks that a test moves."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cases import slow

from sapwood.kernel.durability.slice_time import STEAL_CHECK, KernelTime, SliceTimer, StolenTime

BEAT = 0.02
TASK, OTHER = object(), object()


@dataclass
class HandTime:
    """The clocks of a thread; a test moves them."""

    now: float = 100.0
    cpu: float = 5.0
    waited: float = 3.0
    is_ready: bool = False
    asked: int = 0

    def wall(self) -> float:
        return self.now

    def computed(self) -> float:
        return self.cpu

    def wait(self) -> StolenTime:
        self.asked += 1
        return StolenTime(self.waited, self.is_ready)


class Slice:
    """A timer, and the thread that it looks at."""

    def __init__(self) -> None:
        self.time = HandTime()
        self.timer = SliceTimer(self.time, beat=BEAT, slow=0.1)
        self.beats = 0
        self.task: object = TASK
        self.look()
        self.look(passed=BEAT)

    def look(self, passed: float = 0.0, *, computed: float = 0.0, waited: float = 0.0, is_ready: bool = False) -> float:
        """Look once, when so much has passed since the last look; return how long the slice has run."""
        self.time.now += passed
        self.time.cpu += computed
        self.time.waited += waited
        self.time.is_ready = is_ready
        self.timer.look(self.task, self.beats)
        return self.timer.seconds

    def looks(self, times: int, *, computed: float = 0.0, waited: float = 0.0) -> float:
        """Look every beat, as often; return how much longer the slice has run."""
        before = self.timer.seconds
        return [self.look(BEAT, computed=computed, waited=waited) for _ in range(times)][-1] - before


@pytest.fixture
def slice() -> Slice:
    return Slice()


def test_a_thread_that_sleeps_in_a_blocking_call_runs_as_long_as_it_sleeps(slice: Slice) -> None:
    assert slice.looks(50) == pytest.approx(1.0)


def test_a_thread_that_computes_runs_as_long_as_it_computes(slice: Slice) -> None:
    assert slice.looks(50, computed=BEAT) == pytest.approx(1.0)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_what_the_machine_takes_is_no_part_of_the_slice(slice: Slice, share: float) -> None:
    took = slice.looks(50, computed=BEAT * (1 - share), waited=BEAT * share)

    assert took == pytest.approx(1.0 - share)


def test_what_the_machine_took_after_the_time_was_read_is_taken_out_at_the_next_look(slice: Slice) -> None:
    before = slice.timer.seconds

    slice.look(BEAT, waited=1.0)  # the watcher itself was kept waiting between the one and the other

    assert slice.look(1.0) - before == pytest.approx(BEAT)


def test_what_a_machine_notes_in_ticks_evens_out(slice: Slice) -> None:
    took = 0.0
    for _ in range(25):
        took += slice.looks(1, computed=BEAT, waited=0.01)
        took += slice.looks(1, computed=BEAT, waited=-0.01)

    assert took == pytest.approx(1.0)


def test_a_process_that_stood_still_ran_for_as_long_as_it_takes_to_look_twice(slice: Slice) -> None:
    before = slice.timer.seconds

    assert slice.look(60.0) - before == pytest.approx(2 * BEAT)


def test_what_is_taken_from_the_watcher_and_from_the_loop_at_once_is_taken_once(slice: Slice) -> None:
    before = slice.timer.seconds

    slice.look(1.0, waited=1.0)

    assert slice.looks(10) == pytest.approx(10 * BEAT)
    assert slice.timer.seconds - before == pytest.approx(10 * BEAT)


def test_a_watcher_that_comes_late_sees_what_the_loop_computed(slice: Slice) -> None:
    before = slice.timer.seconds

    assert slice.look(0.5, computed=0.4) - before == pytest.approx(0.4 + 2 * BEAT)


def test_a_thread_that_waits_for_a_core_is_judged_when_it_has_one(slice: Slice) -> None:
    before = slice.timer.seconds

    assert slice.look(BEAT, computed=0.005, is_ready=True) - before == pytest.approx(0.005)
    assert [slice.look(BEAT, is_ready=True) - before for _ in range(50)] == [pytest.approx(0.005)] * 50
    assert slice.look(BEAT, computed=0.01, waited=51 * BEAT + 0.005) - before == pytest.approx(0.015)


def test_a_thread_that_is_ready_and_computes_is_judged(slice: Slice) -> None:
    before = slice.timer.seconds

    assert slice.look(BEAT, computed=BEAT, is_ready=True) - before == pytest.approx(BEAT)


def test_a_standstill_that_the_kernel_reports_later_is_taken_out_once(slice: Slice) -> None:
    before = slice.timer.seconds

    assert slice.look(60.0, is_ready=True) == before
    assert slice.look(BEAT, computed=0.01, waited=60.0) - before == pytest.approx(BEAT)


def test_another_task_and_a_beat_each_begin_another_slice(slice: Slice) -> None:
    took = slice.looks(10)
    ran = slice.timer.seconds
    slice.task = OTHER

    assert slice.timer.look(slice.task, slice.beats)
    assert (slice.timer.seconds, slice.timer.previous) == (0.0, ran)
    assert took == pytest.approx(0.2)
    slice.beats += 1
    assert slice.look(BEAT) == 0.0


def test_tasks_that_each_take_a_little_do_not_add_up(slice: Slice) -> None:
    for _ in range(50):
        slice.task = object()
        assert slice.look(0.04, computed=0.04) == 0.0
        assert slice.look(0.04, computed=0.04) <= 0.04


def test_a_call_that_kept_the_watcher_from_looking_is_seen_when_it_is_over(slice: Slice) -> None:
    slice.task, slice.beats = OTHER, slice.beats + 1

    assert slice.look(0.5, computed=0.3) == pytest.approx(0.3)


def test_a_watcher_that_slept_through_many_beats_blames_nothing(slice: Slice) -> None:
    slice.task, slice.beats = OTHER, slice.beats + 10

    assert slice.look(0.5, computed=0.3) == 0.0


def test_what_the_machine_took_is_asked_only_of_a_slice_that_lasts(slice: Slice) -> None:
    asked = slice.time.asked
    for _ in range(50):
        slice.task, slice.beats = object(), slice.beats + 1
        slice.look(BEAT)
    slice.task = None
    for _ in range(50):
        slice.look(BEAT)

    assert slice.time.asked - asked == 1, "the slice before them had lasted"


class Proc:
    """A `/proc` that a test writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.task = folder / f"self/task/{threading.get_native_id()}"
        self.task.mkdir(parents=True)
        self.write()

    def write(
        self, *, queued: float = 0.0, core: int = 1, state: str = "S", own: int = 500, steal: int | None = 7
    ) -> None:
        """Write what the thread waited, and how many ticks its core had and lost."""
        (self.task / "schedstat").write_text(f"1000 {int(queued * 1e9)} 17\n")
        (self.task / "stat").write_text(f"12 (a) b) {state} " + " ".join(["0"] * 35) + f" {core} 0 0\n")
        lines = ["cpu  1 1 1 1 1 1 1 1 1 1", f"cpu0 {own * 3} 0 0 0 0 0 0 9 0 0"]
        if steal is not None:
            lines.append(f"cpu1 {own - 300} 100 100 50 20 20 10 {steal} 99 99")
        (self.folder / "stat").write_text("\n".join([*lines, "intr 1 2 3", "ctxt 5", ""]))


class ProcTime(KernelTime):
    now = 1000.0
    cpu = 5.0

    def wall(self) -> float:
        return self.now

    def computed(self) -> float:
        return self.cpu

    def move(self, passed: float, *, computed: float = 0.0) -> None:
        self.now += passed
        self.cpu += computed


def test_the_kernel_tells_how_long_the_thread_was_queued_and_what_its_core_misses(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc_time = ProcTime(tmp_path)
    tick = 1 / 100
    assert proc_time.wait() == StolenTime(0.0, is_ready=False)

    proc_time.move(1.0, computed=0.2)  # the core had 30 ticks, and does not even know that other machines had it
    proc.write(queued=0.25, own=530, state="R")

    waited, is_ready = proc_time.wait()
    assert waited == pytest.approx(0.25 + 0.75 * (1.0 - 30 * tick)), "a quarter of the stolen time is in the run delay"
    assert is_ready

    proc_time.move(1.0, computed=0.2)  # the core was idle, or busy
    proc.write(queued=0.25, own=630, steal=77)
    assert proc_time.wait().seconds == pytest.approx(waited)


def test_a_thread_that_sleeps_on_a_stolen_core_is_not_forgiven(tmp_path: Path) -> None:
    proc_time = ProcTime(tmp_path)
    Proc(tmp_path)
    proc_time.wait()

    proc_time.move(1.0)

    assert proc_time.wait().seconds == 0.0


def test_stolen_time_of_a_ready_thread_is_known_when_it_has_a_core(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc.write(state="R")
    queued_thread, stolen_thread = ProcTime(tmp_path), ProcTime(tmp_path)
    threads = queued_thread, stolen_thread
    for thread in threads:
        thread.wait()
        thread.move(1.0)
        assert thread.wait() == StolenTime(0.0, is_ready=True)
        thread.move(0.01, computed=0.01)
    proc.write(state="R", own=501)

    assert stolen_thread.wait().seconds == pytest.approx(1.0)
    proc.write(state="R", own=501, queued=1.0)
    assert queued_thread.wait().seconds == pytest.approx(1.0, abs=0.02), "not twice"


class Machine:
    """A core that the hypervisor takes for half of the time, and three threads that never sleep on it."""

    TURN = 3
    """Milliseconds of the core's own time after which it runs the next thread."""

    def __init__(self, folder: Path, burst: int) -> None:
        self.proc = Proc(folder)
        self.time = ProcTime(folder)
        self.burst = burst
        """Milliseconds for which the core is taken, and after that given back."""
        self.passed = self.own = 0
        self.delay = self.queued = 0.0

    def run(self, milliseconds: int) -> None:
        for _ in range(milliseconds):
            has_turn = self.own // self.TURN % 3 == 0
            is_stolen = self.passed // self.burst % 2 == 0
            if has_turn:  # the kernel reports a run delay when it is over
                self.queued, self.delay = self.queued + self.delay, 0.0
            else:
                self.delay += 0.001
            self.time.move(0.001, computed=0.001 if has_turn and not is_stolen else 0.0)
            self.passed += 1
            self.own += not is_stolen
        self.proc.write(queued=self.queued, state="R", own=500 + self.own // 10)


@pytest.mark.parametrize("burst", [2, 7, *slow([50, 200])])
def test_an_endless_loop_runs_as_long_as_it_computes_however_little_the_machine_leaves_it(
    tmp_path: Path, burst: int
) -> None:
    machine = Machine(tmp_path, burst)
    timer = SliceTimer(machine.time, beat=BEAT, slow=0.1)
    began = machine.time.cpu
    for _ in range(200):
        machine.run(20)
        timer.look(TASK, 0)

    computed = machine.time.cpu - began
    assert computed == pytest.approx(4 / 2 / 3, rel=0.1)
    assert timer.seconds == pytest.approx(computed, rel=0.15)


def test_what_another_core_misses_is_not_taken_from_the_thread(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc_time = ProcTime(tmp_path)
    proc_time.wait()

    proc_time.move(1.0, computed=0.5)
    proc.write(core=0)

    assert proc_time.wait().seconds == 0.0


@pytest.mark.parametrize("steal", [0, None])
def test_where_no_hypervisor_says_what_it_took_a_core_misses_nothing(tmp_path: Path, steal: int | None) -> None:
    proc = Proc(tmp_path)
    proc.write(steal=steal)
    proc_time = ProcTime(tmp_path)
    proc_time.wait()

    proc_time.move(1.0, computed=0.5)
    proc.write(queued=0.5, steal=steal)

    assert proc_time.wait().seconds == 0.5


def test_a_machine_that_begins_to_steal_is_noticed(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc.write(steal=0)
    proc_time = ProcTime(tmp_path)
    proc_time.wait()
    proc.write(steal=7)

    for passed in (STEAL_CHECK - 0.1, 0.2):
        proc_time.move(passed, computed=passed)
        assert proc_time.wait().seconds == 0.0
    proc_time.move(1.0, computed=0.5)
    assert proc_time.wait().seconds == pytest.approx(1.0)


def test_the_times_of_the_cores_are_read_seldom_where_none_is_stolen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Proc(tmp_path).write(steal=0)
    proc_time = ProcTime(tmp_path)
    reads: list[Path] = []
    read_bytes = Path.read_bytes

    def count(path: Path) -> bytes:
        reads.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", count)
    for _ in range(100):
        proc_time.wait()
        proc_time.move(BEAT)

    assert reads.count(tmp_path / "stat") == 1


def test_a_reading_that_fails_takes_back_nothing_and_adds_nothing(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc.write(queued=30.0, steal=0)
    proc_time = ProcTime(tmp_path)
    (proc.task / "schedstat").rename(proc.task / "away")
    first = proc_time.wait().seconds
    (proc.task / "away").rename(proc.task / "schedstat")
    assert proc_time.wait().seconds == first, "the thread waited before it was first looked at"

    proc.write(queued=30.5, steal=0)
    assert proc_time.wait().seconds == first + 0.5
    (proc.task / "stat").unlink()
    assert proc_time.wait() == StolenTime(first + 0.5, is_ready=False)
    proc.write(queued=31.0, steal=0)
    assert proc_time.wait().seconds == first + 1.0


def test_run_delay_counts_where_the_times_of_the_cores_cannot_be_read(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc_time = ProcTime(tmp_path)
    proc_time.wait()
    proc.write(queued=0.5, state="R")
    (tmp_path / "stat").unlink()

    assert proc_time.wait() == StolenTime(0.5, is_ready=True)


def test_where_there_is_no_proc_the_machine_took_nothing(tmp_path: Path) -> None:
    assert KernelTime(tmp_path).wait() == StolenTime(0.0, is_ready=False)


@pytest.mark.slow
def test_the_clocks_of_this_thread_go_on_and_account_for_all_of_its_time() -> None:
    thread = KernelTime()
    wall, computed, waited = thread.wall(), thread.computed(), thread.wait().seconds
    until = time.thread_time() + 0.3
    while time.thread_time() < until:
        pass

    assert thread.computed() - computed == pytest.approx(0.3, abs=0.05)
    assert thread.wall() - wall >= 0.3
    assert thread.wait().seconds >= waited - 0.05
