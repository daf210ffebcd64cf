"""`authenticate` is asked once for each request and socket, at every door, and its user reaches the agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from tests.conformance.mcp_clients import Mcp as McpClient
from tests.conformance.served import Served
from tests.conformance.serving import Answer, serving
from tests.conformance.two_nodes import running_on_two_nodes, running_with_movable_trees
from tests.machine import patience

from sapwood import App, ChatAgent, expose
from sapwood.auth import User
from sapwood.protocols import A2a, AgUi, Mcp, OpenAi
from sapwood.testing import ScriptedModel, running, text

ANN = {"authorization": "Bearer ann"}


class OnceAsked(ChatAgent):
    """Says who came."""

    model = ScriptedModel(text("well"), each=True)
    create_from_url = True

    async def on_request(self, request: Request) -> Response:
        return PlainTextResponse(request.user.id)

    @expose
    async def seen(self) -> str:
        """Say something."""
        return "seen"


class Porter:
    """Counts what it is asked. Its user is a `User`, or one that cannot be copied to another process."""

    def __init__(self, *, copyable: bool = True) -> None:
        self.asked: list[str] = []
        self._copyable = copyable

    def __call__(self, request: HTTPConnection) -> Any:
        self.asked.append(request.url.path)
        if request.headers.get("authorization") != "Bearer ann":
            return None
        return User("ann") if self._copyable else Uncopyable()


class Uncopyable:
    """A user of another framework."""

    id = "ann"

    def __init__(self) -> None:
        self.connection = asyncio.Event()


RUNTIMES = {"local": running, "workers": running_on_two_nodes, "movable": running_with_movable_trees}


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> Any:
    return RUNTIMES[request.param]


@asynccontextmanager
async def doors(runtime: Any, porter: Porter) -> AsyncGenerator[Served, None]:
    protocols = [A2a([OnceAsked]), AgUi(), Mcp(tools=[OnceAsked]), OpenAi()]
    app = App(agents=[OnceAsked], protocols=protocols, authenticate=porter)
    async with asyncio.timeout(patience()), runtime(app, slow_slices="allow") as world, serving(world.app) as site:
        one = Served(world, site)
        try:
            yield one
        finally:
            await one.end()


def posted(path: str, body: Any, **headers: str) -> Callable[[Served], Awaitable[Answer]]:
    sent = {**ANN, "content-type": "application/json", **headers}
    return lambda one: one.site.http(path, method="POST", body=json.dumps(body).encode(), headers=sent)


def mcp(method: str, **params: Any) -> Callable[[Served], Awaitable[Answer]]:
    return lambda one: McpClient(one, None, "/mcp", **ANN).post(method, **params)


MESSAGE = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
AG_UI: dict[str, Any] = {
    "threadId": "ann",
    "runId": "r1",
    "state": {},
    "tools": [],
    "context": [],
    "forwardedProps": {},
}
DOORS: dict[str, Callable[[Served], Awaitable[Answer]]] = {
    "agent": lambda one: one.site.http("/agents/once-asked/ann", headers=ANN),
    "child": lambda one: one.site.http("/agents/once-asked/ann/sub/once-asked/kid", headers=ANN),
    "methods": lambda one: one.site.http("/agents/once-asked/ann/methods", headers=ANN),
    "questions": lambda one: one.site.http("/agents/once-asked/ann/questions", headers=ANN),
    "ag-ui": posted(
        "/agents/once-asked/ann/ag-ui", {**AG_UI, "messages": [{"id": "1", "role": "user", "content": "hi"}]}
    ),
    "openai": posted("/v1/responses", {"model": "once-asked", "input": "hi"}),
    "openai stream": posted("/v1/responses", {"model": "once-asked", "input": "hi", "stream": True}),
    "openai chat": posted(
        "/v1/chat/completions", {"model": "once-asked", "messages": [{"role": "user", "content": "hi"}]}
    ),
    "openai models": lambda one: one.site.http("/v1/models", headers=ANN),
    "a2a": posted(
        "/a2a/once-asked", {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": MESSAGE}}
    ),
    "a2a stream": posted(
        "/a2a/once-asked", {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": MESSAGE}}
    ),
    "mcp tools": mcp("tools/list"),
    "mcp call": mcp("tools/call", name="once_asked", arguments={"message": "hi"}),
    "metrics": lambda one: one.site.http("/metrics", headers=ANN),
}


async def test_a_request_or_a_socket_is_authenticated_once(runtime: Any) -> None:
    porter = Porter()
    async with doors(runtime, porter) as one:
        for name, knock in DOORS.items():
            porter.asked.clear()
            answer = await knock(one)
            assert answer.status < 400, (name, answer.status, answer.text)
            assert len(porter.asked) == 1, (name, porter.asked)
        porter.asked.clear()
        await one.join("/agents/once-asked/ann", additional_headers=ANN)
        assert len(porter.asked) == 1, porter.asked


async def test_a_user_that_cannot_be_copied_is_found_again_where_the_agent_runs(runtime: Any) -> None:
    async with doors(runtime, Porter(copyable=False)) as one:
        answer = await DOORS["openai"](one)
        assert answer.status == 200, answer.text
        assert (await DOORS["agent"](one)).text == "ann"


async def test_a_client_that_another_app_of_the_process_has_authenticated_is_asked_again() -> None:
    """Two apps in one server: a user of the first is none of the second."""
    porter, other = Porter(), Porter()
    apps = [App(agents=[OnceAsked], protocols=[OpenAi()], authenticate=one) for one in (porter, other)]
    async with running(apps[0]) as first, running(apps[1]) as second:

        async def both(scope: Any, receive: Any, send: Any) -> None:
            async def no_body() -> Any:
                return {"type": "http.request", "body": b""}

            async def nowhere(message: Any) -> None:
                pass

            await first.app(scope, no_body, nowhere)
            await second.app(scope, no_body, send)

        async with serving(both) as site:
            answer = await site.http("/v1/models", headers=ANN)
            assert answer.status == 200
            assert (len(porter.asked), len(other.asked)) == (1, 1)
