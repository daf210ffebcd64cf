"""Agents use the tools of MCP servers: they are rows, they fail alone, and clients see how they stand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases import slow
from tests.conformance.mcp_servers import RemoteServer, said, tool
from tests.conformance.served import Served, served

from sapwood import Agent, App, ChatAgent, Connection, agent_tool
from sapwood.errors import NotFound, Refused, UsageError
from sapwood.protocols import Mcp
from sapwood.testing import ScriptedModel, call, text
from sapwood.types import McpServer

KEY = "a key for the secrets of a test, long enough"
EMPTY = {"type": "cf_agent_mcp_servers", "mcp": {"servers": {}, "tools": [], "prompts": [], "resources": []}}
LOCAL: dict[str, Any] = {"mcp_private_hosts": ("127.0.0.1",), "secret_keys": (KEY,)}


class ToolGreet(Agent):
    """Greets."""

    async def on_run(self, name: str = "you") -> str:
        return f"Hello, {name}!"


class ToolUser(ChatAgent):
    """Uses the tools of servers."""

    model = ScriptedModel(call("web_greet", name="Ann", id="g1"), text("done"), each=True)

    async def add(self, name: str, url: str, options: dict[str, Any] | None = None) -> McpServer:
        return await self.mcp.add(name, url, **(options or {}))

    async def servers(self) -> list[McpServer]:
        return self.mcp.list()

    async def use(self, server: str, tool: str, arguments: dict[str, Any]) -> Any:
        return await self.mcp.call(server, tool, arguments)

    async def drop(self, name: str) -> bool:
        return await self.mcp.remove(name)

    async def grow(self, name: str, url: str) -> None:
        await (await self.sub_agent(ToolPage, "p")).add(name, url)

    async def shrink(self, name: str) -> None:
        await (await self.sub_agent(ToolPage, "p")).drop(name)


class ToolPage(Agent):
    """An agent with clients that may only watch."""

    def is_watch_only(self, connection: Connection) -> bool:
        return True

    async def add(self, name: str, url: str) -> McpServer:
        return await self.mcp.add(name, url)

    async def drop(self, name: str) -> bool:
        return await self.mcp.remove(name)


def greeter(**options: Any) -> App:
    tools = [agent_tool(ToolGreet, name="greet")]
    return App(agents=[ToolUser, ToolPage], protocols=[Mcp(tools=tools)], **options)


def url_of(one: Served) -> str:
    return f"http://127.0.0.1:{one.site.port}/mcp"


def returned(messages: list[Any]) -> list[Any]:
    """Return what the tool calls of a conversation returned, or why they failed."""
    parts = [part for message in messages for part in message["parts"]]
    return [part.get("output", part.get("errorText")) for part in parts if "toolCallId" in part]


async def test_a_model_calls_a_tool_of_a_server_after_a_person_has_allowed_it() -> None:
    async with served(greeter(), **LOCAL) as one:
        user = await one.world.get_agent(ToolUser, "ann")
        server = await user.add("web", url_of(one))
        assert (server.status, server.error) == ("ready", None)
        assert [(tool.name, tool.tool, tool.requires_approval) for tool in server.tools] == [
            ("greet", "web_greet", True)
        ]
        assert (await user.send("greet Ann")).status == "waiting"
        (question,) = await user.questions.list()
        assert (question.tool, question.arguments) == ("web_greet", {"name": "Ann"})
        assert await user.questions.approve(question)
        await one.world.settled()
        assert returned(await user.conversation.messages()) == ["Hello, Ann!"]


async def test_a_server_that_cannot_be_reached_costs_its_tools_and_not_the_turn() -> None:
    async with served(greeter(), **LOCAL) as one:
        user = await one.world.get_agent(ToolUser, "ann")
        await user.add("web", url_of(one), {"approval": "never"})
        down = await user.add("down", "http://127.0.0.1:1/mcp")
        assert down.status == "failed"
        assert down.error == "The MCP server 'down' (127.0.0.1) cannot be reached: ConnectError."
        assert down.next_try_at is not None
        assert (await user.send("greet Ann")).status == "completed"
        assert returned(await user.conversation.messages()) == ["Hello, Ann!"]


async def test_clients_see_each_server_and_each_change_of_it() -> None:
    async with served(greeter(), **LOCAL) as one:
        client = await one.join("/agents/tool-user/ann")
        user = await one.world.get_agent(ToolUser, "ann")
        await user.add("web", f"{url_of(one)}?key=secret")
        frame = await client.until(lambda frame: _state(frame, "web") == "ready")
        assert frame["mcp"]["servers"]["web"] == {
            "name": "web",
            "server_url": url_of(one),
            "auth_url": None,
            "state": "ready",
            "error": None,
            "instructions": None,
            "capabilities": frame["mcp"]["servers"]["web"]["capabilities"],
        }
        (tool,) = frame["mcp"]["tools"]
        assert (tool["serverId"], tool["name"]) == ("web", "greet")
        assert tool["inputSchema"]["properties"]["name"]["type"] == "string"
        states = [_state(frame, "web") for frame in client.of_type("cf_agent_mcp_servers")]
        assert states == [None, "connecting", "ready"]
        other = await one.join("/agents/tool-user/ann")
        assert _state(other.of_type("cf_agent_mcp_servers")[0], "web") == "ready"
        await user.drop("web")
        await client.until(lambda frame: frame == EMPTY and client.frames[-1] == EMPTY)


def _state(frame: Any, name: str) -> str | None:
    return frame.get("mcp", {}).get("servers", {}).get(name, {}).get("state")


@pytest.mark.promise("A-24", "A-83")
async def test_the_servers_of_a_child_are_shown_to_its_own_clients() -> None:
    async with served(greeter(), **LOCAL) as one:
        user = await one.world.get_agent(ToolUser, "ann")
        await user.grow("web", url_of(one))
        above = await one.join("/agents/tool-user/ann")
        client = await one.join("/agents/tool-user/ann/sub/tool-page/p")
        assert _state(client.of_type("cf_agent_mcp_servers")[0], "web") == "ready"
        await user.shrink("web")
        await client.until(lambda frame: frame == EMPTY)
        assert above.of_type("cf_agent_mcp_servers") == [EMPTY]


async def test_a_list_of_tools_is_read_again_when_it_is_old_and_not_before() -> None:
    server = RemoteServer([tool("greet", readOnlyHint=True)], {"tools/call": said("Hello")})
    async with served(greeter(), **LOCAL) as one, server.serving() as url:
        user = await one.world.get_agent(ToolUser, "ann")
        await user.add("web", url)
        await user.send("greet Ann")
        await user.send("greet Ann")
        assert len(server.asked("tools/list")) == 1
        await one.world.clock.advance(301)
        await user.send("greet Ann")
        assert len(server.asked("tools/list")) == 2
        assert returned(await user.conversation.messages()) == ["Hello"]


async def test_servers_survive_a_restart_with_their_tools() -> None:
    async with served(greeter(), **LOCAL) as one:
        user = await one.world.get_agent(ToolUser, "ann")
        added = await user.add("web", url_of(one), {"approval": "never"})
        await one.world.crash()
        user = await one.world.get_agent(ToolUser, "ann")
        assert await user.servers() == [added]
        assert (await user.send("greet Ann")).status == "completed"
        assert returned(await user.conversation.messages()) == ["Hello, Ann!"]


async def test_code_calls_a_tool_of_a_server() -> None:
    async with served(greeter(), **LOCAL) as one:
        user = await one.world.get_agent(ToolUser, "ann")
        await user.add("web", url_of(one))
        assert await user.use("web", "greet", {"name": "Bob"}) == "Hello, Bob!"
        with pytest.raises(NotFound, match="has no tool 'sing'"):
            await user.use("web", "sing", {})
        with pytest.raises(NotFound, match="There is no MCP server 'wep'"):
            await user.use("wep", "greet", {})
        with pytest.raises(Refused, match="There is no argument 'nam'"):
            await user.use("web", "greet", {"nam": "Bob"})


async def test_a_token_is_stored_encrypted_and_sent_to_its_server_only() -> None:
    async with served(greeter(), **LOCAL) as one:
        user = await one.world.get_agent(ToolUser, "ann")
        server = RemoteServer()
        async with server.serving() as url:
            await user.add("web", url, {"token": "very-secret-token"})
        assert {asked.headers["authorization"] for asked in server.seen} == {"Bearer very-secret-token"}
        stored = b"".join(file.read_bytes() for file in one.world.data.rglob("*") if file.is_file())
        assert b"sapwood_mcp_servers" in stored
        assert b"very-secret-token" not in stored


async def test_without_a_key_no_token_is_stored() -> None:
    async with served(greeter(), mcp_private_hosts=("127.0.0.1",)) as one:
        user = await one.world.get_agent(ToolUser, "ann")
        with pytest.raises(UsageError, match="Set Settings"):
            await user.add("web", url_of(one), {"token": "x"})
        assert await user.servers() == []


async def test_a_host_of_a_private_network_is_not_called() -> None:
    async with served(greeter()) as one:
        user = await one.world.get_agent(ToolUser, "ann")
        server = await user.add("web", url_of(one))
        assert server.status == "failed"
        assert server.error is not None
        assert "mcp_private_hosts" in server.error


@pytest.mark.parametrize(
    ("name", "url", "options"),
    [
        ("Web", "https://example.com", {}),
        ("", "https://example.com", {}),
        ("web_admin", "https://example.com", {}),  # or a tool "admin_x" of "web" is taken for "x" of this server
        ("web", "file:///etc/passwd", {}),
        ("web", "https://user:word@example.com/mcp", {}),
        ("web", "https://example.com:99999/", {}),
        ("web", "https://", {}),
        ("web", "https://example.com", {"approval": "sometimes"}),
        ("web", "https://example.com", {"timeout": 0}),
        ("web", "https://example.com", {"token": "a\r\nhost: b"}),
        ("web", "https://example.com", {"headers": {"a b": "c"}}),
    ],
)
async def test_what_cannot_be_a_server_is_refused(name: str, url: str, options: dict[str, Any]) -> None:
    async with served(greeter(), **LOCAL) as one:
        user = await one.world.get_agent(ToolUser, "ann")
        with pytest.raises(UsageError):
            await user.add(name, url, options)
        assert await user.servers() == []


async def test_an_app_with_users_must_say_who_allows_calls() -> None:
    async with served(greeter(authenticate=lambda connection: "ann"), **LOCAL) as one:
        user = await one.world.get_agent(ToolUser, "ann")
        with pytest.raises(UsageError, match="say who may allow calls"):
            await user.add("web", url_of(one))
        assert (await user.add("web", "http://127.0.0.1:1/", {"approvers": "manager"})).status == "failed"


@pytest.mark.parametrize(
    ("approval", "asked"),
    [
        ("always", {"read", "write", "delete"}),
        ("writes", {"write", "delete"}),
        ("destructive", {"delete"}),
        ("never", set[str]()),
    ],
)
async def test_which_calls_a_person_must_allow_follows_from_annotations(approval: str, asked: set[str]) -> None:
    server = RemoteServer([tool("read", readOnlyHint=True), tool("write", destructiveHint=False), tool("delete")])
    async with served(greeter(), **LOCAL) as one, server.serving() as url:
        user = await one.world.get_agent(ToolUser, "ann")
        added = await user.add("web", url, {"approval": approval})
        assert {one.name for one in added.tools if one.requires_approval} == asked


@pytest.mark.parametrize(
    "hints",
    [
        {},
        {"readOnlyHint": False},
        {"readOnlyHint": "true"},
        {"readOnlyHint": 1},
        {"readOnlyHint": True, "destructiveHint": True},
        {"destructiveHint": "false"},
    ],
)
@pytest.mark.parametrize("approval", ["destructive", *slow(["writes", "always"])])
async def test_a_declaration_that_is_missing_wrong_or_contradicts_itself_lowers_nothing(
    approval: str, hints: dict[str, Any]
) -> None:
    server = RemoteServer([tool("greet", **hints)])
    async with served(greeter(), **LOCAL) as one, server.serving() as url:
        user = await one.world.get_agent(ToolUser, "ann")
        added = await user.add("web", url, {"approval": approval})
        assert [one.requires_approval for one in added.tools] == [True]


async def test_of_a_server_that_is_not_trusted_a_person_allows_every_call() -> None:
    server = RemoteServer([tool("greet", readOnlyHint=True, idempotentHint=True)], {"tools/call": said("Hello")})
    async with served(greeter(), **LOCAL) as one, server.serving() as url:
        user = await one.world.get_agent(ToolUser, "ann")
        await user.add("web", url, {"approval": "always"})
        assert (await user.send("greet Ann")).status == "waiting"
        assert server.asked("tools/call") == []


async def test_a_call_that_waits_for_a_person_still_does_after_its_tool_declares_itself_read_only() -> None:
    server = RemoteServer([tool("greet")], {"tools/call": said("Hello")})
    async with served(greeter(), **LOCAL) as one, server.serving() as url:
        user = await one.world.get_agent(ToolUser, "ann")
        await user.add("web", url)
        turn = await user.send("greet Ann")
        assert turn.status == "waiting"

        server.tools = [tool("greet", readOnlyHint=True)]
        await one.world.clock.advance(301)
        assert [one.requires_approval for one in (await user.add("web", url)).tools] == [False]
        await one.world.crash()
        user = await one.world.get_agent(ToolUser, "ann")
        await one.world.settled()
        (question,) = await user.questions.list()
        assert server.asked("tools/call") == []

        assert await user.questions.deny(question, "not now")
        assert (await user.turns.wait(turn.id)).status == "completed"
        assert server.asked("tools/call") == []


async def test_a_tool_that_declares_itself_destructive_later_needs_approval_from_then_on() -> None:
    server = RemoteServer([tool("greet", readOnlyHint=True)], {"tools/call": said("Hello")})
    async with served(greeter(), **LOCAL) as one, server.serving() as url:
        user = await one.world.get_agent(ToolUser, "ann")
        await user.add("web", url)
        server.tools = [tool("greet", destructiveHint=True)]
        await one.world.clock.advance(301)

        assert (await user.send("greet Ann")).status == "waiting"
        assert server.asked("tools/call") == []
