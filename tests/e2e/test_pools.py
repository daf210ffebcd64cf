"""`sapwood serve --workers … --pool …`: heavy classes in processes of their own, and nobody else notices them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command import PATIENCE, Server, said_by, sapwood, serving
from tests.e2e.test_workers import Caller, until

APP = """
import os
from datetime import timedelta

from sapwood import Agent, App, agent, expose


class Desk(Agent[int]):
    initial_state = 0

    @expose
    async def process(self) -> int:
        return os.getpid()

    @expose
    async def add(self, by: int) -> int:
        self.set_state(self.state + by)
        return self.state

    @expose
    async def press(self, name: str) -> int:
        return await (await self.get_agent(Press, name)).process()

    @expose
    async def later(self, seconds: float) -> None:
        self.schedule(timedelta(seconds=seconds), self.add, 100)


class Roller(Agent):
    async def process(self) -> int:
        return os.getpid()


@agent(pool="heavy")
class Press(Desk):
    @expose
    async def burn(self, until: str) -> None:
        while not os.path.exists(until):
            pass

    @expose
    async def roller(self) -> int:
        return await (await self.sub_agent(Roller, "r")).process()

    @expose
    async def desk(self, name: str) -> int:
        return await (await self.get_agent(Desk, name)).process()


app = App(agents=[Desk, Press])
"""
MILL = Path(__file__).parents[2] / "examples" / "mill.py"
POOLED = ("serve", "app:app", "--workers", "1", "--pool", "heavy=1", "--grace", "5")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def pooled(folder: Path) -> Iterator[Server]:
    with serving(folder, *POOLED) as server:
        yield server


def call(server: Server, agent: str, method: str, *args: object) -> int:
    with server.connect(f"/agents/{agent}") as connection:
        return Caller(connection)(method, *args)


def test_a_class_of_a_pool_is_run_there_with_all_below_it_and_reached_from_everywhere(
    pooled: Server, folder: Path
) -> None:
    pooled.wait_for(re.compile(r"with one worker and 1 for heavy"))
    desks = {call(pooled, f"desk/n{number}", "process") for number in range(8)}
    presses = {call(pooled, f"press/n{number}", "process") for number in range(8)}

    assert len(desks) == len(presses) == 1
    assert desks != presses
    assert {call(pooled, "desk/a", "press", "b"), call(pooled, "press/b", "roller")} == presses
    assert {call(pooled, "press/b", "desk", "a")} == desks
    top = json.loads(said_by(folder, "top", "--json"))["workers"]
    assert {(one["pool"], one["process"]) for one in top} == {("", *desks), ("heavy", *presses)}
    if "install" not in (figures := pooled.get("/metrics")[1]):
        assert re.search(r'^sapwood_trees\{worker="1",pool="heavy"\} 9.0$', figures, re.MULTILINE)


def test_whoever_computes_in_a_pool_holds_up_no_client_of_the_others(pooled: Server, folder: Path) -> None:
    enough = folder / "enough"
    with pooled.connect("/agents/press/a") as heavy, pooled.connect("/agents/desk/a") as plain:
        press, desk = Caller(heavy), Caller(plain)
        press("process")
        desk("process")
        burning = threading.Thread(target=press, args=("burn", str(enough)))
        burning.start()
        for n in range(20):
            # Whoever accepts a connection is chance: among so many would be some for the pool, if it took any.
            assert call(pooled, f"desk/n{n % 10}", "add", 1) == n // 10 + 1
            assert desk("add", 1) == n + 1
        assert burning.is_alive()
        enough.touch()
        burning.join(PATIENCE)
        assert not burning.is_alive()


@pytest.mark.nightly
def test_the_mill_of_the_documentation_is_not_beside_the_shop(folder: Path) -> None:
    shutil.copy(MILL, folder)

    with serving(folder, "serve", "mill:app", "--workers", "2", "--pool", "heavy=1"):
        assert said_by(folder, "call", "Shop:corner", "order", "rye").startswith('"fa105ad2e0de')
        assert said_by(folder, "call", "Shop:corner", "shares_process", "rye").strip() == "false"


def test_a_worker_of_a_pool_that_dies_is_started_again(pooled: Server, folder: Path) -> None:
    assert call(pooled, "press/a", "add", 7) == 7
    there = call(pooled, "press/a", "process")

    os.kill(there, signal.SIGKILL)
    pooled.wait_for(re.compile("restarting it"))

    assert call(pooled, "desk/a", "press", "a") != there
    assert call(pooled, "press/a", "add", 1) == 8


@pytest.mark.nightly
def test_other_pools_find_everything_and_what_was_due_happens(folder: Path) -> None:
    agents = [f"{kind}/n{number}" for kind in ("desk", "press") for number in range(4)]
    unpooled = APP.replace('@agent(pool="heavy")\n', "")
    swapped = unpooled.replace("class Desk", '@agent(pool="heavy")\nclass Desk')
    for count, (app, options) in enumerate(
        [
            (APP, ("--workers", "1", "--pool", "heavy=2")),
            (swapped, ("--workers", "1", "--pool", "heavy=2")),
            (APP, ("--workers", "2", "--pool", "heavy=0")),
            (APP, ()),
            (unpooled, ("--workers", "2")),
            (APP, ("--workers", "1", "--pool", "heavy=1")),
        ]
    ):
        (folder / "app.py").write_text(app)
        expected = 101 * count
        with serving(folder, "serve", "app:app", *options) as server:
            for agent in agents:
                until(lambda agent=agent, expected=expected: call(server, agent, "add", 0) == expected)
                assert call(server, agent, "add", 1) == expected + 1
                call(server, agent, "later", 1.0 if count < 5 else 3600.0)  # the last are still due at the end
            assert server.stop() in (0, -signal.SIGTERM)
    counts: list[int] = []
    for index in sorted((folder / "sapwood-data").glob("alarms-*.db")):
        with sqlite3.connect(index) as database:
            counts += database.execute("SELECT count(*) FROM sapwood_node_alarms WHERE root <> ''").fetchone()
    assert counts == [4, 4]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--workers", "2"), "Press uses the pool 'heavy', which has no workers. Pass --pool heavy=1"),
        (("--workers", "2", "--pool", "heavy=1", "--pool", "huge=1"), "No root of the app uses the pool 'huge'"),
        (("--workers", "2", "--pool", "heavy"), "--pool must be name=count, such as --pool heavy=2"),
        (("--workers", "2", "--pool", "hevy=1"), "No root of the app uses the pool 'hevy'. Did you mean 'heavy'?"),
        (("--workers", "2", "--pool", "heavy=1", "--pool", "heavy=2"), "--pool 'heavy' is given twice"),
        (("--pool", "heavy=1"), "Add --workers 1 or more"),
    ],
)
def test_pools_that_make_no_sense_are_refused_at_the_start(folder: Path, options: tuple[str, ...], text: str) -> None:
    done = sapwood(folder, "serve", "app:app", "--port", "0", *options)

    assert done.returncode == 1
    assert text in done.stderr


def test_half_a_worker_is_refused(folder: Path) -> None:
    done = sapwood(folder, "serve", "app:app", "--port", "0", "--workers", "1.5", "--pool", "heavy=1")

    assert done.returncode == 2
    assert "Invalid value for --workers: Expected a whole number, got '1.5'." in done.stderr
