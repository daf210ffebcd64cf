"""Tools of an MCP server: listed with schemas, called as runs, held with progress, cancelled, and joined again."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from tests.conformance.mcp_clients import LEGACY, WITH_TASKS, Mcp, held, mcp_served
from tests.conformance.worlds import until

from sapwood import Agent, App, ChatAgent, Limits, agent_tool
from sapwood.auth import User
from sapwood.errors import UsageError
from sapwood.protocols import Mcp as McpProtocol
from sapwood.protocols import mcp_desk
from sapwood.runs.http.events_http import OpenStreams
from sapwood.testing import ScriptedModel, text


@dataclass
class McpTopic:
    name: str
    depth: int = 1


@dataclass
class McpStop:
    place: str
    topics: list[McpTopic]


@dataclass
class McpReport:
    title: str
    words: int


class McpReporter(Agent):
    """Writes a report."""

    runs_begun: ClassVar[list[str]] = []

    async def on_run(self, topic: McpTopic) -> McpReport:
        self.runs_begun.append(topic.name)
        return McpReport(topic.name, topic.depth * 100)


class McpPlanner(Agent):
    """Plans a journey."""

    async def on_run(self, stops: list[McpStop]) -> int:
        return len(stops)


class McpLooker(Agent):
    """Looks at a place for a while."""

    go: ClassVar[asyncio.Event]
    looks: ClassVar[list[str]] = []
    cancelled: ClassVar[list[str]] = []

    async def on_run(self, place: str, times: int = 2) -> list[str]:
        self.report_progress(0.5, f"looking at {place}")
        try:
            await self.step("look", self._look, place)
        except asyncio.CancelledError:
            self.cancelled.append(place)
            raise
        return [place]

    async def _look(self, place: str) -> None:
        await self.go.wait()
        self.looks.append(place)


class McpBroken(Agent):
    """Fails."""

    async def on_run(self, why: str = "") -> str:
        raise ValueError("a secret of the server")


class McpTalker(ChatAgent):
    """Answers."""

    model = ScriptedModel(text("well"), each=True)


def who(request: Any) -> User | None:
    return User(request.headers["who"]) if "who" in request.headers else None


def app(**more: Any) -> App:
    McpLooker.go = asyncio.Event()
    McpLooker.looks, McpLooker.cancelled, McpReporter.runs_begun = [], [], []
    tools = [McpPlanner, McpReporter, McpLooker, McpBroken, agent_tool(McpTalker, name="talk")]
    return App(agents=[], protocols=[McpProtocol(tools=tools)], **more)


async def test_tools_have_schemas_and_results_have_types() -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one)
        tools = {tool["name"]: tool for tool in (await client.ask("tools/list"))["tools"]}
        reporter = tools["mcp_reporter"]
        assert reporter["description"] == "Writes a report."
        assert set(reporter["inputSchema"]["properties"]) == {"name", "depth"}
        assert reporter["inputSchema"]["required"] == ["name"]
        assert set(reporter["outputSchema"]["properties"]) == {"title", "words"}
        assert tools["mcp_looker"]["outputSchema"]["properties"]["result"]["type"] == "array"
        assert "outputSchema" not in tools["talk"]

        result = await client.call("mcp_reporter", {"name": "rivers", "depth": 2})
        assert result["structuredContent"] == {"title": "rivers", "words": 200}
        assert result["content"][0]["text"] == '{"title":"rivers","words":200}'
        assert (await client.call("talk", {"message": "hello"}))["content"][0]["text"] == "well"


@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        ("mcp_reporter", {"name": 3}, "does not fit"),
        ("mcp_reporter", {}, "does not fit"),
        ("mcp_reporter", {"name": "x", "dept": 3}, "There is no argument 'dept'"),
        ("mcp_planner", {"stops": [{"place": "x", "topics": [{"name": "y", "dept": 1}]}]}, "no argument 'dept'"),
        ("mcp_planner", {"stops": 3}, "does not fit"),
        ("mcp_looker", {}, "The argument 'place' is missing"),
        ("talk", {"massage": "x"}, "There is no argument 'massage'"),
        ("mcp_broken", {}, "reference"),
    ],
)
async def test_what_is_wrong_with_a_call_is_told_to_the_model_and_no_secret(
    tool: str, arguments: dict[str, Any], why: str
) -> None:
    async with mcp_served(app()) as one:
        result = await Mcp(one).call(tool, arguments)
        assert result["isError"] is True
        assert why in result["content"][0]["text"]
        assert "secret" not in result["content"][0]["text"]
        assert not McpReporter.runs_begun


async def test_a_tool_that_does_not_exist_is_an_error_of_the_protocol() -> None:
    async with mcp_served(app()) as one:
        assert (await Mcp(one).error("tools/call", name="nothing", arguments={}))["code"] == -32602


@pytest.mark.parametrize("session", [False, True])
async def test_a_held_call_has_progress(session: bool) -> None:
    async with mcp_served(app()) as one:
        client = await Mcp(one).begun() if session else Mcp(one)
        call = held(one, client, "mcp_looker", {"place": "river"}, progress="p1")
        await until(lambda: len(call.messages) == 1)
        told = call.messages[0]
        assert told["method"] == "notifications/progress"
        assert told["params"] == {"progressToken": "p1", "progress": 0.5, "total": 1.0, "message": "looking at river"}
        McpLooker.go.set()
        assert (await call.over())["result"]["structuredContent"] == {"result": ["river"]}


async def test_to_close_the_stream_of_a_stateless_call_is_to_cancel_it() -> None:
    async with mcp_served(app()) as one:
        call = held(one, Mcp(one), "mcp_looker", {"place": "river"}, progress="p1")
        await until(lambda: len(call.messages) == 1)
        await call.close()
        await until(lambda: McpLooker.cancelled == ["river"])


async def test_a_call_with_a_session_is_cancelled_by_its_id_and_not_by_a_lost_connection() -> None:
    async with mcp_served(app()) as one:
        client = await Mcp(one).begun()
        call = held(one, client, "mcp_looker", {"place": "river"}, id="c1", progress="p1")
        await until(lambda: len(call.messages) == 1)
        await call.close()
        again = held(one, client, "mcp_looker", {"place": "river"}, id="c1", progress="p1")
        await until(lambda: len(again.messages) == 1)
        assert McpLooker.cancelled == []
        await client.notify("notifications/cancelled", requestId="c1")
        assert (await again.over())["result"]["isError"] is True
        assert McpLooker.cancelled == ["river"]


async def test_a_call_with_a_session_cut_by_a_crash_joins_its_run_by_its_id_and_by_its_last_event() -> None:
    async with mcp_served(app()) as one:
        client = await Mcp(one).begun()
        call = held(one, client, "mcp_looker", {"place": "river"}, id=7, progress="p1")
        await until(lambda: len(call.messages) == 1)
        assert call.ids

        await one.world.crash()
        again = held(one, client, "mcp_looker", {"place": "river"}, id=7)
        resumed = held(one, client, after=call.ids[-1])
        await until(lambda: bool(again.ids and resumed.ids))
        McpLooker.go.set()
        first, second = await again.over(), await resumed.over()

        assert first["result"] == second["result"]
        assert first["result"]["structuredContent"] == {"result": ["river"]}
        assert (first["id"], second["id"]) == (7, 7)
        assert McpLooker.looks == ["river"]


async def test_a_long_stateless_call_is_given_a_state_that_joins_its_run_again_after_a_crash() -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one)
        first = held(one, client, "mcp_looker", {"place": "river"})
        await until(lambda: bool(first.connected))
        while not first.is_over:
            await one.world.clock.advance(11)
            await asyncio.sleep(0.01)
        waiting = (await first.over())["result"]
        assert waiting["resultType"] == "input_required"
        assert "inputRequests" not in waiting

        await one.world.crash()
        McpLooker.go.set()
        state = {"requestState": waiting["requestState"]}
        result = await client.ask("tools/call", name="mcp_looker", arguments={"place": "river"}, **state)
        assert result["structuredContent"] == {"result": ["river"]}
        assert McpLooker.looks == ["river"]
        for wrong in ({"place": "sea"}, {"place": "river", "times": 3}):
            error = await client.error("tools/call", name="mcp_looker", arguments=wrong, **state)
            assert error["code"] == -32602
        error = await client.error("tools/call", name="mcp_looker", arguments={"place": "river"}, requestState="x.y")
        assert error["code"] == -32602


async def test_sessions_survive_a_crash_end_by_delete_and_belong_to_their_user() -> None:
    async with mcp_served(app(authenticate=who)) as one:
        ann = await Mcp(one, who="ann").begun()
        await one.world.crash()
        assert (await ann.ask("ping")) == {}
        bob = Mcp(one, who="bob")
        bob.session = ann.session
        assert (await bob.post("ping")).status == 404
        assert (await ann.http("DELETE")).status == 200
        assert (await ann.post("ping")).status == 404
        ann.session = None
        assert (await ann.post("ping", version=LEGACY)).status == 400


async def test_a_client_without_a_user_is_refused_where_there_are_users() -> None:
    async with mcp_served(app(authenticate=who)) as one:
        assert (await Mcp(one).post("tools/list")).status == 401


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"3", b'{"jsonrpc": "2.0", "id": 1}', b'{"id": 1, "method": "ping"}', b"[" * 100_000]
)
async def test_a_malformed_body_is_refused(body: bytes) -> None:
    async with mcp_served(app()) as one:
        for client in (Mcp(one), await Mcp(one).begun()):
            answer = await client.http("POST", body)
            assert answer.status == 400
            assert answer.json()["error"]["code"] in (-32700, -32600)


class McpDeaf(Agent):
    """Receives nothing."""

    async def on_run(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ""


def test_a_server_that_cannot_work_is_refused_when_it_is_made() -> None:
    with pytest.raises(UsageError, match="no tools"):
        McpProtocol()
    with pytest.raises(UsageError, match="Two tools are named"):
        McpProtocol(tools=[McpReporter, McpReporter])
    with pytest.raises(UsageError, match="list of agent classes"):
        McpProtocol(tools=["reporter"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="exposes no methods"):
        McpProtocol(methods=[McpReporter])
    with pytest.raises(UsageError, match="has no parameter"):
        McpProtocol(tools=[McpDeaf])
    with pytest.raises(UsageError, match="expected the name of a tool"):
        McpProtocol(tools=[McpReporter], task_support={"nothing": "required"})


async def test_a_client_without_a_user_learns_where_to_sign_in() -> None:
    signs_in: Any = {"authorization_servers": ["https://auth.example.com"], "scopes": ["tools"]}
    protocol = McpProtocol(tools=[McpReporter], **signs_in)
    async with mcp_served(App(agents=[], protocols=[protocol], authenticate=who)) as one:
        refused = await Mcp(one).post("tools/list")
        origin = f"http://127.0.0.1:{one.site.port}"
        where = f"{origin}/.well-known/oauth-protected-resource/mcp"
        assert refused.status == 401
        assert refused.headers["www-authenticate"] == f'Bearer resource_metadata="{where}", scope="tools"'
        metadata = (await one.site.http("/.well-known/oauth-protected-resource/mcp")).json()
        assert metadata["resource"] == f"{origin}/mcp"
        assert metadata["authorization_servers"] == ["https://auth.example.com"]
        assert metadata["scopes_supported"] == ["tools"]
        assert (await one.site.http("/.well-known/oauth-protected-resource/other")).status == 401
        assert (await Mcp(one, who="ann").call("mcp_reporter", {"name": "x"}))["structuredContent"]["words"] == 100


async def test_without_servers_to_sign_in_there_is_no_metadata() -> None:
    async with mcp_served(app(authenticate=who)) as one:
        assert (await Mcp(one).post("tools/list")).headers["www-authenticate"] == "Bearer"
        assert (await one.site.http("/.well-known/oauth-protected-resource/mcp")).status == 404
    with pytest.raises(UsageError, match="authorization_servers"):
        McpProtocol(tools=[McpReporter], scopes=["tools"])


async def test_a_stateless_call_that_nobody_can_join_is_cancelled_after_a_crash() -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one)
        call = held(one, client, "mcp_looker", {"place": "river"}, progress="p1")
        await until(lambda: len(call.messages) == 1)
        await one.world.crash()
        client.capabilities = WITH_TASKS
        task = (await client.call("mcp_looker", {"place": "sea"}))["taskId"]
        McpLooker.go.set()
        assert (await client.settled(task))["status"] == "completed"
        assert McpLooker.looks == ["sea"]


async def test_the_limits_of_a_user_hold_for_the_calls_of_this_user() -> None:
    def limits(user: str) -> Limits | None:
        return Limits(tokens=0) if user == "ann" else None

    async with mcp_served(app(authenticate=who, user_limits=limits)) as one:
        refused = await Mcp(one, who="ann").call("talk", {"message": "hello"})
        assert refused["isError"] is True
        assert "tokens" in refused["content"][0]["text"]
        assert (await Mcp(one, who="bob").call("talk", {"message": "hello"}))["content"][0]["text"] == "well"


async def test_a_server_that_stops_tells_the_client_of_a_stateless_call_how_to_join_it_again() -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one)
        call = held(one, client, "mcp_looker", {"place": "river"}, progress="p1")
        joined = await client.begun()
        other = held(one, joined, "mcp_looker", {"place": "sea"}, id=3, progress="p2")
        await until(lambda: len(call.messages) == len(other.messages) == 1)
        one.world.node.shared(OpenStreams).end()
        state = (await call.over())["result"]["requestState"]
        await until(lambda: other.is_over)
        assert len(other.messages) == 1

        await one.world.crash()
        McpLooker.go.set()
        resumed = held(one, joined, after=other.ids[-1])
        assert (await resumed.over())["result"]["structuredContent"] == {"result": ["sea"]}
        result = await Mcp(one).call("mcp_looker", {"place": "river"}, requestState=state)
        assert result["structuredContent"] == {"result": ["river"]}
        assert sorted(McpLooker.looks) == ["river", "sea"]


async def test_two_clients_of_a_user_call_at_once_and_each_hears_of_its_own_call() -> None:
    async with mcp_served(app(authenticate=who)) as one:
        calls = [
            held(one, Mcp(one, who="ann"), "mcp_looker", {"place": f"place {n}"}, progress=f"p{n}") for n in range(8)
        ]
        await until(lambda: all(len(call.messages) == 1 for call in calls))
        McpLooker.go.set()
        for n, call in enumerate(calls):
            assert (await call.over())["result"]["structuredContent"] == {"result": [f"place {n}"]}
            assert {m["params"]["progressToken"] for m in call.messages if "method" in m} == {f"p{n}"}


@pytest.mark.parametrize("last", ["", "x", "bm9uZQ==", "é", "W10=", "WzEsbnVsbCwibm8iXQ==", "a" * 4000])
async def test_an_event_that_the_server_has_not_sent_continues_nothing(last: str) -> None:
    async with mcp_served(app()) as one:
        client = await Mcp(one).begun()
        stream = held(one, client, after=last)
        await until(lambda: stream.is_over)
        assert stream.status in (400, 405)


async def test_an_event_of_another_session_continues_nothing() -> None:
    async with mcp_served(app()) as one:
        client, other = await Mcp(one).begun(), await Mcp(one).begun()
        call = held(one, client, "mcp_looker", {"place": "river"}, progress="p1")
        await until(lambda: len(call.messages) == 1)
        stolen = held(one, other, after=call.ids[-1])
        error = (await stolen.over())["error"]
        assert (stolen.status, error["code"]) == (200, -32602)  # 404 would tell the client that its session has ended
        assert error["message"].startswith("This call has no run")
        await other.notify("notifications/cancelled", requestId=json.loads(base64.urlsafe_b64decode(call.ids[-1]))[0])
        McpLooker.go.set()
        assert (await call.over())["result"]["structuredContent"] == {"result": ["river"]}


async def test_a_body_that_is_too_large_is_refused() -> None:
    async with mcp_served(app(), request_bytes=10_000) as one:
        assert (await Mcp(one).http("POST", b"x" * 10_001)).status == 413


async def test_the_user_of_a_client_must_have_an_id() -> None:
    async with mcp_served(app(authenticate=lambda request: True)) as one:
        assert (await Mcp(one).post("tools/list")).status == 500


async def test_only_the_latest_sessions_of_a_desk_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_desk, "SESSIONS", 2)
    async with mcp_served(app()) as one:
        first, *others = [await Mcp(one).begun() for _ in range(3)]
        assert (await first.post("ping")).status == 404
        assert [(await other.post("ping")).status for other in others] == [200, 200]
