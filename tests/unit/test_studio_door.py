"""The studio's pages: where they are served, to which hosts, with which headers, and how large they are."""

from __future__ import annotations

import gzip
import re
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from sapwood.errors import UsageError
from sapwood.kernel.node.node import Node
from sapwood.studio.door import PAGE, StudioDoor

FIRST_LOAD = 110_000
ALL = 300_000
"""Bytes of the files as they are sent, compressed."""
SENT = (".html", ".js", ".css")


def no_node() -> Node:
    raise UsageError("The app is not running.")


@pytest.fixture
def client() -> TestClient:
    door = StudioDoor(PlainTextResponse("the app"), ("studio.example",), no_node)
    return TestClient(door, base_url="http://127.0.0.1:8000", follow_redirects=False)


@pytest.mark.parametrize("path", ["/", "/studios", "/agents/studio/", "/studio.html"])
def test_other_paths_are_the_apps(client: TestClient, path: str) -> None:
    assert client.get(path).text == "the app"


def test_the_page_is_below_studio(client: TestClient) -> None:
    redirect = client.get("/studio")

    assert (redirect.status_code, redirect.headers["location"]) == (307, "/studio/")
    assert '<div id="root">' in client.get("/studio/").text
    assert client.get("/studio/page.js").headers["content-type"].startswith("text/javascript")
    assert client.get("/studio/nothing.js").status_code == 404
    assert client.get("/studio/../door.py").text == "the app"
    assert client.get("/studio/%2e%2e/door.py").status_code == 404
    assert client.post("/studio/").status_code == 405


@pytest.mark.parametrize("path", ["/studio/", "/studio/page.js", "/studio/nothing"])
def test_no_code_and_no_data_of_other_sites_is_allowed(client: TestClient, path: str) -> None:
    headers = client.get(path).headers

    policy = headers["content-security-policy"]
    for rule in ("default-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert rule in policy
    assert "unsafe" not in policy
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("10.1.2.3", 200),
        ("localhost:8000", 200),
        ("Studio.Example", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("studio.example.evil.example:80", 421),
        ("[", 421),
        ("", 421),
    ],
)
def test_a_host_that_is_not_configured_is_refused(client: TestClient, host: str, status: int) -> None:
    assert client.get("/studio/", headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("host", "header", "status"),
    [
        ("127.0.0.1:8000", "origin", 200),
        ("studio.example", "sec-fetch-site", 200),
        ("evil.example", "origin", 421),
        ("evil.example", "sec-fetch-site", 421),
        ("evil.example", "x-other", 200),  # a program: it knows which server it asks
    ],
)
def test_pages_of_another_host_do_not_reach_the_admin_api(
    client: TestClient, host: str, header: str, status: int
) -> None:
    response = client.post("/_sapwood/session", headers={"host": host, header: f"http://{host}"})

    assert response.status_code == status


def test_the_host_is_not_checked_if_the_server_is_insecure() -> None:
    door = StudioDoor(PlainTextResponse("the app"), (), no_node, checks_host=False)

    assert TestClient(door).get("/studio/", headers={"host": "tunnel.example"}).status_code == 200


@pytest.mark.parametrize("type", ["websocket", "lifespan"])
async def test_sockets_and_the_lifespan_are_the_apps(type: str) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def unused(*_: Any) -> Any:
        raise AssertionError

    await StudioDoor(app, (), no_node)({"type": type, "path": "/studio/"}, unused, unused)

    assert seen == [type]


def test_the_page_is_small() -> None:
    sizes = {file.name: len(gzip.compress(file.read_bytes())) for file in PAGE.iterdir() if file.suffix in SENT}
    first = {"index.html", *re.findall(r'(?:src|href)="\./([^"]+)"', (PAGE / "index.html").read_text())}

    assert {"page.js", "page.css"} <= first
    assert sum(sizes[name] for name in first) <= FIRST_LOAD, sizes
    assert sum(sizes.values()) <= ALL, sizes


def test_the_page_names_no_other_site() -> None:
    page = (PAGE / "index.html").read_text()

    assert re.findall(r'(?:src|href)="(?!\./|data:)[^"]*"', page) == []
