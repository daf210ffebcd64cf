"""Files of agents: stored once, found again, counted, and gone when nothing refers to them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.conformance.worlds import Run, until

from sapwood import Agent, Limits, NotFound, OverLimit, Unavailable
from sapwood.capabilities.file_writer import INLINE
from sapwood.capabilities.files import FileStore
from sapwood.errors import StoredDataError, UsageError
from sapwood.testing import POINTS, World
from sapwood.types import File

pytestmark = pytest.mark.storage

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


def large(seed: int = 0) -> bytes:
    """Return content that does not fit into a row, different for each seed."""
    return hashlib.sha256(str(seed).encode()).digest() * (INLINE // 32 + 100)


class Shelf(Agent):
    """An agent that stores what it is given."""

    async def put(self, data: bytes, name: str | None = None, media_type: str | None = None) -> File:
        return await self.files.put(data, name=name, media_type=media_type)

    async def put_pieces(self, sizes: list[int]) -> File:
        async def pieces() -> AsyncGenerator[bytes, None]:
            for size in sizes:
                yield b"x" * size

        return await self.files.put(pieces())

    async def put_path(self, path: str) -> File:
        return await self.files.put(Path(path))

    async def get(self, file: File | str) -> bytes:
        return await self.files.get(file)

    async def lengths(self, file: File) -> list[int]:
        return [len(chunk) async for chunk in self.files.stream(file)]

    async def stored(self) -> list[File]:
        return self.files.list()

    async def after(self, file: File) -> list[File]:
        return self.files.list(after=file, limit=1)

    async def url(self, file: File) -> str:
        return self.files.url(file)

    async def delete(self, file: File | str) -> None:
        await self.files.delete(file)

    async def put_below(self, name: str, data: bytes) -> File:
        return await (await self.sub_agent(Shelf, name)).put(data)

    async def stored_below(self, name: str) -> list[File]:
        return await (await self.sub_agent(Shelf, name)).stored()

    async def cut(self, name: str) -> None:
        await self.children.delete(Shelf, name)

    async def hold(self, digest: str, holder: str) -> None:
        self._actor.of(FileStore).hold(digest, holder)

    async def release(self, holder: str) -> None:
        self._actor.of(FileStore).release_all([holder])


def blobs(world: World) -> set[str]:
    """Return the names of all larger files on the disk, complete or not."""
    return {path.name for path in world.data.glob("trees/*/*.files/*")}


@pytest.mark.parametrize("size", [0, 1, INLINE, INLINE + 1, 3 * 1024 * 1024])
async def test_a_file_comes_back_as_it_was_stored_also_after_a_restart(run: Run, size: int) -> None:
    async with run(Shelf, limits=Limits(payload_bytes=16 * 1024 * 1024)) as world:
        content = os.urandom(size)
        shelf = await world.get_agent(Shelf, "s")

        file = await shelf.put(content, "a.bin")
        await world.restart()
        shelf = await world.get_agent(Shelf, "s")

        assert await shelf.get(file) == content
        assert (file.size, file.name, file.digest) == (size, "a.bin", hashlib.sha256(content).hexdigest())
        assert await shelf.stored() == [file]
        assert file.url == await shelf.url(file) == f"/agents/shelf/s/files/{file.digest}"


async def test_the_same_bytes_are_stored_once(run: Run) -> None:
    async with run(Shelf) as world:
        shelf = await world.get_agent(Shelf, "s")

        first, second = await shelf.put(large(), "first"), await shelf.put(large(), "second")

        assert first == second
        assert await shelf.stored() == [first]
        assert blobs(world) == {first.digest}


async def test_bytes_in_pieces_and_of_a_path_are_stored_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "given").write_bytes(large())
    async with run(Shelf) as world:
        shelf = await world.get_agent(Shelf, "s")

        pieces = await shelf.put_pieces([10, 2_000_000, 5])
        copied = await shelf.put_path(str(tmp_path / "given"))

        assert pieces.size == 2_000_015
        assert sum(await shelf.lengths(pieces)) == 2_000_015
        assert max(await shelf.lengths(pieces)) <= 256 * 1024
        assert await shelf.get(copied) == large()


async def test_a_large_file_must_be_streamed(run: Run) -> None:
    async with run(Shelf, limits=Limits(payload_bytes=100_000)) as world:
        shelf = await world.get_agent(Shelf, "s")
        file = await shelf.put_pieces([200_000])

        with pytest.raises(OverLimit, match="stream") as refused:
            await shelf.get(file)

        assert refused.value.limit == "payload_bytes"
        assert sum(await shelf.lengths(file)) == 200_000


async def test_files_are_listed_in_pages(run: Run) -> None:
    async with run(Shelf) as world:
        shelf = await world.get_agent(Shelf, "s")
        files = [await shelf.put(str(number).encode()) for number in range(3)]

        assert await shelf.stored() == files
        assert await shelf.after(files[0]) == [files[1]]


@pytest.mark.parametrize(
    ("content", "claimed", "found"),
    [
        (PNG, "text/html", "image/png"),
        (b"hello", "image/png", "text/plain"),
        (b"a,b\n1,2\n", "text/csv; charset=utf-8", "text/csv"),
        (b"\x00\x01\x02", "image/png", "application/octet-stream"),
        (b"\x00\x01\x02", "text/html", "application/octet-stream"),
        (b"\x00\x01\x02", "application/x-parquet", "application/octet-stream"),
        (b"PK\x03\x04rest", "application/vnd.ms-word", "application/vnd.ms-word"),
        (b"PK\x03\x04rest", "image/png", "application/zip"),
        ("ü".encode()[:1], None, "application/octet-stream"),
    ],
)
async def test_the_media_type_is_what_the_bytes_say(run: Run, content: bytes, claimed: str | None, found: str) -> None:
    if claimed == "application/x-parquet":
        found = claimed  # nothing proves or contradicts it
    async with run(Shelf) as world:
        shelf = await world.get_agent(Shelf, "s")

        assert (await shelf.put(content, None, claimed)).media_type == found


@pytest.mark.parametrize("name", ["", "a/b", "..\\b", "a\nb", "x" * 256])
async def test_a_name_that_could_be_a_path_is_refused(run: Run, name: str) -> None:
    async with run(Shelf) as world:
        with pytest.raises(UsageError, match="name of a file"):
            await (await world.get_agent(Shelf, "s")).put(b"x", name)


@pytest.mark.parametrize("content", [b"small", large()])
async def test_a_deleted_file_is_gone_from_the_disk_too(run: Run, content: bytes) -> None:
    async with run(Shelf) as world:
        shelf = await world.get_agent(Shelf, "s")
        file = await shelf.put(content)

        await shelf.delete(file)
        await shelf.delete(file)

        with pytest.raises(NotFound):
            await shelf.get(file)
        assert await shelf.stored() == []
        await until(lambda: not blobs(world))


async def test_a_file_stays_while_something_else_refers_to_it(run: Run) -> None:
    async with run(Shelf) as world:
        shelf = await world.get_agent(Shelf, "s")
        file = await shelf.put(large())
        await shelf.hold(file.digest, "message:1")

        await shelf.delete(file)
        assert await shelf.get(file) == large()

        await shelf.release("message:1")
        await until(lambda: not blobs(world))
        assert await shelf.stored() == []


async def test_what_is_stored_again_while_it_is_removed_stays(run: Run) -> None:
    async with run(Shelf) as world:
        shelf = await world.get_agent(Shelf, "s")
        file = await shelf.put(large())

        await shelf.delete(file)
        again = await shelf.put(large())
        await world.restart()

        assert await (await world.get_agent(Shelf, "s")).get(again) == large()


async def test_files_of_a_deleted_child_are_gone_and_the_next_of_that_name_has_none(run: Run) -> None:
    async with run(Shelf) as world:
        shelf = await world.get_agent(Shelf, "s")
        await shelf.put_below("a", large())
        assert len(blobs(world)) == 1

        await shelf.cut("a")

        assert blobs(world) == set()
        assert await shelf.stored_below("a") == []


async def test_files_count_for_the_agent_before_their_bytes_are_taken(run: Run) -> None:
    async with run(Shelf, limits=Limits(file_bytes=200_000)) as world:
        shelf = await world.get_agent(Shelf, "s")
        first = await shelf.put(large())
        for refused in (shelf.put(b"x" * 150_000), shelf.put_pieces([100_000, 50_000]), shelf.put_pieces([2_000_000])):
            with pytest.raises(OverLimit) as over:
                await refused
            assert over.value.limit == "file_bytes"
        assert blobs(world) == {first.digest}

        await shelf.delete(first)

        assert (await shelf.put(b"x" * 150_000)).size == 150_000


async def test_files_count_for_the_tree(run: Run) -> None:
    async with run(Shelf, limits=Limits(tree_bytes=500_000)) as world:
        shelf = await world.get_agent(Shelf, "s")
        await shelf.put_below("a", b"x" * 300_000)
        with pytest.raises(OverLimit) as over:
            await shelf.put_below("b", b"y" * 300_000)
        assert over.value.limit == "tree_bytes"

        await shelf.cut("a")

        await shelf.put_below("b", b"y" * 300_000)


@pytest.mark.parametrize("damage", ["removed", "shortened", "changed"])
async def test_damage_is_noticed_when_a_file_is_read_and_mended_when_it_is_stored_again(run: Run, damage: str) -> None:
    async with run(Shelf) as world:
        shelf = await world.get_agent(Shelf, "s")
        file = await shelf.put(large())
        (path,) = world.data.glob("trees/*/*.files/*")
        if damage == "removed":
            path.unlink()
        else:
            path.write_bytes(large()[:-1] if damage == "shortened" else b"!" + large()[1:])

        for read in (shelf.get, shelf.lengths):
            with pytest.raises(StoredDataError, match=file.digest):
                await read(file)

        if damage != "changed":
            await shelf.put(large())
            assert await shelf.get(file) == large()


async def stores(world: World) -> None:
    await (await world.get_agent(Shelf, "s")).put(large(1))


async def deletes(world: World) -> None:
    shelf = await world.get_agent(Shelf, "s")
    await shelf.delete(hashlib.sha256(large()).hexdigest())
    await until(lambda: hashlib.sha256(large()).hexdigest() not in blobs(world) or world.points.ended)


async def cuts(world: World) -> None:
    await (await world.get_agent(Shelf, "s")).cut("a")


ACTS: dict[str, Callable[[World], Awaitable[None]]] = {"stores": stores, "deletes": deletes, "cuts": cuts}


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_anywhere_loses_no_file_and_keeps_none_that_nothing_names(run: Run, point: str, act: str) -> None:
    nth, passed = 0, True
    while passed:
        nth += 1
        async with run(Shelf) as world:
            shelf = await world.get_agent(Shelf, "s")
            await shelf.put(large())
            await shelf.put_below("a", large(2))
            before = world.points.passed[point]
            world.crash_at(point, nth)
            try:
                await ACTS[act](world)
                is_done = not world.points.ended
            except (Unavailable, NotFound):
                is_done = False
            passed = world.points.passed[point] >= before + nth
            await world.crash()
            await check(world, act, is_done=is_done)


async def check(world: World, act: str, *, is_done: bool) -> None:
    """What a row names can be read, what was acknowledged is there, and nothing else is on the disk."""
    shelf = await world.get_agent(Shelf, "s")
    stored = {file.digest for file in await shelf.stored()}
    digests = [hashlib.sha256(large(seed)).hexdigest() for seed in range(3)]
    if is_done:
        assert stored == {"stores": set(digests[:2]), "deletes": set(), "cuts": {digests[0]}}[act]
    for file in await shelf.stored():
        assert hashlib.sha256(await shelf.get(file)).hexdigest() == file.digest
    below = {file.digest for file in await shelf.stored_below("a")}
    assert below <= {digests[2]}
    await until(lambda: blobs(world) == stored | below)
