"""Exposed methods of roots as tools of an MCP server: called inside the root that the call names."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from tests.conformance.mcp_clients import Mcp, mcp_served

from sapwood import Agent, App, Refused, expose
from sapwood.auth import User
from sapwood.errors import UsageError
from sapwood.protocols import Mcp as McpProtocol


class McpShop(Agent):
    @expose
    async def price(self, item: str, count: int = 1) -> float:
        """Return the price of an item."""
        return 2.5 * count

    @expose
    async def words(self, *words: str) -> AsyncGenerator[str, None]:
        """Say words."""
        for word in words:
            yield word

    @expose
    async def label(self, text: str) -> str:
        """Return a label."""
        if text == "bad":
            raise Refused("No such label.")
        if text == "broken":
            raise ValueError("a secret of the shop")
        return f"{self.name}: {text}"

    async def hidden(self) -> None:
        """Do what no client may do."""

    async def on_before_request(self, request: Request) -> Request | Response | None:
        return PlainTextResponse("Closed", 403) if self.name == "closed" else None


def who(request: Any) -> User | None:
    return User(request.headers["who"]) if "who" in request.headers else None


def may(user: Any, address: Any, action: str) -> bool:
    return address.type != "McpShop" or address.name != "secret"


def app() -> App:
    return App(agents=[McpShop], protocols=[McpProtocol(methods=[McpShop])], authenticate=who, authorize=may)


@pytest.mark.parametrize("session", [False, True])
async def test_methods_are_tools_with_the_name_of_the_root_as_an_argument(session: bool) -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one, who="ann")
        if session:
            await client.begun()
        tools = {tool["name"]: tool for tool in (await client.ask("tools/list"))["tools"]}
        assert set(tools) == {"mcp_shop_price", "mcp_shop_words", "mcp_shop_label"}
        assert list(tools["mcp_shop_price"]["inputSchema"]["properties"]) == ["agent", "item", "count"]
        assert tools["mcp_shop_price"]["inputSchema"]["required"] == ["agent", "item"]
        assert "outputSchema" not in tools["mcp_shop_label"]

        result = await client.call("mcp_shop_price", {"agent": "main", "item": "tea", "count": 2})
        assert result["structuredContent"] == {"result": 5.0}
        result = await client.call("mcp_shop_words", {"agent": "main", "words": ["a", "b"]})
        assert result["structuredContent"] == {"result": ["a", "b"]}
        result = await client.call("mcp_shop_label", {"agent": "a/b", "text": "tea"})
        assert result["content"][0]["text"] == "a/b: tea"


@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        ("mcp_shop_price", {"agent": "main"}, "'item' is missing"),
        ("mcp_shop_price", {"item": "tea"}, "'agent' must be the name of a McpShop"),
        ("mcp_shop_price", {"agent": "", "item": "tea"}, "'agent' must be the name of a McpShop"),
        ("mcp_shop_price", {"agent": "main", "item": "tea", "n": 2}, "no argument 'n'"),
        ("mcp_shop_price", {"agent": "main", "item": 3}, "does not fit"),
        ("mcp_shop_label", {"agent": "main", "text": "bad"}, "No such label."),
        ("mcp_shop_label", {"agent": "main", "text": "broken"}, "reference"),
    ],
)
async def test_what_is_wrong_with_a_call_of_a_method_is_told_to_the_model(
    tool: str, arguments: dict[str, Any], why: str
) -> None:
    async with mcp_served(app()) as one:
        result = await Mcp(one, who="ann").call(tool, arguments)
        assert result["isError"] is True
        assert why in result["content"][0]["text"]
        assert "secret" not in result["content"][0]["text"]


async def test_authorization_and_hooks_of_the_root_hold() -> None:
    async with mcp_served(app()) as one:
        arguments = {"item": "tea"}
        for who_, agent, status in (("ann", "secret", 403), ("ann", "closed", 403), ("", "main", 401)):
            client = Mcp(one, None, "/mcp", **({"who": who_} if who_ else {}))
            answer = await client.post("tools/call", name="mcp_shop_price", arguments={"agent": agent, **arguments})
            assert answer.status == status
        direct = Mcp(one, path="/agents/mcp-shop/secret/mcp", who="ann")
        named = {"agent": "secret", **arguments}
        assert (await direct.post("tools/call", name="mcp_shop_price", arguments=named)).status == 403
        direct.path = "/agents/mcp-shop/main/mcp"
        assert (await direct.call("mcp_shop_price", named))["isError"] is True
        assert (await direct.error("tools/call", name="mcp_shop_hidden", arguments={"agent": "main"}))["code"] == -32602
        assert (await direct.error("tasks/get", taskId="x"))["code"] == -32601


async def test_the_classes_of_methods_must_be_roots_of_the_app() -> None:
    async with mcp_served(App(agents=[], protocols=[McpProtocol(methods=[McpShop])])) as one:
        answer = await Mcp(one).post("tools/call", name="mcp_shop_price", arguments={"agent": "a", "item": "tea"})
        assert answer.status == 500


class McpAgentNamed(Agent):
    @expose
    async def greet(self, agent: str) -> str:
        """Greet an agent."""
        return agent


def test_a_parameter_cannot_have_the_name_that_means_the_root() -> None:
    with pytest.raises(UsageError, match="parameter named 'agent'"):
        McpProtocol(methods=[McpAgentNamed])
