"""The server that is killed: one agent behind every protocol, whose tools count what they do.

What a user says is the name of an operation. The model then uses a tool, a sub-agent whose tool needs an approval, and
a tool of the page if the client has one; at the end, it says what all of them returned.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic_ai.messages import ModelRequest, ModelResponse, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from tests.e2e.kills import effects
from tests.e2e.kills.kill_order import SelfKill

from sapwood import App, ChatAgent, Settings, agent_tool, tool
from sapwood.auth import ANY_CLIENT
from sapwood.kernel.ports.durability import Gate
from sapwood.protocols import A2a, A2aAgent, AgUi, Mcp, OpenAi
from sapwood.runtimes.local import LocalRuntime
from sapwood.testing.faults import CountingGate

FOLDER = Path(os.environ["KILLS_FOLDER"])
SELF_KILL = SelfKill(FOLDER)
WORDS = " ".join(f"w{number}" for number in range(12))
PACE = 0.03
"""Seconds that a model takes for a word."""
PAGE_TOOL = "look"
UNSURE = ("stamp", "bank_stamp", "courier")
"""Tools that are not repeated after a crash, so that their result may be that they were interrupted."""

_make_gate = LocalRuntime.make_gate


def make_gate(self: LocalRuntime) -> Gate:
    return CountingGate(SELF_KILL, _make_gate(self))


LocalRuntime.make_gate = make_gate  # also of workers, whose runtime an app does not choose


def note(operation: str, name: str, key: str) -> None:
    """Count what a tool does, and perhaps die before anybody hears of it."""
    effects.note(FOLDER, operation, name, key)
    SELF_KILL.passing("effect")


class Rehearsed(ChatAgent):
    """Does what its script says about an operation. Each request to the model makes new ids for its calls."""

    def get_model(self) -> Any:
        return FunctionModel(stream_function=self._say)

    def _script(self, operation: str, offered: set[str]) -> list[tuple[str, dict[str, str]]]:
        """Return the calls of tools, one after the other. Override it."""
        raise NotImplementedError

    async def _say(self, messages: Any, info: Any) -> AsyncIterator[Any]:
        asked = max(at for at, one in enumerate(messages) if operation_in(one))
        operation = operation_in(messages[asked])
        since = messages[asked:]
        calls = self._script(operation, {one.name for one in info.function_tools})
        done = sum(isinstance(one, ModelResponse) for one in since)
        if done < len(calls):
            id = uuid4().hex
            name, arguments = calls[done]
            arguments = arguments if name in ("clerk", "courier", PAGE_TOOL) else {**arguments, "key": id}
            yield {0: DeltaToolCall(name=name, json_args=_json(arguments), tool_call_id=f"call-{id}")}
            await asyncio.sleep(PACE)  # a client may have the call before its response ends, and the process may die
            return
        for word in self._said(operation, returned(since)).split(" "):
            yield f"{word} "
            await asyncio.sleep(PACE)

    def _said(self, operation: str, results: list[str]) -> str:
        return f"{operation}: {', '.join(results) or 'done'}. {WORDS}"


def _json(arguments: dict[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": "{value}"' for name, value in arguments.items()) + "}"


def operation_in(message: Any) -> str:
    texts = [part.content for part in message.parts if isinstance(part, UserPromptPart)]
    return str(texts[-1]) if texts and isinstance(message, ModelRequest) else ""


def returned(messages: Any) -> list[str]:
    """Return what the tools have returned whose results never depend on a crash."""
    parts: list[Any] = [part for one in messages for part in one.parts if isinstance(part, ToolReturnPart)]
    return [str(part.content).strip() for part in parts if part.tool_name not in UNSURE]


class KillsClerk(Rehearsed):
    """Pays when a person allows it."""

    def _script(self, operation: str, offered: set[str]) -> list[tuple[str, dict[str, str]]]:
        return [("pay", {"operation": operation})]

    def _said(self, operation: str, results: list[str]) -> str:
        return results[-1]

    @tool(requires_approval=True, approvers=ANY_CLIENT, idempotent=True)
    async def pay(self, operation: str, key: str) -> str:
        """Pay. The receiver knows the key, and takes it once."""
        note(operation, "pay", key)
        return "3 euros"


class KillsDesk(Rehearsed):
    """Weighs, stamps, has a clerk pay, and looks with the eyes of the page."""

    tools = (agent_tool(KillsClerk, name="clerk"),)

    def _script(self, operation: str, offered: set[str]) -> list[tuple[str, dict[str, str]]]:
        about = {"operation": operation}
        calls = [("weigh", about), ("stamp", about), ("clerk", {"message": operation}), (PAGE_TOOL, about)]
        return [(name, arguments) for name, arguments in calls if name in offered]

    @tool(idempotent=True)
    async def weigh(self, operation: str, key: str) -> str:
        """Weigh. The receiver knows the key, and takes it once."""
        note(operation, "weigh", key)
        return "3 kg"

    @tool
    async def stamp(self, operation: str, key: str) -> str:
        """Stamp. Nobody knows the key: it must never run twice."""
        note(operation, "stamp", key)
        return "stamped"


class KillsTraveller(Rehearsed):
    """Uses the tools of an MCP server."""

    async def before_turn(self, turn: Any) -> None:
        if not self.mcp.list():
            url = (FOLDER / "bank").read_text()
            await self.mcp.add("bank", url, approval="never", approvers=ANY_CLIENT)

    def _script(self, operation: str, offered: set[str]) -> list[tuple[str, dict[str, str]]]:
        about = {"operation": operation}
        return [("bank_quote", about), ("bank_stamp", about), ("bank_book", about)]


class KillsCourier(A2aAgent):
    """Delivers, in another system."""

    url = os.environ["KILLS_COURIER"]
    approvers = ANY_CLIENT


class KillsSender(Rehearsed):
    """Has an agent of another system deliver."""

    tools = (agent_tool(KillsCourier, name="courier", description="Delivers."),)

    def _script(self, operation: str, offered: set[str]) -> list[tuple[str, dict[str, str]]]:
        return [("courier", {"message": operation})]


settings = Settings(mcp_private_hosts=("127.0.0.1",))
models = {"desk": KillsDesk, "traveller": KillsTraveller, "sender": KillsSender}
app = App(
    agents=[KillsDesk, KillsTraveller, KillsSender],
    protocols=[
        A2a([KillsDesk]),
        AgUi(),
        Mcp(tools=[agent_tool(KillsDesk, name="desk")]),
        OpenAi(models=models),
    ],
    settings=settings,
)
