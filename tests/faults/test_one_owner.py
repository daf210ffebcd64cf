"""Promise 2: two live incarnations of one agent can never both commit."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.faults.running import CHECKOUT

from sapwood import Agent, App, Settings
from sapwood.errors import Aborted, FolderInUse, NotFound, SapwoodError
from sapwood.testing import World, running

OWNER = """
import asyncio, sys
from sapwood import App, Settings

async def main():
    async with App(agents=[], settings=Settings(data=sys.argv[1])):
        print("running", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def owner(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs an app on this folder, until the block ends."""
    command = [sys.executable, "-c", OWNER, str(folder)]
    process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_a_second_process_on_a_folder_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with owner(tmp_path) as process:
        app = App(agents=[], settings=Settings(data=tmp_path))

        with pytest.raises(FolderInUse, match=rf"is in use by process {process.pid}\. Stop that process, or choose"):
            await app.__aenter__()


async def test_the_folder_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    with owner(tmp_path) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

        async with App(agents=[], settings=Settings(data=tmp_path)):
            pass


class Diary(Agent):
    """Writes on, whatever happens to it."""

    migrations = ("CREATE TABLE lines (text TEXT NOT NULL) STRICT",)

    async def write(self, text: str) -> None:
        self.sql("INSERT INTO lines VALUES (?)", text)

    async def read(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM lines ORDER BY rowid")]

    async def refuse_to_die(self) -> None:
        self.sql("INSERT INTO lines VALUES ('alive')")
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                with Agony.noted():
                    self.sql("INSERT INTO lines VALUES ('undead')")
                with Agony.noted():
                    self.set_state(None)
                with Agony.noted(), self.transaction():
                    self.sql("INSERT INTO lines VALUES ('undead')")
                raise


class Agony:
    """What the dying met."""

    errors: list[SapwoodError] = []  # noqa: RUF012 - emptied by each test

    @classmethod
    @contextmanager
    def noted(cls) -> Iterator[None]:
        try:
            yield
        except SapwoodError as error:
            cls.errors.append(error)


class Keeper(Agent):
    async def open(self) -> None:
        await self.sub_agent(Diary, "d")

    async def abort(self) -> None:
        self.children.abort(Diary, "d", "enough")

    async def delete(self) -> None:
        await self.children.delete(Diary, "d")


@pytest.fixture(params=["process", "disk"])
async def world(request: pytest.FixtureRequest) -> object:
    Agony.errors.clear()
    async with running(App(agents=[Keeper, Slow]), durability=request.param) as world:
        yield world


@pytest.mark.parametrize(("end", "error"), [("abort", Aborted), ("delete", NotFound)])
async def test_an_incarnation_that_ended_cannot_write_any_more(
    world: World, end: str, error: type[SapwoodError]
) -> None:
    keeper = await world.get_agent(Keeper, "k")
    await keeper.open()
    diary = await world.get_agent(Keeper, "k", sub=[(Diary, "d")])
    call = asyncio.create_task(diary.refuse_to_die())
    while not await diary.read():  # noqa: ASYNC110 - a handful of turns
        await asyncio.sleep(0)

    await getattr(keeper, end)()
    with pytest.raises(error):
        await call
    await asyncio.sleep(0.05)
    await keeper.open()
    diary = await world.get_agent(Keeper, "k", sub=[(Diary, "d")])
    await diary.write("next life")

    assert await diary.read() == (["alive", "next life"] if end == "abort" else ["next life"])
    assert [type(met) for met in Agony.errors] == [error, error, error]


class Slow(Diary):
    """Falls asleep the moment it has started, while callers are still on their way to it."""

    async def on_start(self) -> None:
        await asyncio.sleep(0.01)
        if moments:
            asyncio.get_running_loop().call_soon(moments.pop())


moments: list[Callable[[], None]] = []


async def test_a_tree_that_somebody_is_on_the_way_to_is_not_opened_twice(world: World) -> None:
    late: list[asyncio.Task[Slow]] = []

    def fall_asleep() -> None:
        world.sleep()
        late.append(asyncio.ensure_future(world.get_agent(Slow, "s")))

    moments[:] = [fall_asleep]
    early = [asyncio.create_task(world.get_agent(Slow, "s")) for _ in range(3)]

    stubs = await asyncio.gather(*early)
    stubs += await asyncio.gather(*late)
    for number, stub in enumerate(stubs):
        await stub.write(str(number))

    assert len(stubs) == 4
    assert await stubs[0].read() == ["0", "1", "2", "3"]
