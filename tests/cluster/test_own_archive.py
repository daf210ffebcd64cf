"""A cluster has one archive: whoever is given another is refused before it finds nothing there and begins anew."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.cluster.servers import S3, Nats

from sapwood import Agent, App
from sapwood.errors import Unavailable, UsageError
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.copies.archive_identity import ID, claim_archive
from sapwood.runtimes.cluster.copies.s3_archive import ObjectArchive
from sapwood.runtimes.cluster.nats.nats_connection import connect, disconnect
from sapwood.runtimes.cluster.ownership.ownership import Ownership
from sapwood.runtimes.cluster.runtime import ClusterRuntime
from sapwood.settings import Settings
from sapwood.testing.memory_log import MemoryArchive

QUICK = partial(Ownership, lease=6.0, renewal=1.0, margin=0.5)
STREAMS = 1


class OwnArchiveChest(Agent):
    """Counts."""

    migrations = ("CREATE TABLE things (name TEXT NOT NULL) STRICT",)

    async def put(self, name: str) -> int:
        self.sql("INSERT INTO things VALUES (?)", name)
        return self.sql("SELECT count(*) FROM things").scalar(int)


class Cluster:
    """One by its name, with nodes that are given any archive."""

    def __init__(self, nats: Nats, folder: Path, agents: Sequence[type[Agent]] | None = None) -> None:
        self.nats = nats
        self.agents = agents or [OwnArchiveChest]
        self.folder = folder
        self.name = f"c{uuid4().hex[:8]}"

    def url(self, name: str) -> str:
        return (self.folder / name).as_uri()

    @asynccontextmanager
    async def node(self, name: str, archive: str, ours: Any = None) -> AsyncIterator[App]:
        settings = Settings(
            data=self.folder / f"data-{name}",
            durability="replicated",
            nats=self.nats.urls,
            archive=archive,
            cluster=self.name,
            node=name,
        )
        runtime = ClusterRuntime(settings, layout=Layout(streams=STREAMS), archive=ours, make_owners=QUICK)
        async with App(agents=self.agents, settings=settings, runtime=runtime) as app:
            yield app

    async def command(self, *words: str, archive: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sapwood", "cluster", *words),
            *("--nats", self.nats.urls, "--archive", archive, "--cluster", self.name),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, " ".join(said.decode().split())

    async def lose_nats(self) -> None:
        """Delete all streams."""
        connection = await connect(self.nats.urls, "test")
        names = Names(self.name, Layout(streams=STREAMS))
        for stream in (names.members, *(names.stream(number) for number in range(STREAMS))):
            await connection.jetstream().delete_stream(stream)
        await disconnect(connection)


@pytest.fixture
def cluster(nats: Nats, tmp_path: Path) -> Cluster:
    return Cluster(nats, tmp_path)


async def test_a_node_with_another_archive_is_refused(cluster: Cluster) -> None:
    own, other = cluster.url("archive"), cluster.url("other")
    async with cluster.node("a", own):
        with pytest.raises(UsageError, match=f"uses the archive {own}, got {other}"):
            async with cluster.node("b", other):
                pass
        async with cluster.node("b", own):
            pass
    assert not list((cluster.folder / "other").iterdir())


async def test_an_archive_of_the_same_name_is_another_one_if_it_was_emptied(cluster: Cluster) -> None:
    async with cluster.node("a", cluster.url("archive")):
        pass
    shutil.move(cluster.folder / "archive", cluster.folder / "moved")
    with pytest.raises(UsageError, match="it was emptied, or it is a folder of this machine only"):
        async with cluster.node("a", cluster.url("archive")):
            pass
    async with cluster.node("a", cluster.url("moved")):  # all of it: it is the same
        pass


async def test_of_two_who_found_a_cluster_with_different_archives_one_is_refused(cluster: Cluster) -> None:
    async with cluster.node("a", cluster.url("first")):
        pass
    connection = await connect(cluster.nats.urls, "test")
    names = Names(cluster.name, Layout(streams=STREAMS))
    await connection.jetstream().purge_stream(names.members, subject=names.archive)
    two = [ObjectArchive(cluster.url(name)) for name in ("first", "second")]
    ended = await asyncio.gather(*(claim_archive(connection, names, one) for one in two), return_exceptions=True)
    await disconnect(connection)
    assert sorted(type(one).__name__ for one in ended) == ["NoneType", "UsageError"]


async def test_commands_refuse_another_archive(cluster: Cluster) -> None:
    async with cluster.node("a", cluster.url("archive")) as app:
        assert await (await app.get_agent(OwnArchiveChest, "c")).put("one") == 1
        (cluster.folder / "other").mkdir()
        for words in (["verify"], ["trees"], ["backup", str(cluster.folder / "copy")], ["status"]):
            code, said = await cluster.command(*words, archive=cluster.url("other"))
            assert code != 0
            assert "must use the same archive" in said, words
        code, said = await cluster.command("verify", archive=cluster.url("archive"))
        assert (code, "All data is intact" in said) == (0, True), said


@pytest.mark.nightly
async def test_a_restored_cluster_has_the_archive_it_was_restored_from(cluster: Cluster) -> None:
    own, other = cluster.url("archive"), cluster.url("other")
    async with cluster.node("a", own) as app:
        assert await (await app.get_agent(OwnArchiveChest, "c")).put("one") == 1
        code, said = await cluster.command(
            "backup", str(cluster.folder / "copy"), "--at", "2026-01-01T00:00:00Z", archive=own
        )  # the archive has all up to now
        assert code == 0, said
    identity = (cluster.folder / "archive" / ID).read_text()
    await cluster.lose_nats()
    (cluster.folder / "other").mkdir()
    code, said = await cluster.command("restore", archive=other)
    assert (code, f"The archive {other} is empty:" in said) == (1, True)
    code, said = await cluster.command("restore", archive=own)
    assert code == 0, said
    assert (cluster.folder / "archive" / ID).read_text() == identity
    with pytest.raises(UsageError, match="must use the same archive"):
        async with cluster.node("b", other):
            pass
    async with cluster.node("b", own) as app:
        assert await (await app.get_agent(OwnArchiveChest, "c")).put("two") == 2


async def test_a_bucket_that_is_not_there_is_refused(cluster: Cluster, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="the bucket does not exist"):
        async with cluster.node("a", "s3://nobodys-bucket/trees"):
            pass


class Away(MemoryArchive):
    """One that does not answer for a while."""

    is_away = True

    def _ask(self) -> None:
        if self.is_away:
            raise Unavailable("The archive does not answer.")

    async def get(self, key: str) -> bytes | None:
        self._ask()
        return await super().get(key)

    async def put(self, key: str, data: bytes, *, only_new: bool = False) -> bool:
        self._ask()
        return await super().put(key, data, only_new=only_new)

    async def keys(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        self._ask()
        async for key in super().keys(prefix, after):
            yield key

    async def remove(self, keys: Sequence[str]) -> None:
        self._ask()
        await super().remove(keys)


async def test_an_archive_that_did_not_answer_at_the_start_is_compared_before_it_is_used(cluster: Cluster) -> None:
    own = MemoryArchive()
    async with cluster.node("a", "memory://", own):
        pass
    other = Away()
    async with cluster.node("b", "memory://", other) as app:
        with pytest.raises(Unavailable, match="does not answer"):
            await app.get_agent(OwnArchiveChest, "c")
        other.is_away = False
        with pytest.raises(Unavailable, match="is no longer that of the cluster"):
            await app.get_agent(OwnArchiveChest, "c")
        assert other.objects == {}
        other.objects |= own.objects
        assert await (await app.get_agent(OwnArchiveChest, "c")).put("one") == 1
