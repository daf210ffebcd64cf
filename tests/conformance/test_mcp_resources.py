"""Resources of an MCP server: a tool call with its tree, and the state, transcript and files of its agent."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from tests.conformance.mcp_clients import WITH_TASKS, Mcp, mcp_served

from sapwood import Agent, App, ChatAgent, agent_tool
from sapwood.auth import User
from sapwood.protocols import Mcp as McpProtocol
from sapwood.testing import ScriptedModel, call, text


class McpScribe(Agent[dict[str, int] | None]):
    """Writes a file."""

    async def on_run(self, topic: str) -> str:
        self.set_state({"letters": len(topic)})
        await self.files.put(topic.encode(), name="topic.txt")
        return f"written: {topic}"


class McpAuthor(ChatAgent):
    """Has a scribe write."""

    model = ScriptedModel(call("scribe", id="s1", message="trees"), text("done"), each=True)
    tools = (agent_tool(McpScribe, name="scribe"),)


class McpClosed(McpAuthor):
    """Lets no client in."""

    async def on_before_request(self, request: Any) -> Any:
        return PlainTextResponse("Closed", 403)


class McpHelper(Agent):
    """Has a scribe write, too."""

    async def on_run(self, topic: str) -> str:
        return (await self.run_agent(McpScribe, topic)).output


def who(request: Any) -> User | None:
    return User(request.headers["who"]) if "who" in request.headers else None


def app(**more: Any) -> App:
    return App(agents=[], protocols=[McpProtocol(tools=[McpScribe, McpHelper, McpClosed, McpAuthor])], **more)


async def content(client: Mcp, uri: str) -> Any:
    (found,) = (await client.ask("resources/read", uri=uri))["contents"]
    assert found["uri"] == uri
    return json.loads(found["text"]) if "text" in found else base64.b64decode(found["blob"])


async def finished(client: Mcp, tool: str, **arguments: str) -> str:
    """Return the URI of a call that has ended."""
    task = (await client.call(tool, arguments))["taskId"]
    await client.settled(task)
    return f"sapwood://runs/{task}"


async def test_a_call_is_a_resource_with_the_runs_below_it_and_what_its_agent_knows() -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one, WITH_TASKS)
        uri = await finished(client, "mcp_scribe", topic="trees")
        await one.world.crash()
        found = await content(client, uri)
        assert (found["status"], found["agent"], found["summary"]) == ("completed", "McpScribe", "written: trees")
        assert await content(client, f"{uri}/state") == {"letters": 5}
        (file,) = await content(client, f"{uri}/files")
        assert file["name"] == "topic.txt"
        assert await content(client, f"{uri}/files/{file['digest']}") == b"trees"

        deep = await content(client, await finished(client, "mcp_helper", topic="rivers"))
        paths = [(one["path"], one["status"], one["result"]) for one in deep["runs"]]
        assert paths == [
            (["McpHelper"], "completed", "written: rivers"),
            (["McpHelper", "McpScribe"], "completed", "written: rivers"),
        ]
        names = {one["name"] for one in (await client.ask("resources/templates/list"))["resourceTemplates"]}
        assert names == {"run", "transcript", "state", "files", "file"}


async def test_a_chat_has_a_transcript() -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one, WITH_TASKS)
        uri = await finished(client, "mcp_author", message="write")
        roles = [message["role"] for message in await content(client, f"{uri}/transcript")]
        assert roles == ["user", "assistant"]


@pytest.mark.parametrize(
    "end", ["/transcript", "/other", "/state/x", "/files/" + "0" * 64, "/files/../state", "x", "/state/" + "0" * 64]
)
async def test_what_is_not_there_is_an_error(end: str) -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one, WITH_TASKS)
        uri = await finished(client, "mcp_scribe", topic="trees")
        assert (await client.error("resources/read", uri=f"{uri}{end}"))["code"] == -32602


async def test_resources_belong_to_their_user_and_gates_hold() -> None:
    async with mcp_served(app(authenticate=who)) as one:
        ann, eve = Mcp(one, WITH_TASKS, who="ann"), Mcp(one, WITH_TASKS, who="eve")
        uri = await finished(ann, "mcp_scribe", topic="trees")
        assert [one["uri"] for one in (await ann.ask("resources/list"))["resources"]] == [uri]
        assert (await eve.ask("resources/list"))["resources"] == []
        for end in ("", "/state", "/files"):
            assert (await eve.error("resources/read", uri=uri + end))["code"] == -32602
        closed = await finished(ann, "mcp_closed", message="write")
        assert (await ann.error("resources/read", uri=f"{closed}/transcript"))["code"] == -32602
        assert [one["path"] for one in (await content(ann, closed))["runs"]] == [["McpClosed", "McpScribe"]]


async def test_nothing_is_listed_for_clients_without_a_user() -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one, WITH_TASKS)
        await finished(client, "mcp_scribe", topic="trees")
        assert (await client.ask("resources/list"))["resources"] == []
