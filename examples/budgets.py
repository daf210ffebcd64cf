"""Budgets: one for an expedition, and a smaller one for each of its scouts."""

import asyncio
import sys

from pydantic_ai import ModelSettings

from sapwood import (
    App,
    ChatAgent,
    Limits,
    Per,
    Question,
    Run,
    Settings,
    agent_tool,
    tool,
)
from sapwood.testing import ScriptedModel, call, text
from sapwood.types import LimitWarning


# --8<-- [start:limits]
class Scout(ChatAgent):
    """Looks around until its budget is spent."""

    limits = Limits(tokens=400)  # for each scout, with all below it
    model_settings = ModelSettings(max_tokens=100)
    model = ScriptedModel(call("look", at="the next hill"))  # repeated

    @tool
    async def look(self, at: str) -> str:
        """Look at something."""
        return f"There is {at}, and behind it another one."


class Expedition(ChatAgent):
    limits = Limits(dollars=0.006, runs_at_once=5)  # for the whole tree
    model_settings = ModelSettings(max_tokens=100)
    tools = (agent_tool(Scout),)
    # --8<-- [end:limits]
    model = ScriptedModel(
        *[call("scout", message="Where are we?"), text("Hills.")] * 10
    )

    async def scouts(self) -> list[Run]:
        return self.runs.list()

    # --8<-- [start:usage]
    async def purse(self) -> str:
        own = await self.spending.total(below=False)
        whole = await self.spending.total()
        spent = sum(one["cost"] or 0 for one in whole.values())
        return f"{len(own)} model of its own, ${spent:.4f} in all"

    async def by_agent(self) -> list[str]:
        rows = await self.spending.list()
        return [f"{row.agent[-1].type}: {row.requests} x {row.model}" for row in rows]

    # --8<-- [end:usage]


# --8<-- [start:calendar]
class Household(ChatAgent):
    limits = Limits(
        dollars=(Per("day", 5), Per("month", 50, zone="Europe/Berlin")),
        tokens=Per("week", 1000, warn_at=0.5),
    )
    # --8<-- [end:calendar]
    model_settings = ModelSettings(max_tokens=400)
    model = ScriptedModel(text("Milk, bread and apples."))

    # --8<-- [start:near]
    async def on_limit_near(self, warning: LimitWarning) -> None:
        share = warning.used / warning.amount
        until = f"{warning.ends_at:%A}"
        print(f"{share:.0%} of the {warning.limit} are used, until {until}.")

    # --8<-- [end:near]


# --8<-- [start:extend]
class Office(ChatAgent):
    limits = Limits(
        dollars=Per("month", 0.01, extend_by=0.02, approvers="manager"),
    )
    # --8<-- [end:extend]
    model_settings = ModelSettings(max_tokens=400)
    model = ScriptedModel(text("The room is booked."))


async def main(data: str) -> None:
    # --8<-- [start:prices]
    settings = Settings(data=data, prices={"scripted": (3.0, 15.0)})
    # --8<-- [end:prices]
    async with App(agents=[Expedition, Household, Office], settings=settings) as app:
        north = await app.get_agent(Expedition, "north")
        while (turn := await north.send("Continue!")).status == "completed":
            print("answer:", turn.text)
        # --8<-- [start:refused]
        print(turn.status, turn.reason, "-", turn.error)
        for run in await north.scouts():
            print(run.status, run.reason, "-", run.error)
        # --8<-- [end:refused]
        print(await north.purse())
        print(await north.by_agent())

        home = await app.get_agent(Household, "home")
        while (turn := await home.send("What do we need?")).status == "completed":
            print("answer:", turn.text)
        print(turn.error)

        office = await app.get_agent(Office, "berlin")
        while (turn := await office.send("Book a room.")).status == "completed":
            print("answer:", turn.text)
        # --8<-- [start:allow]
        print(turn.status, turn.reason)
        questions: list[Question] = []
        while not questions:
            await asyncio.sleep(0.05)
            questions = await office.questions.list()
        (question,) = questions
        print(question.prompt)
        await office.questions.answer(question, "allow")
        while turn.status == "waiting":
            await asyncio.sleep(0.05)
            turn = await office.turns.wait(turn.id)
        print("answer:", turn.text)
        # --8<-- [end:allow]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
