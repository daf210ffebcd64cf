"""An erasure finds what is stored under former addresses of a tree, former type ids, and in forks of all kinds."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from sapwood import Agent, App, Settings, agent, with_options
from sapwood.admin.log_ring import LogRing
from sapwood.kernel.node import fork as forks
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.ports.erasure import ErasedBelow
from sapwood.kernel.ports.placement import Forwarded
from sapwood.runs.remote.erased_sessions import erase_sessions
from sapwood.runs.remote.remote_sessions import REMOTE
from sapwood.testing import World, running
from sapwood.types import Address, ErasureReceipt

SECRET = "5eC3e7" + "0f1e2d3c4b5a69788796a5b4c3d2e1f0" * 2
log = logging.getLogger("test_erased_names")


class NamedSibling(Agent):
    async def echo(self, text: str) -> str:
        return f"echo {text}"


class NamedLeaf(Agent[str]):
    initial_state = ""

    async def keep(self, text: str) -> None:
        self.set_state(text)
        log.warning("%s has stored something", self.address)

    async def ask(self, text: str) -> str:
        sibling = await self.get_agent(NamedTop, self.address.root.name, sub=[(NamedSibling, "s")])
        return await with_options(sibling, idempotency_key="k1").echo(text)


class NamedTop(Agent[str]):
    initial_state = ""

    async def grow(self, leaf: str, text: str) -> None:
        await (await self.sub_agent(NamedLeaf, leaf)).keep(text)

    async def ask(self, leaf: str, text: str) -> str:
        await self.sub_agent(NamedSibling, "s")
        return await (await self.sub_agent(NamedLeaf, leaf)).ask(text)

    async def names(self) -> list[str]:
        return [child.name for child in self.children.list()]


def hits(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.rglob("*")) if path.is_file() and SECRET.encode() in path.read_bytes()]


def places(receipt: ErasureReceipt, place: str) -> list[tuple[str, str]]:
    return [(one.state, one.where) for one in receipt.places if one.place == place]


def folder_of(name: str) -> str:
    return f"trees/{tree_folder(Path(), Address.root_of('NamedTop', name)).name}"


async def grown(world: World, name: str = "ann") -> NamedTop:
    top = await world.get_agent(NamedTop, name)
    await top.grow("x", SECRET)
    return top


async def test_backups_and_forks_from_before_a_move_are_named(tmp_path: Path) -> None:
    async with running(App(agents=[NamedTop])) as world:
        await grown(world)
        await world.app.backup(tmp_path / "b")
        await world.app.fork(NamedTop, "ann", to="copy")
        await world.app.move(NamedTop, "ann", to="beth")
        receipt = await world.app.erase(NamedTop, "beth")

    assert places(receipt, "backup") == [("still there", str(tmp_path / "b"))]
    assert places(receipt, "fork") == [("unknown", folder_of("copy"))]


async def test_a_former_address_is_in_no_index_file_or_log_after_an_erasure() -> None:
    async with running(App(agents=[NamedTop])) as world:
        ring = world.node.shared(LogRing)
        ring.attach()
        await grown(world)
        ring.detach()
        (world.data / "crashes").mkdir()
        (world.data / "crashes" / "one.txt").write_text("NamedTop:ann was blocked\n")
        (world.data / "strikes.jsonl").write_text(json.dumps({"root": "NamedTop:ann", "at": 1.0}) + "\n")
        (world.data / "operator.jsonl").write_text('{"address": "NamedTop:ann"}\n')
        await world.app.move(NamedTop, "ann", to="beth")
        receipt = await world.app.erase(NamedTop, "beth")

        counts = {one.place: one.count for one in receipt.places}
        assert (counts["crash files"], counts["quarantine"]) == (1, 1)
        assert counts["memory"] == 1
        assert places(receipt, "records") == [("kept", "")]
        left = [path for path in world.data.rglob("*") if path.is_file() and b"NamedTop:ann" in path.read_bytes()]
        assert [path.name for path in left] == ["operator.jsonl"]


async def test_outcomes_of_keyed_calls_from_before_a_move_are_erased_with_a_sub_agent() -> None:
    async with running(App(agents=[NamedTop])) as world:
        top = await grown(world)
        await top.grow("x", "harmless")
        await top.ask("x", SECRET)
        await world.app.move(NamedTop, "ann", to="beth")
        assert hits(world.data)
        await world.app.erase(NamedTop, "beth", sub=[(NamedLeaf, "x")])
        assert hits(world.data) == []


async def test_remote_sessions_from_before_a_move_are_erased_with_a_sub_agent() -> None:
    async with running(App(agents=[NamedTop])) as world:
        await grown(world)
        root = world.node.trees[Address.parse("NamedTop:ann")].root
        root.begin()
        root.ensure(REMOTE)
        for owner in ("NamedTop:ann/NamedLeaf:x", "NamedTop:ann/NamedLeaf:y"):
            root.execute("INSERT INTO sapwood_remote_sessions VALUES (?, 's', NULL)", owner)
        subjects = [Address.parse(f"NamedTop:{name}/NamedLeaf:x") for name in ("beth", "ann")]
        assert erase_sessions(root, ErasedBelow(subjects, 0, ["NamedLeaf"])) == 1
        assert root.execute("SELECT owner FROM sapwood_remote_sessions") == [("NamedTop:ann/NamedLeaf:y",)]


async def test_a_former_address_cannot_be_erased_and_no_erasure_of_it_is_stored(tmp_path: Path) -> None:
    async with running(App(agents=[NamedTop])) as world:
        await grown(world)
        await world.app.backup(tmp_path / "b")
        await world.app.move(NamedTop, "ann", to="beth")
        with pytest.raises(Forwarded):
            await world.app.erase(NamedTop, "ann")
        assert list((world.data / "erasures").glob("*")) == []
        await world.app.move(NamedTop, "beth", to="ann")
        assert await (await world.get_agent(NamedTop, "ann")).names() == ["x"]


async def test_a_tree_is_erased_under_the_type_id_that_its_class_had(tmp_path: Path) -> None:
    class OldKind(Agent[str]):
        initial_state = ""

        async def keep(self, text: str) -> None:
            self.set_state(text)

    @agent(type="NewKind", aliases=("OldKind",))
    class NewKind(OldKind): ...

    data = tmp_path / "data"
    async with App(agents=[OldKind], settings=Settings(data=data)) as app:
        await (await app.get_agent(OldKind, "ann")).keep(SECRET)
        await app.backup(tmp_path / "b")
    async with App(agents=[NewKind], settings=Settings(data=data)) as app:
        receipt = await app.erase(NewKind, "ann")
    assert hits(data) == []
    assert places(receipt, "backup") == [("still there", str(tmp_path / "b"))]


async def test_a_fork_of_a_fork_is_named() -> None:
    async with running(App(agents=[NamedTop])) as world:
        await grown(world)
        await world.app.fork(NamedTop, "ann", to="first")
        await world.app.fork(NamedTop, "first", to="second")
        await world.app.erase(NamedTop, "first")
        receipt = await world.app.erase(NamedTop, "ann")
        assert places(receipt, "fork") == [("unknown", folder_of("second"))]


async def test_a_damaged_tree_may_be_a_fork() -> None:
    async with running(App(agents=[NamedTop])) as world:
        await grown(world)
        await world.app.fork(NamedTop, "ann", to="first")
        await world.restart()
        root = tree_folder(world.data, Address.parse("NamedTop:first")) / "root.db"
        root.write_bytes(bytes(100) + root.read_bytes()[100:])
        receipt = await world.app.erase(NamedTop, "ann")
        assert places(receipt, "fork") == [("unknown", folder_of("first"))]


async def test_a_fork_that_gets_its_place_after_the_erasure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    place, go, reached = forks.place, asyncio.Event(), asyncio.Event()

    async def late(*arguments: Any, **options: Any) -> None:
        reached.set()
        await go.wait()
        await place(*arguments, **options)

    monkeypatch.setattr(forks, "place", late)
    async with running(App(agents=[NamedTop])) as world:
        await grown(world)
        fork = asyncio.create_task(world.app.fork(NamedTop, "ann", to="copy"))
        await reached.wait()
        receipt = await world.app.erase(NamedTop, "ann")
        go.set()
        await fork
        assert places(receipt, "fork") == [("unknown", folder_of("copy"))]
