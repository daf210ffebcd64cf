"""Whatever ends, and however oddly: whoever waits is answered, and nothing is left half done."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.conformance.worlds import Branch, Probe, Run, below, happens, until
from tests.machine import patience

from sapwood import Agent, App, Limits, NotFound, Settings, TimedOut, Unavailable, deadline
from sapwood.errors import Aborted, Crashed, StoredDataError, UsageError
from sapwood.kernel.node.data_folder import roots_in
from sapwood.kernel.trees.tree import Tree
from sapwood.storage.database import Database
from sapwood.testing import World
from sapwood.testing.faults import CountingFiles

ENDLESS = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


class NoRoom:
    """The connection of a database; its next commit fails."""

    def __init__(self, below: Any, error: apsw.Error) -> None:
        self._below = below
        self._error = error
        self.failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)

    def execute(self, sql: str, *args: Any, **kwargs: Any) -> Any:
        if sql == "COMMIT" and not self.failed:
            self.failed = True
            raise self._error
        return self._below.execute(sql, *args, **kwargs)


def fail_next_commit(database: Database, error: apsw.Error | None = None) -> None:
    error = error or apsw.IOError("disk I/O error")
    database._connection = NoRoom(database._connection, error)  # pyright: ignore[reportAttributeAccessIssue]


def only_tree(world: World) -> Tree:
    return world.node.loader.tree(next(roots_in(world.data)))


def databases(world: World) -> set[str]:
    return {path.name for path in world.data.rglob("*.db*")}


class Worker(Branch):
    """Can be busy in every way there is."""

    deps: Probe

    async def work(self) -> None:
        self.deps.log.append("works")
        await self.deps.go.wait()
        await self.note("written late")

    async def compute(self) -> None:
        self.deps.log.append(f"{self.name} computes")
        await self.read_sql(ENDLESS)

    async def compute_for(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.read_sql(ENDLESS)

    async def block(self) -> None:
        self.deps.log.append("blocks")
        await self.in_thread(RELEASE.wait, 20)

    async def sum(self) -> int:
        self.deps.log.append("sums")
        return (await self.read_sql("SELECT 1 + 1")).scalar(int)

    async def make(self, name: str) -> None:
        await self.sub_agent(Worker, name)

    async def remove(self, name: str) -> None:
        await self.children.delete(Worker, name)

    async def stop_computing(self, name: str) -> None:
        """Let a child run out of time in a statement, and abort it while it unwinds."""
        child = await self.sub_agent(Worker, name)
        try:
            with deadline(0.1):
                await child.compute()
        except TimedOut:
            await asyncio.sleep(0)
            self.children.abort(Worker, name)


RELEASE = threading.Event()


def at(*names: str) -> list[tuple[type[Worker], str]]:
    return [(Worker, name) for name in names]


# Agents that remove themselves, or are removed


async def test_a_child_whose_destroy_fails_lives_on_in_one_incarnation_only(run: Run, probe: Probe) -> None:
    async with asyncio.timeout(patience()), run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "r")
        await root.make("a")
        child = await world.get_agent(Worker, "r", sub=at("a"))
        await child.note("kept")
        working = asyncio.create_task(child.work())
        await probe.seen("works")
        fail_next_commit(only_tree(world).databases["root"])

        with pytest.raises(Unavailable):
            await child.end()

        with pytest.raises(Unavailable):
            await working
        await root.make("a")
        probe.go.set()
        assert await child.note("after") == 2
        assert await child.notes() == ["kept", "after"]


async def test_a_child_that_computes_can_be_deleted_and_leaves_no_file(run: Run, probe: Probe) -> None:
    async with asyncio.timeout(patience()), run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "r")
        await root.make("a")
        child = await world.get_agent(Worker, "r", sub=at("a"))
        await child.note("x")
        computing = asyncio.create_task(child.compute())
        await probe.seen("a computes")

        await root.remove("a")

        with pytest.raises(NotFound, match="was deleted"):
            await computing
        assert databases(world) == {"root.db", "root.db-wal"}


@pytest.mark.slow
async def test_a_child_that_destroys_itself_while_its_parent_computes_is_gone_with_its_file(
    run: Run, probe: Probe
) -> None:
    async with asyncio.timeout(patience()), run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "r")
        await root.make("a")
        child = await world.get_agent(Worker, "r", sub=at("a"))
        await child.note("x")
        working = asyncio.create_task(child.work())
        await probe.seen("works")

        ending = asyncio.create_task(child.end())
        computing = asyncio.create_task(root.compute_for(0.5))

        assert await ending == "ended"
        await computing
        with pytest.raises(NotFound):
            await working
        probe.go.set()
        await happens(lambda: databases(world) == {"root.db", "root.db-wal"})


async def test_a_destroy_whose_caller_is_cancelled_is_finished_all_the_same(run: Run) -> None:
    async with asyncio.timeout(patience()), run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.note("old")
        tree = only_tree(world)
        ending = asyncio.create_task(root.end())
        await until(lambda: tree.destroyed is not None)

        ending.cancel()
        await asyncio.wait({ending})

        assert await (await world.get_agent(Branch, "r")).notes() == []
        await world.restart()
        assert await (await world.get_agent(Branch, "r")).notes() == []


async def test_a_destroy_that_the_disk_refuses_has_not_happened(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(patience()), run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.note("kept")

        def no_room(self: CountingFiles, path: Path, content: bytes) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as full:
            full.setattr(CountingFiles, "create", no_room)
            with pytest.raises(OSError, match="No space left"):
                await root.end()

        assert await root.notes() == ["kept"]
        world.sleep()
        assert await (await world.get_agent(Branch, "r")).notes() == ["kept"]
        assert await root.end() == "ended"
        assert await (await world.get_agent(Branch, "r")).notes() == []


# Statements that are given up


async def test_a_computing_child_that_is_cancelled_and_then_aborted_works_again(run: Run, probe: Probe) -> None:
    async with asyncio.timeout(patience()), run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "r")
        await root.make("a")
        await (await world.get_agent(Worker, "r", sub=at("a"))).note("kept")

        await root.stop_computing("a")

        await happens(lambda: not any(database.readers for database in only_tree(world).databases.values()))
        await root.make("a")
        child = await world.get_agent(Worker, "r", sub=at("a"))
        assert await child.note("after") == 2
        await world.restart()


async def test_a_read_sql_that_still_waits_for_a_thread_is_cancelled_at_once(run: Run, probe: Probe) -> None:
    RELEASE.clear()
    try:
        async with asyncio.timeout(patience()), run(Worker, deps=probe, threads=1) as world:
            blocking = asyncio.create_task((await world.get_agent(Worker, "a")).block())
            await probe.seen("blocks")
            other = await world.get_agent(Worker, "b")
            summing = asyncio.create_task(other.sum())
            await probe.seen("sums")

            summing.cancel()

            await asyncio.wait({summing})
            assert summing.cancelled()
            assert await other.note("free") == 1
            RELEASE.set()
            await blocking
            assert await other.sum() == 2
    finally:
        RELEASE.set()


# Starts and errors of an odd kind


async def test_a_start_that_the_system_refuses_fails_for_its_caller_and_the_next_one_is_tried_anew(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(patience()), run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.note("kept")
        await world.restart()
        world.sleep()  # whoever looked for alarms has closed it again

        def too_many(self: Database) -> apsw.Connection:
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as full:
            full.setattr(Database, "_open", too_many)
            for _ in range(2):
                with pytest.raises(OSError, match="Too many open files"):
                    await world.get_agent(Branch, "r")

        assert await (await world.get_agent(Branch, "r")).notes() == ["kept"]


class Sealed(Exception):
    """An exception that lets nobody say where it was raised."""

    @property
    def path(self) -> str:
        return "mine"


class Raises(Agent):
    async def raises(self) -> None:
        raise Sealed("no")

    async def counts(self) -> AsyncIterator[int]:
        yield 1
        raise Sealed("no")


class NeverStarts(Agent):
    async def on_start(self) -> None:
        raise Sealed("no")


async def test_an_exception_that_cannot_be_handed_over_reaches_the_caller_as_crashed(run: Run) -> None:
    async with asyncio.timeout(patience()), run(Raises, NeverStarts) as world:
        agent = await world.get_agent(Raises, "r")

        with pytest.raises(Crashed, match="Sealed: no"):
            await agent.raises()
        with pytest.raises(Crashed, match="Sealed: no"):
            assert [number async for number in agent.counts()] == [1]
        with pytest.raises(Crashed, match="Sealed: no"):
            await world.get_agent(NeverStarts, "n")


class Forgetful(Agent):
    deps: Probe

    async def hang(self) -> None:
        self.deps.log.append("hangs")
        await asyncio.Event().wait()

    async def drip(self) -> AsyncIterator[int]:
        yield 1
        self.deps.log.append("dripped")
        await asyncio.Event().wait()

    async def leave_tasks(self) -> None:
        """Call a child, and read from it, in tasks nobody awaits."""
        child = await self.sub_agent(Forgetful, "child")

        async def read() -> list[int]:
            return [number async for number in child.drip()]

        TASKS[:] = [asyncio.create_task(child.hang()), asyncio.create_task(read())]
        await self.deps.seen("hangs")
        await self.deps.seen("dripped")

    async def stop_middle(self) -> None:
        middle = await self.sub_agent(Forgetful, "middle")
        await middle.leave_tasks()
        self.children.abort(Forgetful, "middle")


TASKS: list[asyncio.Task[object]] = []


async def test_tasks_that_an_aborted_agent_leaves_behind_are_answered_too(run: Run, probe: Probe) -> None:
    async with asyncio.timeout(patience()), run(Forgetful, deps=probe) as world:
        root = await world.get_agent(Forgetful, "r")

        await root.stop_middle()

        try:
            await asyncio.wait(TASKS)
            for task in TASKS:
                with pytest.raises(Aborted):
                    task.result()
        finally:
            for task in TASKS:
                task.cancel()


async def test_a_step_before_the_commit_that_fails_is_told_to_the_caller_and_swallows_no_later_write(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(patience()), run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b")
        middle = await world.get_agent(Branch, "r", sub=below("a"))
        await middle.note("kept")

        def refuse(self: Database) -> None:
            assert self is only_tree(world).databases["root"]
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as full:
            full.setattr(Database, "begin", refuse)
            with pytest.raises(Unavailable, match="Too many open files"):
                await middle.grow("c")

        assert await middle.note("after") == 2
        await world.crash()
        middle = await world.get_agent(Branch, "r", sub=below("a"))
        assert await middle.notes() == ["kept", "after"]
        assert await middle.child_names() == ["b"]


async def test_a_root_that_loses_a_commit_still_counts_its_descendants_right(run: Run) -> None:
    async with asyncio.timeout(patience()), run(Branch, limits=Limits(descendants=3)) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b")
        tree = only_tree(world)
        fail_next_commit(tree.databases["root"])
        with pytest.raises(Unavailable):
            await root.grow("a", "c")

        await root.grow("a", "c")
        await world.crash()

        agent = await world.get_agent(Branch, "r", sub=below("a"))
        assert only_tree(world).ledger.below_children() == 2
        assert await agent.child_names() == ["b", "c"]


# The end of an app


class Stubborn(Branch):
    deps: Probe

    async def stay(self) -> None:
        self.deps.log.append("stays")
        try:
            await asyncio.Event().wait()
        finally:
            self.deps.log.append("told to go")
            await self.deps.go.wait()


async def test_an_app_whose_stop_is_cancelled_lets_go_of_its_files_and_writes_no_more(
    tmp_path: Path, level: Any, probe: Probe
) -> None:
    async with asyncio.timeout(patience()):
        settings = Settings(data=tmp_path, durability=level)
        first = App(agents=[Stubborn], deps=probe, settings=settings)
        await first.__aenter__()
        staying = asyncio.create_task((await first.get_agent(Stubborn, "a")).stay())
        await probe.seen("stays")
        other = await first.get_agent(Stubborn, "b")
        await other.note("kept")
        stopping = asyncio.create_task(first.__aexit__())
        await probe.seen("told to go")

        stopping.cancel()
        await asyncio.wait({stopping})

        with pytest.raises(Unavailable, match="not running"):
            await other.note("too late")
        probe.go.set()
        await asyncio.wait({staying})
        assert isinstance(staying.exception(), Unavailable)
        async with App(agents=[Stubborn], deps=probe, settings=settings) as second:
            assert await (await second.get_agent(Stubborn, "b")).notes() == ["kept"]


async def test_an_agent_that_cannot_be_put_to_sleep_keeps_no_other_awake(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(patience()), run(Branch, sleep_after=0.05) as world:
        agent = await world.get_agent(Branch, "a")
        await agent.note("x")
        damaged: list[Database] = []

        def refuse(self: Tree, database: Database) -> bool:
            damaged.append(database)
            raise StoredDataError("The database is damaged.")

        with monkeypatch.context() as broken:
            broken.setattr(Tree, "close_database", refuse)
            await happens(lambda: bool(damaged))

        await (await world.get_agent(Branch, "b")).note("y")
        await happens(lambda: not world.node.trees)


async def test_the_log_says_in_plain_text_in_which_tree_a_deletion_or_its_end_failed(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> bool:
        raise StoredDataError("The database is damaged.")

    async with asyncio.timeout(patience()), run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.note_below("a", "x")

        with monkeypatch.context() as broken:
            broken.setattr(CountingFiles, "remove", refuse)
            with pytest.raises(StoredDataError):
                await root.cut("a")
        with monkeypatch.context() as broken:
            broken.setattr(Tree, "close", refuse)
            await world.restart()

    assert "deletion interrupted: Branch:r" in caplog.messages
    assert "tree was not closed cleanly: Branch:r" in caplog.messages


async def test_an_app_that_fails_to_start_lets_go_of_its_folder(tmp_path: Path) -> None:
    class Needy(Agent):
        deps: dict[str, int]

    async with asyncio.timeout(patience()):
        with pytest.raises(UsageError, match="deps"):
            await App(agents=[Needy], deps="text", settings=Settings(data=tmp_path)).__aenter__()

        async with App(agents=[Branch], settings=Settings(data=tmp_path)) as app:
            assert await (await app.get_agent(Branch, "a")).note("x") == 1
