"""An erasure in a real cluster: nothing is left on the nodes and in the archive, and all other trees stay whole."""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path

import pytest
from tests.cluster.servers import Nats
from tests.cluster.test_own_archive import Cluster

from sapwood import Agent, App
from sapwood.kernel.log.records import DIGEST, tree_id
from sapwood.runtimes.cluster.base.segments import lines_of, unpack_segment
from sapwood.types import Address, ErasureReceipt

pytestmark = pytest.mark.nightly

SECRET = "5eC3e7" + "0f1e2d3c4b5a69788796a5b4c3d2e1f0" * 2
RAW = SECRET.encode() * 5000


class ErasedLeaf(Agent):
    migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)

    async def keep(self, text: str) -> int:
        self.sql("INSERT INTO notes VALUES (?)", text)
        await self.files.put(text.encode() * 5000)
        return self.sql("SELECT count(*) FROM notes").scalar(int)


class ErasedTrunk(Agent):
    async def keep(self, leaf: str, text: str) -> int:
        return await (await self.sub_agent(ErasedLeaf, leaf)).keep(text)


@pytest.fixture
def cluster(nats: Nats, tmp_path: Path) -> Cluster:
    return Cluster(nats, tmp_path, agents=[ErasedTrunk])


def hits(cluster: Cluster) -> list[str]:
    """Return the files of nodes and the objects of the archive that have a byte of the secret."""
    folders = [cluster.folder / name for name in ("data-a", "data-b", "archive")]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if SECRET.encode() in path.read_bytes() + content(path)]


def content(path: Path) -> bytes:
    """Return what an object of the archive has, as it is not compressed."""
    data = path.read_bytes()
    if "segments" in path.parts:
        return b"".join(line.data for line in lines_of(unpack_segment(data, "")))
    with contextlib.suppress(zlib.error):
        return zlib.decompress(data[DIGEST:])
    return b""


def states(receipt: ErasureReceipt) -> dict[str, str]:
    return {place.place: place.state for place in receipt.places}


async def keep(app: App, tree: str, leaf: str, text: str) -> int:
    return await (await app.get_agent(ErasedTrunk, tree)).keep(leaf, text)


async def ship(cluster: Cluster, archive: str) -> None:
    """Have the archive get all that the log has."""
    code, said = await cluster.command(
        "backup", str(cluster.folder / "nothing"), "--at", "2026-01-01T00:00:00Z", archive=archive
    )
    assert code == 0, said


async def test_of_an_erased_tree_nothing_is_left_and_the_others_can_be_restored(cluster: Cluster) -> None:
    archive = cluster.url("archive")
    async with cluster.node("a", archive) as a, cluster.node("b", archive) as b:
        for tree in ("oak", "elm", "ash"):
            assert await keep(a, tree, "one", SECRET if tree == "oak" else "harmless") == 1
        await ship(cluster, archive)
        assert [hit for hit in hits(cluster) if "segments" in hit]

        receipt = await b.erase(ErasedTrunk, "oak", by="ann")

        assert hits(cluster) == []
        tree = tree_id(Address.parse("ErasedTrunk:oak"))
        assert not [path for path in cluster.folder.rglob(f"*{tree}*") if path.is_file()]
        found = states(receipt)
        assert found["archive"] == found["second copy of the log"] == found["files"] == "erased"
        assert found["log"] == "unknown"
        assert [place.where for place in receipt.places if place.place == "backup"] == [str(cluster.folder / "nothing")]
        assert {place.node for place in receipt.places if place.place == "memory"} == {"a", "b"}
        assert receipt.agents == 2
        assert await keep(a, "oak", "one", "new") == 1
        code, said = await cluster.command("verify", archive=archive)
        assert (code, "All data is intact" in said) == (0, True), said
        await ship(cluster, archive)
    await cluster.lose_nats()
    code, said = await cluster.command("restore", archive=archive)
    assert code == 0, said
    async with cluster.node("c", archive) as app:
        for tree in ("oak", "elm", "ash"):
            assert await keep(app, tree, "one", "more") == 2


async def test_of_an_erased_sub_agent_nothing_is_left_and_its_tree_keeps_running(cluster: Cluster) -> None:
    archive = cluster.url("archive")
    async with cluster.node("a", archive) as a, cluster.node("b", archive) as b:
        await keep(a, "oak", "one", SECRET)
        await keep(a, "oak", "two", "harmless")
        await ship(cluster, archive)

        receipt = await b.erase(ErasedTrunk, "oak", sub=[(ErasedLeaf, "one")])

        assert hits(cluster) == []
        assert states(receipt)["second copy of the log"] == "erased"
        assert await keep(b, "oak", "two", "harmless") == 2
        code, said = await cluster.command("verify", archive=archive)
        assert (code, "All data is intact" in said) == (0, True), said
        await ship(cluster, archive)
    await cluster.lose_nats()
    code, said = await cluster.command("restore", archive=archive)
    assert code == 0, said
    async with cluster.node("c", archive) as app:
        assert await keep(app, "oak", "two", "harmless") == 3
        assert await keep(app, "oak", "one", "new") == 1
