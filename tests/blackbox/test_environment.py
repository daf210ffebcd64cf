"""What the machine does to a server: a second one, few descriptors, little memory, a pause, a wrong clock, a copy."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.blackbox.app import Root
from tests.blackbox.client import call, code_of, connected, count_items
from tests.blackbox.events import wait_until
from tests.blackbox.server import HERE, Server

from sapwood.errors import SapwoodError

HOUR = 3600.0


@pytest.fixture
async def servers() -> AsyncGenerator[list[Server], None]:
    """The servers of a test, which are killed after it."""
    started: list[Server] = []
    yield started
    for server in started:
        server.kill()


async def has_rung(agent: Root, *ids: str) -> bool:
    """Whether these schedules have come, and no other."""
    return {id for id, _, _ in (await agent.schedule_report())["rings"]} == set(ids)


async def has_completed(agent: Root, fiber: str) -> bool:
    return (await agent.fiber_report())["fibers"][fiber][0] == "completed"


async def test_a_second_server_on_the_folder_is_refused(servers: list[Server], tmp_path: Path) -> None:
    first, second = Server(tmp_path), Server(tmp_path / "second", data=tmp_path / "data")
    with_workers = Server(tmp_path / "workers", "--workers", "2", data=tmp_path / "data")
    servers += [first, second, with_workers]
    await first.start_beside()
    assert await call(first, "list", "append", "before") == 1
    for server, code in ((second, 3), (with_workers, 1)):
        server.launch()
        assert not await asyncio.to_thread(server.wait_until_ready)
        assert server.exit_code == code
        assert str(first.pid) in server.log()
        assert "Traceback" not in server.log()
    assert await call(first, "list", "append", "after") == 2


@pytest.mark.nightly
async def test_without_the_lock_file_no_tree_has_two_writers(servers: list[Server], tmp_path: Path) -> None:
    first, second = Server(tmp_path), Server(tmp_path / "second", data=tmp_path / "data")
    servers += [first, second]
    await first.start_beside()
    async with connected(first, "list") as agent:
        assert await agent.append("first") == 1
        (first.data / "lock").unlink()
        second.launch()
        if await asyncio.to_thread(second.wait_until_ready):
            assert await code_of(second, "list", "append", "second") != "answered"
        assert await agent.append("third") == 2


@pytest.mark.nightly
async def test_a_server_out_of_descriptors_refuses_sockets_and_recovers(servers: list[Server], tmp_path: Path) -> None:
    server = Server(tmp_path, prefix=("prlimit", "--nofile=256:256"))
    servers.append(server)
    await server.start_beside()
    refused = Counter[str]()
    for first in range(0, 600, 30):
        codes = await asyncio.gather(*(code_of(server, f"root-{first + n}", "append", "x") for n in range(30)))
        refused.update(code for code in codes if code != "answered")
    assert not refused, "agents that sleep hold no descriptor"
    with pytest.raises((SapwoodError, OSError)):
        await connect_to(server, sockets=400)
    assert server.exit_code is None
    await wait_until(lambda: answers(server), "the server answers again")
    assert {await count_items(server, f"root-{number}") for number in range(100)} == {1}
    assert await call(server, "a-new-root", "append", "x") == 1
    assert len(server.troubles()) < 60, "one line for each cause, and not for each client"


async def connect_to(server: Server, sockets: int) -> None:
    """Have this many clients connected at once."""
    async with contextlib.AsyncExitStack() as stack:
        for number in range(sockets):
            await stack.enter_async_context(connected(server, f"root-{number % 50}"))


def answers(server: Server) -> bool:
    with contextlib.suppress(OSError):
        return server.get("/readyz")[0] == 200
    return False


@pytest.mark.nightly
async def test_a_call_that_needs_too_much_memory_fails_alone(servers: list[Server], tmp_path: Path) -> None:
    server = Server(tmp_path, prefix=("prlimit", f"--as={700 << 20}"))
    servers.append(server)
    await server.start_beside()
    assert await call(server, "calm", "append", "before") == 1
    assert await call(server, "greedy", "hold_memory", 100) == 100
    assert await code_of(server, "greedy", "hold_memory", 900) == "child_failed"
    assert await call(server, "calm", "append", "after") == 2
    assert await call(server, "greedy", "append", "after") == 1


async def test_a_paused_process_answers_everything_afterwards(servers: list[Server], tmp_path: Path) -> None:
    server = Server(tmp_path)
    servers.append(server)
    await server.start_beside()
    async with connected(server, "list") as agent:
        await agent.begin_fiber("fiber", 3)
        await agent.ring_later("ring", 1.0, False)
        nap = asyncio.create_task(agent.nap(0.5))
        await agent.append("before")
        os.kill(server.pid, signal.SIGSTOP)
        during = asyncio.create_task(agent.append("during"))
        await asyncio.sleep(3.0)  # the length of the pause: the nap and the schedule become due in it
        os.kill(server.pid, signal.SIGCONT)
        assert await nap == 0.5
        assert await during == 2
        await wait_until(lambda: has_rung(agent, "ring"), "the schedule comes")
        ((_, due, at),) = (await agent.schedule_report())["rings"]
        assert at >= due
        await wait_until(lambda: has_completed(agent, "fiber"), "the fiber completes")


@pytest.mark.nightly
async def test_a_schedule_follows_the_wall_clock_when_it_is_set(servers: list[Server], tmp_path: Path) -> None:
    clock = tmp_path / "clock"

    def set_clock(seconds: float) -> None:
        clock.with_suffix(".new").write_text(str(seconds))
        clock.with_suffix(".new").rename(clock)

    set_clock(0.0)
    server = Server(tmp_path, app=HERE / "shifted_app.py", variables={"BLACKBOX_CLOCK": str(clock)})
    servers.append(server)
    await server.start_beside()

    async with connected(server, "list") as agent:
        await agent.ring_later("soon", 3.0, False)
        await agent.ring_later("in-an-hour", HOUR, False)
        set_clock(-HOUR)
        await agent.ring_later("sooner", 2.0, False)  # an hour before the others, by the new clock
        await wait_until(lambda: has_rung(agent, "sooner"), "the schedule of the earlier clock comes")
        set_clock(0.0)
        await wait_until(lambda: has_rung(agent, "sooner", "soon"), "the schedule comes by the right clock")
        set_clock(2 * HOUR)
        await wait_until(lambda: has_rung(agent, "sooner", "soon", "in-an-hour"), "the last schedule comes")
        assert all(at >= due for _, due, at in (await agent.schedule_report())["rings"])


@pytest.mark.nightly
async def test_a_copy_of_a_folder_in_use_opens(servers: list[Server], tmp_path: Path) -> None:
    """A plain copy of a running folder is not a backup, but what it has is whole."""
    server = Server(tmp_path)
    servers.append(server)
    await server.start_beside()
    is_over, written = asyncio.Event(), 0

    async def write() -> None:
        nonlocal written
        async with connected(server, "list") as agent:
            while not is_over.is_set():
                await agent.append_deep(f"item-{written}", 2)
                written += 1

    writing = asyncio.create_task(write())
    await wait_until(lambda: written > 50, "there is something to copy")
    await asyncio.to_thread(shutil.copytree, server.data, tmp_path / "copy")
    is_over.set()
    await writing
    copy = Server(tmp_path / "second", data=tmp_path / "copy")
    servers.append(copy)
    (copy.data / "lock").unlink(missing_ok=True)
    await copy.start_beside()
    code = await code_of(copy, "list", "content_deep", 2)
    assert code in ("answered", "stored_data")
