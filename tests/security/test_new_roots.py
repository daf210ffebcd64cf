"""Names that a client makes up: it gets so many new agents in a minute, and those that exist are never refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conformance.serving import call, door, greeted

from sapwood import Agent, App, expose
from sapwood.testing import running
from sapwood.web.rate_limit import MANY_KEYS, MinuteLimit


class Lot(Agent):
    create_from_url = True


class Room(Agent):
    @expose
    async def keep(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS notes (note TEXT)")

    async def on_request(self, request: Any) -> Any:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse("here")


def named(request: Any) -> str | None:
    return request.headers.get("user")


async def test_a_user_gets_so_many_new_roots_and_others_are_not_affected() -> None:
    async with door(Room, authenticate=named, new_roots_per_minute=3) as site:
        eve, ada = {"user": "eve"}, {"user": "ada"}
        for number in range(3):
            assert (await site.http(f"/agents/room/e{number}", headers=eve)).status == 200
        refused = await site.http("/agents/room/e3", headers=eve)
        assert refused.status == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert "new_roots_per_minute=3" in refused.text
        assert await site.refused("/agents/room/e4", additional_headers=eve) == 1013
        assert (await site.http("/agents/room/e0", headers=eve)).status == 200  # it is in memory
        assert (await site.http("/agents/room/a0", headers=ada)).status == 200


async def test_sockets_count_and_roots_with_data_do_not() -> None:
    async with door(Room, authenticate=named, new_roots_per_minute=1) as site:
        eve = {"user": "eve"}
        async with site.socket("/agents/room/kept", additional_headers=eve) as client:
            await greeted(client)
            await call(client, "keep")
        assert await site.refused("/agents/room/other", additional_headers=eve) == 1013
        await site.world.restart()
        for _ in range(3):
            assert (await site.http("/agents/room/kept", headers=eve)).status == 200


async def test_sub_agents_that_a_url_makes_count_too() -> None:
    async with door(Room, Lot, authenticate=named, new_roots_per_minute=3) as site:
        eve = {"user": "eve"}
        found = [(await site.http(f"/agents/room/a/sub/lot/{number}", headers=eve)).status for number in range(5)]
        assert found == [404, 404, 429, 429, 429]  # the root is one of three; a Lot answers no requests
        assert (await site.http("/agents/room/a/sub/lot/0", headers=eve)).status == 404


def test_a_minute_later_there_are_more() -> None:
    now = 100.0
    limit = MinuteLimit(2, lambda: now)
    assert [limit.take("eve") for _ in range(3)] == [0, 0, 60]
    now += 45
    assert [limit.take("eve"), limit.take("ada")] == [15, 0]
    now += 15
    assert limit.take("eve") == 0


def test_keys_of_the_past_are_forgotten() -> None:
    now = 100.0
    limit = MinuteLimit(1, lambda: now)
    for number in range(MANY_KEYS):
        limit.take(number)
    now += 60
    limit.take("new")
    assert len(limit) == 1


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["192.0.2.1", "192.0.2.1", "192.0.2.2"], [200, 429, 200]),
        (["2001:db8::1", "2001:db8::2", "2001:db8:1::1"], [200, 429, 200]),
        (["127.0.0.1", "127.0.0.1", "::1"], [200, 200, 200]),
    ],
)
async def test_without_a_user_each_remote_address_has_a_limit(hosts: list[str], expected: list[int]) -> None:
    async with running(App(agents=[Room]), new_roots_per_minute=1) as world:
        found = [await asked(world.app, f"/agents/room/{number}", host=host) for number, host in enumerate(hosts)]
        assert found == expected


async def test_a_bare_get_stores_nothing(tmp_path: Path) -> None:
    async with running(App(agents=[Room]), data=tmp_path) as world:
        assert await asked(world.app, "/agents/room/a") == 200
        assert list((tmp_path / "trees").rglob("*.db")) == []
        await (await world.get_agent(Room, "b")).keep()
        assert len(list((tmp_path / "trees").rglob("*.db"))) == 1


async def asked(app: Any, path: str, *, host: str = "127.0.0.1", user: str = "") -> int:
    """Ask an app as a server would; return the status."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
    }
    scope |= {"headers": [(b"user", user.encode())] if user else [], "client": (host, 1), "asgi": {"version": "3.0"}}
    statuses: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    return statuses[0]
