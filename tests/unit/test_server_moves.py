"""A root is moved to another server: at each moment one of them has it, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, cast

import httpx2
import pytest
from tests.machine import patience

from sapwood import After, Agent, App, expose
from sapwood.admin import destination
from sapwood.admin.door import AdminDoor
from sapwood.cli.commands import cli
from sapwood.errors import MovedAway, NotFound, Refused, SapwoodError, Unavailable, UsageError
from sapwood.kernel.node.data_folder import roots_in
from sapwood.storage.files import Files
from sapwood.testing import POINTS, World, running
from sapwood.testing.faults import Dead
from sapwood.timings import Timings
from sapwood.types import Address

pytestmark = pytest.mark.slow

THERE = "https://other.example"
TOKEN = "t" * 40
MOST = 80
"""Crashes at one point at most."""
QUICK = Timings(move_retry_delay=0.01, move_retry_most=0.05)


class Effects:
    done: ClassVar[list[str]] = []


class SmallBell(Agent):
    async def set(self) -> None:
        self.schedule(After(timedelta(hours=1), key="bell"), self.ring)

    async def ring(self) -> None:
        Effects.done.append("child rang")


class Stall(Agent):
    migrations = ("CREATE TABLE notes (n INTEGER NOT NULL UNIQUE, times INTEGER NOT NULL DEFAULT 1) STRICT",)

    @expose
    async def note(self, n: int) -> int:
        self.sql("INSERT INTO notes (n) VALUES (?) ON CONFLICT (n) DO UPDATE SET times = times + 1", n)
        await asyncio.sleep(0)
        return n

    async def notes(self) -> dict[int, int]:
        return {int(str(row["n"])): int(str(row["times"])) for row in self.sql("SELECT n, times FROM notes ORDER BY n")}

    async def set(self) -> None:
        self.schedule(After(timedelta(hours=1), key="bell"), self.ring)
        await (await self.sub_agent(SmallBell, "a")).set()

    async def ring(self) -> None:
        Effects.done.append("rang")

    async def keep(self, content: bytes) -> str:
        return self.files.keep(await self.files.put(content, media_type="application/octet-stream")).digest

    async def read(self, digest: str) -> bytes:
        return await self.files.get(digest)

    async def ask(self) -> None:
        self.start_fiber("ask", self.asks)

    async def asks(self) -> str:
        return str(await self.questions.ask("May I?", options=["yes", "no"]))

    async def answer(self) -> str:
        (question,) = await self.questions.list()
        await self.questions.answer(question, "yes")
        return str(await self.fibers.result("ask"))

    async def end(self) -> None:
        await self.destroy()

    mover: ClassVar[list[Callable[[], Any]]] = []

    async def leave(self) -> None:
        await self.mover[0]()


class Other(Agent):
    pass


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    Effects.done.clear()


class Pair:
    """Two servers: `here` moves trees to `there`."""

    def __init__(self, here: World, there: World) -> None:
        self.here, self.there = here, there
        self.asked: list[str] = []
        self.before: Callable[[str, Any], Any] = lambda _, __: None
        """Called with each request before it is sent: the endpoint, and its parameters."""
        self.after: Callable[[str, Any], Any] = lambda _, __: None
        """Called once it was answered."""

    def connected(self, url: str) -> httpx2.AsyncClient:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            body = b""
            while (message := await receive())["body"] or message.get("more_body"):
                body += message["body"]
            what, params = scope["path"].rpartition("/")[2], json.loads(body)
            what = params.get("do", what)
            self.asked.append(what)
            self.before(what, params)
            world = self.there if url == THERE else self.here

            async def again() -> Any:
                return {"type": "http.request", "body": body, "more_body": False}

            node = world.node
            task = asyncio.create_task(cast("Any", AdminDoor(world.app, lambda: node, TOKEN)(scope, again, send)))
            while not task.done() and not node.has_died:
                await asyncio.wait({task}, timeout=0.01)
            if node.has_died or isinstance(task.exception(), Dead):
                task.cancel()
                raise httpx2.ReadError("The process died.")
            self.after(what, task.result())

        return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=url)

    async def move(self, name: str = "main") -> None:
        await self.here.app.move(Stall, name, to=THERE, token=TOKEN)

    def roots(self) -> tuple[list[str], list[str]]:
        """Return the names of the roots that have data, here and there."""
        names = [[root.name for root in roots_in(world.data)] if world.data.exists() else [] for world in self.both]
        return names[0], names[1]

    @property
    def both(self) -> tuple[World, World]:
        return self.here, self.there


@asynccontextmanager
async def pair(
    monkeypatch: pytest.MonkeyPatch, there: App | None = None, **settings: Any
) -> AsyncGenerator[Pair, None]:
    async with AsyncExitStack() as stack:
        apps = App(agents=[Stall]), there or App(agents=[Stall])
        worlds = [await stack.enter_async_context(running(app, timings=QUICK, **settings)) for app in apps]
        found = Pair(*worlds)
        monkeypatch.setattr(destination, "connected", found.connected)
        yield found


async def shop(world: World, name: str = "main") -> Stall:
    return await world.get_agent(Stall, name)


async def test_a_tree_continues_at_the_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(monkeypatch) as two:
        here = await shop(two.here)
        await here.note(1)
        await here.set()
        digest = await here.keep(b"x" * 300_000)
        await here.ask()
        await two.here.settled()
        await two.move()
        assert two.roots() == ([], ["main"])
        there = await shop(two.there)
        assert await there.notes() == {1: 1}
        assert await there.read(digest) == b"x" * 300_000
        assert await there.answer() == "yes"
        with pytest.raises(MovedAway, match=f"{THERE}/agents/stall/main") as moved:
            await here.notes()
        assert moved.value.url == f"{THERE}/agents/stall/main"
        for world in two.both:
            await world.restart()
            await world.clock.advance(timedelta(hours=3))
        await two.there.until(lambda: len(Effects.done) == 2)
        assert sorted(Effects.done) == ["child rang", "rang"]
        assert list((two.there.data / "arriving").iterdir()) == []
        assert [path.suffix for path in (two.here.data / "moved").iterdir()] == [".json"]
        assert b"arrival-" not in next((two.here.data / "moved").iterdir()).read_bytes()


async def test_a_tree_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(monkeypatch) as two:
        await (await shop(two.here)).note(1)
        await two.move()
        await (await shop(two.there)).note(2)
        await two.there.app.move(Stall, "main", to="https://here.example", token=TOKEN)
        assert two.roots() == (["main"], [])
        assert await (await shop(two.here)).notes() == {1: 1, 2: 1}
        await two.move()
        assert await (await shop(two.there)).notes() == {1: 1, 2: 1}


async def test_calls_during_a_move_are_done_once_or_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(monkeypatch) as two:
        stub = await shop(two.here)
        done, lost, away = set[int](), set[int](), set[int]()

        async def load(first: int) -> None:
            for n in range(first, 4000, 10):
                try:
                    done.add(await stub.note(n))
                except MovedAway:
                    away.add(n)
                    return
                except Unavailable:
                    lost.add(n)
                await asyncio.sleep(0.001)

        loads = [asyncio.create_task(load(number)) for number in range(10)]
        await asyncio.sleep(0.05)
        await two.move()
        await asyncio.gather(*loads)
        notes = await (await shop(two.there)).notes()
        assert done <= set(notes) <= done | lost
        assert set(notes.values()) == {1}
        assert len(away) == 10
        assert len(lost) <= 10
        assert done


@pytest.mark.parametrize("what", ["receive", "arrival-parts", "check", "seal", "commit", "discard"])
async def test_a_move_continues_whatever_becomes_of_its_caller(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(monkeypatch) as two:
        await (await shop(two.here)).note(1)
        moving = asyncio.create_task(two.move())

        async def cancel_twice() -> None:
            moving.cancel()
            await asyncio.sleep(0)
            moving.cancel()

        two.before = lambda asked, _: asyncio.create_task(cancel_twice()) if asked == what else None
        with suppress(asyncio.CancelledError):
            await moving
        await two.there.until(lambda: two.roots() == ([], ["main"]) and two.asked[-1] == "discard")
        assert await (await shop(two.there)).notes() == {1: 1}
        with pytest.raises(MovedAway):
            await shop(two.here)


async def test_an_agent_moves_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(monkeypatch) as two:
        here = await shop(two.here)
        await here.note(1)
        monkeypatch.setattr(Stall, "mover", [two.move])
        with pytest.raises(Unavailable):
            await here.leave()
        await two.there.until(lambda: two.roots() == ([], ["main"]) and two.asked[-1] == "discard")
        assert await (await shop(two.there)).notes() == {1: 1}


async def test_a_server_stops_while_the_other_one_is_silent_and_its_next_start_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with pair(monkeypatch) as two:
        await (await shop(two.here)).note(1)

        def silent(asked: str, _: object) -> None:
            if asked == "commit":
                raise httpx2.ConnectError("cut off")

        two.before = silent
        with pytest.raises(Unavailable, match="has not confirmed it yet"):
            await two.move()
        for world, told in (
            (two.here, f"is being moved to {THERE}"),
            (two.there, "waits for the server that sends it"),
        ):
            cli(["doctor", "--data", str(world.data)])
            assert told in " ".join(capsys.readouterr().out.split())
        await two.here.restart()
        with pytest.raises(MovedAway):
            await shop(two.here)
        two.before = lambda _, __: None
        await two.there.until(lambda: two.asked[-1] == "discard")
        assert await (await shop(two.there)).notes() == {1: 1}


async def test_a_root_gets_no_other_name_while_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(monkeypatch) as two:
        await (await shop(two.here)).note(1)
        renames = list[Any]()

        def rename(asked: str, _: object) -> None:
            if asked == "check":
                renames.append(asyncio.create_task(two.here.app.move(Stall, "main", to="other")))

        two.before = rename
        await two.move()
        with pytest.raises(Unavailable, match="is being moved to another server"):
            await renames[0]
        assert two.roots() == ([], ["main"])


async def test_a_folder_whose_loss_is_not_durable_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(monkeypatch) as two:
        here = await shop(two.here)
        await here.note(1)
        files = type(two.here.node.files)
        sync, failed = files.sync_folder, list[Path]()

        def refuse(self: Any, path: Path) -> None:
            if path.name == "trees" and not failed:
                failed.append(path)
                raise OSError(5, "Input/output error")
            sync(self, path)

        monkeypatch.setattr(files, "sync_folder", refuse)
        with pytest.raises(Unavailable, match="disk reports an error"):
            await two.move()
        assert failed
        assert await here.notes() == {1: 1}
        await two.here.until(lambda: two.asked[-1] == "discard")
        await two.move()
        assert await (await shop(two.there)).notes() == {1: 1}


async def test_a_second_move_of_a_root_is_refused_while_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(monkeypatch) as two:
        await (await shop(two.here)).note(1)
        refused = list[Any]()

        def again(asked: str, _: object) -> None:
            if asked in ("check", "seal"):
                refused.append(asyncio.create_task(two.move()))

        two.before = again
        await two.move()
        for one in refused:
            with pytest.raises((Unavailable, NotFound)):
                await one
        assert two.asked.count("receive") == 1
        assert await (await shop(two.there)).notes() == {1: 1}


@pytest.mark.parametrize("what", ["receive", "arrival-parts", "check", "seal"])
async def test_a_move_that_the_other_server_fails_leaves_the_tree_here(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(monkeypatch) as two:
        here = await shop(two.here)
        await here.note(1)
        await here.set()

        def fail(asked: str, _: object) -> None:
            if asked == what:
                raise httpx2.ReadError("broken")

        two.after = fail  # it did what it was asked, and its answer is lost
        with pytest.raises(Unavailable):
            await two.move()
        two.after = lambda _, __: None
        assert await here.notes() == {1: 1}
        if what != "receive":  # who knows no ticket cannot give it back
            await two.here.until(lambda: two.asked[-1] == "discard")
            await two.here.settled()
            assert await (await shop(two.there)).notes() == {}
            await (await shop(two.there)).end()
        await two.here.clock.advance(timedelta(hours=2))
        await two.here.until(lambda: len(Effects.done) == 2)
        await two.move()
        assert await (await shop(two.there)).notes() == {1: 1}


async def test_an_answer_that_is_lost_behind_the_decision_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(monkeypatch) as two:
        await (await shop(two.here)).note(1)
        times: list[str] = []

        def fail(asked: str, _: object) -> None:
            times.append(asked)
            if asked == "commit" and times.count("commit") <= 3:
                raise httpx2.ReadError("broken")

        two.after = fail
        await two.move()
        assert times.count("commit") == 4
        assert await (await shop(two.there)).notes() == {1: 1}


async def test_a_sealed_tree_holds_its_address_until_the_other_server_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with pair(monkeypatch) as two:
        await (await shop(two.here)).note(1)
        await (await shop(two.there, "other")).note(9)
        await two.there.app.export(Stall, "other", file := tmp_path / "other.sapwood")
        reached = asyncio.Event()

        def block(asked: str, _: object) -> None:
            if asked == "commit":
                reached.set()
                raise httpx2.ConnectError("cut off")

        two.before = block
        moving = asyncio.create_task(two.move())
        await reached.wait()
        await two.there.restart()
        with pytest.raises(Unavailable, match="is being moved here"):
            await shop(two.there)
        with pytest.raises(Unavailable, match="is being moved here"):
            await two.there.app.import_(file, as_name="main")
        with pytest.raises(Unavailable, match="is being moved here"):
            await two.there.app.move(Stall, "other", to="main")
        with pytest.raises(MovedAway):
            await (await shop(two.here)).notes()
        two.before = lambda _, __: None
        await moving
        assert await (await shop(two.there)).notes() == {1: 1}


async def test_what_cannot_be_moved_is_refused_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(monkeypatch) as two:
        here = await shop(two.here)
        await here.note(1)
        with pytest.raises(UsageError, match="`token`"):
            await two.here.app.move(Stall, "main", to=THERE)
        with pytest.raises(UsageError, match="a URL"):
            await two.here.app.move(Stall, "main", to="other", token=TOKEN)
        with pytest.raises(Refused, match="needs the token"):
            await two.here.app.move(Stall, "main", to=THERE, token="x" * 40)
        with pytest.raises(UsageError, match="URL of a server"):
            await two.here.app.move(Stall, "main", to="ftp://x", token=TOKEN)
        with pytest.raises(NotFound, match="has no data"):
            await two.move("none")
        await (await shop(two.there)).note(5)
        with pytest.raises(UsageError, match="exists already at the other server"):
            await two.move()
        assert await here.notes() == {1: 1}
        assert await (await shop(two.there)).notes() == {5: 1}
    async with pair(monkeypatch, App(agents=[Other])) as two:
        await (await shop(two.here)).note(1)
        with pytest.raises(UsageError, match=r"not a root of the app at the other server. Its roots: Other\."):
            await two.move()
        assert two.roots() == (["main"], [])


async def test_data_that_does_not_fit_the_other_app_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    class Narrow(Agent[int]):
        initial_state = 0

    class Wide(Agent[str]):
        initial_state = ""

        async def put(self, text: str) -> None:
            self.set_state(text)

    narrow, wide = (type("Sign", (base,), {"__module__": __name__}) for base in (Narrow, Wide))
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(running(App(agents=[cast("Any", wide)]), timings=QUICK))
        there = await stack.enter_async_context(running(App(agents=[cast("Any", narrow)]), timings=QUICK))
        two = Pair(here, there)
        monkeypatch.setattr(destination, "connected", two.connected)
        await (await here.get_agent(cast("Any", wide), "main")).put("text")
        with pytest.raises(SapwoodError, match="does not fit the classes of the app at the other server"):
            await here.app.move(cast("Any", wide), "main", to=THERE, token=TOKEN)
        assert two.roots() == (["main"], [])


async def test_a_key_allows_only_its_own_move(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(monkeypatch) as two:
        await (await shop(two.there, "secret")).note(1)

        async def ask(what: str, key: str, **params: Any) -> int:
            async with two.connected(THERE) as client:
                head = {"authorization": f"Bearer {key}"}
                return (await client.post(f"/_sapwood/{what}", json=params, headers=head)).status_code

        keys = list[dict[str, str]]()
        for name in ("one", "two"):
            async with two.connected(THERE) as client:
                answer = await client.post(
                    "/_sapwood/receive",
                    json={"address": f"Stall:{name}"},
                    headers={"authorization": f"Bearer {TOKEN}"},
                )
                keys.append(answer.json())
        mine, other = keys
        step = {"address": "Stall:one", "id": mine["id"], "do": "discard"}
        assert await ask("arrival", other["key"], **step) == 403
        assert await ask("arrival", mine["key"][:-1] + "x", **step) == 401
        assert await ask("arrival", mine["key"], **step | {"address": "Stall:secret"}) == 403
        assert await ask("state", mine["key"], address="Stall:one") == 401
        assert await ask("destroy", mine["key"], address="Stall:one", name="one") == 401
        for name, start in (("../../x.db", 0), ("root.db/../../../x", 0), ("root.db", -1), ("address", 0)):
            parts = [[name, start, "aGk="]]
            write = {"address": "Stall:one", "id": mine["id"], "parts": parts}
            assert await ask("arrival-parts", mine["key"], **write) == 400, name
        assert await ask("arrival", mine["key"], **step | {"do": "commit"}) == 400
        assert await ask("arrival", mine["key"], **step) == 200
        assert await ask("arrival", mine["key"], **step) == 401


@pytest.mark.parametrize("durability", ["process", pytest.param("disk", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("dies", ["here", "there"])
@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_at_each_step_leaves_the_tree_whole_at_one_server(
    point: str, dies: str, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nth in range(1, MOST):
        Effects.done.clear()
        async with pair(monkeypatch, durability=durability) as two:
            await (await shop(two.here)).note(1)
            await (await shop(two.here)).set()
            world = two.here if dies == "here" else two.there
            before = world.points.passed[point]
            world.crash_at(point, nth)
            moving = asyncio.create_task(two.move())
            while not moving.done() and world.points.passed[point] < before + nth:
                await asyncio.sleep(0.001)
                await asyncio.to_thread(int)
            passed = world.points.passed[point] >= before + nth
            world.points.disarm()
            await world.crash()
            with suppress(SapwoodError, asyncio.CancelledError):
                await moving
            here, there = await answers(two)
            assert (here, there) in (({1: 1}, None), (None, {1: 1})), (point, nth, here, there)
            for one in two.both:
                await one.restart()
                await one.clock.advance(timedelta(hours=2))
            await two.there.until(lambda: len(Effects.done) >= 2)
            for one in two.both:
                await one.clock.advance(timedelta(hours=2))
            assert sorted(Effects.done) == ["child rang", "rang"], (point, nth)
            if here is not None:  # what is left of the move is in the way of none
                await two.move()
            assert await (await shop(two.there)).notes() == {1: 1}
            if not passed:
                assert here is None
                return
    raise AssertionError(f"The move passed {point!r} more than {MOST} times.")


async def answers(two: Pair) -> tuple[dict[int, int] | None, dict[int, int] | None]:
    """Return what the tree knows at each server, once the move is decided everywhere; `None` where it is not."""
    until = time.monotonic() + patience()
    while time.monotonic() < until:
        found = [await answer(world) for world in two.both]
        if "later" not in found:
            here, there = (cast("dict[int, int] | None", None if one in ("away", {}) else one) for one in found)
            return here, there
        await asyncio.sleep(0.01)
        await asyncio.to_thread(int)  # time of the loop is free, and the threads need some of the machine's
    raise AssertionError(f"The move is never decided: {two.asked[-5:]}.")


async def answer(world: World) -> dict[int, int] | str:
    if (world.data / "trees").exists() and Address.root_of("Stall", "main") in list(roots_in(world.data)):
        try:
            return await (await shop(world)).notes()
        except MovedAway:
            return "away"
        except Unavailable:
            return "later"
    moved = list((world.data / "moved").glob("*.json"))
    arriving = list((world.data / "arriving").glob("*/arrival.json"))
    return "later" if any(b"arrival-" in path.read_bytes() for path in moved) or arriving else "away"


async def test_a_full_disk_at_the_other_server_leaves_the_tree_here(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(monkeypatch) as two:
        here = await shop(two.here)
        await here.note(1)

        def full(self: Files, path: Path, content: bytes) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(type(two.there.node.files), "create", full)
            with pytest.raises(Unavailable, match="disk is full"):
                await two.move()
        assert await here.notes() == {1: 1}
