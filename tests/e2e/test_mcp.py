"""The Python client of MCP and a real server that is killed: what was begun goes on, and nothing is done twice."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitResult, Request, RequestParams, Result, TextContent
from pydantic import ConfigDict, Field
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.conformance.worlds import happens
from tests.e2e.serving import serving
from tests.machine import patience
from tests.servers import Server

from sapwood import Agent, App, Settings
from sapwood.auth import ApiKeys
from sapwood.protocols import Mcp

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def nothing_left_open() -> Iterator[None]:
    """Collect what the client leaves open when its server dies: a warning about it would fail another test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class McpServer(Server):
    has_front = True

    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--data", str(self._data), "--log-level", "warning"]
        return [sys.executable, "-m", "sapwood", "serve", f"{HERE / 'mcp_app.py'}:site", *options]


class Site:
    """The server, and what its agents did."""

    def __init__(self, server: Any, log: Path) -> None:
        self.server, self._log = server, log

    @property
    def url(self) -> str:
        return f"http://{self.server.host}/mcp"

    def done(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def allow(self, place: str, *sides: int) -> None:
        for side in sides:
            Path(f"{self._log}.{place}.{side}").touch()

    async def seen(self, line: str) -> None:
        async with asyncio.timeout(patience(30)):
            await happens(lambda: line in self.done())

    async def killed(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End the server, by default at once, and start it again."""
        await asyncio.to_thread(self.server.end, how)
        await asyncio.to_thread(self.server.start)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    log = tmp_path / "done.log"
    server = McpServer(tmp_path, tmp_path / "data", MCP_LOG=str(log))
    yield Site(server, log)
    server.close()


class Made(Result):
    result_type: Literal["task"] = Field("task", alias="resultType")
    task_id: str = Field(alias="taskId")


class Params(RequestParams):
    model_config = ConfigDict(extra="allow", populate_by_name=True)


class AnyResult(Result):
    model_config = ConfigDict(extra="allow")


class Tasks(ClientExtension):
    """Shows tasks as they are, and does not follow them."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Made, resolve=self._shown)]

    async def _shown(self, made: Made, context: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=made.task_id)])


async def ask(client: Any, method: str, **params: Any) -> dict[str, Any]:
    request = Request[Params, str](method=method, params=Params(**params))
    return (await client.session.send_request(request, AnyResult)).model_dump(by_alias=True)


@asynccontextmanager
async def joined(site: Site, *, user: str = "ann", **options: Any) -> AsyncGenerator[Any, None]:
    headers = {"authorization": f"Bearer {user}"}
    async with (
        asyncio.timeout(patience(60)),
        httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30, read=300)) as http,
        Client(streamable_http_client(site.url, http_client=http), **options) as client,
    ):
        yield client


async def begun(site: Site, tool: str, **arguments: Any) -> str:
    async with joined(site, extensions=[Tasks()]) as client:
        return text_of(await client.call_tool(tool, arguments))


async def stands(site: Site, task: str, is_right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return a task once it is as it should be."""
    async with joined(site, extensions=[Tasks()]) as client:
        while not is_right(found := await ask(client, "tasks/get", taskId=task)):  # noqa: ASYNC110 - clients poll
            await asyncio.sleep(0.05)
        return found


def text_of(result: Any) -> str:
    return result.content[0].text


@pytest.mark.nightly
async def test_a_task_goes_on_after_the_server_was_killed_in_its_second_step(site: Site) -> None:
    site.allow("river", 0)
    task = await begun(site, "survey", place="river")
    await site.seen("river 1 begun")
    await site.killed()
    site.allow("river", 1, 2)
    done = await stands(site, task, lambda one: one["status"] != "working")
    assert done["result"]["content"][0]["text"] == "river has 3 sides"
    assert [line for line in site.done() if "done" in line] == ["river 0 done", "river 1 done", "river 2 done"]
    assert site.done().count("river 0 begun") == 1
    async with joined(site, user="eve", extensions=[Tasks()]) as eve:
        with pytest.raises(MCPError) as refused:
            await ask(eve, "tasks/get", taskId=task)
        assert refused.value.code == -32602


@pytest.mark.nightly
async def test_an_approval_three_levels_down_is_answered_after_a_kill_and_paid_once(site: Site) -> None:
    task = await begun(site, "bureau", message="a printer")
    asked = await stands(site, task, lambda one: one["status"] == "input_required")
    ((key, request),) = asked["inputRequests"].items()
    assert "McpBureau → McpPurchaser → McpCashier" in request["params"]["message"]
    await site.killed()
    async with joined(site, extensions=[Tasks()]) as client:
        answer = {"action": "accept", "content": {"approved": True}}
        await ask(client, "tasks/update", taskId=task, inputResponses={key: answer})
    await site.killed()
    done = await stands(site, task, lambda one: one["status"] not in ("working", "input_required"))
    assert done["result"]["content"][0]["text"] == "here it is"
    assert site.done() == ["paid 90"]


@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.nightly)])
async def test_a_held_call_asks_the_server_is_killed_before_the_answer_and_pays_once(site: Site, mode: str) -> None:
    kills = iter([site.killed])

    async def answer(context: Any, params: Any) -> ElicitResult:
        for kill in kills:  # the first time: a client that joins again before it has answered is asked again
            await kill()
        return ElicitResult(action="accept", content={"approved": True})

    async with joined(site, mode=mode, elicitation_callback=answer) as client:
        assert text_of(await client.call_tool("bureau", {"message": "a printer"})) == "here it is"
    assert site.done() == ["paid 90"]


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
async def test_a_held_call_with_a_session_that_is_cut_is_joined_by_the_client_itself(
    site: Site, how: signal.Signals
) -> None:
    async with joined(site, mode="legacy") as client:
        call = asyncio.create_task(client.call_tool("survey", {"place": "river"}))
        await site.seen("river 0 begun")
        await site.killed(how)
        site.allow("river", 0, 1, 2)
        assert text_of(await call) == "river has 3 sides"
    assert [line for line in site.done() if "done" in line] == ["river 0 done", "river 1 done", "river 2 done"]


async def test_a_client_that_nobody_knows_is_refused_with_a_challenge(site: Site) -> None:
    async with httpx2.AsyncClient() as http:
        answer = await http.post(site.url, json={})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.nightly
async def test_a_program_on_standard_input_and_output_that_is_killed_goes_on_with_its_tasks(tmp_path: Path) -> None:
    site = Site(None, tmp_path / "done.log")
    options = ["--data", str(tmp_path / "data"), "--header", "Authorization: Bearer ann"]
    args = ["-m", "sapwood", "mcp", f"{HERE / 'mcp_app.py'}:site", *options]
    program = StdioServerParameters(command=sys.executable, args=args, env={"MCP_LOG": str(tmp_path / "done.log")})

    async with asyncio.timeout(patience(60)):
        async with Client(stdio_client(program), extensions=[Tasks()]) as client:
            task = text_of(await client.call_tool("survey", {"place": "river"}))
            await site.seen("river 0 begun")
            os.kill(await asyncio.to_thread(found, str(tmp_path / "data")), signal.SIGKILL)
        site.allow("river", 0, 1, 2)
        async with Client(stdio_client(program), extensions=[Tasks()]) as client:
            while (done := await ask(client, "tasks/get", taskId=task))["status"] == "working":  # noqa: ASYNC110 - clients poll
                await asyncio.sleep(0.05)
            assert done["result"]["content"][0]["text"] == "river has 3 sides"
        for mode in ("auto", "legacy"):
            async with Client(stdio_client(program), mode=mode, elicitation_callback=approved) as client:
                assert text_of(await client.call_tool("bureau", {"message": "a printer"})) == "here it is"
    assert [line for line in site.done() if "done" in line] == ["river 0 done", "river 1 done", "river 2 done"]
    assert site.done().count("paid 90") == 2


async def approved(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"approved": True})


def found(data: str) -> int:
    """Return the process that has this data folder in its command."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if data.encode() in words and b"mcp" in words:
            return int(path.parent.name)
    raise AssertionError("The program is not running.")


async def test_a_server_that_is_mounted_in_another_app_says_its_whole_url(tmp_path: Path) -> None:
    class McpEcho(Agent):
        """Says what it hears."""

        async def on_run(self, words: str) -> str:
            return words

    protocol = Mcp(tools=[McpEcho], authorization_servers=["https://auth.example.com"])
    users = ApiKeys({"ann": ApiKeys.hash_of("ann's key")})
    app = App(agents=[], protocols=[protocol], authenticate=users, settings=Settings(data=tmp_path))
    outer = Starlette(routes=[Mount("/inner", app)], lifespan=app.lifespan)
    async with serving(outer) as url, httpx2.AsyncClient(headers={"x-api-key": "ann's key"}) as http:
        refused = await httpx2.AsyncClient().post(f"{url}/inner/mcp", json={})
        where = f"{url}/inner/.well-known/oauth-protected-resource/mcp"
        assert refused.headers["www-authenticate"] == f'Bearer resource_metadata="{where}"'
        assert (await http.get(where)).json()["resource"] == f"{url}/inner/mcp"
        for mode in ("auto", "legacy"):
            async with Client(streamable_http_client(f"{url}/inner/mcp", http_client=http), mode=mode) as client:
                assert text_of(await client.call_tool("mcp_echo", {"words": "hello"})) == "hello"
