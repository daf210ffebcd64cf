"""Object storage keeps what it is given, and says what is wrong with it."""

from __future__ import annotations

import asyncio
import os
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.servers import S3

from sapwood.errors import Unavailable, UsageError
from sapwood.runtimes.cluster.copies import s3_archive
from sapwood.runtimes.cluster.copies.s3_archive import PIECE, ObjectArchive
from sapwood.timings import Timings


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    bucket = S3(tmp_path_factory.mktemp("s3")).start()
    yield bucket
    bucket.stop()


@pytest.fixture
def told(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("kind", ["s3", "file", "memory"])
@pytest.mark.usefixtures("told")
async def test_what_is_put_is_there_and_what_is_there_is_not_written_over(s3: S3, tmp_path: Path, kind: str) -> None:
    url = {"s3": f"{s3.url}/a", "file": f"file://{tmp_path}/a%20folder", "memory": "memory:///"}[kind]
    archive = ObjectArchive(url)
    assert await archive.get("trees/a/1") is None
    assert await archive.put("trees/a/1", b"one", only_new=True)
    assert not await archive.put("trees/a/1", b"two", only_new=True)
    assert await archive.get("trees/a/1") == b"one"
    large = bytes(range(256)) * 40_000
    assert await archive.put("trees/a/2", large)
    assert await archive.put("trees/a/2", large)
    assert await archive.get("trees/a/2") == large
    await archive.put("trees/b/1", b"")
    await archive.put("trees/a/10", b"")
    assert [key async for key in archive.keys("trees/a/")] == ["trees/a/1", "trees/a/10", "trees/a/2"]
    assert [key async for key in archive.keys("trees/a/", after="trees/a/1")] == ["trees/a/10", "trees/a/2"]
    assert [key async for key in archive.keys("nothing/")] == []
    await archive.remove(["trees/a/1", "trees/a/9"])
    await archive.remove([])
    assert [key async for key in archive.keys("trees/")] == ["trees/a/10", "trees/a/2", "trees/b/1"]


@pytest.mark.parametrize("kind", ["s3", "file", "memory"])
@pytest.mark.parametrize("size", [0, 1000, 22 * 1024 * 1024 + 5])
@pytest.mark.usefixtures("told")
async def test_a_file_is_stored_in_parts_and_read_in_pieces(s3: S3, tmp_path: Path, kind: str, size: int) -> None:
    url = {"s3": f"{s3.url}/{size}", "file": f"file://{tmp_path}/archive", "memory": "memory:///"}[kind]
    archive, path = ObjectArchive(url), tmp_path / "file"
    content = os.urandom(size)
    path.write_bytes(content)
    assert await archive.size("files/a") is None
    assert await archive.get_range("files/a", 0, 10) is None

    await archive.put_file("files/a", path)

    assert await archive.size("files/a") == size
    pieces = [await archive.get_range("files/a", at, min(at + 2**20, size)) for at in range(0, size, 2**20)]
    assert b"".join(piece or b"" for piece in pieces) == content
    if size:
        assert await archive.get_range("files/a", size - 3, size + 10) == content[-3:]


@pytest.mark.usefixtures("told")
async def test_the_parts_of_a_cancelled_upload_are_removed(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, path = ObjectArchive(f"{s3.url}/cancelled"), tmp_path / "file"
    path.write_bytes(os.urandom(40 * PIECE))
    may_go_on, read = threading.Event(), s3_archive._piece_of

    def piece_of(path: Path, place: int) -> bytes:
        if place >= 20 * PIECE:
            may_go_on.wait(10)
        return read(path, place)

    async def uploads() -> int:
        with await asyncio.to_thread(urllib.request.urlopen, f"{s3.endpoint}/{s3.bucket}?uploads") as answer:
            return answer.read().count(b"<UploadId>")

    monkeypatch.setattr(s3_archive, "_piece_of", piece_of)
    upload = asyncio.ensure_future(archive.put_file("files/a", path))
    while not await uploads():  # noqa: ASYNC110 - only the store knows
        await asyncio.sleep(0.05)
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    may_go_on.set()

    async with asyncio.timeout(10):
        while await uploads():  # noqa: ASYNC110 - only the store knows
            await asyncio.sleep(0.05)
    assert await archive.size("files/a") is None


@pytest.mark.usefixtures("told")
async def test_a_file_is_not_stored_where_the_store_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    path = tmp_path / "file"
    path.write_bytes(b"content")
    archive = ObjectArchive("s3://trees/x", timings=Timings(archive_retries=1))
    for question in (archive.put_file("a", path), archive.size("a"), archive.get_range("a", 0, 5)):
        with pytest.raises(Unavailable, match="does not answer"):
            await question


@pytest.mark.usefixtures("told")
async def test_a_bucket_that_is_not_there_is_named() -> None:
    archive = ObjectArchive("s3://nobodys/x")
    with pytest.raises(Unavailable, match=r"s3://nobodys/x.*the bucket does not exist"):
        await archive.get("key")
    with pytest.raises(Unavailable, match="the bucket does not exist"):
        await archive.put("key", b"", only_new=True)
    with pytest.raises(Unavailable, match="the bucket does not exist"):
        await archive.size("key")


@pytest.mark.usefixtures("told")
async def test_a_store_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(Unavailable) as told:
        await ObjectArchive("s3://trees/x", timings=Timings(archive_retries=1)).get("key")
    assert str(told.value).startswith("The archive s3://trees/x does not answer: GET http://127.0.0.1:9/trees/x/key: ")
    assert "retries" not in str(told.value)


def test_what_is_no_archive_is_refused() -> None:
    with pytest.raises(UsageError, match="s3://bucket/prefix"):
        ObjectArchive("ftp://somewhere")


def test_an_endpoint_that_is_no_url_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "minio:9000")
    with pytest.raises(UsageError, match="got 'minio:9000'"):
        ObjectArchive("s3://trees/x")
