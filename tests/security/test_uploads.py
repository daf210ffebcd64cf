"""Clients that abuse uploads: to fill memory or disk, to leave the folder, or to run scripts in other browsers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import ClassVar

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from tests.conformance.serving import Answer, Site, door

from sapwood import Agent, Limits
from sapwood.runs.http import file_transfers

URL = "/agents/inbox/i/files"


class Inbox(Agent):
    """An agent that accepts anything."""

    accept_files: ClassVar = {"*/*": 300_000}


class Reader(Agent):
    """An agent whose own code reads bodies: before an upload, and of a path that only looks like one."""

    accept_files: ClassVar = {"*/*": 10_000_000}

    async def on_before_request(self, request: Request) -> Response | None:
        if request.url.path == "/files":
            await request.body()

    async def on_request(self, request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))


async def put(site: Site, body: bytes | AsyncGenerator[bytes, None], query: str = "", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await site.http(URL + query, method="PUT", body=body, headers=named)


@pytest.mark.parametrize("path", ["/files", "/other/files"])
async def test_what_looks_like_an_upload_is_no_way_around_the_limit_of_bodies(path: str) -> None:
    async with door(Reader, request_bytes=1000) as site:
        answer = await site.http(f"/agents/reader/r{path}", method="PUT", body=b"x" * 5000)

        assert answer.status == 413


async def test_a_body_without_end_is_cut_off() -> None:
    async def endless() -> AsyncGenerator[bytes, None]:
        while True:
            yield os.urandom(50_000)

    async with door(Inbox) as site:
        answer = await put(site, endless())

        assert answer.status == 413
        await site.world.until(lambda: not list(site.world.data.glob("trees/*/*.files/*")))


async def test_many_uploads_at_once_take_no_more_than_the_limit() -> None:
    async with door(Inbox, limits=Limits(file_bytes=1_000_000)) as site:
        answers = await asyncio.gather(*(put(site, os.urandom(200_000)) for _ in range(10)))

        statuses = [answer.status for answer in answers]
        assert (statuses.count(201), statuses.count(507)) == (5, 5)
        sizes = [path.stat().st_size for path in site.world.data.glob("trees/*/*.files/*")]
        assert sum(sizes) == 1_000_000


async def test_unfinished_uploads_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_transfers, "UPLOADS", 2)
    async with door(Inbox) as site:
        answers = [
            await put(site, b"x", f"?upload=0123456789abcde{number}", content_range="bytes 0-0/2")
            for number in range(3)
        ]

        assert [answer.status for answer in answers] == [202, 202, 507]


@pytest.mark.parametrize(
    "query",
    [
        "?upload=../../../../etc/passwd",
        "?upload=..%2F..%2F..%2Froot.db00",
        "?name=..%2F..%2Fx",
        "?name=a%0d%0aset-cookie:%20x",
        "?name=%00",
        "?name=" + "x" * 300,
    ],
)
async def test_names_that_leave_the_folder_or_split_a_header_are_refused(query: str) -> None:
    async with door(Inbox) as site:
        answer = await put(site, b"x", query, **({"content_range": "bytes 0-0/2"} if "upload" in query else {}))

        assert answer.status == 400


@pytest.mark.parametrize(
    "path", ["/files/..%2froot.db", "/files/../root.db", "/files/" + "A" * 64, "/files/" + "0" * 63]
)
async def test_only_digests_are_downloaded(path: str) -> None:
    async with door(Inbox) as site:
        await put(site, b"x")

        assert (await site.http(f"/agents/inbox/i{path}")).status in (400, 404)


@pytest.mark.parametrize(
    ("content", "claimed"),
    [
        (b"<html><script>alert(1)</script>", "text/html"),
        (b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", "image/svg+xml"),
        (b"<?xml version='1.0'?><x/>", "application/xhtml+xml"),
        (b"alert(1)", "text/javascript"),
        (b"\x00<script>alert(1)</script>", "text/html"),
        (b"PK\x03\x04<script>", "text/html"),
    ],
)
async def test_an_uploaded_page_runs_no_script_in_a_browser(content: bytes, claimed: str) -> None:
    async with door(Inbox) as site:
        file = (await put(site, content, content_type=claimed)).json()

        answer = await site.http(file["url"])

        assert answer.headers["content-disposition"] == "attachment"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "sandbox" in answer.headers["content-security-policy"]


async def test_a_page_of_another_origin_uploads_nothing() -> None:
    async with door(Inbox) as site:
        assert (await put(site, b"x", origin="https://evil.example", sec_fetch_site="cross-site")).status == 403


async def test_a_file_of_one_agent_is_not_served_by_another() -> None:
    async with door(Inbox) as site:
        digest = (await put(site, b"secret")).json()["digest"]

        assert (await site.http(f"/agents/inbox/other/files/{digest}")).status == 404
