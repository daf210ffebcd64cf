"""The watchdog names what holds up the loop, and nobody else."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
import textwrap
import threading
import time
from asyncio import Task
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.machine import patience

from sapwood.address import Address
from sapwood.kernel.actors.quarantine import STRIKES, Strikes
from sapwood.kernel.actors.watchdog import SlowSlice, Watchdog
from sapwood.kernel.durability.slice_time import KernelTime, StolenTime, ThreadTime
from sapwood.settings import Settings

pytestmark = pytest.mark.realtime("the watchdog measures how long real code takes")

WHO = Address.root_of("Bad", "one")
SETTINGS = Settings(slow_after=0.1, stuck_after=0.4, fatal_after=6000)


class Watched:
    """A loop with a watchdog; tasks named `agent…` are taken for calls of one agent."""

    def __init__(self, folder: Path, thread_time: ThreadTime | None = None) -> None:
        self.seen: list[SlowSlice] = []
        self.was_seen = threading.Event()
        self.was_other = threading.Event()
        self.watchdog = Watchdog(asyncio.get_running_loop(), SETTINGS, folder, self.running, thread_time)
        self.watchdog.on_slow.append(self.saw)

    def saw(self, slow: SlowSlice) -> None:
        self.seen.append(slow)
        self.was_seen.set()

    def running(self, task: Task[Any]) -> tuple[Address, str] | None:
        name = task.get_name()
        if name.startswith("agent "):
            return WHO, name.removeprefix("agent ")
        self.was_other.set()
        return None

    async def call(self, method: str, block: Callable[[], object]) -> None:
        async def run() -> None:
            await asyncio.sleep(0)
            block()

        self.was_seen.clear()
        await asyncio.create_task(run(), name=f"agent {method}")

    def nap(self) -> None:
        """Block the loop until the watchdog has seen it."""
        assert self.was_seen.wait(patience()), "The watchdog did not see a loop that is blocked."

    def burn(self) -> None:
        """Compute until the watchdog has seen it."""
        until = time.monotonic() + patience()
        while not self.was_seen.is_set():
            assert time.monotonic() < until, "The watchdog did not see a loop that computes."

    async def counted(self, slices: int) -> None:
        """Return when the watchdog has counted so many slow slices that are over."""
        async with asyncio.timeout(patience()):
            while sum(self.watchdog.histogram.values()) < slices:  # noqa: ASYNC110 - a thread counts
                await asyncio.sleep(0.01)


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    watched.watchdog.stop()


def a_call_into_c(seconds: float) -> Callable[[], None]:
    """Return a function that is one call into C, which lets nobody else run for at least so long, on any machine."""
    exponent, lasts = 500_000, 0.0
    while lasts < seconds:
        exponent = exponent * 3 // 2
        started = time.thread_time()
        pow(7, exponent)
        lasts = time.thread_time() - started

    def hold_the_gil() -> None:
        pow(7, exponent)

    return hold_the_gil


async def test_a_slice_that_sleeps_is_named_with_its_stack(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    await watched.call("nap", watched.nap)
    await watched.counted(1)

    (slow,) = watched.seen
    assert (slow.address, slow.method) == (WHO, "nap")
    assert slow.seconds >= 0.1
    assert "block()" in slow.stack
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert (record.__dict__["address"], record.__dict__["method"]) == ("Bad:one", "nap")
    assert "in_thread()" in record.getMessage()
    assert "block()" in record.getMessage()


async def test_a_slice_that_computes_is_named_where_it_is(watched: Watched) -> None:
    await watched.call("burn", watched.burn)

    (slow,) = watched.seen
    assert slow.method == "burn"
    assert "in burn" in slow.stack


@pytest.mark.slow
async def test_a_call_into_c_that_lets_no_thread_run_is_named_when_it_is_over(watched: Watched) -> None:
    hold_the_gil = a_call_into_c(0.15)
    until = time.monotonic() + patience()
    while not watched.seen:  # it can look only when the call is over, and on a crowded machine may come too late
        assert time.monotonic() < until, "The watchdog never saw a call that kept it from looking."
        await watched.call("pow", hold_the_gil)
        await asyncio.sleep(0.06)

    slow = watched.seen[0]
    assert slow.method == "pow"
    assert slow.seconds > 0.1


async def test_every_slow_slice_is_counted_and_each_method_is_warned_of_once(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    for nth, method in enumerate(("nap", "nap", "doze"), 1):
        await watched.call(method, watched.nap)
        await watched.counted(nth)

    assert [slow.method for slow in watched.seen] == ["nap", "nap", "doze"]
    assert [record.__dict__["method"] for record in caplog.records] == ["nap", "doze"]
    assert sum(watched.watchdog.histogram.values()) == 3
    assert {key: times for key, (times, _) in watched.watchdog.slow.items()} == {"Bad.nap": 2, "Bad.doze": 1}
    assert all(longest >= 0.1 for _, longest in watched.watchdog.slow.values())
    recent = [(one.slow.method, "test_watchdog" in one.slow.stack) for one in watched.watchdog.recent]
    assert recent == [("nap", True), ("nap", True), ("doze", True)]
    assert all(one.seconds >= one.slow.seconds for one in watched.watchdog.recent)


async def test_code_outside_of_any_agent_is_nobodys_slice(watched: Watched) -> None:
    await asyncio.sleep(0)
    assert watched.was_other.wait(patience()), "The watchdog did not see a loop that is blocked."
    await watched.call("nap", watched.nap)  # what comes after it is seen

    assert [slow.method for slow in watched.seen] == ["nap"]


class StandingTime(KernelTime):
    """The clocks of a thread that gets nothing done because the machine has no core for it."""

    def __init__(self) -> None:
        super().__init__()
        self._began = super().wall()
        self.looks = 0

    def wait(self) -> StolenTime:
        self.looks += 1
        return StolenTime(self.wall() - self._began, is_ready=False)


async def test_a_slice_that_gets_no_core_is_nobodys_fault(tmp_path: Path) -> None:
    standing = StandingTime()
    watched = Watched(tmp_path, standing)

    def look_on() -> None:
        looks, until = standing.looks, time.monotonic() + patience()
        while standing.looks < looks + 30:  # that is six times as long as a slow slice takes at least
            assert time.monotonic() < until, "The watchdog did not look."
            time.sleep(0.001)

    try:
        await watched.call("waits", look_on)
        assert watched.seen == []
        assert not watched.watchdog.histogram
    finally:
        watched.watchdog.stop()


async def test_a_stuck_slice_makes_the_node_not_ready_until_it_is_over(watched: Watched) -> None:
    def wait_until_not_ready() -> None:
        until = time.monotonic() + patience()
        while watched.watchdog.ready:
            assert time.monotonic() < until, "A stuck slice left the node ready."
            time.sleep(0.01)

    assert watched.watchdog.ready
    await watched.call("stuck", wait_until_not_ready)
    await watched.counted(1)

    assert watched.watchdog.ready
    assert [slow.method for slow in watched.seen] == ["stuck"]


STOPPED = """
import asyncio, sys, threading, time
from pathlib import Path
from sapwood.address import Address
from sapwood.kernel.actors.watchdog import Watchdog
from sapwood.settings import Settings

async def main():
    seen = []
    here = Address.root_of("Good", "one")
    watchdog = Watchdog(asyncio.get_running_loop(), Settings(), Path(sys.argv[1]), lambda task: (here, "work"))
    watchdog.on_slow.append(seen.append)
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    print("running", flush=True)
    while not told.is_set():
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        await asyncio.sleep(0)
    watchdog.stop()
    print(len(seen), flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_machine_that_stood_still_is_nobodys_fault(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STOPPED), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "running\n"
        for _ in range(3):
            time.sleep(0.1)
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.6)
            process.send_signal(signal.SIGCONT)
        process.stdin.write("enough\n")
        process.stdin.flush()

        assert process.stdout.read() == "0\n"


def strike(folder: Path, root: str, at: float) -> None:
    with (folder / STRIKES).open("a") as file:
        file.write(json.dumps({"root": root, "at": at}) + "\n")


STUCK = """
import asyncio, logging, sys, time
from pathlib import Path
from sapwood.address import Address
from sapwood.kernel.actors.watchdog import Watchdog
from sapwood.settings import Settings

class Held(logging.Handler):
    def emit(self, record):
        if record.levelno == logging.ERROR:
            time.sleep(600)

async def main():
    here = Address.parse("Bad:one/Part:two")
    settings = Settings(slow_after=0.05, stuck_after=0.1, fatal_after=0.2)
    Watchdog(asyncio.get_running_loop(), settings, Path(sys.argv[1]), lambda task: (here, "spin"))
    logging.basicConfig(format="%(levelname)s %(message)s")
    if sys.argv[2] == "log":
        logging.getLogger().addHandler(Held())
        logging.error("something")
    await asyncio.sleep(0)
    time.sleep(600)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("stuck_in", ["loop", "log"])
def test_the_strike_that_puts_a_tree_in_quarantine_says_so_in_the_log(tmp_path: Path, stuck_in: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(STUCK), str(tmp_path), stuck_in]
    ended = [
        subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=patience(), check=False) for _ in range(3)
    ]

    assert [one.returncode for one in ended] == [70, 70, 70]
    assert ["in quarantine" in one.stderr for one in ended] == [False, False, True]
    (line,) = [line for line in ended[-1].stderr.splitlines() if "in quarantine" in line]
    said = (
        "Bad:one is in quarantine: it blocked its process 3 times within an hour, last in Bad:one/Part:two.spin. "
        "Fix the method, then release the tree: sapwood release Bad:one"
    )
    assert line in (f"ERROR {said}", said)


@pytest.mark.slow
def test_a_process_whose_crash_cannot_be_recorded_exits_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "crashes").write_text("a file where the folder should be")
    command = [sys.executable, "-c", textwrap.dedent(STUCK), str(tmp_path), "loop"]

    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=patience(), check=False)

    assert ended.returncode == 70
    assert "Bad:one/Part:two.spin blocked the event loop" in ended.stderr
    assert "The crash could not be recorded: " in ended.stderr


ASKED_MEANWHILE = """
import asyncio, re, sys, threading, time
from pathlib import Path
from sapwood.address import Address
from sapwood.kernel.actors.watchdog import Watchdog
from sapwood.settings import Settings

ending, asked = threading.Event(), threading.Event()

def elsewhere():
    ending.set()
    asked.wait()
    time.sleep(0.1)  # lets the thread of the loop go on
    return ()

async def main():
    here = Address.root_of("Bad", "one")
    settings = Settings(slow_after=0.05, stuck_after=0.1, fatal_after=0.2)
    watchdog = Watchdog(asyncio.get_running_loop(), settings, Path(sys.argv[1]), lambda task: (here, "match"))
    watchdog.elsewhere = elsewhere
    await asyncio.sleep(0)
    while not ending.is_set():
        pass
    asked.set()
    watchdog.end_if_stuck()
    re.match("(a+)+$", "a" * 64 + "b")

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_loop_that_is_asked_while_the_watchdog_ends_the_process_does_not_keep_it_from_ending(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(ASKED_MEANWHILE), str(tmp_path)]

    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=patience(), check=False)

    assert ended.returncode == 70
    assert ended.stderr.count("The process exits.") == 1


def test_a_tree_is_held_back_after_three_strikes_within_an_hour(tmp_path: Path) -> None:
    for at in (0.0, 1000.0):
        strike(tmp_path, "Bad:one", at)
    assert not Strikes(tmp_path, 3).quarantined(WHO)

    strike(tmp_path, "Bad:one", 3600.0)

    assert Strikes(tmp_path, 3).quarantined(WHO)
    assert not Strikes(tmp_path, 3).quarantined(Address.root_of("Bad", "two"))
    assert not Strikes(tmp_path, 4).quarantined(WHO)


def test_strikes_further_apart_than_an_hour_do_not_add_up(tmp_path: Path) -> None:
    for at in (0.0, 1800.0, 3700.0, 7200.0):
        strike(tmp_path, "Bad:one", at)

    assert not Strikes(tmp_path, 3).quarantined(WHO)


def test_a_released_tree_begins_at_zero_and_stays_released(tmp_path: Path) -> None:
    for at in (0.0, 1.0, 2.0):
        strike(tmp_path, "Bad:one", at)
    strikes = Strikes(tmp_path, 3)

    strikes.release(WHO)

    assert not strikes.quarantined(WHO)
    assert not Strikes(tmp_path, 3).quarantined(WHO)
    strike(tmp_path, "Bad:one", 3.0)
    assert not Strikes(tmp_path, 3).quarantined(WHO)


def nodes_with(folder: Path, *strikes: float) -> list[Strikes]:
    """Return the strikes of as many nodes, each of which the tree ended once, and which tell each other."""
    nodes: list[Strikes] = []
    for at in strikes:
        own = folder / f"{at}"
        own.mkdir()
        strike(own, "Bad:one", at)
        nodes.append(Strikes(own, len(strikes)))
    told = [node.told() for node in nodes]
    for at, node in enumerate(nodes):
        node.elsewhere = lambda at=at: told[:at] + told[at + 1 :]
    return nodes


def test_what_a_tree_did_to_several_nodes_adds_up(tmp_path: Path) -> None:
    first, second, third = nodes_with(tmp_path, 0.0, 1800.0, 3600.0)

    assert all(node.quarantined(WHO) for node in (first, second, third))
    assert not first.quarantined(Address.root_of("Bad", "two"))
    third.elsewhere = lambda: [first.told()]
    assert not third.quarantined(WHO)


def test_a_strike_that_two_nodes_tell_of_counts_once(tmp_path: Path) -> None:
    first, second = nodes_with(tmp_path, 0.0, 1.0)
    second.elsewhere = lambda: [first.told(), first.told()]  # its folder has a new node by another name
    strikes = Strikes(tmp_path / "1.0", 3)
    strikes.elsewhere = second.elsewhere

    assert second.quarantined(WHO)
    assert not strikes.quarantined(WHO)


def test_a_release_counts_at_every_node_also_when_the_one_that_was_told_of_it_is_gone(tmp_path: Path) -> None:
    for one in ("told", "struck"):
        (tmp_path / one).mkdir()
    for at in (0.0, 1.0):
        strike(tmp_path / "struck", "Bad:one", at)
    told, struck = Strikes(tmp_path / "told", 2), Strikes(tmp_path / "struck", 2)
    before = struck.told()
    told.elsewhere = lambda: [before]
    assert told.quarantined(WHO)

    assert told.release(WHO)
    assert not told.release(WHO)
    kept = told.told()
    struck.elsewhere = lambda: [kept]

    assert not told.quarantined(WHO)
    assert not struck.quarantined(WHO)
    struck.told()  # as it does every few seconds
    assert not Strikes(tmp_path / "struck", 2).quarantined(WHO)


def test_a_line_that_a_crash_cut_short_is_passed_over(tmp_path: Path) -> None:
    for at in (0.0, 1.0, 2.0):
        strike(tmp_path, "Bad:one", at)
    with (tmp_path / STRIKES).open("a") as file:
        file.write('{"root": "Bad:o')

    assert Strikes(tmp_path, 3).quarantined(WHO)


def test_releasing_a_tree_that_did_nothing_writes_nothing(tmp_path: Path) -> None:
    Strikes(tmp_path, 3).release(WHO)

    assert not (tmp_path / STRIKES).exists()
