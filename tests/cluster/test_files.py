"""Larger files of a real cluster: verified, copied and restored by commands, with NATS servers and an archive."""

from __future__ import annotations

import asyncio
import hashlib
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.servers import Nats
from tests.cluster.test_own_archive import Cluster

from sapwood import Agent, App
from sapwood.capabilities.file_writer import INLINE
from sapwood.kernel.log.archive_files import sweep_removals
from sapwood.runtimes.cluster.copies.s3_archive import ObjectArchive
from sapwood.testing import running
from sapwood.types import File

CONTENT = hashlib.sha256(b"file").digest() * (INLINE // 16)


class ClusterFileShelf(Agent):
    """Stores files."""

    async def put(self, data: bytes) -> File:
        return await self.files.put(data)

    async def get(self, digest: str) -> bytes:
        return await self.files.get(digest)

    async def delete(self, digest: str) -> None:
        await self.files.delete(digest)


@pytest.fixture
def cluster(nats: Nats, tmp_path: Path) -> Cluster:
    return Cluster(nats, tmp_path, agents=[ClusterFileShelf])


async def shelf_of(app: Any) -> Any:
    return await app.get_agent(ClusterFileShelf, "s")


@pytest.mark.nightly
async def test_commands_copy_verify_and_restore_the_files_of_a_cluster(cluster: Cluster) -> None:
    archive = cluster.url("archive")
    async with cluster.node("a", archive) as app:
        file = await (await shelf_of(app)).put(CONTENT)
        code, said = await cluster.command("backup", str(cluster.folder / "copy"), archive=archive)
        assert code == 0, said
        code, said = await cluster.command(  # ships the log, too
            "backup", str(cluster.folder / "old"), "--at", "2026-01-01T00:00:00Z", archive=archive
        )
        assert code == 0, said
    (path,) = (cluster.folder / "archive" / "files").glob("*/*/root/*")
    assert path.read_bytes() == CONTENT

    await cluster.lose_nats()
    code, said = await cluster.command("restore", archive=archive)
    assert code == 0, said
    async with cluster.node("b", archive) as app:
        assert await (await shelf_of(app)).get(file.digest) == CONTENT
        code, said = await cluster.command("verify", archive=archive)
        assert (code, "All data is intact" in said) == (0, True), said

        path.write_bytes(b"!" + CONTENT[1:])
        code, said = await cluster.command("verify", archive=archive)
        assert (code, f"The file {file.digest} in root.files is damaged" in said) == (1, True), said
        path.unlink()
        code, said = await cluster.command("backup", str(cluster.folder / "bad"), archive=archive)
        assert (code, "is missing in the archive" in said) == (1, True), said

    async with running(App(agents=[ClusterFileShelf]), data=str(cluster.folder / "copy")) as world:
        assert await (await world.get_agent(ClusterFileShelf, "s")).get(file.digest) == CONTENT


@pytest.mark.nightly
async def test_what_was_stored_after_the_time_that_a_cluster_is_set_back_to_is_removed(cluster: Cluster) -> None:
    archive, other = cluster.url("archive"), hashlib.sha256(b"other").digest() * (INLINE // 16)
    objects = ObjectArchive(archive)
    async with cluster.node("a", archive) as app:
        file = await (await shelf_of(app)).put(CONTENT)
        await asyncio.sleep(1.5)
        then = datetime.now(UTC)
        await (await shelf_of(app)).put(other)
        await (await app.get_agent(ClusterFileShelf, "later")).put(other)
        code, said = await cluster.command(  # ships the log, too
            "backup", str(cluster.folder / "old"), "--at", "2026-01-01T00:00:00Z", archive=archive
        )
        assert code == 0, said
    await cluster.lose_nats()
    code, said = await cluster.command("restore", "--at", then.isoformat(), archive=archive)
    assert code == 0, said

    async with cluster.node("b", archive) as app:
        assert len([key async for key in objects.keys("files/")]) == 3
        assert app._node is not None
        assert app._node.keeper is not None
        await sweep_removals(objects, time.time() + 100 * 86400, app._node.keeper.trees.named)

        (left,) = [key async for key in objects.keys("files/")]
        assert left.endswith(file.digest)
        assert await (await shelf_of(app)).get(file.digest) == CONTENT
