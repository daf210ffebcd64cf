"""A chat agent with a sub-agent as a tool, dependencies, an approval and a schedule, as a user writes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_type

from pydantic import BaseModel

from sapwood import After, Agent, App, ChatAgent, Cron, Schedule, agent_tool, tool


class Orders:
    async def refund(self, order: str) -> str:
        return f"refunded {order}"


@dataclass(frozen=True)
class Deps:
    orders: Orders


class Question(BaseModel):
    topic: str


class Findings(BaseModel):
    summary: str


class Researcher(ChatAgent[Findings]):
    model = "openai:gpt-5"
    instructions = "Research one topic and report."
    output_type = Findings


class Desk(ChatAgent):
    model = "anthropic:claude-5-haiku"
    instructions = "Help customers. Research before you guess."
    deps: Deps
    children = (agent_tool(Researcher, description="Research a topic", input=Question),)

    @tool(requires_approval=True)
    async def refund(self, order: str) -> str:
        """Refund an order."""
        return await self.deps.orders.refund(order)

    async def on_start(self) -> None:
        made = self.schedule(Cron("0 9 * * mon", tz="Europe/Berlin", key="report"), self.report)
        assert_type(made, Schedule)

    async def follow_up(self, order: str, *, days: int = 1) -> None:
        self.schedule(After(timedelta(days=days), key=order), self.remind, order, polite=True)

    async def remind(self, order: str, polite: bool = False) -> None:
        await self.send(f"Ask whether order {order} arrived." + (" Politely." if polite else ""))

    async def report(self) -> None:
        run = await self.run_agent(Researcher, Question(topic="last week's refunds"))
        assert_type(run.output, Findings)


class Clock(Agent):
    async def tick(self) -> None: ...


@asynccontextmanager
async def open_deps() -> AsyncGenerator[Deps, None]:
    yield Deps(orders=Orders())


app = App(agents=[Desk, Clock], deps=open_deps)
