"""Abort: a child stops at once, its data stays, and `sub_agent` starts it again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.conformance.worlds import Branch, Probe, Run
from tests.machine import patience

from sapwood import Agent, NotFound
from sapwood.errors import Aborted

pytestmark = pytest.mark.core("workers", "cluster")


class Worker(Agent):
    deps: Probe

    async def on_start(self) -> None:
        self.deps.log.append(f"start {self.name}")

    async def work(self) -> None:
        try:
            self.deps.log.append(f"work {self.name}")
            await self.deps.go.wait()
            self.deps.log.append(f"done {self.name}")
        except asyncio.CancelledError:
            self.deps.log.append(f"cancelled {self.name}")
            raise

    async def work_below(self, *names: str) -> None:
        first, *rest = names
        child = await self.sub_agent(Worker, first)
        await (child.work_below(*rest) if rest else child.work())

    async def stop(self, name: str, reason: Any = None) -> None:
        self.children.abort(Worker, name, reason)

    async def make(self, name: str) -> None:
        await self.sub_agent(Worker, name)

    async def make_and_stop_at_once(self, name: str) -> object:
        making = asyncio.create_task(self.sub_agent(Worker, name))
        await asyncio.sleep(0)
        self.children.abort(Worker, name, "too late")
        (outcome,) = await asyncio.gather(making, return_exceptions=True)
        return f"{type(outcome).__name__}: {outcome}"

    async def ask_child(self, name: str) -> str:
        child = await self.sub_agent(Worker, name)
        self.children.abort(Worker, name, "while I hold it")
        try:
            await child.work()
        except Aborted as error:
            return f"{error.reason} at {error.path[-1][1]}"
        return "no error"


@pytest.mark.promise("A-28", "A-29", "A-45", "A-225", "A-258", "CF-17")
async def test_pending_and_later_callers_get_the_reason_until_sub_agent_is_called_again(run: Run, probe: Probe) -> None:
    async with run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "r")
        await root.make("w")
        worker = await world.get_agent(Worker, "r", sub=[(Worker, "w")])
        pending = asyncio.create_task(worker.work())
        through_parent = asyncio.create_task(root.work_below("w"))
        await probe.seen("work w")

        await root.stop("w", "enough")

        for call in (pending, through_parent):
            with pytest.raises(Aborted, match=r"^enough$") as aborted:
                await call
            assert aborted.value.reason == "enough"
            assert aborted.value.path == (("Worker", "r"), ("Worker", "w"))
        for _ in range(2):
            with pytest.raises(Aborted, match=r"^enough$"):
                await worker.work()
        with pytest.raises(Aborted, match=r"^enough$"):
            await world.get_agent(Worker, "r", sub=[(Worker, "w")])

        await root.make("w")
        probe.go.set()
        await worker.work()
        assert probe.log[-1] == "done w"


@pytest.mark.promise("A-28")
async def test_an_abort_cancels_the_work_itself(run: Run, probe: Probe) -> None:
    async with run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "r")
        call = asyncio.create_task(root.work_below("w"))
        await probe.seen("work w")

        await root.stop("w")

        with pytest.raises(Aborted, match="The agent was aborted"):
            await call
        await probe.seen("cancelled w")
        assert "done w" not in probe.log


@pytest.mark.promise("A-30")
async def test_an_abort_reaches_every_level_below(run: Run, probe: Probe) -> None:
    async with run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "r")
        call = asyncio.create_task(root.work_below("a", "b", "c"))
        await probe.seen("work c")
        deepest = await world.get_agent(Worker, "r", sub=[(Worker, "a"), (Worker, "b"), (Worker, "c")])

        await root.stop("a", "whole branch")

        with pytest.raises(Aborted, match="whole branch"):
            await call
        await probe.seen("cancelled c")
        with pytest.raises(Aborted, match="whole branch") as aborted:
            await deepest.work()
        assert aborted.value.path == (("Worker", "r"), ("Worker", "a"))
        await root.make("a")
        probe.go.set()
        await deepest.work()
        assert probe.log[-1] == "done c"


@pytest.mark.promise("A-28", "CF-17")
async def test_an_abort_keeps_the_data_of_the_whole_branch(run: Run) -> None:
    sub = [(Branch, "a"), (Branch, "b")]
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b")
        await (await world.get_agent(Branch, "r", sub=sub)).note("kept")

        await root.stop("a", "stop")

        assert await root.has("a")
        assert await root.child_names() == ["a"]
        await root.grow("a")
        assert await (await world.get_agent(Branch, "r", sub=sub)).notes() == ["kept"]


async def test_a_write_before_the_abort_in_the_same_moment_is_kept(run: Run) -> None:
    class Hasty(Agent):
        async def note_and_stop(self) -> None:
            child = await self.sub_agent(Branch, "c")
            call = asyncio.create_task(child.note("written"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.children.abort(Branch, "c")
            await asyncio.gather(call, return_exceptions=True)

        async def notes(self) -> list[str]:
            return await (await self.sub_agent(Branch, "c")).notes()

    async with run(Hasty) as world:
        hasty = await world.get_agent(Hasty, "h")

        await hasty.note_and_stop()

        assert await hasty.notes() == ["written"]


@pytest.mark.promise("A-58")
async def test_siblings_go_on(run: Run, probe: Probe) -> None:
    async with run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "r")
        stopped = asyncio.create_task(root.work_below("a"))
        spared = asyncio.create_task(root.work_below("b"))
        await probe.seen("work a")
        await probe.seen("work b")

        await root.stop("a", "only a")
        probe.go.set()

        with pytest.raises(Aborted):
            await stopped
        await spared
        assert "done b" in probe.log


async def test_a_child_aborted_before_its_start_began_is_not_waited_for_for_ever(run: Run, probe: Probe) -> None:
    async with run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "r")

        async with asyncio.timeout(patience()):
            outcome = await root.make_and_stop_at_once("w")

        assert outcome == "Aborted: too late"
        assert "start w" not in probe.log


@pytest.mark.promise("A-45")
async def test_the_parent_s_own_stub_raises_the_reason_too(run: Run, probe: Probe) -> None:
    async with run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "r")

        assert await root.ask_child("w") == "while I hold it at w"


async def test_the_reason_may_be_any_value(run: Run, probe: Probe) -> None:
    async with run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "r")
        await root.make("w")
        worker = await world.get_agent(Worker, "r", sub=[(Worker, "w")])

        await root.stop("w", {"why": ["budget", 3]})

        with pytest.raises(Aborted) as aborted:
            await worker.work()
        assert aborted.value.reason == {"why": ["budget", 3]}


async def test_aborting_twice_gives_the_later_reason(run: Run, probe: Probe) -> None:
    async with run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "r")
        await root.make("w")
        worker = await world.get_agent(Worker, "r", sub=[(Worker, "w")])

        await root.stop("w", "first")
        await root.stop("w", "second")

        with pytest.raises(Aborted, match="second"):
            await worker.work()


async def test_an_abort_is_forgotten_with_the_process(run: Run, probe: Probe) -> None:
    probe.go.set()
    async with run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "r")
        await root.make("w")
        await root.stop("w", "enough")

        await world.crash()

        worker = await world.get_agent(Worker, "r", sub=[(Worker, "w")])
        await worker.work()


async def test_aborting_a_child_that_never_was_does_nothing(run: Run, probe: Probe) -> None:
    async with run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "r")

        await root.stop("nobody", "why not")

        with pytest.raises(NotFound):
            await world.get_agent(Worker, "r", sub=[(Worker, "nobody")])


async def test_a_deleted_child_is_not_found_even_if_it_was_aborted_before(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a")
        child = await world.get_agent(Branch, "r", sub=[(Branch, "a")])
        await root.stop("a", "enough")

        await root.cut("a")

        with pytest.raises(NotFound):
            await child.notes()


async def test_a_grandchild_aborted_by_its_parent_answers_again_when_that_parent_asks(run: Run) -> None:
    sub = [(Branch, "a"), (Branch, "b")]
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b")
        middle = await world.get_agent(Branch, "r", sub=sub[:1])
        leaf = await world.get_agent(Branch, "r", sub=sub)

        await middle.stop("b", "leaf only")

        with pytest.raises(Aborted, match="leaf only") as aborted:
            await leaf.notes()
        assert aborted.value.path[-1] == ("Branch", "b")
        await root.grow("a", "b")
        assert await leaf.notes() == []
