"""An erasure leaves no byte of what the erased agents stored, and the receipt says where data still is."""

from __future__ import annotations

import contextlib
import json
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.conformance import runtimes
from tests.conformance.full_disk import full_disk
from tests.conformance.replicated import storage_of
from tests.conformance.worlds import Run

from sapwood import After, Agent, NotFound, Retry, Unavailable
from sapwood.errors import Refused, UsageError
from sapwood.kernel.erasure.receipt import ErasureReceipt, verify_receipt
from sapwood.kernel.log.records import DIGEST, tree_id
from sapwood.testing import POINTS, World
from sapwood.types import Address

SECRET = "5eC3e7" + "0f1e2d3c4b5a69788796a5b4c3d2e1f0" * 2
RAW = bytes.fromhex("a9" * 4 + "0f1e2d3c4b5a69788796a5b4c3d2e1f0" * 2 + "b7" * 40)
ONCE = Retry(max_attempts=1)


class ErasedClerk(Agent[str]):
    """An agent that stores what it is told wherever an agent can."""

    initial_state = ""
    migrations = ("CREATE TABLE notes (text TEXT NOT NULL, raw BLOB NOT NULL) STRICT",)

    async def on_run(self, input: str) -> str:
        await self.keep(input, RAW)
        return f"done: {input}"

    async def keep(self, text: str, raw: bytes) -> None:
        self.set_state(text)
        self.sql("INSERT INTO notes VALUES (?, ?)", text, raw)
        await self.files.put(raw)
        await self.files.put(raw * 5000)  # too large for a row
        self.queues.default.with_retry(ONCE).add(self.fail, text)
        self.schedule(After(timedelta(hours=5)), self.fail, text)
        self.sql("INSERT INTO notes VALUES (?, ?)", text * 20, raw)
        self.sql("DELETE FROM notes WHERE text = ?", text * 20)

    async def fail(self, text: str) -> None:
        raise ValueError(text)

    async def read(self) -> str:
        return self.state

    async def letters(self) -> int:
        return len(self.dead_letters.list())


class Squad(Agent[str]):
    """An agent between a root and leaves, which gives runs to leaves."""

    initial_state = "green"

    async def grow(self, leaf: str, text: str, raw: bytes) -> None:
        await (await self.sub_agent(ErasedClerk, leaf)).keep(text, raw)

    async def give(self, text: str) -> list[str]:
        first = await self.run_agent(ErasedClerk, text, display={"about": text})
        second = await self.start_run(ErasedClerk, text, on_finish=self.refuse)
        await second.result()
        return [first.agent.name, second.agent.name]

    async def given(self) -> list[tuple[str, Any]]:
        return [(run.status, run.input) for run in self.runs.list()]

    async def refuse(self, run: Any) -> None:
        raise ValueError("not now")

    async def look(self) -> str:
        return self.state


class Firm(Agent[str]):
    initial_state = "brown"

    async def grow(self, branch: str, leaf: str, text: str, raw: bytes) -> None:
        await (await self.sub_agent(Squad, branch)).grow(leaf, text, raw)

    async def give(self, branch: str, text: str) -> list[str]:
        return await (await self.sub_agent(Squad, branch)).give(text)

    async def leaves(self, branch: str) -> int:
        return len(self.children.list())

    async def look(self) -> str:
        return self.state


def has_secret(data: bytes) -> bool:
    return SECRET.encode() in data or RAW in data


def hits(world: World, *folders: Path) -> list[str]:
    """Return the files, and the objects of the archive and messages of the log, that have a byte of the secret."""
    files = [path for folder in (world.data, *folders) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [str(path) for path in files if has_secret(path.read_bytes())] + in_log(world)


def in_log(world: World) -> list[str]:
    """Return where the log and the archive in memory have a byte of the secret."""
    if runtimes.chosen != "replicated":
        return []
    storage = storage_of(world.data)
    found = [key for key, data in storage.archive.objects.items() if has_secret(data) or has_secret(unzipped(data))]
    for stored in storage.log._stored:  # pyright: ignore[reportPrivateUsage]
        found += [f"log {one.record.sequence}" for one in stored if has_secret(one.record.data)]
    return found


def unzipped(data: bytes) -> bytes:
    """Return what a snapshot has."""
    with contextlib.suppress(zlib.error):
        return zlib.decompress(data[DIGEST:])
    return b""


def remains(receipt: ErasureReceipt) -> list[str]:
    """Return where data may be. In a cluster, NATS decides when bytes of deleted messages go."""
    is_in_log = runtimes.chosen in runtimes.IN_A_LOG
    places = [f"{one.place} {one.where}".strip() for one in receipt.remains]
    assert ("log" in places) == is_in_log
    return [one for one in places if one != "log"]


async def grown(world: World) -> Firm:
    """Return a root with two branches; the leaves of the first hold the secret."""
    trunk = await world.get_agent(Firm, "oak")
    for leaf in ("one", "two"):
        await trunk.grow("north", leaf, SECRET, RAW)
    await trunk.grow("south", "one", "harmless", b"harmless")
    await world.settled()
    return trunk


def state_of(receipt: ErasureReceipt, place: str) -> list[str]:
    return [one.state for one in receipt.places if one.place == place]


async def test_of_an_erased_tree_no_byte_is_left_in_the_data_folder(run: Run) -> None:
    async with run(Firm) as world:
        await grown(world)
        await (await world.get_agent(Firm, "elm")).grow("north", "one", "harmless", b"harmless")
        leaf = await world.get_agent(Firm, "oak", sub=((Squad, "north"), (ErasedClerk, "one")))
        assert await leaf.letters() == 1
        assert hits(world)

        receipt = await world.app.erase(Firm, "oak", by="ann")

        assert hits(world) == []
        assert b"oak" not in b"".join(path.read_bytes() for path in world.data.rglob("*") if path.is_file())
        assert (receipt.agents, receipt.by, receipt.is_subtree) == (6, "ann", False)
        assert remains(receipt) == []
        assert state_of(receipt, "files") == ["erased"]
        assert verify_receipt(receipt.json()) == receipt
        assert receipt.is_about("Firm:oak")
        assert not receipt.is_about("Firm:elm")
        elm = await world.get_agent(Firm, "elm", sub=((Squad, "north"), (ErasedClerk, "one")))
        assert await elm.read() == "harmless"


async def test_a_subtree_is_erased_out_of_a_tree_that_keeps_running(run: Run) -> None:
    async with run(Firm) as world:
        trunk = await grown(world)
        runs = await trunk.give("north", SECRET)
        await world.settled()
        north = await world.get_agent(Firm, "oak", sub=[(Squad, "north")])

        for leaf in ("two", *runs):
            receipt = await world.app.erase(Firm, "oak", sub=((Squad, "north"), (ErasedClerk, leaf)))
            assert remains(receipt) == []
        receipt = await world.app.erase(Firm, "oak", sub=((Squad, "north"), (ErasedClerk, "one")))

        assert hits(world) == []
        assert await north.given() == [("completed", None), ("completed", None)]
        assert (receipt.agents, receipt.is_subtree) == (1, True)
        assert remains(receipt) == []
        assert await trunk.look() == "brown"  # the same incarnation
        assert await north.look() == "green"
        with pytest.raises(NotFound):
            await world.get_agent(Firm, "oak", sub=((Squad, "north"), (ErasedClerk, "one")))
        await world.restart()
        south = await world.get_agent(Firm, "oak", sub=((Squad, "south"), (ErasedClerk, "one")))
        assert await south.read() == "harmless"
        assert hits(world) == []


async def test_an_erased_agent_may_be_made_again_and_is_a_new_one(run: Run) -> None:
    async with run(Firm) as world:
        trunk = await grown(world)
        await world.app.erase(Firm, "oak", sub=[(Squad, "north")])
        await trunk.grow("north", "three", "new", b"new")
        leaf = await world.get_agent(Firm, "oak", sub=((Squad, "north"), (ErasedClerk, "three")))
        assert await leaf.read() == "new"

        await world.app.erase(Firm, "oak")
        again = await world.get_agent(Firm, "oak")
        assert await again.leaves("north") == 0
        await again.grow("north", "one", "newer", b"newer")
        leaf = await world.get_agent(Firm, "oak", sub=((Squad, "north"), (ErasedClerk, "one")))
        assert await leaf.read() == "newer"


async def test_the_same_id_returns_the_same_receipt_and_is_of_one_agent(run: Run) -> None:
    async with run(Firm) as world:
        await grown(world)
        receipt = await world.app.erase(Firm, "oak", id="ticket-7")
        await grown(world)

        assert await world.app.erase(Firm, "oak", id="ticket-7") == receipt
        assert hits(world)
        with pytest.raises(UsageError, match="another agent"):
            await world.app.erase(Firm, "elm", id="ticket-7")
        with pytest.raises(UsageError, match="must be 1 to 64"):
            await world.app.erase(Firm, "oak", id="../ticket")


async def test_what_does_not_exist_cannot_be_erased(run: Run) -> None:
    async with run(Firm) as world:
        with pytest.raises(NotFound, match="has no data"):
            await world.app.erase(Firm, "oak")
        await grown(world)
        with pytest.raises(NotFound, match="There is no"):
            await world.app.erase(Firm, "oak", sub=[(Squad, "west")])


async def test_a_changed_receipt_does_not_verify(run: Run) -> None:
    async with run(Firm) as world:
        await grown(world)
        receipt = await world.app.erase(Firm, "oak")
        other = await world.app.erase(Firm, "oak", id=receipt.id)
        fields = json.loads(receipt.json())

        assert verify_receipt(json.dumps(fields), fingerprint=other.fingerprint) == receipt
        for name in fields:
            changed = fields | {name: [] if isinstance(fields[name], list) else "0" if fields[name] != "0" else "1"}
            with pytest.raises(Refused):
                verify_receipt(json.dumps(changed))
        with pytest.raises(Refused, match="signature does not fit"):
            verify_receipt(json.dumps(fields | {"more": 1}))
        with pytest.raises(Refused, match="occurs twice"):
            verify_receipt(receipt.json().replace('"by"', '"by": "mallory", "by"'))
        with pytest.raises(Refused, match="another key"):
            verify_receipt(receipt.json(), fingerprint="00" * 32)


@pytest.mark.slow
async def test_a_backup_that_holds_the_tree_is_named(run: Run, tmp_path: Path) -> None:
    async with run(Firm) as world:
        await grown(world)
        await world.app.backup(tmp_path / "all")
        await world.app.backup(tmp_path / "gone")
        (tmp_path / "gone").rename(tmp_path / "moved")
        await (await world.get_agent(Firm, "elm")).grow("north", "one", "harmless", b"harmless")
        await world.app.backup(tmp_path / "elm", Firm, "elm")

        part = await world.app.erase(Firm, "oak", sub=[(Squad, "north")])
        receipt = await world.app.erase(Firm, "oak")

        if runtimes.chosen in ("workers", "movable"):
            return  # the nodes of these tests have a data folder each, and each folder has notes of its own
        (note,) = [one.note for one in part.places if one.place == "backup" and one.state == "still there"]
        assert note is not None
        assert "`sapwood erase --backup FOLDER ROOT`" in note
        found = {one.where: one.state for one in receipt.places if one.place == "backup"}
        assert found == {str(tmp_path / "all"): "still there", str(tmp_path / "gone"): "unknown"}
        assert remains(receipt) == [f"backup {where}" for where in found]


async def test_a_fork_that_may_hold_the_data_is_named(run: Run) -> None:
    async with run(Firm) as world:
        await grown(world)
        await world.app.fork(Firm, "oak", to="oak-again")
        await (await world.get_agent(Firm, "elm")).grow("north", "one", "harmless", b"harmless")
        receipt = await world.app.erase(Firm, "oak", sub=[(Squad, "north")])

        fork = f"fork trees/{tree_id(Address.parse('Firm:oak-again'))}"
        assert remains(receipt) == ([] if runtimes.chosen in runtimes.IN_A_LOG else [fork])
        clerk = await world.get_agent(Firm, "oak-again", sub=((Squad, "north"), (ErasedClerk, "one")))
        assert await clerk.read() == SECRET


POINTS_OF_ERASURE = [point for point in POINTS if point.startswith(("before", "after", "committed"))]


SOME = {"after create": (2, 3), "before rename": (2, 3, 4), "after remove": (1, 9)}
"""Where to crash in every run: between two steps, in one, and before the receipt."""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["tree", "subtree"])
@pytest.mark.parametrize("point", SOME)
async def test_an_erasure_that_a_crash_interrupts_continues_and_its_receipt_is_complete(
    run: Run, what: str, point: str
) -> None:
    for nth in SOME[point]:
        await crash_and_continue(run, what, point, nth)


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["tree", "subtree"])
@pytest.mark.parametrize("point", POINTS_OF_ERASURE)
async def test_an_erasure_continues_wherever_a_crash_interrupts_it(run: Run, what: str, point: str) -> None:
    for nth in range(1, 200):
        if not await crash_and_continue(run, what, point, nth):
            return
    pytest.fail("There is no end of the points.")


async def crash_and_continue(run: Run, what: str, point: str, nth: int) -> bool:
    """Crash an erasure, look at what the next life makes of it, and return whether it was interrupted."""
    sub: Any = [] if what == "tree" else [(Squad, "north")]
    async with run(Firm) as world:
        await grown(world)
        world.crash_at(point, nth)
        try:
            await world.app.erase(Firm, "oak", sub=sub, id="ticket")
            crashed = False
        except (Unavailable, NotFound):
            crashed = True
        await world.crash()
        try:
            receipt = await world.app.erase(Firm, "oak", sub=sub, id="ticket")
        except NotFound:
            pytest.fail(f"{point} {nth}: the erasure was forgotten, and the agents are gone")
        assert verify_receipt(receipt.json()) == receipt
        assert receipt.agents == (6 if what == "tree" else 3)
        assert state_of(receipt, "files") == ["erased"]
        assert hits(world) == [], (point, nth)
        assert not list(world.data.glob("erasures/*.unfinished"))
    return crashed


@pytest.mark.slow
@pytest.mark.parametrize("what", ["tree", "subtree"])
async def test_a_full_disk_refuses_an_erasure_or_one_that_has_begun_continues(
    run: Run, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    sub: Any = [] if what == "tree" else [(Squad, "north")]
    with full_disk(monkeypatch) as disk:
        for write in range(1, 7):
            async with run(Firm) as world:
                await grown(world)
                disk.fill_at(write, 100_000)
                is_refused = False
                try:
                    receipt = await world.app.erase(Firm, "oak", sub=sub, id="ticket")
                except Unavailable:
                    is_refused = True
                began = bool(list(world.data.glob("erasures/*.unfinished"))) or runtimes.chosen in runtimes.IN_A_LOG
                disk.is_full = False
                disk.fill_at(1_000_000, 0)
                await world.settled()
                if is_refused and not began:
                    clerk = await world.get_agent(Firm, "oak", sub=((Squad, "north"), (ErasedClerk, "one")))
                    assert await clerk.read() == SECRET
                receipt = await world.app.erase(Firm, "oak", sub=sub, id="ticket")
                assert hits(world) == []
                assert verify_receipt(receipt.json()) == receipt
            if not is_refused:
                return
