"""The server that the conformance suite of MCP, and its TypeScript client, are run against."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from sapwood import Agent, App, agent_tool
from sapwood.auth import ANY_CLIENT
from sapwood.protocols import Mcp


def note(line: str) -> None:
    """Write what was done where the test counts it."""
    if log := os.environ.get("MCP_TEST_LOG"):
        with Path(log).open("a") as file:
            file.write(f"{line}\n")


@dataclass
class Computation:
    seconds: float = 0
    label: str = ""


class McpSlow(Agent):
    """Computes for some seconds."""

    async def on_run(self, what: Computation) -> str:
        self.report_progress(0.5, "half of it")
        await self.step("compute", self._compute, what)
        return f"computed for {what.seconds} seconds"

    async def _compute(self, what: Computation) -> None:
        await asyncio.sleep(what.seconds)
        note(what.label)


class McpFailing(Agent):
    """Fails."""

    async def on_run(self, why: str = "") -> str:
        raise ValueError("it failed")


class McpTooLong(Agent):
    """Is interrupted, because it takes too long."""

    async def on_run(self, why: str = "") -> str:
        await asyncio.sleep(3600)
        return ""


@dataclass
class Confirmation:
    confirm: bool


class McpDelete(Agent):
    """Deletes a file if a person allows it."""

    async def on_run(self, filename: str = "x") -> str:
        answer = await self.questions.ask(f"Delete {filename}?", schema=Confirmation, approvers=ANY_CLIENT)
        return f"{filename} {'deleted' if answer.confirm else 'kept'}"


class McpTwoInputs(Agent):
    """Has two files deleted at once."""

    async def on_run(self, why: str = "") -> list[str]:
        return [run.summary for run in await self.runs.map(McpDelete, ["a", "b"])]


@dataclass
class Name:
    name: str


class McpName(Agent):
    """Asks for a name."""

    async def on_run(self, greeting: str = "Hello") -> str:
        name = await self.questions.ask("What is your name?", schema=Name, approvers=ANY_CLIENT)
        return f"{greeting}, {name.name}!"


@dataclass
class Contact:
    username: str
    email: str


class McpContact(Agent):
    """Asks for what it is told to."""

    async def on_run(self, message: str) -> str:
        contact = await self.questions.ask(message, schema=Contact, approvers=ANY_CLIENT)
        return f"User response: accept, {contact}"


class McpDefaults(Agent):
    """Asks with a form whose fields have defaults."""

    async def on_run(self, why: str = "") -> str:
        fields = {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        }
        form = {"type": "object", "properties": fields}
        return str(await self.questions.ask("Who are you?", schema=form, approvers=ANY_CLIENT))


class McpChoices(Agent):
    """Asks with a form of choices."""

    async def on_run(self, why: str = "") -> str:
        names = ["option1", "option2", "option3"]
        titled = [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]
        fields = {
            "untitledSingle": {"type": "string", "enum": names},
            "titledSingle": {"type": "string", "oneOf": titled},
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": names}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled}},
        }
        form = {"type": "object", "properties": fields}
        return str(await self.questions.ask("Which?", schema=form, approvers=ANY_CLIENT))


class McpSteps(Agent):
    """Reports its progress several times."""

    async def on_run(self, why: str = "") -> str:
        for percent in (0, 25, 50, 75, 100):
            self.report_progress(percent / 100, f"{percent} %")
            await asyncio.sleep(0.3)  # progress is told a few times a second at most
        return "done"


Region = Annotated[str, msgspec.Meta(extra_json_schema={"x-mcp-header": "Region"})]


@dataclass
class Place:
    region: Region
    query: str


class McpPlace(Agent):
    """Looks in a region, which proxies see in a header."""

    async def on_run(self, place: Place) -> str:
        return f"{place.query} in {place.region}"


class McpGreet(Agent):
    """Greets."""

    async def on_run(self, name: str = "you") -> str:
        return f"Hello, {name}!"


TOOLS = {
    "greet": McpGreet,
    "slow_compute": McpSlow,
    "failing_job": McpFailing,
    "confirm_delete": McpDelete,
    "multi_input": McpTwoInputs,
    "test_tool_with_task": McpName,
    "test_missing_capability": McpGreet,
    "test_input_required_result_elicitation": McpName,
    "test_input_required_result_tampered_state": McpName,
    "test_input_required_result_capabilities": McpName,
    "test_streaming_elicitation": McpName,
    "test_logging_tool": McpGreet,
    "test_error_handling": McpFailing,
    "test_tool_with_progress": McpSteps,
    "test_simple_text": McpGreet,
    "test_elicitation": McpContact,
    "test_elicitation_sep1034_defaults": McpDefaults,
    "test_elicitation_sep1330_enums": McpChoices,
    "test_custom_headers": McpPlace,
}
tools = [agent_tool(cls, name=name) for name, cls in TOOLS.items()]
tools.append(agent_tool(McpTooLong, name="protocol_error_job", timeout=0.2))
mcp = Mcp(
    tools=tools,
    task_support={"greet": "forbidden", "failing_job": "required", "test_missing_capability": "required"},
    instructions="Tools for tests.",
)
site = App(agents=[], protocols=[mcp])
