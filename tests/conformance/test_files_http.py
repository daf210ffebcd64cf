"""Files over HTTP: who may upload what, uploads that are resumed, and downloads with ranges."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import AsyncGenerator
from typing import Any, ClassVar

import pytest
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from tests.conformance.serving import Answer, Site, door

from sapwood import Agent, Limits
from sapwood.capabilities.file_writer import BATCH, INLINE
from sapwood.types import File

PNG = b"\x89PNG\r\n\x1a\n"
URL = "/agents/desk/d/files"
ID = "0123456789abcdef"


class Desk(Agent):
    """An agent whose clients may upload pictures and text."""

    accept_files: ClassVar = {"image/*": 3 * BATCH, "text/plain": 1000, "application/octet-stream": 2 * BATCH}

    async def stored(self) -> list[File]:
        return self.files.list()

    async def put(self, data: bytes, name: str | None = None) -> File:
        return await self.files.put(data, name=name)

    async def keep(self, digest: str) -> None:
        self.files.keep(digest)

    async def delete(self, digest: str) -> None:
        await self.files.delete(digest)


class Closed(Agent):
    """An agent that accepts no files."""


class Guarded(Desk):
    """An agent that only staff may use, and that some may only watch."""

    async def on_before_request(self, request: HTTPConnection) -> Response | None:
        return None if "x-staff" in request.headers else PlainTextResponse("Staff only", 403)

    async def on_before_watch(self, request: Request) -> Response | None:
        return PlainTextResponse("Not you", 403) if "x-blind" in request.headers else None

    def is_watch_only(self, connection: Any) -> bool:
        return "x-watcher" in connection.headers


def picture(size: int) -> bytes:
    return PNG + os.urandom(size - len(PNG))


async def put(site: Site, body: bytes | AsyncGenerator[bytes, None], query: str = "", **headers: str) -> Answer:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await site.http(URL + query, method="PUT", body=body, headers=sent)


async def head_of(site: Site, url: str) -> str:
    """Return all that a HEAD request is answered with."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(f"HEAD {url} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    found = await reader.read()
    writer.close()
    return found.decode()


@pytest.mark.parametrize("size", [100, INLINE + 1, 2 * BATCH + 5])
async def test_an_uploaded_file_is_stored_and_can_be_downloaded(size: int) -> None:
    async with door(Desk) as site:
        content = picture(size)

        answer = await put(site, content, "?name=a%20b.png", content_type="text/html")

        digest = hashlib.sha256(content).hexdigest()
        url = f"{URL}/{digest}"
        told = {"digest": digest, "name": "a b.png", "mediaType": "image/png", "size": size, "url": url}
        assert (answer.status, answer.json()) == (201, told)
        found = await site.http(url)
        assert (found.status, found.body) == (200, content)
        assert found.headers["content-type"] == "image/png"
        assert found.headers["content-disposition"] == "inline; filename*=UTF-8''a%20b.png"
        assert found.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in found.headers["content-security-policy"]
        head = await head_of(site, url)
        assert f'\r\netag: "{digest}"\r\n' in head
        assert f"\r\ncontent-length: {size}\r\n" in head
        assert head.endswith("\r\n\r\n")


async def test_an_upload_whose_length_is_not_announced_is_taken() -> None:
    async def pieces(count: int) -> AsyncGenerator[bytes, None]:
        yield PNG
        for _ in range(count):
            yield bytes(100_000)

    async with door(Desk) as site:
        taken, refused = await put(site, pieces(15)), await put(site, pieces(100))

        assert (taken.status, taken.json()["size"]) == (201, 1_500_008)
        assert refused.status == 413
        assert len(await stored(site)) == 1


async def stored(site: Site) -> list[File]:
    return await (await site.world.get_agent(Desk, "d")).stored()


@pytest.mark.parametrize(
    ("content", "claimed", "status", "text"),
    [
        (b"%PDF-1.7" + bytes(100), "image/png", 415, "application/pdf"),
        (b"x" * 1001, "text/plain", 413, "1000 of text/plain"),
        (b"x" * (4 * BATCH), "text/plain", 413, "at most 3145728"),
        (b"x" * BATCH + b"\xff", "text/plain", 201, "application/octet-stream"),
        (b"{}", "application/json", 415, "application/json"),
    ],
)
async def test_what_is_accepted_is_decided_by_the_bytes(content: bytes, claimed: str, status: int, text: str) -> None:
    async with door(Desk) as site:
        answer = await put(site, content, content_type=claimed)

        assert answer.status == status
        assert text in answer.text
        assert len(await stored(site)) == (status == 201)


async def test_a_class_accepts_no_files_unless_it_says_so() -> None:
    async with door(Closed) as site:
        answer = await site.http("/agents/closed/c/files", method="PUT", body=b"x")

        assert answer.status == 403
        assert "accept_files" in answer.text


async def test_the_gates_apply_to_uploads_and_downloads() -> None:
    async with door(Guarded) as site:
        url, staff = "/agents/guarded/g/files", {"x-staff": "1"}
        for headers in ({}, staff | {"x-blind": "1"}, staff | {"x-watcher": "1"}):
            refused = await site.http(url, method="PUT", body=b"x", headers=headers)
            assert refused.status == 403

        file = (await site.http(url, method="PUT", body=b"x", headers=staff)).json()

        assert (await site.http(file["url"], headers=staff)).body == b"x"
        assert (await site.http(file["url"], headers=staff | {"x-watcher": "1"})).body == b"x"
        for headers in ({}, staff | {"x-blind": "1"}):
            assert (await site.http(file["url"], headers=headers)).status == 403


async def test_a_file_above_the_limit_of_request_bodies_is_taken() -> None:
    async with door(Desk, request_bytes=1000) as site:
        assert (await put(site, picture(5000))).status == 201


async def test_a_file_that_the_agent_has_no_room_for_is_refused_before_it_is_read() -> None:
    async with door(Desk, limits=Limits(file_bytes=200_000)) as site:
        assert (await put(site, picture(150_000))).status == 201

        answer = await put(site, b"", content_length="150000")

        assert answer.status == 507
        assert "file_bytes" in answer.text


async def test_a_file_with_another_digest_than_announced_is_refused() -> None:
    async with door(Desk) as site:
        wrong = base64.b64encode(hashlib.sha256(b"y").digest()).decode()
        right = base64.b64encode(hashlib.sha256(b"x").digest()).decode()

        assert (await put(site, b"x", repr_digest=f"sha-256=:{wrong}:")).status == 400
        assert (await put(site, b"x", repr_digest=f"sha-256=:{right}:")).status == 201


@pytest.mark.parametrize(
    ("asked", "status", "part"),
    [
        ("bytes=0-9", 206, slice(0, 10)),
        ("bytes=10-", 206, slice(10, None)),
        ("bytes=-7", 206, slice(-7, None)),
        ("bytes=5-999999999", 206, slice(5, None)),
        ("bytes=0-1,5-6", 200, slice(None)),
        ("bytes=9-5", 200, slice(None)),
        ("lines=1", 200, slice(None)),
        ("bytes=999999999-", 416, slice(0, 0)),
    ],
)
@pytest.mark.parametrize("size", [1000, INLINE + 1000])
async def test_a_part_of_a_file_is_downloaded(asked: str, status: int, part: slice, size: int) -> None:
    async with door(Desk) as site:
        content = picture(size)
        url = (await put(site, content)).json()["url"]

        answer = await site.http(url, headers={"range": asked})

        assert (answer.status, answer.body) == (status, content[part])


async def test_a_client_that_has_the_file_is_sent_nothing() -> None:
    async with door(Desk) as site:
        file = (await put(site, b"x")).json()
        etag = f'"{file["digest"]}"'

        assert (await site.http(file["url"], headers={"if-none-match": f'"a", W/{etag}'})).status == 304
        assert (await site.http(file["url"], headers={"if-none-match": '"a"'})).status == 200
        assert (await site.http(file["url"], headers={"range": "bytes=0-0", "if-range": '"a"'})).status == 200
        assert (await site.http(f"{URL}/{'0' * 64}")).status == 404


@pytest.mark.parametrize("content", [b"<script>", b"<svg onload=1>", b"PK\x03\x04", b"\x00\x01"])
async def test_what_could_run_a_script_is_only_downloaded(content: bytes) -> None:
    async with door(Desk) as site:
        desk = await site.world.get_agent(Desk, "d")
        file = await desk.put(content, 'quote".html')

        answer = await site.http(file.url)

        if content.startswith(b"<"):
            assert answer.headers["content-type"].startswith("text/plain")
        else:
            assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''quote%22.html"
        assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("size", [1000, 2 * BATCH + 700_000])
async def test_an_upload_is_resumed_after_a_restart(size: int) -> None:
    async with door(Desk) as site:
        content, half = picture(size), size // 2
        query = f"?upload={ID}&name=a.png"

        first = await put(site, content[:half], query, content_range=f"bytes 0-{half - 1}/{size}")
        await site.world.restart()
        asked = await put(site, b"", query, content_range=f"bytes */{size}")
        wrong = await put(site, content[half - 1 :], query, content_range=f"bytes {half - 1}-{size - 1}/{size}")
        last = await put(site, content[half:], query, content_range=f"bytes {half}-{size - 1}/{size}")
        again = await put(site, b"", query, content_range=f"bytes */{size}")

        assert (first.status, first.json()) == (202, {"received": half})
        assert (asked.status, asked.json()) == (202, {"received": half})
        assert (wrong.status, wrong.json()["received"]) == (409, half)
        assert (last.status, last.json()["size"], last.json()["name"]) == (201, size, "a.png")
        assert again.json() == last.json()
        assert (await site.http(last.json()["url"])).body == content


@pytest.mark.parametrize("size", [1000, 100_000])
async def test_the_bytes_of_a_finished_upload_are_stored_once(size: int) -> None:
    async with door(Desk) as site:
        content = picture(size)
        for number in range(3):
            query, whole = f"?upload={ID}{number}", f"bytes 0-{size - 1}/{size}"
            assert (await put(site, content, query, content_range=whole)).status == 201
            assert (await put(site, b"", query, content_range=f"bytes */{size}")).status == 201

        stored = {path.name for path in site.world.data.glob("trees/*/*.files/*")}
        assert stored == ({hashlib.sha256(content).hexdigest()} if size > INLINE else set())


async def test_what_arrived_before_a_client_disconnected_is_kept() -> None:
    async with door(Desk) as site:
        content = picture(2 * BATCH)
        size, query = len(content), f"?upload={ID}"
        _, writer = await asyncio.open_connection("127.0.0.1", site.port)
        head = f"PUT {URL}{query} HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n"
        writer.write(f"{head}content-range: bytes 0-{size - 1}/{size}\r\n\r\n".encode() + content[: BATCH + 10])
        await writer.drain()
        part = f"trees/*/*.files/upload-{ID}.part"
        await site.world.until(lambda: any(path.stat().st_size >= BATCH for path in site.world.data.glob(part)))
        writer.close()

        answer = await put(site, b"", query, content_range=f"bytes */{size}")
        while answer.status == 409:  # the server has not noticed yet
            await asyncio.sleep(0.001)
            answer = await put(site, b"", query, content_range=f"bytes */{size}")
        received = answer.json()["received"]
        last = await put(site, content[received:], query, content_range=f"bytes {received}-{size - 1}/{size}")

        assert received >= BATCH
        assert last.status == 201
        assert last.json()["digest"] == hashlib.sha256(content).hexdigest()


async def test_half_an_upload_counts_as_a_whole_one_and_expires() -> None:
    async with door(Desk, limits=Limits(file_bytes=200_000)) as site:
        await put(site, PNG, f"?upload={ID}", content_range="bytes 0-7/150000")
        refused = await put(site, picture(100_000))
        assert refused.status == 507

        await site.world.clock.advance(90_000)
        await site.world.restart()

        await site.world.get_agent(Desk, "d")
        await site.world.until(lambda: not list(site.world.data.glob("trees/*/*.files/*")))
        assert (await put(site, picture(100_000))).status == 201


async def test_an_upload_that_nothing_uses_is_deleted_after_a_day() -> None:
    async with door(Desk) as site:
        used, unused = (await put(site, picture(100_000))).json(), (await put(site, picture(100_001))).json()
        await (await site.world.get_agent(Desk, "d")).keep(used["digest"])

        await site.world.clock.advance(90_000)
        await site.world.restart()

        desk = await site.world.get_agent(Desk, "d")
        await site.world.until(lambda: len(list(site.world.data.glob("trees/*/*.files/*"))) == 1)
        assert [file.digest for file in await desk.stored()] == [used["digest"]]
        assert (await site.http(unused["url"])).status == 404


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("?upload=short", {"content-range": "bytes 0-0/1"}),
        (f"?upload={ID}", {}),
        ("", {"content-range": "bytes 0-0/1"}),
        (f"?upload={ID}", {"content-range": "bytes 1-0/1"}),
        (f"?upload={ID}", {"content-range": "bytes 0-5/5"}),
        (f"?upload={ID}", {"content-range": "0-5"}),
        ("?name=a%2Fb", {}),
        ("", {"repr-digest": "sha-256=:?:"}),
    ],
)
async def test_an_upload_that_cannot_be_read_is_refused(query: str, headers: dict[str, str]) -> None:
    async with door(Desk) as site:
        answer = await site.http(URL + query, method="PUT", body=b"x", headers=headers)

        assert answer.status == 400
        assert answer.json()["error"]
