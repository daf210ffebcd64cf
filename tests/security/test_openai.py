"""Attacks on the OpenAI API: what other users have, what a user may not approve, and what no client is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse, Response
from tests.conformance.openai_client import post, text_of
from tests.conformance.served import Served, served
from tests.machine import patience

from sapwood import App, ChatAgent, tool
from sapwood.auth import User
from sapwood.protocols import OpenAi
from sapwood.testing import ScriptedModel, call, text

RESPONSES, COMPLETIONS = "/v1/responses", "/v1/chat/completions"
SECRET = "hunter2-in-the-database"


class OpenAiVault(ChatAgent):
    """Pays when a manager allows it."""

    paid: ClassVar[list[int]] = []

    model = ScriptedModel(call("pay", euros=3, id="p1"), text("paid"), each=True)

    @tool(requires_approval=True, approvers="manager")
    async def pay(self, euros: int) -> str:
        """Pay."""
        self.paid.append(euros)
        return "paid"

    async def on_before_request(self, request: HTTPConnection) -> Response | None:
        if self.name == "broken":
            raise ZeroDivisionError(SECRET)
        if self.name == "closed":
            return PlainTextResponse("Closed today", 403)
        return JSONResponse({"closed": True}, 403) if self.name == "json" else None


def who(request: Any) -> User | None:
    name = request.headers.get("authorization", "").removeprefix("Bearer ")
    return User(name, {"roles": ["manager"] if name == "max" else []}) if name in ("ann", "bob", "max") else None


def may(user: Any, address: Any, action: str) -> bool:
    return not address.name.startswith("bob-") or user.id == "bob"


def of(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


@asynccontextmanager
async def openai() -> AsyncGenerator[Served, None]:
    OpenAiVault.paid.clear()
    app = App(agents=[OpenAiVault], protocols=[OpenAi()], authenticate=who, authorize=may)
    async with asyncio.timeout(patience()), served(app) as one:
        yield one


async def test_only_an_approver_approves_and_the_question_stays_open() -> None:
    async with openai() as one:
        said: dict[str, Any] = {"model": "open-ai-vault", "conversation": "desk"}
        asked = (await post(one, RESPONSES, {**said, "input": "pay"}, **of("ann"))).json()
        request = asked["output"][-1]
        answer = [{"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}]
        refused = await post(one, RESPONSES, {**said, "input": answer}, **of("ann"))
        assert (refused.status, refused.json()["error"]["type"]) == (403, "permission_error")
        assert OpenAiVault.paid == []
        done = await post(one, RESPONSES, {**said, "input": answer}, **of("max"))
        assert (done.status, text_of(done.json())) == (200, "paid")
        assert OpenAiVault.paid == [3]
        assert (await one.site.http(f"{RESPONSES}/{done.json()['id']}", headers=of("ann"))).status == 404


async def test_what_belongs_to_a_user_is_found_by_no_other() -> None:
    async with openai() as one:
        said: dict[str, Any] = {"model": "open-ai-vault", "input": "pay"}
        made = (await post(one, RESPONSES, said, **of("ann"), **{"idempotency-key": "k1"})).json()
        other = (await post(one, RESPONSES, said, **of("bob"), **{"idempotency-key": "k1"})).json()
        assert made["conversation"] != other["conversation"]
        for body in (
            {**said, "previous_response_id": made["id"]},
            {**said, "conversation": made["conversation"]},
            {
                **said,
                "input": [{"type": "function_call_output", "call_id": f"call_{made['id'][5:]}0000", "output": "x"}],
            },
        ):
            answer = await post(one, RESPONSES, body, **of("bob"))
            assert answer.status in (400, 404), answer.text
        chat = {"model": "open-ai-vault", "messages": [{"role": "user", "content": "pay"}]}
        ids = {"x-openwebui-chat-id": "one"}
        places = [
            (await post(one, COMPLETIONS, chat, **of(name), **ids)).json()["conversation"] for name in ("ann", "bob")
        ]
        assert places[0] != places[1]
        stolen = await post(one, COMPLETIONS, {**chat, "conversation": places[0]}, **of("bob"))
        assert stolen.status == 404
        for path in (RESPONSES, COMPLETIONS):
            body = {**said, **chat} if path == COMPLETIONS else said
            body = {name: value for name, value in body.items() if path == RESPONSES or name != "input"}
            assert (await post(one, path, {**body, "conversation": "bob-1"}, **of("ann"))).status == 403


async def test_refusals_of_hooks_have_the_form_of_the_api_and_errors_tell_nothing() -> None:
    async with openai() as one:
        said: dict[str, Any] = {"model": "open-ai-vault", "input": "pay"}
        closed = await post(one, RESPONSES, {**said, "conversation": "closed"}, **of("ann"))
        assert (closed.status, closed.json()["error"]["message"]) == (403, "Closed today")
        own = await post(one, RESPONSES, {**said, "conversation": "json"}, **of("ann"))
        assert (own.status, own.json()) == (403, {"closed": True})
        broken = await post(one, RESPONSES, {**said, "conversation": "broken"}, **of("ann"))
        assert (broken.status, broken.json()["error"]["type"]) == (500, "server_error")
        assert "reference" in broken.json()["error"]["message"]
        assert SECRET not in broken.text
        foreign = await post(one, RESPONSES, said, **of("ann"), origin="http://evil.example")
        assert (foreign.status, foreign.json()["error"]["type"]) == (403, "permission_error")


@pytest.mark.parametrize("path", [RESPONSES, COMPLETIONS])
async def test_bodies_of_attackers_are_refused_with_a_reason(path: str) -> None:
    deep = "[" * 5000 + "]" * 5000
    bodies: list[Any] = [
        deep,
        '{"model":"open-ai-vault","input":' + deep + "}",
        '{"model":"open-ai-vault","messages":' + deep + "}",
        '{"model":' + "9" * 5000 + "}",
        '{"model":"open-ai-vault","input":"\\ud800"}',
        {"model": "open-ai-vault", "input": [None], "messages": [None]},
        {"model": "open-ai-vault", "input": [{"role": "user", "content": [{"type": {}}]}]},
        {"model": "open-ai-vault", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": 1}]}]},
        {"model": "open-ai-vault", "messages": [{"role": [], "content": "x"}]},
        {"model": "open-ai-vault", "input": "x", "messages": [{"role": "user", "content": "x"}], "tools": [1]},
        {"model": "open-ai-vault", "input": "x", "conversation": {"id": {"id": "x"}}},
        {"model": "open-ai-vault", "input": "x", "conversation": "x" * 600},
        {"model": "open-ai-vault", "input": "x", "conversation": "\x00"},
        {"model": ["open-ai-vault"], "input": "x", "messages": [{"role": "user", "content": "x"}]},
        {"model": "open-ai-vault", "input": "x", "metadata": {"a": {"b": "c"}}},
    ]
    before = len(OpenAiVault.model.asked)
    async with openai() as one:
        for body in bodies:
            sent = body if isinstance(body, str) else json.dumps(body)
            answer = await one.site.http(path, method="POST", body=sent.encode(), headers=of("ann"))
            assert answer.status in (400, 404), (answer.status, sent[:100])
            assert answer.json()["error"]["message"]
        assert len(OpenAiVault.model.asked) == before
