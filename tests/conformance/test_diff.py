"""Two trees are compared while they run, whichever nodes run them, and each as it is at one moment."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.worlds import Run

from sapwood import After, Agent, App, ChatAgent, Every, NotFound, Retry
from sapwood.admin.admin import Admin
from sapwood.cli.remote import answer_here
from sapwood.errors import InvalidArguments, InvalidName, UsageError
from sapwood.kernel.comparison import comparison
from sapwood.kernel.node.data_folder import COPYING
from sapwood.testing import ScriptedModel, World, text
from sapwood.testing import running as running_here
from sapwood.types import BeforeTurn, Change, TreeDiff

pytestmark = pytest.mark.slow  # each diff starts a process that copies


class DiffLeaf(Agent[list[int]]):
    initial_state: list[int] = []  # noqa: RUF012 - never changed in place
    migrations = ("CREATE TABLE notes (number INTEGER PRIMARY KEY, text TEXT) STRICT",)

    async def note(self, number: int, text: str) -> None:
        self.sql("INSERT OR REPLACE INTO notes VALUES (?, ?)", number, text)
        self.set_state([*self.state, number])

    async def remind(self, seconds: int) -> None:
        self.schedule(After(timedelta(seconds=seconds)), self.note, 1, "x")


class DiffBranch(Agent):
    async def note(self, leaf: str, number: int, text: str) -> None:
        await (await self.sub_agent(DiffLeaf, leaf)).note(number, text)


class DiffTrunk(Agent):
    migrations = ("CREATE TABLE notes (number INTEGER PRIMARY KEY, text TEXT) STRICT",)

    async def note(self, number: int, text: str, leaf: str = "l") -> None:
        """First here, then two levels down: the leaf never knows what the trunk does not."""
        self.sql("INSERT OR REPLACE INTO notes VALUES (?, ?)", number, text)
        await (await self.sub_agent(DiffBranch, "b")).note(leaf, number, text)

    async def remind(self, seconds: int) -> None:
        branch = await self.sub_agent(DiffLeaf, "own")
        await branch.remind(seconds)


NAMES = ("a", "b", "c")
"""Roots, of which some are on different nodes."""


def changes(found: TreeDiff) -> dict[tuple[str, str, str | None], tuple[Change, ...]]:
    return {(agent.path, part.kind, part.name): part.changes for agent in found.agents_changed for part in agent.parts}


def leftovers(world: World) -> list[Path]:
    return [path for path in world.data.rglob(f"*{COPYING}") if path.is_dir()]


@pytest.mark.core("workers", "cluster")
async def test_what_differs_three_levels_down_is_told_wherever_the_trees_run(run: Run) -> None:
    async with run(DiffTrunk) as world:
        for name in NAMES:
            trunk = await world.get_agent(DiffTrunk, name)
            await trunk.note(1, "one")
            await trunk.note(2, f"two of {name}" if name != "a" else "two")
        await trunk.note(3, "three", leaf="more")

        for name in NAMES[1:]:
            found = await world.app.diff((DiffTrunk, "a"), (DiffTrunk, name))

            notes = (Change("changed", "2", {"text": "two"}, {"text": f"two of {name}"}),)
            new = (Change("only_b", "3", None, {"number": 3, "text": "three"}),) if name == NAMES[-1] else ()
            assert changes(found) == {
                ("", "table", "notes"): new + notes,
                ("DiffBranch:b/DiffLeaf:l", "table", "notes"): notes,
            }
            assert (found.both, found.changed, found.only_a) == (3, 2, 0)
            assert found.agents_only_b == (("DiffBranch:b/DiffLeaf:more",) if name == NAMES[-1] else ())

        below = await world.app.diff("DiffTrunk:a/DiffBranch:b", "DiffTrunk:b/DiffBranch:b")
        assert [agent.path for agent in below.agents_changed] == ["DiffLeaf:l"]
        assert leftovers(world) == []


async def test_each_tree_is_compared_as_it_is_at_one_moment_while_it_is_written(run: Run) -> None:
    async with run(DiffTrunk) as world:
        trunk, other = await world.get_agent(DiffTrunk, "a"), await world.get_agent(DiffTrunk, "b")
        await other.note(0, "zero")
        is_done = False

        async def write() -> int:
            number = 0
            while not is_done:
                await trunk.note(number, "x")
                number += 1
            return number

        await trunk.note(0, "zero")
        writing = asyncio.create_task(write())
        same = await world.app.diff("DiffTrunk:a", "DiffTrunk:a", limit=500)
        found = await world.app.diff("DiffTrunk:a", "DiffTrunk:b", limit=500)
        is_done = True
        assert await writing > 0

        assert same.is_empty
        only_a = {place: {one.key for one in rows} for place, rows in changes(found).items() if place[1] == "table"}
        if ("DiffBranch:b/DiffLeaf:l", "table", "notes") in only_a:
            assert only_a["DiffBranch:b/DiffLeaf:l", "table", "notes"] <= only_a["", "table", "notes"]


async def test_what_an_agent_has_yet_to_do_is_no_difference_and_none_is_woken(run: Run) -> None:
    async with run(DiffTrunk) as world:
        for name, seconds in (("a", 60), ("b", 90)):
            await (await world.get_agent(DiffTrunk, name)).remind(seconds)
        await world.settled()
        await world.restart()

        found = await world.app.diff((DiffTrunk, "a"), (DiffTrunk, "b"))

        assert found.is_empty, found
        assert found.both == 2
        nodes: list[Any] = getattr(world, "nodes", [world.node])
        assert not any(tree.actors for node in nodes for tree in getattr(node, "trees", {}).values())


async def test_agents_that_cannot_be_compared_are_refused_with_a_sentence(run: Run) -> None:
    async with run(DiffTrunk) as world:
        await (await world.get_agent(DiffTrunk, "a")).note(1, "one")
        with pytest.raises(NotFound, match="DiffTrunk:nobody has no data"):
            await world.app.diff((DiffTrunk, "a"), (DiffTrunk, "nobody"))
        with pytest.raises(NotFound, match="DiffTrunk:a/DiffBranch:x does not exist: DiffTrunk:a has no such child"):
            await world.app.diff("DiffTrunk:a/DiffBranch:x/DiffLeaf:y", (DiffTrunk, "a"))
        with pytest.raises(InvalidName):
            await world.app.diff("DiffTrunk", (DiffTrunk, "a"))
        with pytest.raises(UsageError, match="Expected an address"):
            await world.app.diff(DiffTrunk, (DiffTrunk, "a"))  # type: ignore[arg-type]
        with pytest.raises(InvalidArguments, match="`limit` must be from 1 to 500, got 0"):
            await world.app.diff((DiffTrunk, "a"), (DiffTrunk, "a"), limit=0)
        assert leftovers(world) == []


async def test_a_cancelled_diff_leaves_no_copy(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run(DiffTrunk) as world:
        await (await world.get_agent(DiffTrunk, "a")).note(1, "one")
        begun, real = asyncio.Event(), comparison.Comparison.run
        loop = asyncio.get_running_loop()

        def slow(self: comparison.Comparison) -> TreeDiff:
            loop.call_soon_threadsafe(begun.set)
            self.cancelled.wait(60)
            return real(self)

        monkeypatch.setattr(comparison.Comparison, "run", slow)
        asked = asyncio.create_task(world.app.diff("DiffTrunk:a", "DiffTrunk:a"))
        await begun.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert leftovers(world) == []
        monkeypatch.undo()
        assert (await world.app.diff("DiffTrunk:a", "DiffTrunk:a")).is_empty


class DiffClerk(ChatAgent[str, list[int]]):
    """Has everything that an agent can have."""

    initial_state: list[int] = []  # noqa: RUF012 - never changed in place
    migrations = ("CREATE TABLE notes (number INTEGER PRIMARY KEY, text TEXT) STRICT",)
    model = ScriptedModel(text("Done."), each=True)

    async def fill(self) -> None:
        self.sql("INSERT INTO notes VALUES (1, 'one')")
        self.set_state([1])
        await self.files.put(b"note", name="note.txt", media_type="text/plain")
        await (await self.sub_agent(DiffLeaf, "l")).note(1, "one")
        self.schedule(After(timedelta(hours=1)), self.fail)
        self.schedule(Every(timedelta(hours=2)), self.fail)
        self.queues.default.with_retry(Retry(max_attempts=1)).add(self.fail)
        self.start_fiber("ask", self.ask)

    async def hire(self, name: str) -> None:
        await self.sub_agent(DiffLeaf, name)

    async def ask(self) -> str:
        return await self.questions.ask("Which?", options=["this", "that"])

    async def fail(self) -> None:
        raise ValueError("failed")


async def test_forks_of_one_moment_do_not_differ_until_one_of_them_is_changed(run: Run) -> None:
    async with run(DiffClerk) as world:
        clerk = await world.get_agent(DiffClerk, "main")
        await clerk.send("Please.")
        await clerk.fill()
        await world.settled()
        one, two = [await world.app.fork(DiffClerk, "main", to=name) for name in ("main~1", "main~2")]
        for name in (one.name, two.name):  # what they do when they wake is no difference
            await world.get_agent(DiffClerk, name)
        await world.settled()

        assert (await world.app.diff(one.address, two.address)).is_empty
        same = await world.app.diff((DiffClerk, "main"), one.address)
        assert (same.both, same.is_empty) == (2, True), same

        await (await world.get_agent(DiffClerk, two.name)).send("And now?")
        await (await world.get_agent(DiffClerk, two.name, sub=[(DiffLeaf, "l")])).note(2, "two")
        await (await world.get_agent(DiffClerk, two.name)).hire("m")
        found = await world.app.diff((DiffClerk, "main"), two.address)
        assert {(place[0], place[1]) for place in changes(found)} == {
            ("", "messages"),
            ("", "spending"),
            ("DiffLeaf:l", "table"),
            ("DiffLeaf:l", "state"),
        }
        assert found.agents_only_b == ("DiffLeaf:m",)
        assert (await world.app.diff((DiffClerk, "main"), one.address)).is_empty


async def test_two_moments_of_one_agent_are_compared() -> None:
    async with running_here(App(agents=[DiffClerk]), history=86400.0) as world:
        clerk = await world.get_agent(DiffClerk, "main")
        await clerk.hire("l")
        for number in (1, 2):
            leaf = await world.get_agent(DiffClerk, "main", sub=[(DiffLeaf, "l")])
            await leaf.note(number, "x")
            turn = await clerk.send("Please.")

        found = await world.app.diff((DiffClerk, "main"), (DiffClerk, "main"), a_at=BeforeTurn(turn.id))
        assert {(place[0], place[1]) for place in changes(found)} == {("", "messages"), ("", "spending")}
        assert [one.kind for one in changes(found)["", "messages", None]] == ["only_b"] * 2

        first = next(one for one in await world.app.moments(DiffClerk, "main") if one.kind == "before_turn")
        found = await world.app.diff(
            "DiffClerk:main/DiffLeaf:l", "DiffClerk:main/DiffLeaf:l", a_at=first, b_at=BeforeTurn(turn.id)
        )
        assert changes(found)["", "table", "notes"] == (Change("only_b", "2", None, {"number": 2, "text": "x"}),)
        assert leftovers(world) == []


class DiffVault(Agent):
    migrations = (
        "CREATE TABLE keys (api_key TEXT PRIMARY KEY, uses INTEGER) STRICT",
        "CREATE TABLE parts (number INTEGER, token TEXT, uses INTEGER, PRIMARY KEY (number, token)) STRICT",
    )

    async def note(self, key: str, uses: int) -> None:
        self.sql("INSERT INTO keys VALUES (?, ?)", key, uses)
        self.sql("INSERT INTO parts VALUES (7, ?, ?)", key, uses)


async def test_an_operator_sees_no_secret_that_is_a_key() -> None:
    async with running_here(App(agents=[DiffVault])) as world:
        for name, uses in (("a", 1), ("b", 2)):
            vault = await world.get_agent(DiffVault, name)
            await vault.note("sk-both", uses)
            await vault.note(f"sk-{name}", uses)
        admin = Admin(world.node)
        found = await answer_here("diff", {"address": "DiffVault:a", "other": "DiffVault:b"}, admin)
    assert "sk-" not in str(found)
    keys = {change["key"] for part in found["agents_changed"][0]["parts"] for change in part["changes"]}
    assert keys == {"<redacted>", '[7,"<redacted>"]'}


async def test_an_erasure_waits_for_a_diff_with_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    go, reached, run = threading.Event(), threading.Event(), comparison.Comparison.run

    def late(self: comparison.Comparison) -> TreeDiff:
        reached.set()
        go.wait(20)
        return run(self)

    monkeypatch.setattr(comparison.Comparison, "run", late)
    async with running_here(App(agents=[DiffTrunk])) as world:
        for name in ("a", "b"):
            await (await world.get_agent(DiffTrunk, name)).note(1, f"secret of {name}")
        found = asyncio.create_task(world.app.diff((DiffTrunk, "a"), (DiffTrunk, "b")))
        await asyncio.to_thread(reached.wait, 20)
        erasure = asyncio.create_task(world.app.erase(DiffTrunk, "b"))
        done, _ = await asyncio.wait({erasure}, timeout=0.5)
        assert not done
        go.set()
        assert not (await found).is_empty
        await erasure
        left = [path for path in world.data.rglob("*") if path.is_file() and b"secret of b" in path.read_bytes()]
        assert left == []
