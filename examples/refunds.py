"""A shop asks its clerk what to do with a return: a choice, a form and a text."""

import asyncio
import sys

# --8<-- [start:imports]
from pydantic import BaseModel, Field

from sapwood import Agent, App, Refused, Settings

# --8<-- [end:imports]

ANSWERS = {
    "choice": "refund",
    "form": {"euros": 20, "reason": "It was broken."},
    "text": "Sorry about that!",
}


# --8<-- [start:ask]
class Refund(BaseModel):
    euros: int = Field(ge=1, le=100)
    reason: str


class Returns(Agent):
    migrations = ("CREATE TABLE letters (text TEXT NOT NULL) STRICT",)

    async def handle_return(self, order: int) -> None:
        self.start_fiber(f"order {order}", self.decide, order)

    async def decide(self, order: int) -> str:
        what = await self.questions.ask(
            f"Order {order} came back. What now?",
            options=["refund", "send again"],
        )
        if what == "send again":
            return "We send it again."
        refund = await self.questions.ask("How much, and why?", schema=Refund)
        try:
            text = await self.questions.ask("What do we write to the customer?")
        except Refused:
            return "We send no letter."
        self.sql("INSERT INTO letters VALUES (?)", f"{text} {refund.euros} euros.")
        return text

    # --8<-- [end:ask]
    async def outcome(self, order: int) -> str:
        return str(await self.fibers.result(f"order {order}"))

    async def is_open(self, order: int) -> bool:
        fiber = self.fibers.get(f"order {order}")
        return fiber is not None and not fiber.is_over


# --8<-- [start:answer]
class Shop(Agent):
    async def send_back(self, order: int) -> str:
        returns = await self.sub_agent(Returns, "returns")
        await returns.handle_return(order)
        while await returns.is_open(order):
            for question in await self.questions.list():
                print(f"{question.kind}: {question.prompt}")
                await self.questions.answer(question, ANSWERS[question.kind])
            await asyncio.sleep(0.05)
        return await returns.outcome(order)


# --8<-- [end:answer]


async def main(data: str) -> None:
    async with App(agents=[Shop], settings=Settings(data=data)) as app:
        shop = await app.get_agent(Shop, "corner")
        print("written:", await shop.send_back(17))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "refunds-data"))
