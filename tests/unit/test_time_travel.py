"""Forks, exports and rewinds as of a moment of the past."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.unit.histories import Node
from tests.unit.test_history import DAY, ROOT, Desk

from sapwood import After, App, agent
from sapwood.admin.door import AdminDoor
from sapwood.errors import NotFound, UsageError
from sapwood.kernel.history.moments import TreePast
from sapwood.kernel.history.recorder import HistoryRecorder
from sapwood.kernel.node import fork as forks
from sapwood.testing import World, running
from sapwood.types import BeforeTurn


async def test_a_fork_has_the_past_and_the_original_its_present() -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1")
        await node.grow("b")
        await node.mark("one child")
        await node.add("v2")
        await node.grow("c")
        await node.prune("b")
        (mark,) = [one for one in await world.app.moments(Node, "a") if one.kind == "mark"]
        for to, at in (("f1", "one child"), ("f2", mark)):
            fork = await world.app.fork(Node, "a", to=to, at=at)
            assert (fork.agents, fork.at) == (2, mark.at)
            copy = await world.get_agent(Node, to)
            assert (await copy.values(), await copy.below()) == (["v1"], ["b"])
            await copy.add("v3")
            assert await (await world.get_agent(Node, to, sub=((Node, "b"),))).values() == ["born b"]
        assert (await node.values(), await node.below()) == (["v1", "v2"], ["c"])
        child = await world.app.fork(Node, "a", to="f3", sub=[(Node, "b")], at="one child")
        assert (child.agents, await (await world.get_agent(Node, "f3")).values()) == (1, ["born b"])
        with pytest.raises(NotFound, match="Node:a/Node:c does not exist"):
            await world.app.fork(Node, "a", to="f4", sub=[(Node, "c")], at="one child")
        with pytest.raises(NotFound, match="a moment 'never'"):
            await world.app.fork(Node, "a", to="f4", at="never")


async def test_a_conversation_is_forked_before_a_turn() -> None:
    async with running(App(agents=[Desk]), history=DAY) as world:
        desk = await world.get_agent(Desk, "a")
        for number in range(2):
            await desk.turns.start(f"question {number}", id=f"t{number}")
            await desk.turns.wait(f"t{number}")
        for wrong in ("t1", BeforeTurn("t")):
            with pytest.raises(NotFound, match=r"Did you mean .* BeforeTurn\('t1'\), or `--at turn:t1`"):
                await world.app.fork(Desk, "a", to="b", at=wrong)
        with pytest.raises(NotFound, match=r"`--at turn:turn-12`"):
            await world.app.fork(Desk, "a", to="b", at="turn-12")
        await world.app.fork(Desk, "a", to="b", at=BeforeTurn("t1"))
        other = await world.get_agent(Desk, "b")
        assert (await other.look(), await desk.look()) == (2, 4)
        turn = await other.send("another question")
        assert turn.status == "completed"


@pytest.mark.slow
async def test_a_rewind_takes_a_tree_back_keeps_it_and_can_be_undone() -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "first")
        await node.grow("b")
        await node.add("v2", "second")
        done = await world.app.rewind(Node, "a", at="first", keep_as="before")
        assert (done.address, done.source, done.agents) == (ROOT, ROOT, 1)
        node = await world.get_agent(Node, "a")
        assert (await node.values(), await node.below()) == (["v1"], [])
        kept = await world.get_agent(Node, "before")
        assert (await kept.values(), await kept.below()) == (["v1", "v2"], ["b"])
        now = datetime.fromtimestamp(world.clock.now(), UTC)
        await world.app.fork(Node, "a", to="now", at=now)
        assert await (await world.get_agent(Node, "now")).values() == ["v1"]
        await node.add("v3", "third")
        await world.app.rewind(Node, "a", at="second")
        node = await world.get_agent(Node, "a")
        assert (await node.values(), await node.below()) == (["v1", "v2"], ["b"])
        assert [one.label for one in await world.app.moments(Node, "a")] == ["first", "second", "third"]
        with pytest.raises(UsageError, match="future"):
            await world.app.rewind(Node, "a", at=now + timedelta(days=1))


class MortalNode(Node):
    async def end(self) -> None:
        await self.destroy()


class Pause:
    """Holds up a function of a thread until the test continues it."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        self.over = threading.Event()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._loop.call_soon_threadsafe(self.reached.set)
        assert self.over.wait(10)
        return self._work(*args, **kwargs)


@pytest.mark.parametrize("step", ["history", "fork"])
async def test_a_tree_that_is_destroyed_during_its_rewind_stays_destroyed(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(App(agents=[MortalNode]), history=DAY) as world:
        node = await world.get_agent(MortalNode, "a")
        await node.add("v1", "first")
        await node.add("v2")
        pause = Pause(TreePast.read if step == "history" else forks.make_fork)
        if step == "history":
            monkeypatch.setattr(TreePast, "read", lambda past, place: pause(past, place))  # noqa: PLW0108 - it is a method
        else:
            monkeypatch.setattr(forks, "make_fork", pause)
        rewinding = asyncio.create_task(world.app.rewind(MortalNode, "a", at="first"))
        await pause.reached.wait()
        await node.end()
        await world.until(lambda: not any(path.suffix != ".copying" for path in (world.data / "trees").iterdir()))
        pause.over.set()
        with pytest.raises(NotFound, match="destroyed"):
            await rewinding
        await world.settled()
        assert list((world.data / "trees").iterdir()) == []
        assert await (await world.get_agent(MortalNode, "a")).values() == []


async def test_a_copy_that_was_not_put_in_its_place_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    async with running(App(agents=[Node])) as world:
        await (await world.get_agent(Node, "a")).add("v1")
        await world.app.move(Node, "a", to="b")
        before = set((world.data / "trees").iterdir())
        with pytest.raises(NotFound, match="Node:a was moved to Node:b"):
            await world.app.fork(Node, "b", to="a")
        await world.settled()
        assert set((world.data / "trees").iterdir()) == before
        assert not caplog.records


@pytest.mark.parametrize("how", ["fork", "import", "export"])
async def test_a_copy_whose_maker_is_cancelled_is_removed(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(App(agents=[Node])) as world:
        await (await world.get_agent(Node, "a")).add("v1")
        await world.app.export(Node, "a", tmp_path / "a")
        before = set((world.data / "trees").iterdir())
        pause = Pause(shutil.rmtree)
        monkeypatch.setattr(shutil, "rmtree", pause)
        ways: dict[str, Callable[[], Any]] = {
            "fork": lambda: world.app.fork(Node, "a", to="b"),
            "import": lambda: world.app.import_(tmp_path / "a", as_name="b"),
            "export": lambda: world.app.export(Node, "a", tmp_path / "b"),
        }
        making = asyncio.create_task(ways[how]())
        await pause.reached.wait()
        making.cancel()
        pause.over.set()
        with pytest.raises(asyncio.CancelledError):
            await making
        await world.settled()
        assert set((world.data / "trees").iterdir()) == before


async def test_a_rewind_to_no_moment_makes_no_copy() -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "first")
        await node.add("v2")
        with pytest.raises(NotFound, match="'frist'"):
            await world.app.rewind(Node, "a", at="frist", keep_as="kept")
        await world.app.rewind(Node, "a", at="first", keep_as="kept")
        assert await (await world.get_agent(Node, "kept")).values() == ["v1", "v2"]
        await node.add("v3")
        with pytest.raises(UsageError, match="Node:kept exists already"):
            await world.app.rewind(Node, "a", at="first", keep_as="kept")
        assert await (await world.get_agent(Node, "a")).values() == ["v1", "v3"]


class Ringer(Node):
    """Rings, and counts outside of what it stores."""

    rings = 0

    async def plan(self) -> None:
        self.schedule(After(timedelta(hours=1)), self.ring)
        self.history.mark("planned")

    async def ring(self) -> None:
        Ringer.rings += 1
        self.history.mark("rung")


async def test_work_that_was_done_since_is_not_done_again() -> None:
    Ringer.rings = 0
    async with running(App(agents=[Ringer]), history=DAY) as world:
        await (await world.get_agent(Ringer, "a")).plan()
        await world.clock.advance(7200)
        assert Ringer.rings == 1
        done = await world.app.rewind(Ringer, "a", at="planned")
        fork = await world.app.fork(Ringer, "a", to="b", at="planned")
        assert (done.held.calls, fork.held.calls) == (1, 1)
        await world.clock.advance(7200)
        assert Ringer.rings == 1


async def test_an_export_has_the_past(tmp_path: Path) -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "first")
        await node.add("v2")
        assert await world.app.export(Node, "a", tmp_path / "a.sapwood", at="first") == 1
        await world.app.import_(tmp_path / "a.sapwood", as_name="b")
        assert await (await world.get_agent(Node, "b")).values() == ["v1"]


@agent(type="traveller-once")
class Once(Node):
    pass


@agent(type="traveller-today", aliases=("traveller-once",))
class Today(Node):
    pass


@pytest.mark.parametrize("how", ["fork", "import", "move", "read"])
async def test_an_agent_that_is_stored_under_a_former_type_exists(how: str, tmp_path: Path) -> None:
    async with running(App(agents=[Once]), history=DAY) as world:
        await (await world.get_agent(Once, "a")).add("v1", "first")
        for types in (Once, Today):  # the first start writes down which trees it knows, so the second opens none
            await world.app.__aexit__()
            world._given = App(agents=[types])  # pyright: ignore[reportPrivateUsage]
            await world.start()
            await world.clock.advance(60)
        if how == "read":
            assert [one.label for one in await world.app.moments(Today, "a")] == ["first"]
            await world.app.rewind(Today, "a", at="first")
            await world.app.fork(Today, "a", to="b")
            assert await (await world.get_agent(Today, "b")).values() == ["v1"]
        else:
            await (await world.get_agent(Today, "other")).add("v2")
            await world.app.export(Today, "other", tmp_path / "other")
            ways = {
                "fork": lambda: world.app.fork(Today, "other", to="a"),
                "import": lambda: world.app.import_(tmp_path / "other", as_name="a"),
                "move": lambda: world.app.move(Today, "other", to="a"),
            }
            with pytest.raises(UsageError, match="traveller-today:a exists already"):
                await ways[how]()
        assert await (await world.get_agent(Today, "a")).values() == ["v1"]


@pytest.mark.parametrize("how", ["fork", "export"])
async def test_an_agent_that_is_stored_under_a_former_type_is_copied(how: str, tmp_path: Path) -> None:
    async with running(App(agents=[Once])) as world:
        await (await world.get_agent(Once, "a")).add("v1")
        for types in (Once, Today):
            await world.app.__aexit__()
            world._given = App(agents=[types])  # pyright: ignore[reportPrivateUsage]
            await world.start()
            await world.clock.advance(60)
        if how == "fork":
            await world.app.fork(Today, "a", to="b")
        else:
            await world.app.export(Today, "a", tmp_path / "a")
            await world.app.import_(tmp_path / "a", as_name="b")
        assert await (await world.get_agent(Today, "b")).values() == ["v1"]


async def test_a_forgotten_past_is_gone_and_a_new_one_begins() -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "first")
        recorder = world.node.history
        assert isinstance(recorder, HistoryRecorder)
        recorder.forget(ROOT)
        with pytest.raises(NotFound):
            await world.app.fork(Node, "a", to="b", at="first")
        await node.add("v2", "second")
        await world.app.fork(Node, "a", to="b", at="second")
        assert await (await world.get_agent(Node, "b")).values() == ["v1", "v2"]


async def asked(world: World, what: str, **params: object) -> tuple[int, dict[str, Any]]:
    """Ask the admin API."""
    transport = httpx2.ASGITransport(app=AdminDoor(world.app, lambda: world.node, "t" * 40))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1/_sapwood") as client:
        response = await client.post(f"/{what}", json=params, headers={"authorization": f"Bearer {'t' * 40}"})
        return response.status_code, response.json()


@pytest.mark.slow
async def test_operators_list_moments_fork_and_rewind() -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "first")
        await node.grow("b")
        child = await world.get_agent(Node, "a", sub=((Node, "b"),))
        await child.mark("in the child")
        _, every = await asked(world, "moments", address="Node:a")
        _, below = await asked(world, "moments", address="Node:a/Node:b")
        assert [one["label"] for one in every["moments"]] == ["first", "in the child"]
        assert [one["label"] for one in below["moments"]] == ["in the child"]
        place = {"place": every["moments"][0]["place"]}
        for to, at in (("f1", "first"), ("f2", place), ("f3", world.clock.now())):
            status, fork = await asked(world, "fork", address="Node:a", to=to, at=at)
            assert (status, fork["agents"]) == (200, 2 if to == "f3" else 1), fork
        status, done = await asked(world, "rewind", address="Node:a", at=place, keep_as="kept")
        assert (status, done["agents"]) == (200, 1), done
        assert await (await world.get_agent(Node, "kept")).below() == ["b"]
        status, refused = await asked(world, "rewind", address="Node:a", at={"moon": "full"})
        assert (status, refused["code"]) == (400, "invalid_arguments")
        status, refused = await asked(world, "rewind", address="Node:a", at={"turn": "never"})
        assert (status, refused["code"]) == (404, "not_found")


class PlannedNode(Node):
    async def plan(self) -> None:
        self.schedule(After(timedelta(hours=1), key="later"), self.add, "later")
        self.history.mark("planned")


async def test_a_call_that_a_rewind_holds_says_so_and_its_replay_says_when_it_is_due() -> None:
    async with running(App(agents=[PlannedNode]), history=DAY) as world:
        node = await world.get_agent(PlannedNode, "a")
        await node.plan()
        due = datetime.fromtimestamp(world.clock.now() + 3600, UTC).isoformat(timespec="seconds")
        _, done = await asked(world, "rewind", address="PlannedNode:a", at="planned")
        assert done["held"]["calls"] == 1
        _, found = await asked(world, "dead-letters", address="PlannedNode:a")
        (letter,) = found["letters"]
        assert letter["error"].startswith("The agent was rewound, so the call is held.")
        _, answer = await asked(world, "dead-letters", address="PlannedNode:a", replay=letter["id"])
        assert answer == {"done": 1, "later": [due]}
