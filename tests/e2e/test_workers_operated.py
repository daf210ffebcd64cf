"""What an operator does to a server of several workers: it is done wherever the agents are."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command import PATIENCE, Server, said_by, sapwood, serving

from sapwood import Refused, SapwoodError
from sapwood.cli import remote
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.runtimes.workers.placement import ShardPlan, WorkerPart
from sapwood.types import Address

APP = """
import os

from sapwood import Agent, App, ChatAgent, expose
from sapwood.testing import ScriptedModel, text


class Clerk(ChatAgent):
    model = ScriptedModel(text("It is sold."))


class Sold(Exception):
    def __init__(self, item: str, *, price: int) -> None:
        super().__init__(f"{item} is sold")
        self.item = item
        self.price = price


class Porter(Agent):
    async def on_run(self, what: str) -> str:
        return f"{what} is carried"


class Shop(Agent[int]):
    initial_state = 0

    @expose
    async def add(self, by: int) -> int:
        self.set_state(self.state + by)
        return self.state

    async def process(self) -> int:
        return os.getpid()

    async def sell(self, item: str) -> None:
        raise Sold(item, price=3)

    async def sell_later(self, item: str) -> None:
        self.enqueue(self.sell, item)

    async def buy_from(self, name: str) -> list[str | int]:
        try:
            await (await self.get_agent(Shop, name)).sell("a chair")
        except Sold as error:
            return [str(error), error.item, error.price]
        return []

    async def carry(self, what: str) -> str:
        return str((await self.run_agent(Porter, what)).output)

    async def ask_clerk(self) -> str:
        return (await (await self.sub_agent(Clerk, "c")).send("Is it sold?")).text

    async def compute(self) -> None:
        while True:
            pass

    async def release(self, name: str) -> None:
        app.release(Shop, name)


app = App(agents=[Shop])
"""
TWO = ("serve", "app:app", "--workers", "2", "--grace", "5")
NAMES = [f"s{number}" for number in range(20)]
HERE = next(name for name in NAMES if WorkerPart(0, ShardPlan(2)).is_here(Address.root_of("Shop", name)))
THERE = next(name for name in NAMES if WorkerPart(1, ShardPlan(2)).is_here(Address.root_of("Shop", name)))
BOTH = (HERE, THERE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def two(folder: Path) -> Iterator[Server]:
    with serving(folder, *TWO) as server:
        yield server


def call(folder: Path, name: str, method: str, *arguments: Any) -> Any:
    """Call a method as `sapwood call` does, without a process for it."""
    data = str(folder / "sapwood-data")
    (result,) = remote.ask_lines(data, "call", address=f"Shop:{name}", method=method, arguments=arguments)
    return result


def letters(folder: Path) -> dict[str, str]:
    """Return what each agent has given up, by its address."""
    found = remote.ask(str(folder / "sapwood-data"), "dead-letters")["letters"]
    return {letter["agent"]: letter["error"] for letter in found}


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "It did not happen."
        time.sleep(0.02)


@pytest.mark.nightly
@pytest.mark.usefixtures("two")
def test_the_spending_of_the_trees_of_all_workers_is_added_up(folder: Path) -> None:
    for name in BOTH:
        assert call(folder, name, "ask_clerk") == "It is sold."
    call(folder, THERE, "ask_clerk")

    told = json.loads(said_by(folder, "spending", "--limit", "1", "--by", "class", "--json"))
    one = json.loads(said_by(folder, "spending", f"Shop:{HERE}/Clerk:c", "--json"))

    assert [(tree["address"], tree["requests"]) for tree in told["trees"]] == [(f"Shop:{THERE}", 2)]
    assert (told["count"], told["unanswered"]) == (2, [])
    assert [(row["class"], row["requests"], row["cost"]) for row in told["by_class"]] == [("Clerk", 3, None)]
    assert [(row["model"], row["requests"]) for row in one["by_model"]] == [("scripted", 1)]


@pytest.mark.nightly
@pytest.mark.usefixtures("two")
def test_all_trees_are_backed_up_and_put_back_or_a_single_one(folder: Path) -> None:
    for name in BOTH:
        call(folder, name, "add", 1)

    assert "Copied 2 trees" in said_by(folder, "backup", "all")
    assert "Copied 1 tree " in said_by(folder, "backup", "one", f"Shop:{THERE}")
    for name in BOTH:
        call(folder, name, "add", 10)
    assert "Restored 1 tree " in said_by(folder, "restore", "one", f"Shop:{THERE}")
    assert [call(folder, name, "add", 0) for name in BOTH] == [11, 1]
    assert "Restored 2 trees" in said_by(folder, "restore", "all")
    assert [call(folder, name, "add", 0) for name in BOTH] == [1, 1]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("bad", BOTH)
def test_damage_is_told_and_contained_whichever_worker_has_the_tree(folder: Path, bad: str) -> None:
    data = folder / "sapwood-data"
    with serving(folder, *TWO):
        for name in BOTH:
            call(folder, name, "add", 1)
        said_by(folder, "backup", "copy")
    file = tree_folder(data, Address.root_of("Shop", bad)) / "root.db"
    file.write_bytes(b"\xff" * file.stat().st_size)
    file.with_name("root.db-wal").unlink()  # it has all pages, and SQLite would not look at the file
    (data / "trees" / "notes.txt").write_text("stray")
    for index in data.glob("alarms*.db"):
        index.write_bytes(b"\xff" * 5000)
    good = next(name for name in BOTH if name != bad)

    with serving(folder, *TWO):
        seen = json.loads(said_by(folder, "tree", "--json"))
        verified = sapwood(folder, "verify")
        copied = sapwood(folder, "backup", "second")

        assert [entry["path"] for entry in seen["odd"]] == ["trees/notes.txt"]
        errors = {root["address"]: root["last_error"] for root in seen["roots"]}
        assert errors[f"Shop:{good}"] is None
        assert "not a database" in errors[f"Shop:{bad}"]
        assert (verified.returncode, copied.returncode) == (1, 1)
        assert "1 tree is intact, 1 not." in verified.stdout
        assert "Copied 1 tree to" in copied.stdout
        for said in (verified.stderr, copied.stderr):
            assert f"Shop:{bad} is damaged. " in said
            assert "trees/notes.txt is not a folder" in said
        assert call(folder, good, "add", 1) == 2

        assert "Restored 1 tree " in said_by(folder, "restore", "copy", f"Shop:{bad}")
        assert call(folder, bad, "add", 0) == 1
        assert "2 trees are intact." in said_by(folder, "verify")


@pytest.mark.nightly
@pytest.mark.usefixtures("two")
def test_dead_letters_and_runs_are_shown_and_replayed_and_deleted_wherever_they_are(folder: Path) -> None:
    for name in BOTH:
        assert call(folder, name, "carry", "wood") == "wood is carried"
        call(folder, name, "sell_later", "a table")
    given_up = {f"Shop:{name}": "app.Sold: a table is sold" for name in BOTH}
    until(lambda: letters(folder) == given_up)

    shown = json.loads(said_by(folder, "dead-letters", "--json"))["letters"]
    runs = [json.loads(said_by(folder, "runs", f"Shop:{name}", "--json"))["runs"] for name in BOTH]

    assert {letter["agent"] for letter in shown} == set(given_up)
    assert [[run["status"] for run in of_one] for of_one in runs] == [["completed"], ["completed"]]
    assert "Replayed 1 dead letter" in said_by(folder, "dead-letters", f"Shop:{THERE}", "--replay", "all")
    until(lambda: letters(folder) == given_up)
    for name in BOTH:
        assert "Deleted 1 dead letter" in said_by(folder, "dead-letters", f"Shop:{name}", "--delete", "all")
    assert said_by(folder, "dead-letters") == "There are no dead letters.\n"


@pytest.mark.promise("CF-143")
def test_methods_are_listed_by_the_worker_that_has_the_agent(two: Server, folder: Path) -> None:
    for name in BOTH:
        call(folder, name, "add", 1)

        for _ in range(4):  # connections may be accepted by either worker
            status, text = two.get(f"/agents/shop/{name}/methods")
            assert (status, [method["name"] for method in json.loads(text)["methods"]]) == (200, ["add"])
        assert "add(by: integer) -> integer" in said_by(folder, "methods", f"Shop:{name}")


@pytest.mark.usefixtures("two")
def test_an_exception_of_the_app_s_own_is_caught_by_its_class_in_another_worker(folder: Path) -> None:
    assert call(folder, HERE, "buy_from", THERE) == ["a chair is sold", "a chair", 3]
    assert call(folder, THERE, "buy_from", HERE) == ["a chair is sold", "a chair", 3]


@pytest.mark.nightly
def test_a_worker_that_does_not_answer_is_named_and_the_others_are_shown(two: Server, folder: Path) -> None:
    for name in BOTH:
        call(folder, name, "add", 1)
    stuck = call(folder, THERE, "process")
    os.kill(stuck, signal.SIGSTOP)
    try:
        tree = said_by(folder, "tree")
        dead = sapwood(folder, "dead-letters")
    finally:
        os.kill(stuck, signal.SIGCONT)

    assert f"Shop:{HERE}" in tree
    assert f"Shop:{THERE}" not in tree
    assert "worker 1 does not answer: its trees are missing" in tree
    assert dead.stderr == "Worker 1 does not answer: the dead letters of its trees are missing.\n"
    assert "does not answer" not in said_by(folder, "tree")


@pytest.mark.nightly
def test_a_backup_is_refused_soon_while_a_worker_does_not_answer_and_leaves_nothing(two: Server, folder: Path) -> None:
    for name in BOTH:
        call(folder, name, "add", 1)
    stuck = call(folder, THERE, "process")
    said_by(folder, "backup", "before")
    os.kill(stuck, signal.SIGSTOP)
    try:
        refused = [sapwood(folder, *asked) for asked in (("backup", "copy"), ("restore", "before"))]
    finally:
        os.kill(stuck, signal.SIGCONT)

    for one in refused:
        assert one.returncode == 1
        assert one.stderr.startswith(
            "error: Worker 1 does not answer, and no other process may access the files of its"
        )
    assert not (folder / "copy").exists()
    assert "Copied 2 trees" in said_by(folder, "backup", "copy")


@pytest.mark.nightly
def test_a_tree_is_held_back_over_restarts_until_it_is_released_in_any_worker(folder: Path) -> None:
    limits = {"SAPWOOD_SLOW_AFTER": "0.2", "SAPWOOD_STUCK_AFTER": "0.5", "SAPWOOD_FATAL_AFTER": "1.5"}
    with serving(folder, *TWO, SAPWOOD_STRIKES="2", **limits) as two:
        call(folder, THERE, "add", 5)
        for strike in range(2):
            heard = len(two.said)
            with pytest.raises(SapwoodError):
                call(folder, THERE, "compute")
            two.wait_for(re.compile(r"worker 1 .* exited with code 70; restarting it"), after=heard)
            if not strike:
                assert call(folder, THERE, "add", 0) == 5

        for name, method, argument in ((THERE, "add", 1), (HERE, "buy_from", THERE)):
            with pytest.raises(Refused, match="is in quarantine"):
                call(folder, name, method, argument)
        assert [call(folder, HERE, "add", 1), two.stop()] == [1, 0]

    with serving(folder, *TWO, SAPWOOD_STRIKES="2") as two:
        with pytest.raises(Refused, match="is in quarantine"):
            call(folder, THERE, "add", 1)

        call(folder, HERE, "release", THERE)

        assert call(folder, THERE, "add", 1) == 6


@pytest.mark.nightly
def test_sapwood_release_lets_a_tree_run_again_whichever_worker_has_it_and_without_a_server(folder: Path) -> None:
    with serving(folder, *TWO) as two:
        for name in BOTH:
            call(folder, name, "add", 5)
        assert two.stop() == 0
    strike(folder, *BOTH)
    assert said_by(folder, "release", f"Shop:{HERE}").startswith(f"Released Shop:{HERE}")
    strike(folder, HERE)

    with serving(folder, *TWO):
        for name in BOTH:
            with pytest.raises(Refused, match=f"is in quarantine.*`sapwood release Shop:{name}` releases it"):
                call(folder, name, "add", 1)

            said_by(folder, "release", f"Shop:{name}/Porter:x")

            assert call(folder, name, "add", 1) == 6
        again = sapwood(folder, "release", f"Shop:{HERE}")

    assert (again.returncode, again.stderr) == (1, f"error: Shop:{HERE} is not in quarantine, and has no strikes.\n")


def strike(folder: Path, *names: str) -> None:
    """Have trees in quarantine, as if they had blocked their process."""
    with (folder / "sapwood-data" / "strikes.jsonl").open("a") as file:
        file.writelines(f"{json.dumps({'root': f'Shop:{name}', 'at': time.time()})}\n" for name in names * 3)


def test_dev_says_that_it_runs_one_process(folder: Path) -> None:
    done = sapwood(folder, "dev", "app:app", "--workers", "2")

    assert (done.returncode, done.stderr) == (
        1,
        "error: `sapwood dev` runs one process and takes no --workers. Use `sapwood serve … --workers N`.\n",
    )
