"""A chat agent with dependencies, an approval and a schedule, as a user writes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, assert_type

from pydantic import BaseModel

from sapwood import After, Agent, App, ChatAgent, Cron, Question, Turn, tool
from sapwood.types import Schedule


class Orders:
    async def refund(self, order: str) -> str:
        return f"refunded {order}"


@dataclass(frozen=True)
class Deps:
    orders: Orders


class Findings(BaseModel):
    summary: str


class Researcher(ChatAgent[Findings]):
    model = "openai:gpt-5"
    instructions = "Research one topic and report."
    output_type = Findings


class Desk(ChatAgent):
    model = "anthropic:claude-5-haiku"
    instructions = "Help customers. Research before you guess."
    concurrency = "merge"
    deps: Deps

    @tool(requires_approval=True)
    async def refund(self, order: str) -> str:
        """Refund an order."""
        return await self.deps.orders.refund(order)

    @tool
    def today(self) -> date:
        """Return the date."""
        return date(2026, 11, 15)

    async def before_turn(self, turn: Turn) -> None:
        assert_type(turn.usage, dict[str, Any])

    async def on_start(self) -> None:
        made = self.schedule(Cron("0 9 * * mon", tz="Europe/Berlin", key="report"), self.report)
        assert_type(made, Schedule)

    async def follow_up(self, order: str, *, days: int = 1) -> None:
        self.schedule(After(timedelta(days=days), key=order), self.remind, order, polite=True)

    async def remind(self, order: str, polite: bool = False) -> None:
        await self.send(f"Ask whether order {order} arrived." + (" Politely." if polite else ""))

    async def report(self) -> None:
        researcher = await self.sub_agent(Researcher, "refunds")
        turn = await researcher.send("last week's refunds")
        Findings.model_validate(turn.output)


class Echo(ChatAgent):
    async def respond(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        yield "You said: "
        yield (await self.conversation.messages())[-1]["parts"][0]["text"]


class Clock(Agent):
    async def tick(self) -> None: ...


async def approve_all(desk: Desk, turn: Turn) -> Turn:
    waiting = await desk.questions.list()
    assert_type(waiting, list[Question])
    for approval in waiting:
        assert_type(await desk.questions.approve(approval.id), bool)
    return await desk.turns.wait(turn.id)


@asynccontextmanager
async def open_deps() -> AsyncGenerator[Deps, None]:
    yield Deps(orders=Orders())


app = App(agents=[Desk, Echo, Clock], deps=open_deps)
