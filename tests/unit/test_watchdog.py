"""The watchdog names what holds up the loop, and nobody else."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
import textwrap
import time
from asyncio import Task
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sapwood.address import Address
from sapwood.kernel.watchdog import STRIKES, SlowSlice, Strikes, Watchdog
from sapwood.settings import Settings

pytestmark = [
    pytest.mark.alone,
    pytest.mark.realtime("the watchdog measures how long real code takes"),
]

WHO = Address.root_of("Bad", "one")
SETTINGS = Settings(slow_slice=0.1, stuck_slice=0.4, fatal_slice=60)


class Watched:
    """A loop with a watchdog; tasks named `agent…` are taken for calls of one agent."""

    def __init__(self, folder: Path) -> None:
        self.seen: list[SlowSlice] = []
        self.ready: list[bool] = []
        self.watchdog = Watchdog(asyncio.get_running_loop(), SETTINGS, folder, self.running)
        self.watchdog.on_slow.append(self.saw)

    def saw(self, slow: SlowSlice) -> None:
        self.seen.append(slow)

    def running(self, task: Task[Any]) -> tuple[Address, str] | None:
        name = task.get_name()
        return (WHO, name.removeprefix("agent ")) if name.startswith("agent ") else None

    async def call(self, method: str, block: Any, *args: Any) -> None:
        async def run() -> None:
            await asyncio.sleep(0.05)
            block(*args)

        await asyncio.create_task(run(), name=f"agent {method}")
        await asyncio.sleep(0.06)


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    watched.watchdog.stop()


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds  # of its own: what others took meanwhile does not count
    while time.thread_time() < until:
        pass


def hold_the_gil() -> None:
    pow(7, 1_100_000)  # one call into C that lets nobody else run


async def test_a_loop_that_is_idle_or_busy_in_small_steps_is_left_alone(watched: Watched) -> None:
    async def small() -> None:
        for _ in range(10):
            burn(0.01)
            await asyncio.sleep(0)

    await asyncio.gather(*(asyncio.create_task(small(), name=f"agent {n}") for n in range(4)))
    await asyncio.sleep(0.15)

    assert watched.seen == []
    assert not watched.watchdog.histogram


async def test_a_slice_that_sleeps_is_named_with_its_stack(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    await watched.call("nap", time.sleep, 0.5)

    (slow,) = watched.seen
    assert (slow.address, slow.method) == (WHO, "nap")
    assert 0.1 <= slow.seconds < 0.5
    assert "block(*args)" in slow.stack
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert (record.__dict__["address"], record.__dict__["method"]) == ("Bad:one", "nap")
    assert "in_thread()" in record.getMessage()
    assert "block(*args)" in record.getMessage()


async def test_a_slice_that_computes_is_named_where_it_is(watched: Watched) -> None:
    await watched.call("burn", burn, 0.25)

    (slow,) = watched.seen
    assert slow.method == "burn"
    assert "in burn" in slow.stack


async def test_a_call_into_c_that_lets_no_thread_run_is_named_when_it_is_over(watched: Watched) -> None:
    started = time.perf_counter()
    hold_the_gil()
    lasts = time.perf_counter() - started
    assert lasts > 0.15, "the machine got faster: make the number larger"

    for _ in range(10):  # it can look only when the call is over, and on a crowded machine may come too late
        await watched.call("pow", hold_the_gil)
        if watched.seen:
            break

    slow = watched.seen[0]
    assert slow.method == "pow"
    assert slow.seconds > 0.1


async def test_every_slow_slice_is_counted_and_each_method_is_warned_of_once(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    for method in ("nap", "nap", "doze"):
        await watched.call(method, time.sleep, 0.3)
        seen = len(watched.seen)
        async with asyncio.timeout(30):
            while sum(watched.watchdog.histogram.values()) < seen:  # noqa: ASYNC110 - a thread counts, when it has a core
                await asyncio.sleep(0.01)

    assert [slow.method for slow in watched.seen] == ["nap", "nap", "doze"]
    assert [record.__dict__["method"] for record in caplog.records] == ["nap", "doze"]
    assert sum(watched.watchdog.histogram.values()) == 3
    assert watched.watchdog.histogram[0.5] == 3


async def test_code_outside_of_any_agent_is_nobodys_slice(watched: Watched) -> None:
    await asyncio.sleep(0.05)
    time.sleep(0.2)  # noqa: ASYNC251 - that is what is tested
    await asyncio.sleep(0.05)

    assert watched.seen == []


async def test_several_agents_that_each_take_a_little_are_not_blamed_for_the_sum(watched: Watched) -> None:
    async def little() -> None:
        burn(0.04)

    await asyncio.gather(*(asyncio.create_task(little(), name=f"agent {n}") for n in range(6)))

    assert watched.seen == []


async def test_a_stuck_slice_makes_the_node_not_ready_until_it_is_over(watched: Watched) -> None:
    seen: list[bool] = []

    def look() -> None:
        for _ in range(8):
            time.sleep(0.1)
            seen.append(watched.watchdog.ready)

    await watched.call("stuck", look)

    assert seen[0]
    assert not seen[-1]
    assert watched.watchdog.ready


STOPPED = """
import asyncio, sys, time
from pathlib import Path
from sapwood.address import Address
from sapwood.kernel.watchdog import Watchdog
from sapwood.settings import Settings

async def main():
    seen = []
    here = Address.root_of("Good", "one")
    watchdog = Watchdog(asyncio.get_running_loop(), Settings(), Path(sys.argv[1]), lambda task: (here, "work"))
    watchdog.on_slow.append(seen.append)
    until = time.time() + 1.5
    print("running", flush=True)
    while time.time() < until:
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass
        await asyncio.sleep(0)
    watchdog.stop()
    print(len(seen), flush=True)

asyncio.run(main())
"""


def test_a_machine_that_stood_still_is_nobodys_fault(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STOPPED), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.6)
        process.send_signal(signal.SIGCONT)

        assert process.stdout.read() == "0\n"


def strike(folder: Path, root: str, at: float) -> None:
    with (folder / STRIKES).open("a") as file:
        file.write(json.dumps({"root": root, "at": at}) + "\n")


STUCK = """
import asyncio, logging, sys, time
from pathlib import Path
from sapwood.address import Address
from sapwood.kernel.watchdog import Watchdog
from sapwood.settings import Settings

class Held(logging.Handler):
    def emit(self, record):
        if record.levelno == logging.ERROR:
            time.sleep(600)

async def main():
    here = Address.parse("Bad:one/Part:two")
    settings = Settings(slow_slice=0.05, stuck_slice=0.1, fatal_slice=0.2)
    Watchdog(asyncio.get_running_loop(), settings, Path(sys.argv[1]), lambda task: (here, "spin"))
    logging.basicConfig(format="%(levelname)s %(message)s")
    if sys.argv[2] == "log":
        logging.getLogger().addHandler(Held())
        logging.error("something")
    await asyncio.sleep(0)
    time.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("stuck_in", ["loop", "log"])
def test_the_strike_that_puts_a_tree_in_quarantine_says_so_in_the_log(tmp_path: Path, stuck_in: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(STUCK), str(tmp_path), stuck_in]
    ended = [subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=30, check=False) for _ in range(3)]

    assert [one.returncode for one in ended] == [70, 70, 70]
    assert ["in quarantine" in one.stderr for one in ended] == [False, False, True]
    (line,) = [line for line in ended[-1].stderr.splitlines() if "in quarantine" in line]
    said = (
        "Bad:one is in quarantine: it ended its process 3 times within an hour, now by Bad:one/Part:two.spin. "
        "Mend that, then let it run again: sapwood release Bad:one"
    )
    assert line in (f"ERROR {said}", said)


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


async def test_where_nobody_can_tell_how_long_the_loop_waited_for_a_core_it_is_watched_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watchdog, "_loop_queued", lambda self: 0.0)
    watched = Watched(tmp_path)
    try:
        await watched.call("nap", time.sleep, 0.5)
    finally:
        watched.watchdog.stop()

    assert [slow.method for slow in watched.seen] == ["nap"]
