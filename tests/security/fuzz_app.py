"""The app that `fuzz.py` attacks: every door, behind authentication. It raises no errors of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from starlette.requests import HTTPConnection

from sapwood import Agent, App, ChatAgent, expose, tool
from sapwood.auth import ANY_CLIENT
from sapwood.protocols import AgUi, OpenAi

TOKEN = "fuzz-token"


async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
    """Ask for an approval every third time."""
    if len(messages) % 3 == 1 and info.function_tools:
        yield {0: DeltaToolCall("pay", '{"euros": 5}', tool_call_id=f"c{len(messages)}")}
    else:
        yield "Well "
        yield "said."


class Lot(Agent):
    create_from_url = True


@dataclass
class Numbers:
    value: int = 0
    note: str = ""
    more: dict[str, Any] = field(default_factory=dict)


class Room(Agent[Numbers]):
    initial_state = Numbers()

    @expose
    async def add(self, number: int) -> int:
        return number + 1

    @expose
    async def echo(self, value: Any) -> Any:
        return value

    @expose
    async def many(self, *values: Any) -> int:
        return len(values)

    @expose
    async def count(self, number: int) -> AsyncIterator[int]:
        for one in range(min(number, 100)):
            yield one
            await asyncio.sleep(0)


class Talk(ChatAgent):
    model = FunctionModel(stream_function=say, model_name="made-up")

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self, euros: int) -> str:
        """Pay."""
        return f"paid {euros}"


class Worker(Agent):
    expose_runs = True

    async def on_run(self, input: Any) -> Any:
        return input


def authenticate(request: HTTPConnection) -> str | None:
    given = request.headers.get("authorization", "").removeprefix("Bearer ") or request.query_params.get("token", "")
    return "fuzzer" if given == TOKEN else None


app = App(agents=[Room, Talk, Worker, Lot], protocols=[AgUi(), OpenAi()], authenticate=authenticate)
