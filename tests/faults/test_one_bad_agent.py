"""Promise 9: one bad agent harms only itself. It is named, contained, and never wedges its neighbours."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.machine import patience

from sapwood import Agent, App
from sapwood.errors import SlowSql, UsageError
from sapwood.testing import World, running

ENDLESS = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
COUNT = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 4000000) SELECT count(*) FROM c"
NUMBERS = range(40_000_000)

pytestmark = pytest.mark.alone


class Good(Agent):
    migrations = ("CREATE TABLE t (v INTEGER) STRICT",)

    async def ping(self) -> int:
        self.sql("INSERT INTO t VALUES (1)")
        return self.sql("SELECT count(*) FROM t").scalar(int)


class Bad(Agent):
    async def burn(self, seconds: float) -> None:
        until = time.thread_time() + seconds  # of its own: what the machine does meanwhile does not count
        while time.thread_time() < until:
            pass

    async def nap(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - what a user might well write

    async def endless_query(self, seconds: float) -> None:
        self.sql(ENDLESS)

    async def add_up(self) -> int:
        return sum(NUMBERS)

    async def add_up_in_process(self) -> int:
        return await self.in_process(sum, NUMBERS)

    async def nap_in_thread(self) -> None:
        await self.in_thread(time.sleep, 0.7)

    async def count(self) -> int:
        return self.sql(COUNT).scalar(int)

    async def count_long(self) -> int:
        return (await self.read_sql(COUNT)).scalar(int)

    async def hang_in_process(self) -> None:
        await self.in_process(time.sleep, 3600)

    async def pid_in_process(self) -> int:
        return await self.in_process(os.getpid)

    async def die_in_process(self) -> None:
        await self.in_process(os._exit, 3)

    async def send_myself(self) -> None:
        await self.in_process(len, self)  # pyright: ignore[reportArgumentType]


@asynccontextmanager
async def neighbours(world: World) -> AsyncIterator[list[float]]:
    """Call a good agent again and again meanwhile; gather how long each call took."""
    good = await world.get_agent(Good, "g")
    taken: list[float] = []

    async def ping() -> None:
        while True:
            due = time.perf_counter() + 0.001  # counted from when it was meant to begin: that, too, may be late
            await asyncio.sleep(0.001)
            await good.ping()
            taken.append(time.perf_counter() - due)

    task = asyncio.create_task(ping())
    await asyncio.sleep(0.02)
    try:
        yield taken
        await asyncio.sleep(0.02)
    finally:
        task.cancel()


def p99(taken: list[float]) -> float:
    return sorted(taken)[int(len(taken) * 0.99)] * 1000


@pytest.mark.parametrize(
    ("method", "seconds", "line"),
    [
        ("burn", 3.0, "while time.thread_time() < until"),
        ("nap", 1.0, "time.sleep(seconds)"),
        ("endless_query", 0.0, "self.sql(ENDLESS)"),
    ],
)
async def test_code_that_holds_up_the_loop_is_named_with_its_address_and_stack(
    method: str, seconds: float, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(App(agents=[Bad, Good]), sql_timeout=3.0, slow_after=0.1) as world:
        bad = await world.get_agent(Bad, "one")
        async with neighbours(world):
            await asyncio.gather(getattr(bad, method)(seconds), return_exceptions=True)

        slow = [one for one in world.slow if one.method == method]
        world.slow.clear()

    assert len(slow) == 1
    assert str(slow[0].address) == "Bad:one"
    assert line in slow[0].stack or f"in {method}" in slow[0].stack
    (record,) = [record for record in caplog.records if record.__dict__.get("method") == method]
    assert record.levelno == logging.WARNING
    assert record.__dict__["address"] == "Bad:one"
    assert "Bad:one" in record.getMessage()
    assert f"in {method}" in record.getMessage()


async def test_an_endless_query_is_interrupted_and_its_agent_lives_on() -> None:
    async with running(App(agents=[Bad, Good]), slow_slices="allow", sql_timeout=0.3) as world:
        bad = await world.get_agent(Bad, "one")

        started, computed = time.perf_counter(), time.thread_time()
        with pytest.raises(SlowSql, match=r"sql_timeout \(0\.3 s\)"):
            await bad.endless_query(0)

        assert time.perf_counter() - started >= 0.3
        assert time.thread_time() - computed < 5
        assert await (await world.get_agent(Good, "g")).ping() == 1
        assert await bad.pid_in_process() != os.getpid()


async def test_a_test_fails_whose_agent_holds_up_the_loop() -> None:
    async def test() -> None:
        async with running(App(agents=[Bad])) as world:
            bad = await world.get_agent(Bad, "one")
            await bad.nap(0.9)

    with pytest.raises(AssertionError, match=r"Bad:one\.nap blocked the event loop for 0\.[5-8]\d s"):
        await test()


@pytest.mark.parametrize(
    ("blocking", "free"),
    [("add_up", "add_up_in_process"), ("nap", "nap_in_thread"), ("count", "count_long")],
)
async def test_what_is_moved_off_the_loop_does_not_hold_up_the_neighbours(blocking: str, free: str) -> None:
    async with running(App(agents=[Bad, Good]), slow_after=0.1, sql_timeout=patience(10)) as world:
        bad = await world.get_agent(Bad, "one")
        await bad.pid_in_process()  # the worker is there
        acts: dict[str, Callable[[], Awaitable[object]]] = {
            "nap": lambda: bad.nap(0.7),
            **{name: getattr(bad, name) for name in (blocking, free) if name != "nap"},
        }
        held_up: dict[str, list[str]] = {}
        for name in (blocking, free):
            async with neighbours(world) as taken:
                await acts[name]()
            held_up[name] = [one.method for one in world.slow]
            world.slow.clear()
            print(f"neighbours during {name}: p99 {p99(taken):.1f} ms, worst {max(taken) * 1000:.1f} ms")

        assert held_up == {blocking: [blocking], free: []}


def processes_below() -> set[int]:
    """Return the pids of this process's children."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found.update(int(pid) for pid in (task / "children").read_text().split())
    return found


def until(condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("It did not happen.")


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
async def test_cancelling_kills_the_process_that_computes() -> None:
    async with running(App(agents=[Bad]), slow_slices="allow") as world:
        bad = await world.get_agent(Bad, "one")
        before = processes_below()
        hanging = asyncio.create_task(bad.hang_in_process())
        await asyncio.to_thread(until, lambda: processes_below() - before)
        await asyncio.sleep(0.3)
        (pid,) = processes_below() - before
        assert runs(pid)

        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging

        await asyncio.to_thread(until, lambda: not runs(pid))
        assert await bad.pid_in_process() != pid


async def test_a_process_that_dies_is_an_error_and_the_next_one_works() -> None:
    async with running(App(agents=[Bad]), slow_slices="allow") as world:
        bad = await world.get_agent(Bad, "one")

        with pytest.raises(UsageError, match="exited"):
            await bad.die_in_process()

        assert await bad.pid_in_process() != os.getpid()


async def test_an_agent_cannot_be_sent_to_a_process() -> None:
    async with running(App(agents=[Bad]), slow_slices="allow") as world:
        bad = await world.get_agent(Bad, "one")

        with pytest.raises(UsageError, match="cannot be copied"):
            await bad.send_myself()


async def test_a_stuck_slice_turns_readiness_red_until_it_is_over() -> None:
    async with running(App(agents=[Bad]), slow_slices="allow", slow_after=0.05, stuck_after=0.2) as world:
        bad = await world.get_agent(Bad, "one")
        watchdog = world.node.watchdog
        seen: list[bool] = []

        def look() -> None:
            for _ in range(30):
                seen.append(watchdog.ready)
                time.sleep(0.02)

        thread = threading.Thread(target=look)
        thread.start()
        await bad.nap(0.5)
        await asyncio.to_thread(thread.join)
        await asyncio.sleep(0.05)

        assert seen[0]
        assert False in seen
        assert watchdog.ready


# A process that is stuck ends, and a tree that does it again and again is held back

PROGRAM = """
import asyncio, os, sys, time
from sapwood import Agent, App, Refused, SapwoodError, Settings

class Good(Agent):
    async def ping(self) -> str:
        return "pong"

class Stuck(Agent):
    async def on_start(self) -> None:
        if "free" not in sys.argv:
            time.sleep(60)

    async def ping(self) -> str:
        return "pong"

async def main() -> None:
    settings = Settings(data=sys.argv[1], slow_after=0.05, stuck_after=0.15, fatal_after=0.3)
    app = App(agents=[Good, Stuck], settings=settings)
    async with app:
        print("good", await (await app.get_agent(Good, "g")).ping(), flush=True)
        if "release" in sys.argv:
            app.release(Stuck, "s")
        try:
            print("stuck", await (await app.get_agent(Stuck, "s")).ping(), flush=True)
        except SapwoodError as error:
            print("stuck", error.code, isinstance(error, Refused), flush=True)
        print("good", await (await app.get_agent(Good, "g")).ping(), flush=True)
        print("other", await (await app.get_agent(Good, "h")).ping(), flush=True)

asyncio.run(main())
"""


def start(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )


def test_a_process_that_is_stuck_ends_and_says_where(tmp_path: Path) -> None:
    ended = start(tmp_path)

    assert ended.returncode == 70
    assert ended.stdout == "good pong\n"
    assert "Stuck:s.on_start" in ended.stderr
    assert "in on_start" in ended.stderr
    (crash,) = (tmp_path / "crashes").iterdir()
    text = crash.read_text()
    assert "Stuck:s.on_start blocked the event loop" in text
    assert "in on_start" in text
    assert "All threads:" in text
    assert "sapwood-watchdog" in text or "_watch" in text
    (strike,) = [json.loads(line) for line in (tmp_path / "strikes.jsonl").read_text().splitlines() if line]
    assert strike["root"] == "Stuck:s"


def test_a_tree_that_is_stuck_at_every_start_is_held_back_and_can_be_released(tmp_path: Path) -> None:
    for _ in range(3):
        assert start(tmp_path).returncode == 70

    held = start(tmp_path)
    assert held.returncode == 0, held.stderr
    assert held.stdout == "good pong\nstuck quarantined True\ngood pong\nother pong\n"
    assert start(tmp_path, "free").stdout == held.stdout  # still held: only an operator lets it run

    released = start(tmp_path, "free", "release")
    assert released.stdout == "good pong\nstuck pong\ngood pong\nother pong\n"
    assert start(tmp_path, "free").stdout == released.stdout
    assert len(list((tmp_path / "crashes").iterdir())) == 3

    assert start(tmp_path).returncode == 70  # one strike more, and it has two left
    assert start(tmp_path, "free").stdout == released.stdout


# Crashing and flooding agents


class Broken(Agent):
    async def on_start(self) -> None:
        raise RuntimeError("not today")

    async def ping(self) -> str:
        return "pong"


async def test_agents_that_fail_at_every_start_harm_nobody() -> None:
    async with running(App(agents=[Broken, Good]), slow_slices="allow") as world:
        async with neighbours(world) as taken:
            for number in range(200):
                with pytest.raises(RuntimeError, match="not today"):
                    await world.get_agent(Broken, f"b{number % 10}")

        assert taken
        assert world.node.watchdog.ready


async def test_a_flood_of_calls_to_one_agent_leaves_room_for_others() -> None:
    async with running(App(agents=[Good]), slow_slices="allow") as world:
        flooded = await world.get_agent(Good, "flooded")

        async def flood() -> None:
            for _ in range(200):
                await flooded.ping()

        async with neighbours(world) as taken:
            await asyncio.gather(*(flood() for _ in range(50)))

        print(f"neighbours during a flood of 10,000 calls, 50 at once: p99 {p99(taken):.1f} ms")
        assert await flooded.ping() == 10_001
        assert p99(taken) < patience(250)
