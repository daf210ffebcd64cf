"""Who may ask the admin API what: every endpoint with every scope, tokens that are wrong, and the audit log."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from sapwood import Agent, App
from sapwood.admin.access import SCOPES, Access, Scope
from sapwood.admin.door import AdminDoor
from sapwood.admin.endpoints import ENDPOINTS
from sapwood.admin.tokens import FILE, TokenKey
from sapwood.studio import StudioTab
from sapwood.testing import World, running
from sapwood.types import Address

PAGE = Path(__file__).parents[2] / "examples/studio_tab.html"
OWNER = "the-token-of-the-folder"
FIELDS: dict[str, Any] = {
    "address": "AdminGuarded:a",
    "addresses": ["AdminGuarded:a"],
    "other": "AdminGuarded:a",
    "text": "a",
    "sql": "SELECT 1",
    "method": "hello",
    "tab": "Guarded",
    "id": "1",
    "answer": "deny",
    "do": "cancel",
    "turn": "x",
    "step": 1,
    "run": "x",
    "work": "run x",
    "message": "hello",
    "name": "a",
    "folder": "/nowhere",
    "to": "copy",
    "at": "a mark",
    "file": "/nowhere/a",
    "parts": [],
}
HOLD = {"work": "hold"}
ENDLESS = {"watch", "logs"}
NEEDS = [
    ({"sql": "DELETE FROM x", "write": True}, "sql", {"sql", "write"}),
    ({"replay": "all"}, "dead-letters", {"content", "act"}),
    ({"id": "1", "do": "replay", "method": "hello"}, "act", {"act", "call"}),
    ({"tab": "Guarded", "method": "hello"}, "tab-call", {"act", "call"}),
]


class AdminGuarded(Agent):
    """Has a note."""

    studio_tabs = (StudioTab("Guarded", PAGE, methods=("hello",), scope="call"),)

    async def hello(self) -> str:
        return "hello"

    async def grow(self) -> None:
        await self.sub_agent(AdminGuarded, "b")


@asynccontextmanager
async def asking(**options: Any) -> AsyncGenerator[tuple[World, httpx2.AsyncClient]]:
    async with running(App(agents=[AdminGuarded], **options)) as world:
        agent = await world.get_agent(AdminGuarded, "a")
        await agent.grow()
        door = AdminDoor(world.app, lambda: world.node, OWNER)
        transport = httpx2.ASGITransport(app=door)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1/_sapwood") as client:
            yield world, client


def token(world: World, *scopes: Scope, below: str | None = None, seconds: float = 60.0) -> str:
    limit = None if below is None else Address.parse(below)
    return TokenKey(world.data).sign(Access("ann", frozenset(scopes), limit, world.node.clock.now() + seconds))


async def post(client: httpx2.AsyncClient, what: str, token: str, **body: Any) -> httpx2.Response:
    return await client.post(f"/{what}", json=body, headers={"authorization": f"Bearer {token}"})


def params(name: str) -> dict[str, Any]:
    """Return parameters that fit an endpoint."""
    endpoint = ENDPOINTS[name]
    required = endpoint.params.__struct_fields__[: len(endpoint.params.__struct_fields__)]
    found = {field: FIELDS[field] for field in required if field in FIELDS}
    # Elsewhere, these are other words.
    return found | {"fork": HOLD, "rewind": HOLD, "import": HOLD, "arrival": {"do": "discard"}}.get(name, {})


async def test_every_endpoint_refuses_every_scope_but_its_own(tmp_path: Path) -> None:
    async with asking() as (world, client):
        wrong: list[tuple[str, str, int]] = []
        for scope in SCOPES:
            given = token(world, scope)
            for name, endpoint in ENDPOINTS.items():
                may = endpoint.scope in (None, scope)
                if may and name in ENDLESS:
                    continue  # the next test has the tokens that are refused, and others read these streams
                if may and name in ("act", "tab-call", "replay"):
                    continue  # with these parameters, they need another scope too
                body = params(name)
                if may and scope in ("admin", "act"):
                    body |= {"address": "AdminGuarded:none"}  # what they do is tested elsewhere
                    body |= {"folder": str(tmp_path)} if "folder" in body else {}
                status = (await post(client, name, given, **body)).status_code
                if (status != 403) != may:
                    wrong.append((scope, name, status))

        assert wrong == []


async def test_every_endpoint_refuses_requests_without_a_token_or_with_none_of_the_scopes() -> None:
    async with asking() as (world, client):
        nothing = token(world)
        for name, endpoint in ENDPOINTS.items():
            assert (await client.post(f"/{name}", json=params(name))).status_code == 401, name
            status = (await post(client, name, nothing, **params(name))).status_code
            assert status == (200 if endpoint.scope is None else 403), name


def test_every_required_parameter_of_every_endpoint_has_a_value_in_these_tests() -> None:
    required = {
        field.name
        for endpoint in ENDPOINTS.values()
        for field in msgspec.structs.fields(endpoint.params)
        if field.required
    }
    assert required <= FIELDS.keys()


@pytest.mark.parametrize(("body", "name", "needed"), NEEDS)
async def test_some_parameters_need_another_scope(body: dict[str, Any], name: str, needed: set[Scope]) -> None:
    async with asking() as (world, client):
        for missing in needed:
            given = token(world, *(needed - {missing}))
            assert (await post(client, name, given, address="AdminGuarded:a", **body)).status_code == 403
        assert (await post(client, name, token(world, *needed), address="AdminGuarded:a", **body)).status_code != 403


async def test_a_token_that_is_wrong_expired_or_revoked_is_refused() -> None:
    async with asking() as (world, client):
        good = token(world, "look")
        body, _, signature = good.partition(".")
        more = TokenKey(world.data / "trees").sign(Access("ann", frozenset(SCOPES), None, 2e9))

        for wrong in (
            "",
            "x",
            OWNER[:-1],
            body,
            f"{body}.",
            f"{body[:-2]}AA.{signature}",
            f"{good}A",
            "sapwood_.",
            more,
        ):
            response = await post(client, "session", wrong)
            assert (response.status_code, response.json()["code"]) == (401, "unauthenticated"), wrong
        assert (await post(client, "session", token(world, "look", seconds=0))).status_code == 401
        assert (await post(client, "session", good)).status_code == 200
        TokenKey(world.data).rotate()
        assert (await post(client, "session", good)).status_code == 401
        assert (await post(client, "session", token(world, "look"))).status_code == 200
        assert (await post(client, "session", OWNER)).json()["name"] == "operator"


async def test_the_key_is_private_and_one_that_others_can_read_is_not_used() -> None:
    async with asking() as (world, client):
        good = token(world, "look")
        file = world.data / FILE

        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.chmod(0o644)
        assert (await post(client, "session", good)).status_code == 401


async def test_a_limited_token_reaches_only_its_agent_and_those_below_it() -> None:
    async with asking() as (world, client):
        below = "AdminGuarded:a/AdminGuarded:b"
        given = token(world, *SCOPES, below=below)
        whole = {name for name, endpoint in ENDPOINTS.items() if "address" not in endpoint.params.__struct_fields__}

        for name in ENDPOINTS.keys() - ENDLESS:
            body = params(name)
            if "address" in body:
                for other in ("AdminGuarded:a", "AdminGuarded:other", f"{below}c"):
                    assert (await post(client, name, given, **(body | {"address": other}))).status_code == 403, name
        for name in whole - {"watch", "session"}:
            assert (await post(client, name, given, **params(name))).status_code == 403, name
        assert (await post(client, "watch", given, addresses=[below, "AdminGuarded:a"])).status_code == 403
        assert (await post(client, "state", given, address=below)).status_code == 200
        assert (await post(client, "agents", given)).json()["rows"] == []


async def test_the_app_may_refuse_what_a_token_allows() -> None:
    asked: list[tuple[str, str, Address | None]] = []

    async def operate(name: str, endpoint: str, address: Address | None) -> bool:
        asked.append((name, endpoint, address))
        return endpoint != "state" or 1 // 0 == 0

    async with asking(operate=operate) as (world, client):
        given = token(world, *SCOPES)
        assert (await post(client, "agents", given)).status_code == 200
        assert (await post(client, "state", given, address="AdminGuarded:a")).status_code == 403
        assert asked == [("ann", "agents", None), ("ann", "state", Address.parse("AdminGuarded:a"))]


async def test_every_act_that_begins_or_ends_or_is_refused_is_a_line_of_the_audit_log() -> None:
    async with asking() as (world, client):
        everything, look = token(world, *SCOPES), token(world, "look")
        about = {"address": "AdminGuarded:a"}
        await post(client, "agents", everything)
        await post(client, "state", look, **about)
        await post(client, "call", everything, **about, method="hello", arguments=["hunter2"])
        await post(client, "call", look, **about, method="hello", arguments=["hunter2"])
        tab = {**about, "tab": "Guarded", "method": "hello", "arguments": ["hunter2"]}
        assert (await post(client, "tab-call", token(world, "act"), **tab)).status_code == 403  # it names a scope too
        await post(client, "sql", everything, **about, sql="DELETE FROM nothing", write=True)

        file = world.data / "operator.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]

        assert [(one["token"], one["endpoint"], one["address"], one["result"]) for one in lines] == [
            ("ann", "call", "AdminGuarded:a", "begun"),
            ("ann", "call", "AdminGuarded:a", "done"),
            ("ann", "call", "AdminGuarded:a", "refused"),
            ("ann", "tab-call", "AdminGuarded:a", "refused"),
            ("ann", "sql", "AdminGuarded:a", "begun"),
            ("ann", "sql", "AdminGuarded:a", "failed"),
        ]
        assert lines[0]["params"] == lines[1]["params"] == {"method": "hello"}
        assert "hunter2" not in file.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_a_token_of_an_agent_below_the_root_does_not_release_the_tree() -> None:
    async with asking() as (world, client):
        given = token(world, "act", below="AdminGuarded:a/AdminGuarded:b")
        answer = await post(client, "release", given, address="AdminGuarded:a/AdminGuarded:b")
        assert (answer.status_code, "whole tree" in answer.json()["error"]) == (403, True)


async def test_parameters_that_do_not_fit_are_refused_with_a_sentence() -> None:
    async with asking() as (_, client):
        for body in ({"limit": 0}, {"limit": "x"}, {"other": 1}, {"address": 5}, {"address": "no"}):
            response = await post(client, "agents", OWNER, **body)
            assert response.status_code == 400, body
            assert response.json()["error"]
        assert (await post(client, "nothing", OWNER)).json()["code"] == "not_found"


async def test_a_stream_is_sent_as_events_and_its_first_error_has_a_status() -> None:
    async with asking() as (_, client):
        found = await post(client, "find", OWNER, text="b")
        events = [part.split("\n") for part in found.text.strip().split("\n\n")]

        assert found.headers["content-type"].startswith("text/event-stream")
        assert found.headers["cache-control"] == "no-store"
        assert [name for name, _ in events] == ["event: rows", "event: end"]
        assert json.loads(events[0][1].removeprefix("data: "))["rows"][0]["name"] == "b"
        assert (await post(client, "find", OWNER, text="b", address="AdminGuarded:none")).status_code == 404
