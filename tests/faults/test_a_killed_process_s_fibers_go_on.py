"""Promise 4, with a process that is really killed: its next life finishes the fibers of the last, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.machine import patience

PROGRAM = textwrap.dedent(
    """
    import asyncio, sys
    from sapwood import Agent, App, Settings
    from sapwood.types import Fiber

    data, life, kind = sys.argv[1:]
    done = asyncio.Event()

    def say(text: str) -> None:
        print(text, flush=True)

    async def fetched() -> str:
        say("fetched")
        return "what was fetched"

    class Leaf(Agent):
        migrations = ("CREATE TABLE lines (number INTEGER NOT NULL) STRICT",)

        async def load(self, lines: int) -> int:
            assert await self.step("fetch", fetched) == "what was fetched"
            for number in range(self.fibers.current.checkpoint or 0, lines):
                self.sql("INSERT INTO lines VALUES (?)", number)
                await self.checkpoint(number + 1)
                if life == "first" and number + 1 == lines // 2:
                    say("half of it")
                    await asyncio.sleep(3600)
            say(f"loaded {self.sql('SELECT count(*) FROM lines').scalar(int)}")
            done.set()
            return lines

        async def on_fiber_recovered(self, fiber: Fiber) -> None:
            say(f"recovered {fiber.name} at {fiber.checkpoint} in {self.address}")

        async def begin(self) -> None:
            if kind == "plain":
                await self.fibers.run("load", self.load, 10)
            else:
                self.start_fiber("load", self.load, 10)

        async def all_fibers(self) -> list[tuple[str, str]]:
            return [(fiber.name, fiber.status) for fiber in self.fibers.list()]

    class Branch(Agent):
        async def begin(self) -> None:
            await (await self.sub_agent(Leaf, "leaf")).begin()

    class Root(Agent):
        async def begin(self) -> None:
            await (await self.sub_agent(Branch, "branch")).begin()

    async def main() -> None:
        async with App(agents=[Root], settings=Settings(data=data)) as app:
            if life == "first":
                await (await app.get_agent(Root, "r")).begin()
                await asyncio.sleep(3600)
            elif life == "second":
                await done.wait()
                leaf = await app.get_agent(Root, "r", sub=[(Branch, "branch"), (Leaf, "leaf")])
                await asyncio.sleep(0.1)
                say(f"left: {await leaf.all_fibers()}")
            else:
                await asyncio.sleep(0.3)
                say("nothing to do")

    asyncio.run(main())
    """
)


def lived(folder: Path, life: str, kind: str) -> list[str]:
    """Run a life of the program to its end, and return what it said."""
    arguments = [sys.executable, "-c", PROGRAM, str(folder), life, kind]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=patience(120), check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.promise("CF-56", "CF-195")
@pytest.mark.parametrize(("kind", "left"), [("plain", "[]"), ("managed", "[('load', 'completed')]")])
def test_a_fiber_of_a_grandchild_is_finished_after_its_process_is_killed(tmp_path: Path, kind: str, left: str) -> None:
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path), "first", kind]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        said = [first.stdout.readline().strip(), first.stdout.readline().strip()]
        os.kill(first.pid, signal.SIGKILL)
        assert first.wait(30) == -signal.SIGKILL

    second = lived(tmp_path, "second", kind)
    third = lived(tmp_path, "third", kind)

    assert said == ["fetched", "half of it"]
    assert second == ["recovered load at 5 in Root:r/Branch:branch/Leaf:leaf", "loaded 10", f"left: {left}"]
    assert third == ["nothing to do"]
