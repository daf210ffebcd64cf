"""The loop with virtual time: when it jumps, when it waits, and when it gives up."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sapwood.clock import call_in_real_time, report_work
from sapwood.testing.loop import ROUND, Deadlock, VirtualLoop


def running() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


async def test_a_year_passes_at_once_when_nothing_else_is_to_be_done() -> None:
    loop = running()
    began = loop.time()
    await asyncio.sleep(365 * 24 * 3600)
    assert loop.time() - began == pytest.approx(365 * 24 * 3600)


async def test_while_code_runs_the_clock_counts_rounds_and_not_how_long_they_take() -> None:
    loop = running()
    began = loop.time()
    for _ in range(100):
        await asyncio.sleep(0)
    assert loop.time() - began == pytest.approx(100 * ROUND)


async def test_code_that_asks_again_and_again_reaches_a_timer() -> None:
    loop, rung = running(), list[bool]()
    loop.call_later(0.01, rung.append, True)
    while not rung:  # noqa: ASYNC110 - that is what is tested
        await asyncio.sleep(0)


async def test_timers_ring_in_the_order_of_their_times_and_those_of_one_time_as_they_were_set() -> None:
    loop, rung = running(), list[tuple[str, float]]()
    began = loop.time()
    at_end = loop.create_future()
    for name, delay in (("c", 30.0), ("a", 10.0), ("d", 3600.0), ("b", 20.0)):
        loop.call_later(delay, lambda name=name: rung.append((name, loop.time() - began)))
    loop.call_at(began + 3600, at_end.set_result, None)
    await at_end
    assert [(name, round(at, 1)) for name, at in rung] == [("a", 10), ("b", 20), ("c", 30), ("d", 3600)]


async def test_a_cancelled_timer_does_not_ring_and_a_cancelled_sleep_ends_at_once() -> None:
    loop = running()
    began = loop.time()
    loop.call_later(5, lambda: pytest.fail("it was cancelled")).cancel()
    sleeping = asyncio.ensure_future(asyncio.sleep(1000))
    await asyncio.sleep(10)
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    assert loop.time() - began == pytest.approx(10, abs=1)


async def test_a_timeout_fires_in_virtual_time() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await asyncio.sleep(7200)


class Outside:
    """Something outside of the loop that works until it is let go; how often the loop was asked to jump over it."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def work(self) -> str:
        assert self.go.wait(30)
        return "done"


async def test_time_does_not_jump_while_a_thread_of_the_default_executor_works() -> None:
    await _is_waited_for(lambda outside: asyncio.to_thread(outside.work))


async def test_time_does_not_jump_while_a_thread_of_another_executor_works() -> None:
    with ThreadPoolExecutor(1) as threads:
        await _is_waited_for(lambda outside: running().run_in_executor(threads, outside.work))


async def test_time_does_not_jump_while_an_announced_source_works() -> None:
    with ThreadPoolExecutor(1) as threads:
        busy = True
        end = report_work(running(), lambda: busy)

        async def work(outside: Outside) -> str:
            nonlocal busy
            try:
                return await asyncio.wrap_future(threads.submit(outside.work))
            finally:
                busy = False

        await _is_waited_for(work)
        end()


async def _is_waited_for(begin: Callable[[Outside], Any]) -> None:
    """An hour passes only when the work is over; until then a timer rings as late as it does in real time."""
    loop, outside = running(), Outside()
    began = loop.time()
    work = asyncio.ensure_future(begin(outside))
    hour = asyncio.ensure_future(asyncio.sleep(3600))
    await asyncio.sleep(0.02)  # rings: time passes as it does outside, for a thread that waits for the loop
    assert not hour.done()
    assert not work.done()
    assert loop.is_outside_busy
    outside.go.set()
    assert await work == "done"
    assert loop.time() - began < 3600
    await hour
    assert not loop.is_outside_busy
    assert loop.time() - began == pytest.approx(3600)


async def test_a_thread_whose_result_nobody_wants_is_still_waited_for() -> None:
    loop, outside, began = running(), Outside(), threading.Event()

    def work() -> str:
        began.set()
        return outside.work()

    doing = asyncio.ensure_future(asyncio.to_thread(work))
    await loop.until(began.is_set, 30)
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    assert loop.is_outside_busy
    outside.go.set()
    await loop.idle()
    assert not loop.is_outside_busy


async def test_work_that_was_cancelled_before_a_thread_took_it_is_not_waited_for() -> None:
    loop, first = running(), Outside()
    with ThreadPoolExecutor(1) as threads:
        doing = loop.run_in_executor(threads, first.work)
        second = loop.run_in_executor(threads, lambda: pytest.fail("it was cancelled"))
        second.cancel()
        first.go.set()
        assert await doing == "done"
        await loop.idle()


async def test_time_does_not_jump_while_a_socket_is_open() -> None:
    loop = running()
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    began = loop.time()
    hour = asyncio.ensure_future(asyncio.sleep(3600))
    receiving = asyncio.ensure_future(reader.readexactly(1))
    await asyncio.sleep(0.02)
    assert not hour.done()
    theirs.send(b"!")
    assert await receiving == b"!"
    assert loop.time() - began < 3600
    writer.close()
    theirs.close()
    await hour


async def test_a_connection_whose_both_ends_are_of_this_loop_is_part_of_it() -> None:
    loop = running()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while question := await reader.read(1000):
            await asyncio.sleep(3600)
            writer.write(question)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        began = loop.time()
        writer.write(b"x" * 1000)
        assert await reader.readexactly(1000) == b"x" * 1000
        assert loop.time() - began == pytest.approx(3600, abs=10)
        assert not loop.has_files
        await loop.idle()
        writer.close()
        assert await reader.read() == b""


async def test_time_does_not_jump_while_the_other_end_of_a_connection_is_elsewhere() -> None:
    loop = running()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        reader, writer = await asyncio.open_connection(*server.getsockname())
        theirs, _ = server.accept()
        hour = asyncio.ensure_future(asyncio.sleep(3600))
        receiving = asyncio.ensure_future(reader.readexactly(1))
        await asyncio.sleep(0.02)
        assert loop.has_files
        assert not hour.done()
        theirs.send(b"!")
        assert await receiving == b"!"
        writer.close()
        theirs.close()
        await hour


async def test_time_does_not_jump_while_a_process_runs() -> None:
    loop = running()
    began = loop.time()
    process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "")
    hour = asyncio.ensure_future(asyncio.sleep(3600))
    assert await process.wait() == 0
    assert not hour.done()
    assert loop.time() - began < 3600
    await hour


async def test_idle_comes_when_nothing_is_runnable_and_before_the_next_timer() -> None:
    loop, steps = running(), list[str]()

    async def work() -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        steps.append("ran")
        await asyncio.sleep(1)
        steps.append("slept")

    working = asyncio.ensure_future(work())
    began = loop.time()
    await loop.idle()
    assert steps == ["ran"]
    assert loop.time() - began < 1
    await working


async def test_idle_waits_for_what_is_outside() -> None:
    loop, outside = running(), Outside()
    working = asyncio.ensure_future(asyncio.to_thread(outside.work))
    idle = asyncio.ensure_future(loop.idle())
    await asyncio.sleep(0.02)
    assert not idle.done()
    outside.go.set()
    await idle
    assert working.done()


async def test_until_returns_in_the_round_in_which_the_condition_comes_to_hold() -> None:
    loop, seen = running(), list[int]()

    async def count() -> None:
        for number in range(100):
            seen.append(number)
            await asyncio.sleep(0 if number % 2 else 1)

    counting = asyncio.ensure_future(count())
    await loop.until(lambda: 50 in seen, 3600)
    assert len(seen) <= 52
    await counting


async def test_until_gives_up_in_virtual_time_and_raises_what_the_condition_raises() -> None:
    loop = running()
    with pytest.raises(TimeoutError):
        await loop.until(lambda: False, 3600)
    with pytest.raises(ZeroDivisionError):
        await loop.until(lambda: 1 // 0 == 1, 3600)


async def test_until_sees_what_a_thread_changed_without_telling_the_loop() -> None:
    seen, outside = threading.Event(), Outside()

    def work() -> None:
        seen.set()
        outside.work()

    working = asyncio.ensure_future(asyncio.to_thread(work))
    await running().until(seen.is_set, 30)
    outside.go.set()
    await working


def test_a_deadlock_names_the_tasks_that_wait() -> None:
    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    with (
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
        pytest.raises(Deadlock, match=r"(?s)Deadlock.*forever.*test_virtual_loop\.py"),
    ):
        runner.run(forever())


def test_a_timer_that_repeats_forever_does_not_hide_a_deadlock() -> None:
    async def forever() -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            loop.call_later(1000, again)

        again()
        await loop.create_future()

    class Impatient(VirtualLoop):
        max_jumps = 1000

    with asyncio.Runner(loop_factory=Impatient) as runner, pytest.raises(Deadlock, match="1000 timers in a row"):
        runner.run(forever())


async def test_a_cancelled_real_timer_is_forgotten_at_once() -> None:
    loop, timers = running(), running()._real_timers  # pyright: ignore[reportPrivateUsage]
    before = len(timers)
    first, *others = [call_in_real_time(loop, delay, lambda: None) for delay in (3600, 7200, 60)]
    first.cancel()
    first.cancel()
    assert len(timers) == before + 2
    for _ in range(10):
        await loop.idle()
    assert len(timers) == before + 2
    for other in others:
        other.cancel()
    assert len(timers) == before


async def test_what_is_called_in_real_time_does_not_make_the_clock_jump() -> None:
    loop, rung = running(), asyncio.Event()
    began = loop.time()
    call_in_real_time(loop, 0.0, rung.set)
    call_in_real_time(loop, 0.0, lambda: pytest.fail("it was cancelled")).cancel()
    late = call_in_real_time(loop, 3600, lambda: pytest.fail("it is too early"))
    await rung.wait()
    assert loop.time() - began < 1
    await asyncio.sleep(7200)
    late.cancel()
