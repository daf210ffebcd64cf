"""A support desk: a chat agent that answers customers, and refunds an order once a clerk has approved it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from sapwood import After, App, ChatAgent, Cron, Question, Turn, tool


@dataclass(frozen=True)
class Order:
    number: str
    cents: int


class Shop:
    """The client of the shop's own API."""

    async def find(self, number: str) -> Order:
        return Order(number, cents=4900)

    async def refund(self, order: Order) -> str:
        return f"refunded {order.number}"


@dataclass(frozen=True)
class Deps:
    shop: Shop


class Desk(ChatAgent):
    """The conversation with one customer."""

    model = "anthropic:claude-5-haiku"
    instructions = "Help customers with their orders. Look an order up before you refund it."
    concurrency = "merge"
    deps: Deps

    @tool
    async def find(self, number: str) -> Order:
        """Look up an order."""
        return await self.deps.shop.find(number)

    @tool(requires_approval=True, approvers="clerk")
    async def refund(self, number: str) -> str:
        """Refund an order."""
        order = await self.deps.shop.find(number)
        receipt = await self.deps.shop.refund(order)
        self.schedule(After(timedelta(days=3), key=number), self.follow_up, number)
        return receipt

    async def follow_up(self, number: str) -> None:
        await self.send(f"Ask the customer whether the refund of order {number} has arrived.")

    async def on_start(self) -> None:
        self.schedule(Cron("0 9 * * mon", tz="Europe/Berlin", key="greeting"), self.greet, weekday="Monday")

    async def greet(self, *, weekday: str) -> None:
        await self.send(f"Wish the customer a good {weekday}.")


async def approve_refunds(desk: Desk) -> list[Question]:
    """Approve all refunds, and return the other questions."""
    others: list[Question] = []
    for question in await desk.questions.list():
        if question.tool == "refund":
            await desk.questions.approve(question)
        else:
            others.append(question)
    return others


async def refund(app: App, customer: str, number: str) -> str:
    """Refund an order on the telephone: the clerk approves it at once."""
    desk = await app.get_agent(Desk, customer)
    turn: Turn[str] = await desk.send(f"Refund order {number}.")
    if turn.status == "waiting":
        await approve_refunds(desk)
        turn = await desk.turns.wait(turn.id)
    return turn.output


@asynccontextmanager
async def open_deps() -> AsyncGenerator[Deps, None]:
    yield Deps(Shop())


app = App(agents=[Desk], deps=open_deps)
