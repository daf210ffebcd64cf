"""Damage to the files of the only NATS server: found by `cluster verify`, never served, and mended from the archive."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.cluster.servers import Nats
from tests.cluster.test_verifying import Stored
from tests.unit.logged_trees import Place

from sapwood.kernel.log.archive_objects import MARKS
from sapwood.kernel.log.records import tree_id
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.base.layout import Layout
from sapwood.runtimes.cluster.nats.bootstrap import found
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.runtimes.cluster.nats.nats_log import NatsLog
from sapwood.runtimes.cluster.ops.recovery import restore_everything

pytestmark = pytest.mark.nightly
LAYOUT = Layout(streams=1, replicas=1)


def overwrite(file: Path, place: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(content)


def truncate(file: Path, length: int) -> None:
    with file.open("r+b") as opened:
        opened.truncate(length)


def flip(file: Path) -> None:
    place = file.stat().st_size // 2
    overwrite(file, place, bytes([file.read_bytes()[place] ^ 1]))


def size(file: Path) -> int:
    return file.stat().st_size


DAMAGE: dict[str, Callable[[Path, Path], object]] = {
    "header": lambda file, older: overwrite(file, 0, b"\xff" * 16_384),
    "middle": lambda file, older: overwrite(file, size(file) // 2, b"\xff" * 4096),
    "tail": lambda file, older: overwrite(file, size(file) - 4096, b"\xff" * 4096),
    "truncation": lambda file, older: truncate(file, size(file) // 2),
    "emptied": lambda file, older: truncate(file, 0),
    "zeroing": lambda file, older: overwrite(file, 0, bytes(size(file))),
    "deletion": lambda file, older: file.unlink(),
    "older copy": lambda file, older: shutil.copy(older, file),
    "one bit": lambda file, older: flip(file),
}
"""What becomes of a file of the stream; the second argument is an earlier copy of it."""


def stop(cell: Nats) -> None:
    cell.processes[0].terminate()
    cell.processes[0].wait()


class OnlyServer(Stored):
    """Trees in a cluster with one server. Half of their messages were there when its file was copied."""

    def block(self) -> Path:
        (block,) = self.cell.blocks(0, self.names.stream(0))
        return block

    async def reconnect(self) -> None:
        self.log.close()
        await self.connection.close()
        self.connection = await connect(self.cell.urls, "test")
        self.names = await found(self.connection, "sapwood", LAYOUT)
        self.log = NatsLog(self.connection, self.names)

    async def messages(self) -> dict[str, list[bytes]]:
        return {root: [data for _, data in some] for root, some in (await self.read()).items()}


@pytest.fixture
async def stored(tmp_path: Path) -> AsyncIterator[OnlyServer]:
    cell = Nats(tmp_path / "cell", 1).start().wait()
    connection = await connect(cell.urls, "test")
    stored = OnlyServer(cell, connection, await found(connection, "sapwood", LAYOUT), tmp_path)
    await stored.write()
    stop(cell)
    shutil.copy(stored.block(), tmp_path / "older")
    cell.start().wait()
    await stored.reconnect()
    await stored.write()
    yield stored
    stored.log.close()
    await stored.connection.close()
    cell.remove()


@pytest.mark.parametrize("kind", DAMAGE)
async def test_damage_to_the_only_server_is_found_and_the_archive_has_everything(
    stored: OnlyServer, kind: str, tmp_path: Path
) -> None:
    assert (await stored.verify()).is_whole
    before = await stored.messages()
    stop(stored.cell)
    DAMAGE[kind](stored.block(), tmp_path / "older")
    stored.cell.start().wait()
    await stored.reconnect()

    assert not (await stored.verify()).is_whole

    stop(stored.cell)
    shutil.rmtree(stored.cell.folder / "n0")
    stored.cell.start().wait()
    await stored.reconnect()
    assert (await restore_everything(stored.connection, stored.names, stored.archive)).lost == {}
    assert (await stored.verify()).is_whole
    assert await stored.messages() == before


async def test_a_parked_tree_whose_mark_is_missing_is_found(stored: OnlyServer) -> None:
    place = Place(stored.folder / "node", stored.log, stored.archive, stored.owned, park_after=0.0)
    for _ in range(2):
        await place.keeper.idle_trees.sweep((), {shard_of(root) for root in stored.roots})
    seen = await stored.verify()
    assert (seen.is_whole, seen.parked) == (True, len(stored.roots))
    root = stored.roots[7]
    marks = [key async for key in stored.archive.keys(f"{MARKS}/{tree_id(root)}/")]

    await stored.archive.remove(marks)

    (damage,) = (await stored.verify()).damaged
    assert damage.root == str(root)
    assert f"sapwood cluster backup FOLDER {root} --at TIME" in damage.what
