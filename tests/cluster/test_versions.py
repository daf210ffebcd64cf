"""Two versions of a program side by side in one cluster: what the newer one migrated, the older one never runs."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest
from tests.cluster.processes import NodeProcess, Nodes
from tests.cluster.servers import S3, Nats
from tests.cluster.versions_app import VersionedBook

from sapwood.address import Address
from sapwood.client import connect
from sapwood.errors import Unavailable
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.base.placement import wished

APP = f"{Path(__file__).with_name('versions_app.py')}:app"
BOOKS = [f"b{n}" for n in range(12)]


async def write(node: NodeProcess, book: str, text: str, patience: float = 60.0) -> int:
    async with connect(node.url, VersionedBook, book, timeout=patience, delay=lambda attempt: 0.3) as remote:
        return await remote.stub.write(text)


async def written(node: NodeProcess, text: str) -> dict[str, int]:
    """Write into all books; return which version wrote into each."""
    return dict(zip(BOOKS, await asyncio.gather(*(write(node, book, text) for book in BOOKS)), strict=True))


@pytest.mark.nightly
async def test_what_a_newer_program_migrated_is_run_by_newer_nodes_only(nats: Nats, s3: S3, tmp_path: Path) -> None:
    with Nodes(nats, s3, tmp_path, APP) as nodes:
        nodes.start("old", BOOK_VERSION="1")
        assert set((await written(nodes["old"], "first")).values()) == {1}
        nodes.start("new-1", BOOK_VERSION="2")
        migrated: set[str] = set()
        end = time.monotonic() + 90
        while len(migrated) < 3:
            assert time.monotonic() < end
            by = await written(nodes["old"], "second")
            migrated |= {book for book, version in by.items() if version == 2}

        nodes["new-1"].send(signal.SIGTERM)
        await asyncio.to_thread(nodes["new-1"].until_ended)
        book, *_ = sorted(migrated)
        with pytest.raises(Unavailable):
            await write(nodes["old"], book, "by the old one", 4)
        assert "run the newer version" in nodes["old"].log()
        others = sorted(set(BOOKS) - migrated)
        assert {await write(nodes["old"], other, "third") for other in others} <= {1}

        # Of another name, so that by the names alone the old one should have some of them.
        name = next(
            name
            for name in (f"new-{n}" for n in range(2, 99))
            if any(
                wished(shard_of(Address.root_of("VersionedBook", book)), ["old", name]) == "old" for book in migrated
            )
        )
        nodes.start(name, BOOK_VERSION="2")
        for book in sorted(migrated):
            assert await write(nodes["old"], book, "fourth") == 2
        async with connect(nodes["old"].url, VersionedBook, min(migrated)) as remote:
            lines = await remote.stub.lines()
        assert "by the old one" not in lines
        assert lines[-1] == "fourth"
