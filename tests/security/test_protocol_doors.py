"""Every door of every protocol, for clients without a user and for other users: what is not theirs does not exist."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import jwt
import pytest
from tests.conformance.mcp_clients import WITH_TASKS
from tests.conformance.mcp_clients import Mcp as McpClient
from tests.conformance.openai_client import post
from tests.conformance.served import Served, served
from tests.conformance.serving import Answer
from tests.conformance.test_ag_ui import Page, said, user
from tests.conformance.test_mcp_tasks import YES
from tests.machine import patience

from sapwood import App, ChatAgent, tool
from sapwood.auth import ANY_CLIENT, JwtAuth, User
from sapwood.protocols import A2a, AgUi, Mcp, OpenAi
from sapwood.testing import ScriptedModel, call, text

KEY = "k" * 32


class DoorPayer(ChatAgent):
    """Pays when a client allows it."""

    paid: ClassVar[list[int]] = []

    model = ScriptedModel(call("pay", euros=3, id="p1"), text("paid"), each=True)

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self, euros: int) -> str:
        """Pay."""
        self.paid.append(euros)
        return "paid"


def token(name: str, *, key: str = KEY, seconds: float = 86400) -> dict[str, str]:
    signed = jwt.encode({"sub": name, "exp": int(time.time() + seconds)}, key, algorithm="HS256")
    return {"authorization": f"Bearer {signed}"}


# Made when the file is collected: a slow session may come here an hour later.
ANN, BOB = token("ann"), token("bob")
NO_USER = {"none": {}, "wrong": token("ann", key="x" * 32), "expired": token("ann", seconds=-600)}


def own(person: User, address: Any, action: str) -> bool:
    """Let users reach the roots whose name begins with theirs, and those that have random names."""
    name = address.root.name
    return name.startswith(person.id) or not re.match("(ann|bob)-", name)


@asynccontextmanager
async def doors() -> AsyncGenerator[Served, None]:
    DoorPayer.paid.clear()
    protocols = [A2a([DoorPayer]), AgUi(), Mcp(tools=[DoorPayer]), OpenAi()]
    auth = JwtAuth(KEY, algorithms=["HS256"])
    app = App(agents=[DoorPayer], protocols=protocols, authenticate=auth, authorize=own)
    async with asyncio.timeout(patience()), served(app) as one:
        yield one


Knock = Callable[[Served, str, dict[str, str]], Awaitable[Answer]]
"""Asks for something that has this id, with these headers."""


@dataclass(frozen=True)
class Door:
    """What a user begins at a protocol, and all that may be asked about it."""

    begin: Callable[[Served], Awaitable[str]]
    """Have ann begin something that asks a question; return its id."""
    knocks: dict[str, Knock]
    answer: str
    """The knock that answers the question."""


# A2A

YES_PART = {"messageId": "m2", "role": "ROLE_USER", "parts": [{"text": "yes"}]}


async def a2a(one: Served, method: str, params: Any, headers: dict[str, str]) -> Answer:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    return await post(one, "/a2a/door-payer", body, **{"A2A-Version": "1.0"}, **headers)


async def begin_a2a(one: Served) -> str:
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "pay"}]}
    return (await a2a(one, "SendMessage", {"message": message}, ANN)).json()["result"]["task"]["id"]


def of_task(method: str) -> Knock:
    return lambda one, of, headers: a2a(one, method, {"id": of}, headers)


A2A = Door(
    begin_a2a,
    {
        "read": of_task("GetTask"),
        "subscribe": of_task("SubscribeToTask"),
        "notify": lambda one, of, headers: a2a(
            one, "CreateTaskPushNotificationConfig", {"taskId": of, "url": "https://93.184.216.34/"}, headers
        ),
        "configs": lambda one, of, headers: a2a(one, "ListTaskPushNotificationConfigs", {"taskId": of}, headers),
        "begin": lambda one, of, headers: a2a(
            one, "SendStreamingMessage", {"message": {**YES_PART, "messageId": "m3", "taskId": of}}, headers
        ),
        "answer": lambda one, of, headers: a2a(one, "SendMessage", {"message": {**YES_PART, "taskId": of}}, headers),
        "cancel": of_task("CancelTask"),
    },
    "answer",
)

# MCP


def mcp(one: Served, headers: dict[str, str], capabilities: Any = WITH_TASKS) -> McpClient:
    return McpClient(one, capabilities, "/mcp", **headers)


async def begin_mcp(one: Served) -> str:
    client = mcp(one, ANN)
    task = (await client.call("door_payer", {"message": "pay"}))["taskId"]
    await client.settled(task)
    return task


async def update(one: Served, id: str, headers: dict[str, str]) -> Answer:
    asked = (await mcp(one, ANN).ask("tasks/get", taskId=id)) if headers is ANN else {"inputRequests": {"p1": 1}}
    responses = dict.fromkeys(asked["inputRequests"], YES)
    return await mcp(one, headers).post("tasks/update", taskId=id, inputResponses=responses)


def resource(more: str) -> Knock:
    return lambda one, of, headers: mcp(one, headers).post("resources/read", uri=f"sapwood://runs/{of}{more}")


MCP = Door(
    begin_mcp,
    {
        "read": lambda one, of, headers: mcp(one, headers).post("tasks/get", taskId=of),
        "read its run": resource(""),
        "read its transcript": resource("/transcript"),
        "read its files": resource("/files"),
        "answer": update,
        "cancel": lambda one, of, headers: mcp(one, headers).post("tasks/cancel", taskId=of),
    },
    "answer",
)


async def begin_session(one: Served) -> str:
    client = await mcp(one, ANN, {}).begun()
    assert client.session is not None
    return client.session


async def in_session(one: Served, id: str, headers: dict[str, str], http: str, method: str) -> Answer:
    client = mcp(one, headers, {})
    client.is_stateless, client.session = False, id
    return await client.post(method) if method else await client.http(http)


SESSION = Door(
    begin_session,
    {
        "read": lambda one, of, headers: in_session(one, of, headers, "POST", "tools/list"),
        "end": lambda one, of, headers: in_session(one, of, headers, "DELETE", ""),
    },
    "",
)

# OpenAI

RESPONSES = "/v1/responses"
ASK = {"model": "door-payer", "input": "pay"}


async def begin_openai(one: Served) -> str:
    return (await post(one, RESPONSES, ASK, **ANN)).json()["id"]


def get(more: str) -> Knock:
    return lambda one, of, headers: one.site.http(f"{RESPONSES}/{of}{more}", headers=headers)


async def approve(one: Served, id: str, headers: dict[str, str]) -> Answer:
    asked = (await one.site.http(f"{RESPONSES}/{id}", headers=ANN)).json() if headers is ANN else {}
    request = asked["output"][-1]["id"] if asked else f"mcpr_{id[-32:]}0001"
    answer = {"type": "mcp_approval_response", "approval_request_id": request, "approve": True}
    return await post(one, RESPONSES, {**ASK, "input": [answer], "previous_response_id": id}, **headers)


OPENAI = Door(
    begin_openai,
    {
        "read": get(""),
        "subscribe": get("?stream=true"),
        "begin": lambda one, of, headers: post(one, RESPONSES, {**ASK, "previous_response_id": of}, **headers),
        "answer": approve,
        "cancel": lambda one, of, headers: one.site.http(f"{RESPONSES}/{of}/cancel", method="POST", headers=headers),
    },
    "answer",
)

# AG-UI and the own client: the id is the name of a root


async def begin_ag_ui(one: Served) -> str:
    body = said("r1", user("u1", "pay"), thread="ann-1")
    await Page(one, "/agents/door-payer/ann-1/ag-ui", body, **ANN).over()
    return "ann-1"


def page(rest: str, *, is_root: bool) -> Knock:
    async def knock(one: Served, id: str, headers: dict[str, str]) -> Answer:
        path = f"/ag-ui/door-payer{rest}" if is_root else f"/agents/door-payer/{id}/ag-ui{rest}"
        body = {"threadId": id, "runId": "r1"} if rest == "/cancel" else said("r1", user("u1", "pay"), thread=id)
        return await post(one, path, body, **headers)

    return knock


async def resume(one: Served, id: str, headers: dict[str, str]) -> Answer:
    asked = (await one.site.http(f"/agents/door-payer/{id}/questions", headers=headers)).text
    found = re.search('"digest":"([0-9a-f]{16})', asked)
    interrupt = f"p1#{found[1]}" if found else "p1#0000000000000000"
    answer = [{"interruptId": interrupt, "status": "resolved", "payload": {"approved": True}}]
    return await post(one, "/ag-ui/door-payer", said("r2", user("u1", "pay"), thread=id, resume=answer), **headers)


AG_UI = Door(
    begin_ag_ui,
    {
        "read": page("/connect", is_root=False),
        "read at the root": page("/connect", is_root=True),
        "begin": page("", is_root=False),
        "begin at the root": page("", is_root=True),
        "questions": lambda one, of, headers: one.site.http(f"/agents/door-payer/{of}/questions", headers=headers),
        "files": lambda one, of, headers: one.site.http(f"/agents/door-payer/{of}/files", headers=headers),
        "methods": lambda one, of, headers: one.site.http(f"/agents/door-payer/{of}/methods", headers=headers),
        "answer": resume,
        "cancel": page("/cancel", is_root=False),
        "cancel at the root": page("/cancel", is_root=True),
    },
    "answer",
)

DOORS = {"a2a": A2A, "mcp": MCP, "session": SESSION, "openai": OPENAI, "ag-ui": AG_UI}


def unknown(id: str) -> str:
    """Return an id of the same form that nothing has."""
    last = "0" if id[-1] != "0" else "1"
    return f"{id[:-1]}{last}" if not id.startswith("ann-") else "ann-9"


def shown(answer: Answer, id: str) -> tuple[int, str]:
    """Return what a client sees, without the id that it has asked for."""
    return answer.status, answer.text.replace(id, "ID")


@pytest.mark.parametrize("name", DOORS)
async def test_what_belongs_to_a_user_does_not_exist_for_others(name: str) -> None:
    door = DOORS[name]
    async with doors() as one:
        id = await door.begin(one)
        for what, knock in door.knocks.items():
            for kind, headers in NO_USER.items():
                answer = await knock(one, id, headers)
                assert answer.status == 401, (what, kind, answer.text)
                assert id not in answer.text
            theirs, nothing = await knock(one, id, BOB), await knock(one, unknown(id), BOB)
            assert shown(theirs, id) == shown(nothing, unknown(id)), what
            assert "pay" not in theirs.text.replace("door-payer", "").replace("door_payer", ""), what
        assert DoorPayer.paid == []
        for what, knock in door.knocks.items():
            if what.startswith("read"):
                answer = await knock(one, id, ANN)
                assert answer.status == 200, (what, answer.text)
                assert '"code":-' not in answer.text, (what, answer.text)
        if door.answer:
            await door.knocks[door.answer](one, id, ANN)
            while not DoorPayer.paid:
                await one.world.clock.advance(1)
            assert DoorPayer.paid == [3]


async def test_a_socket_of_no_user_or_another_is_closed() -> None:
    async with doors() as one:
        await begin_ag_ui(one)
        for headers in NO_USER.values():
            assert await one.site.refused("/agents/door-payer/ann-1", additional_headers=headers) == 4401
        for name in ("ann-1", "ann-9"):
            assert await one.site.refused(f"/agents/door-payer/{name}", additional_headers=BOB) == 4403
        # The roots of the protocols have no URL, also for their own users.
        for path in ("/agents/sapwood-a2a-desk/user:ann", "/agents/sapwood-mcp-desk/ann"):
            assert await one.site.refused(path, additional_headers=ANN) == 4400


PATHS = (
    "/a2a/door-payer",
    "/mcp",
    "/v1/responses",
    "/v1/chat/completions",
    "/ag-ui/door-payer",
    "/agents/door-payer/ann-1/ag-ui",
)


@pytest.mark.parametrize("path", PATHS)
async def test_no_attack_on_a_protocol_begins_anything_or_tells_what_is_inside(path: str) -> None:
    deep = b'{"jsonrpc":"2.0","id":1,"method":"a","params":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    bodies = [deep, b"[" * 100_000, b"", b"null", b"\xff\xfe", b'{"a":"\\ud800"}', b'{"id":1e999999}', b"9" * 5000]
    before = len(DoorPayer.model.asked)
    async with doors() as one:
        for body in bodies:
            answer = await one.site.http(path, method="POST", body=body, headers=ANN)
            assert answer.status < 500, (body[:40], answer.text)
            assert answer.status >= 400 or '"code":-' in answer.text, (body[:40], answer.text)
            assert "Traceback" not in answer.text
        foreign = await one.site.http(path, method="POST", body=b"{}", headers={**ANN, "origin": "http://evil.example"})
        assert foreign.status == 403
        ambiguous = {**ANN, "transfer-encoding": "chunked"}
        assert (await one.site.http(path, method="POST", body=b"{}", headers=ambiguous)).status == 400
        huge = await one.site.http(path, method="POST", headers={**ANN, "content-length": str(10**12)})
        assert huge.status == 413
    assert len(DoorPayer.model.asked) == before
