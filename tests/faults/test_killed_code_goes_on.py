"""Promise 4, for code that a model wrote: killed while it waits for a host function, it goes on from its snapshot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.machine import patience

PROGRAM = textwrap.dedent(
    """
    import asyncio, sys
    from sapwood import Agent, App, Settings
    from sapwood.sandbox import Bubblewrap, Monty, run_code

    data, life, executor = sys.argv[1:]
    CODE = '''
    total = 0
    print("counting")
    for number in range(6):
        total += weigh(number)
    print("counted")
    total
    '''
    executors = {"Monty": Monty, "Bubblewrap": Bubblewrap}

    def say(text: str) -> None:
        print(text, flush=True)

    class Scales(Agent):
        migrations = ("CREATE TABLE weighed (number INTEGER NOT NULL) STRICT",)

        def note(self, number: int) -> None:
            self.sql("INSERT INTO weighed VALUES (?)", number)

        async def weigh(self, number: int) -> int:
            say(f"asked {number}")
            if life == "first" and number == 3:
                await asyncio.sleep(3600)
            self.note(number)
            return number * 10

    class Clerk(Agent):
        async def work(self) -> str:
            scales = await self.sub_agent(Scales, "s")
            done = await run_code(CODE, {"weigh": scales.weigh}, executor=executors[executor]())
            return str(done)

        async def begin(self) -> None:
            self.start_fiber("work", self.work)

        async def result(self) -> str:
            return await self.fibers.result("work")

    async def main() -> None:
        async with App(agents=[Clerk], settings=Settings(data=data)) as app:
            clerk = await app.get_agent(Clerk, "c")
            if life == "first":
                await clerk.begin()
            say(await clerk.result())

    asyncio.run(main())
    """
)


@pytest.mark.parametrize("executor", ["Monty", pytest.param("Bubblewrap", marks=pytest.mark.needs("bubblewrap"))])
def test_code_that_waits_for_a_function_goes_on_in_the_next_process(tmp_path: Path, executor: str) -> None:
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen([*arguments, "first", executor], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        said = [first.stdout.readline().strip() for _ in range(4)]
        os.kill(first.pid, signal.SIGKILL)
        assert first.wait(30) == -signal.SIGKILL

    second = subprocess.run(
        [*arguments, "second", executor], capture_output=True, text=True, timeout=patience(120), check=False
    )

    assert said == ["asked 0", "asked 1", "asked 2", "asked 3"]
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines() == ["asked 3", "asked 4", "asked 5", "counting", "counted", "=> 150"]


BUSY = textwrap.dedent(
    """
    import asyncio, sys
    from sapwood.sandbox import Bubblewrap, CodeLimits, Monty, run_code

    code = "tell()\\nwhile True: pass"
    executor = {"Monty": Monty, "Bubblewrap": Bubblewrap}[sys.argv[1]]()
    bindings = {"tell": lambda: print("busy", flush=True)}
    asyncio.run(run_code(code, bindings, limits=CodeLimits(seconds=float(sys.argv[2])), executor=executor))
    """
)


@pytest.mark.parametrize(
    ("executor", "seconds", "processes"),
    [("Monty", 2, 1), pytest.param("Bubblewrap", 600, 3, marks=pytest.mark.needs("bubblewrap"))],
)
def test_no_process_of_the_sandbox_outlives_its_server_by_more_than_its_seconds(
    executor: str, seconds: int, processes: int
) -> None:
    """Monty's notices when it has something to say, at the latest when its time is up; Bubblewrap's dies at once.

    Bubblewrap's own two processes come first, then that of the code. While it makes its sandbox, the second of them
    does not notice that the first is gone.
    """
    command = [sys.executable, "-c", BUSY, executor, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "busy\n"
        children = until_there_are(server.pid, processes)
        os.kill(server.pid, signal.SIGKILL)
        server.wait(30)

    end = time.monotonic() + 30
    while any(alive(one) for one in children):
        assert time.monotonic() < end, f"{children} are still there"
        time.sleep(0.01)


def until_there_are(server: int, processes: int) -> list[int]:
    """Return the processes that this one has begun, and those that they have, once there are this many."""
    end = time.monotonic() + 30
    while len(found := below(server)) < processes:
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def below(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children")
    children = [int(one) for one in listed.read_text().split()] if listed.exists() else []
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        children += [int(one) for one in thread.read_text().split()]
    found = sorted(set(children))
    return [*found, *(one for child in found for one in below(child))]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
