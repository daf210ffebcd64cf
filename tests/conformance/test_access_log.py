"""Operators read in the log who asked for what, and why it was refused. Clients are not told."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest

from sapwood import Agent, App, ChatAgent, Question, Settings, tool
from sapwood.auth import ApiKeys, JwtAuth, User
from sapwood.cli.json_log import JsonFormatter
from sapwood.testing import ScriptedModel, call

SECRET = "s" * 32
ROOM = "/agents/access-room/a"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class AccessRoom(Agent):
    pass


class AccessWreck(Agent):
    async def on_start(self) -> None:
        raise ValueError("wrecked")


class AccessTill(ChatAgent):
    model = ScriptedModel(call("pay", id="p"))

    @tool(requires_approval=True, approvers=("manager", "owner"))
    async def pay(self) -> str:
        """Pay."""
        return "paid"


@asynccontextmanager
async def site(folder: Path, authenticate: Any = None, **more: Any) -> AsyncGenerator[httpx2.AsyncClient, None]:
    app = App(
        agents=[AccessRoom, AccessTill, AccessWreck],
        authenticate=authenticate,
        settings=Settings(data=folder / "data"),
        **more,
    )
    async with app, httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://a") as client:
        yield client


def facts(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.name == "sapwood.access"]


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("sapwood.web.")]


async def test_a_request_is_logged_with_its_facts_as_fields(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sapwood.access")
    async with site(tmp_path) as client:
        await client.get(f"{ROOM}/x", headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})

    (found,) = facts(caplog)
    assert (found["method"], found["path"], found["status"]) == ("GET", f"{ROOM}/x", 404)
    assert (found["address"], found["trace_id"]) == ("AccessRoom:a", TRACE)
    assert 0 <= found["duration"] < 60
    assert "trace" not in found
    (line,) = [JsonFormatter().format(record) for record in caplog.records if record.name == "sapwood.access"]
    assert '"status": 404' in line


async def test_requests_that_reach_no_agent_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sapwood.access")
    async with site(tmp_path, ApiKeys({"ann": ApiKeys.hash_of("k")})) as client:
        asked = ["/agents/dsk/a", "/nothing", "/metrics", ROOM, "/healthz"]
        statuses = [(await client.get(path)).status_code for path in asked]

    assert statuses == [400, 404, 401, 401, 200]
    assert [(one["path"], one["status"]) for one in facts(caplog)] == list(zip(asked, statuses, strict=True))[:-1]


async def test_the_log_says_which_roots_there_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "sapwood.web")
    async with site(tmp_path) as client:
        answer = await client.get("/agents/dsk/a")

    assert (answer.status_code, answer.text) == (400, "Invalid request")
    assert reasons(caplog) == [
        "request refused client=127.0.0.1: no root class 'dsk'; this app has: access-room, access-till, access-wreck",
    ]


def token(key: str = SECRET, **claims: Any) -> str:
    return jwt.encode({"sub": "ann", "exp": 4_000_000_000, **claims}, key, algorithm="HS256")


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({}, "no token in header Authorization: Bearer or parameter token of the URL"),
        ({"authorization": "Basic eA=="}, "no token in header Authorization: Bearer or parameter token of the URL"),
        ({"authorization": f"Bearer {token(exp=1)}"}, "token expired"),
        ({"authorization": f"Bearer {token('x' * 32)}"}, "signature does not match the key"),
        ({"authorization": "Bearer SECRET-PART"}, "invalid token (DecodeError)"),
        ({"authorization": f"Bearer {token(sub='')}"}, "claim sub is empty"),
    ],
)
async def test_the_log_says_why_a_token_is_refused(
    headers: dict[str, str], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with site(tmp_path, JwtAuth(SECRET, algorithms=["HS256"])) as client:
        answer = await client.get(ROOM, headers=headers)

    assert (answer.status_code, answer.text) == (401, "Unauthorized")
    assert reasons(caplog) == [f"authentication failed client=127.0.0.1: {why}"]
    assert all(value.split()[-1] not in caplog.text for value in headers.values())


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({}, "no key in header x-api-key or Authorization: Bearer"),
        ({"x-api-key": "SECRET-PART"}, "unknown API key"),
    ],
)
async def test_the_log_says_why_an_api_key_is_refused(
    headers: dict[str, str], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with site(tmp_path, ApiKeys({"ann": ApiKeys.hash_of("k")})) as client:
        assert (await client.get(ROOM, headers=headers)).status_code == 401

    assert reasons(caplog) == [f"authentication failed client=127.0.0.1: {why}"]
    assert "SECRET-PART" not in caplog.text


async def test_a_function_that_finds_no_user_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "sapwood.web")
    async with site(tmp_path, lambda _: None) as client:
        await client.get(ROOM)

    assert reasons(caplog) == ["authentication failed client=127.0.0.1: authenticate returned None"]


async def test_the_log_names_the_roles_that_a_refused_answer_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sapwood")
    said = {"messages": [{"role": "user", "parts": [{"type": "text", "text": "pay"}]}]}
    async with site(tmp_path, lambda _: User("eve", {"roles": ["staff"]})) as client:
        await client.post("/agents/access-till/t/chat", json=said)
        digest = Question.about("p", "pay", {}, "approval").digest
        given = {"id": "p", "approved": True, "digest": digest}
        answer = await client.post("/agents/access-till/t/questions", json=given)

    assert answer.status_code == 403
    assert "manager" not in answer.text
    (line,) = [one.getMessage() for one in caplog.records if "answer refused" in one.getMessage()]
    assert "tool=pay user=eve approvers=manager,owner roles=staff: " in line


async def test_the_traceback_of_a_failed_start_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with site(tmp_path) as client:
        assert (await client.get("/agents/access-wreck/a")).status_code == 500

    failed = [record for record in caplog.records if "wrecked" in record.getMessage()]
    assert [record.exc_info is not None for record in failed] == [True, False]
    assert "agent failed to start: AccessWreck:a" in failed[0].getMessage()
    assert "failed agent=AccessWreck:a error=ValueError: wrecked reference=" in failed[1].getMessage()
