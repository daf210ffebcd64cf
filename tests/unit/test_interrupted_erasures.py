"""An erasure that was interrupted is finished, whatever has become of its tree in the meantime."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sapwood import Agent, App, NotFound, Unavailable
from sapwood.kernel.erasure.records import ErasureRecord
from sapwood.kernel.erasure.subtree import ErasedSubtree
from sapwood.testing import World, running
from sapwood.types import Address

LEAF = Address.parse("BrokenTop:ann/BrokenLeaf:x")
SECRET = "5eC3e7" + "0f1e2d3c4b5a69788796a5b4c3d2e1f0" * 2


class BrokenLeaf(Agent[str]):
    initial_state = ""

    async def on_run(self, input: str) -> str:
        if input == "hang":
            await asyncio.Event().wait()
        return f"done: {input}"

    async def keep(self, text: str) -> None:
        self.set_state(text)

    async def read(self) -> str:
        return self.state


class BrokenTop(Agent[str]):
    initial_state = ""

    async def grow(self, leaf: str, text: str) -> None:
        await (await self.sub_agent(BrokenLeaf, leaf)).keep(text)

    async def read(self, leaf: str) -> str:
        return await (await self.sub_agent(BrokenLeaf, leaf)).read()

    async def give(self, text: str) -> str:
        return (await self.run_agent(BrokenLeaf, text)).agent.name

    async def cancel(self, reason: str) -> str:
        run = await self.start_run(BrokenLeaf, "hang")
        self.runs.cancel(run.id, reason)
        return run.agent.name

    async def drop(self, leaf: str) -> None:
        await self.children.delete(BrokenLeaf, leaf)

    async def names(self) -> list[str]:
        return [child.name for child in self.children.list()]

    async def end(self) -> None:
        await self.destroy()


def hits(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.rglob("*")) if path.is_file() and SECRET.encode() in path.read_bytes()]


def records(world: World) -> list[str]:
    return sorted(path.name for path in (world.data / "erasures").glob("*"))


async def interrupted(world: World, monkeypatch: pytest.MonkeyPatch, step: str = "remove") -> BrokenTop:
    """Have an erasure of the leaf x of the tree ann fail at a step."""
    top = await world.get_agent(BrokenTop, "ann")
    await top.grow("x", SECRET)
    done = getattr(ErasedSubtree, step)

    async def fail(self: ErasedSubtree, record: ErasureRecord) -> None:
        raise Unavailable("The disk is full.")

    monkeypatch.setattr(ErasedSubtree, step, fail)
    with pytest.raises(Unavailable, match="full"):
        await world.app.erase(BrokenTop, "ann", sub=[(BrokenLeaf, "x")], id="sub")
    monkeypatch.setattr(ErasedSubtree, step, done)
    return top


@pytest.mark.parametrize("restarts", [False, True])
async def test_the_erasure_of_a_tree_finishes_those_of_its_sub_agents(
    monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    async with running(App(agents=[BrokenTop])) as world:
        await interrupted(world, monkeypatch)
        await world.app.erase(BrokenTop, "ann", id="whole")
        assert records(world) == ["sub.json", "whole.json"]

        top = await world.get_agent(BrokenTop, "ann")
        await top.grow("x", "new")
        if restarts:
            await world.restart()
            top = await world.get_agent(BrokenTop, "ann")
        assert await top.read("x") == "new"


async def test_an_erasure_does_not_touch_a_tree_that_was_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(App(agents=[BrokenTop])) as world:
        await (await interrupted(world, monkeypatch)).end()
        await world.settled()
        await world.clock.advance(10)
        top = await world.get_agent(BrokenTop, "ann")
        await top.grow("y", "new")  # gets the files of the same names
        receipt = await world.app.erase(BrokenTop, "ann", sub=[(BrokenLeaf, "x")], id="sub")

        assert receipt.remains == []
        assert records(world) == ["sub.json"]
        assert (await top.names(), await top.read("y")) == (["y"], "new")
        assert hits(world.data) == []


@pytest.mark.parametrize("step", ["remove", "erase_rows"])
async def test_an_erasure_continues_in_a_tree_that_was_moved(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    async with running(App(agents=[BrokenTop])) as world:
        await interrupted(world, monkeypatch, step)
        world.node.erasing.end(LEAF)  # as in a process that does not know of it
        await world.app.move(BrokenTop, "ann", to="beth")
        receipt = await world.app.erase(BrokenTop, "ann", sub=[(BrokenLeaf, "x")], id="sub")

        assert receipt.is_about("BrokenTop:ann/BrokenLeaf:x")
        assert hits(world.data) == []
        assert await (await world.get_agent(BrokenTop, "beth")).names() == []


async def test_an_erasure_in_a_tree_that_was_moved_continues_at_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(App(agents=[BrokenTop])) as world:
        await interrupted(world, monkeypatch)
        world.node.erasing.end(LEAF)  # as in a process that does not know of it
        await world.app.move(BrokenTop, "ann", to="beth")
        await world.restart()
        with pytest.raises(NotFound, match="being erased"):
            await world.get_agent(BrokenTop, "beth", sub=[(BrokenLeaf, "x")])
        await world.app.erase(BrokenTop, "beth", sub=[(BrokenLeaf, "x")])
        assert records(world) == ["sub.json"]
        assert hits(world.data) == []


async def test_what_a_restore_has_brought_back_is_erased_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with running(App(agents=[BrokenTop])) as world:
        await (await world.get_agent(BrokenTop, "ann")).grow("x", SECRET)
        await world.app.backup(tmp_path / "b")
        await interrupted(world, monkeypatch, "erase_rows")
        world.node.erasing.end(LEAF)  # as in a process that does not know of it
        await world.app.restore(tmp_path / "b", BrokenTop, "ann")
        assert hits(world.data)
        await world.app.erase(BrokenTop, "ann", sub=[(BrokenLeaf, "x")], id="sub")
        assert hits(world.data) == []


async def test_the_reason_of_a_cancelled_run_is_erased_with_its_sub_agent() -> None:
    async with running(App(agents=[BrokenTop])) as world:
        leaf = await (await world.get_agent(BrokenTop, "ann")).cancel(f"because {SECRET}")
        await world.settled()
        assert hits(world.data)
        await world.app.erase(BrokenTop, "ann", sub=[(BrokenLeaf, leaf)])
        assert hits(world.data) == []


async def test_what_a_parent_keeps_of_a_deleted_sub_agent_is_erased() -> None:
    async with running(App(agents=[BrokenTop])) as world:
        top = await world.get_agent(BrokenTop, "ann")
        leaf = await top.give(SECRET)
        await top.drop(leaf)
        await world.settled()
        assert hits(world.data)
        receipt = await world.app.erase(BrokenTop, "ann", sub=[(BrokenLeaf, leaf)])
        assert hits(world.data) == []
        assert receipt.agents == 0
        with pytest.raises(NotFound, match="There is no"):
            await world.app.erase(BrokenTop, "ann", sub=[(BrokenLeaf, leaf)])
