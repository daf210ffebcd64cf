"""Servers that rot and servers that lose everything, below nodes at work: what comes back, and what does not."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.cluster.servers import S3, Nats
from tests.machine import patience

from sapwood import Agent, App
from sapwood.address import Address
from sapwood.cli.cluster import told
from sapwood.errors import Unavailable, UsageError
from sapwood.kernel.log.records import tree_id
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.base.cluster_status import names_of
from sapwood.runtimes.cluster.base.layout import Layout
from sapwood.runtimes.cluster.copies.log_shipper import EVERY, Shipper
from sapwood.runtimes.cluster.copies.replicas import NatsReplicas
from sapwood.runtimes.cluster.copies.s3_archive import ObjectArchive
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.runtimes.cluster.ops.verification import LEADER, SERVER, VerificationReport, verify
from sapwood.runtimes.cluster.ownership.ownership import Ownership
from sapwood.runtimes.cluster.runtime import ClusterRuntime
from sapwood.settings import Settings
from sapwood.timings import DEFAULTS, Timings

QUICK = partial(Ownership, lease=6.0, renewal=1.0, margin=0.5)
BUSY = 5.0
"""Seconds that a machine may be late that does much else."""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Generator[S3, None, None]:
    bucket = S3(tmp_path_factory.mktemp("s3")).start()
    yield bucket
    bucket.stop()


class DamagedList(Agent):
    """Keeps what it is given, in order."""

    migrations = ("CREATE TABLE items (number INTEGER PRIMARY KEY, filling BLOB) STRICT",)

    async def add(self, number: int, filling: int = 0) -> None:
        self.sql("INSERT OR IGNORE INTO items VALUES (?, randomblob(?))", number, filling)

    async def items(self) -> list[int]:
        return [int(str(row["number"])) for row in self.sql("SELECT number FROM items ORDER BY number")]

    async def end(self) -> None:
        await self.destroy()


class Damaged:
    """A cluster, and clients that know what they were told."""

    def __init__(self, folder: Path, s3: S3) -> None:
        self.folder = folder
        self.cell = Nats(folder / "cell").start().wait()
        self.archive = f"{s3.url}/{uuid4().hex[:8]}"
        self.apps: dict[str, App] = {}
        self.told: dict[str, list[tuple[int, float]]] = {}
        """By list: what was acknowledged, and when."""

    async def start(self, node: str) -> App:
        settings = Settings(
            data=self.folder / node,
            durability="replicated",
            nats=self.cell.urls,
            archive=self.archive,
            node=node,
        )
        runtime = ClusterRuntime(settings, layout=Layout(streams=1), make_owners=QUICK)
        app = App(agents=[DamagedList], settings=settings, runtime=runtime)
        await app.__aenter__()
        self.apps[node] = app
        return app

    async def kill(self, node: str) -> None:
        app = self.apps.pop(node)
        await app.node.die()
        await app.__aexit__()

    async def add(self, node: str, name: str, filling: int = 0) -> None:
        """Add the next number; go on until somebody says that it is there."""
        given = self.told.setdefault(name, [])
        number = len(given)
        async with asyncio.timeout(patience(90)):
            while True:
                try:
                    one = await self.apps[node].get_agent(DamagedList, name)
                    await one.add(number, filling)
                    break
                except Unavailable:
                    await asyncio.sleep(0.1)
        given.append((number, time.time()))

    async def items(self, node: str, name: str) -> list[int]:
        async with asyncio.timeout(patience(90)):
            while True:
                try:
                    return await (await self.apps[node].get_agent(DamagedList, name)).items()
                except Unavailable:
                    await asyncio.sleep(0.1)

    async def check(self, node: str) -> None:
        """Nothing is missing, and nothing is there that nobody was told of."""
        for name, given in self.told.items():
            assert await self.items(node, name) == [number for number, _ in given], name

    async def verify(self, *, repair: bool = False, timings: Timings = DEFAULTS) -> VerificationReport:
        connection = await connect(self.cell.urls, "test")
        try:
            names = await names_of(connection, "sapwood")
            return await verify(connection, names, ObjectArchive(self.archive), repair=repair, timings=timings)
        finally:
            await connection.close()

    async def ship(self) -> None:
        connection = await connect(self.cell.urls, "test")
        try:
            names = await names_of(connection, "sapwood")
            await Shipper(connection, names, 0, ObjectArchive(self.archive)).ship()
        finally:
            await connection.close()

    async def lose_everything(self) -> None:
        """Have three new servers, which have nothing, in place of those that there were."""
        self.cell.remove()
        await asyncio.sleep(1)  # until connections know of it
        for node in list(self.apps):
            await self.kill(node)
        self.cell = Nats(self.folder / "cell").start().wait()

    async def command(self, *words: str, code: int = 0) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sapwood", "cluster", *words, "--nats", self.cell.urls, "--archive", self.archive),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said = (await process.communicate())[0].decode()
        assert process.returncode == code, said
        return said


@asynccontextmanager
async def damaged(folder: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Damaged, None]:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    cluster = Damaged(folder, s3)
    try:
        yield cluster
        for app in cluster.apps.values():
            await app.__aexit__()
    finally:
        cluster.cell.remove()


def rot(blocks: list[Path], randomly: random.Random) -> None:
    """Flip bits in all files of a stream, and cut the end off one of them."""
    for block in blocks:
        content = bytearray(block.read_bytes())
        for _ in range(2):
            content[randomly.randrange(len(content) // 3, len(content))] ^= 4
        block.write_bytes(content)
    with blocks[0].open("r+b") as file:
        file.truncate(blocks[0].stat().st_size * 2 // 3)


async def leader(connection: Any, cell: Nats, stream: str) -> int:
    """Return which server leads, once one does."""
    async with asyncio.timeout(patience()):
        while True:
            info = await connection.jetstream(timeout=20).stream_info(stream)
            if info.cluster.leader:
                return cell.number_of(info.cluster.leader)
            await asyncio.sleep(0.2)


async def have_lead(connection: Any, cell: Nats, stream: str, victim: int) -> None:
    wish = b'{"placement":{"preferred":"cell-%d"}}' % victim
    for _ in range(20):
        if await leader(connection, cell, stream) == victim:
            return
        await connection.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", wish, timeout=10)
        await asyncio.sleep(1.5)
    raise AssertionError("It does not come to lead.")


@pytest.mark.nightly
async def test_a_server_that_rots_and_leads_loses_and_serves_nothing(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    randomly = random.Random(5)
    names = [f"rotten-{number}" for number in range(24)]
    async with damaged(tmp_path, s3, monkeypatch) as cluster:
        cell = cluster.cell
        for node in "ab":
            await cluster.start(node)
        for _ in range(20):
            await asyncio.gather(*(cluster.add("a", name, 20_000) for name in names))
        connection = await connect(cell.urls, "test")
        info = await connection.jetstream().stream_info("sapwood-log-0")
        victim = cell.number_of(info.cluster.replicas[0].name)
        await asyncio.sleep(1)
        cell.kill(victim)
        blocks = cell.blocks(victim, "sapwood-log-0")
        assert len(blocks) > 1
        rot(blocks, randomly)
        cell.start([victim]).wait()
        await asyncio.sleep(2)
        await have_lead(connection, cell, "sapwood-log-0", victim)

        found = await cluster.verify()
        print("\n".join(line.plain for line in told(found))[:600])
        assert {SERVER, LEADER} <= set(found.lacking)
        assert all(one.can_be_mended and one.root.startswith("DamagedList:rotten-") for one in found.damaged)

        # A node dies, so the other has to read its trees from the log; clients go on.
        await cluster.kill("a")
        await asyncio.gather(*(cluster.add("b", name, 100) for name in names))
        await cluster.check("b")

        await have_lead(connection, cell, "sapwood-log-0", victim)
        too_early = Timings(election_delay=0.0)  # they have not elected anybody yet
        found = await cluster.verify(repair=True, timings=too_early)
        print("\n".join(line.plain for line in told(found))[:600])
        assert found.is_whole, list(told(found))
        await asyncio.gather(*(cluster.add("b", name, 100) for name in names))
        await have_lead(connection, cell, "sapwood-log-0", victim)
        assert (await cluster.verify()).is_whole
        await cluster.check("b")
        await connection.close()


@pytest.mark.nightly
async def test_what_no_server_has_any_more_is_repaired_from_the_archive(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with damaged(tmp_path, s3, monkeypatch) as cluster:
        await cluster.start("a")
        for name in ("open", "closed"):
            for _ in range(5):
                await cluster.add("a", name)
        await cluster.kill("a")
        await cluster.start("b")
        await cluster.check("b")
        await cluster.kill("b")
        await cluster.start("c")
        await cluster.items("c", "open")
        await cluster.ship()
        connection = await connect(cluster.cell.urls, "test")
        cut = await names_of(connection, "sapwood")
        for name in ("open", "closed"):
            root = Address.root_of("DamagedList", name)
            records = await NatsReplicas(connection, cut, ObjectArchive(cluster.archive)).read_leader(
                shard_of(root), tree_id(root)
            )
            gone = b'{"seq": %d}' % records[len(records) // 2].sequence
            await connection.request("$JS.API.STREAM.MSG.DELETE.sapwood-log-0", gone, timeout=10)

        found = await cluster.verify()
        assert sorted(one.root for one in found.damaged) == ["DamagedList:closed", "DamagedList:open"]
        assert all(one.can_be_mended for one in found.damaged)
        said = await cluster.command("verify", "--repair")

        assert "a new leader" not in said, "no server has what is missing"
        assert "DamagedList:closed: stored again." in said
        assert "DamagedList:open: stored again." in said
        assert "All data is intact." in said
        await cluster.check("c")
        await cluster.kill("c")
        await cluster.start("d")
        for name in ("open", "closed"):
            await cluster.add("d", name)
        await cluster.check("d")
        await connection.close()


@pytest.mark.nightly
async def test_after_all_servers_lost_everything_only_the_last_seconds_are_gone(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"lost-{number}" for number in range(6)]
    async with damaged(tmp_path, s3, monkeypatch) as cluster:
        for node in "ab":
            await cluster.start(node)
        end = time.monotonic() + 2 * EVERY + 3
        while time.monotonic() < end:
            await asyncio.gather(*(cluster.add("ab"[at % 2], name) for at, name in enumerate(names)))
            await asyncio.sleep(0.1)
        lost = time.time()
        await cluster.lose_everything()
        with pytest.raises(UsageError, match="sapwood cluster restore"):
            await cluster.start("c")

        said = await cluster.command("restore")
        print(said)

        assert "Stream 0 is restored up to" in said
        for node in "cd":
            await cluster.start(node)
        missing: list[float] = []
        for name, given in cluster.told.items():
            items = await cluster.items("c", name)
            assert items == list(range(len(items)))  # what is missing is the end
            missing += [at for number, at in given if number >= len(items)]
            cluster.told[name] = given[: len(items)]
        gone = lost - min(missing, default=lost)
        total = sum(len(given) for given in cluster.told.values()) + len(missing)
        print(f"lost: {len(missing)} of {total} items, of the last {gone:.1f} s")
        assert gone < EVERY + BUSY
        assert missing
        for name in names:
            await cluster.add("d", name)
        await cluster.check("c")
        await cluster.ship()  # the second copy goes on where it ended
        with pytest.raises(AssertionError, match="Nodes are running: c, d"):
            await cluster.command("restore")
        assert (await cluster.verify()).is_whole


@pytest.mark.nightly
async def test_one_tree_and_all_of_them_as_they_were_at_a_time(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with damaged(tmp_path, s3, monkeypatch) as cluster:
        for node in "ab":
            await cluster.start(node)
        for name in ("one", "two", "three", "four"):
            for _ in range(3):
                await cluster.add("a", name)
        await asyncio.sleep(0.2)
        at = datetime.now(UTC).isoformat()
        await cluster.ship()  # as happens every ten seconds: the end of a tree leaves nothing of it in the log
        for name in ("one", "two", "new"):
            await cluster.add("a", name)
        await (await cluster.apps["a"].get_agent(DamagedList, "three")).end()

        # One tree, into the running cluster, by a node that need not run it.
        said = await cluster.command("backup", str(tmp_path / "then"), "DamagedList:one", "--at", at)
        assert "Copied 1 tree to" in said
        for node in "ab":
            assert await cluster.apps[node].restore(tmp_path / "then", DamagedList, "one") == 1
            assert await cluster.items("a", "one") == [0, 1, 2]
        assert await cluster.items("b", "two") == [0, 1, 2, 3]
        assert "Copied 4 trees" in await cluster.command("backup", str(tmp_path / "all-then"), "--at", at)
        assert "Copied 4 trees" in await cluster.command("backup", str(tmp_path / "all-now"))
        assert "Expected a time with a time zone" in await cluster.command("backup", "x", "--at", "yesterday", code=1)

        # All of them, after the log was lost.
        await cluster.ship()
        await cluster.lose_everything()
        await cluster.command("restore", "--at", at)
        await cluster.start("c")
        for name in ("one", "two", "three", "four"):
            assert await cluster.items("c", name) == [0, 1, 2], name
        assert await cluster.items("c", "new") == []
        await cluster.kill("c")
        await cluster.start("d")
        assert await cluster.items("d", "three") == [0, 1, 2]


@pytest.mark.nightly
async def test_a_tree_that_was_snapshotted_and_destroyed_comes_back_as_it_was_before(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with damaged(tmp_path, s3, monkeypatch) as cluster:
        app = await cluster.start("a")
        assert app.node.keeper is not None
        for _ in range(3):
            await cluster.add("a", "ended")
        root = Address.root_of("DamagedList", "ended")
        await app.node.keeper.snapshot(root)
        await cluster.add("a", "ended")
        await asyncio.sleep(0.2)
        at = datetime.now(UTC).isoformat()
        await cluster.ship()
        await (await app.get_agent(DamagedList, "ended")).end()
        async with asyncio.timeout(patience()):
            while await app.node.loader.exists(root):  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.1)
        # It is another one, of the same name.
        one = await app.get_agent(DamagedList, "ended")
        await one.add(77)
        await app.node.keeper.snapshot(root)
        await asyncio.sleep(1.2)
        assert await one.items() == [77]

        assert "Copied 1 tree to" in await cluster.command(
            "backup", str(tmp_path / "then"), "DamagedList:ended", "--at", at
        )
        assert "Copied 1 tree to" in await cluster.command("backup", str(tmp_path / "all"), "--at", at)
        now = datetime.now(UTC).isoformat()
        await cluster.command("backup", str(tmp_path / "now"), "DamagedList:ended", "--at", now)
        for folder, items in (("now", [77]), ("then", [0, 1, 2, 3]), ("all", [0, 1, 2, 3])):
            await app.restore(tmp_path / folder, DamagedList, "ended")
            assert await (await app.get_agent(DamagedList, "ended")).items() == items, folder
