"""Chat agents: structured output, custom loops, long conversations and costs."""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date
from typing import Any

from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage

# --8<-- [start:imports]
from sapwood import App, ChatAgent, Cron, Refused, Settings, Turn, tool
from sapwood.testing import ScriptedModel, call, calls, text

# --8<-- [end:imports]


# --8<-- [start:output]
@dataclass(frozen=True)
class Recipe:
    dish: str
    minutes: int
    ingredients: list[str]


class Cook(ChatAgent[Recipe]):
    model = ScriptedModel(
        call("final_result", dish="Porridge", minutes=10, ingredients=["oats", "milk"])
    )
    instructions = "Find a recipe."


async def ask_cook(cook: Cook) -> Recipe:
    turn = await cook.send("Something warm, please.")
    return turn.output


# --8<-- [end:output]
# --8<-- [start:respond]
class Parrot(ChatAgent):
    """Answers without a model."""

    async def respond(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        prompt = (await self.conversation.messages())[-1]["parts"][0]["text"]
        for word in prompt.split():
            yield f"{word} "
            await asyncio.sleep(0.01)
        yield {
            "type": "source-url",
            "sourceId": "1",
            "url": "https://example.com/parrots",
        }


# --8<-- [end:respond]
# --8<-- [start:loop]
waiter = PydanticAgent(
    ScriptedModel(call("soup_of", day="Friday"), text("Fish soup, as every Friday.")),
    instructions="You know the menu.",
)


@waiter.tool_plain
async def soup_of(day: str) -> str:
    """Return the soup of a day."""
    return "fish" if day == "Friday" else "lentils"


class Waiter(ChatAgent):
    loop = waiter


# --8<-- [end:loop]
# --8<-- [start:capabilities]
class OpeningHours(AbstractCapability[Any]):
    """Refuses turns that have nothing to do with food."""

    async def before_run(self, ctx: RunContext[Any]) -> None:
        if "football" in str(ctx.prompt):
            raise Refused("The kitchen talks about food only.")


class Chef(ChatAgent):
    model = ScriptedModel(text("Add more garlic."))
    capabilities = (OpeningHours(),)


# --8<-- [end:capabilities]
# --8<-- [start:tools]
def weekday(day: str) -> str:
    """Return the day of the week of a date, such as 2026-03-28."""
    return f"{date.fromisoformat(day):%A}"


class Pantry(ChatAgent):
    model = ScriptedModel(
        calls(
            call("count", what="eggs"),
            call("weekday", day="2026-03-28"),
            call("throw_away", id="c1", what="all"),
        ),
        text("Ten eggs, and it is Saturday. Throwing all away failed."),
    )
    tools = (weekday,)
    migrations = (
        "CREATE TABLE things (what TEXT PRIMARY KEY, count INTEGER NOT NULL) STRICT",
        "INSERT INTO things VALUES ('eggs', 10)",
    )

    @tool(idempotent=True)
    async def count(self, what: str) -> int:
        """Return how many of something are there."""
        rows = self.sql("SELECT count FROM things WHERE what = ?", what)
        return rows.scalar(int)

    @tool
    async def throw_away(self, what: str) -> None:
        """Throw something away."""
        self.sql("DELETE FROM things WHERE what = ?", what)

    async def before_tool_call(self, tool: str, arguments: dict[str, Any]) -> None:
        if tool == "throw_away" and arguments["what"] == "all":
            raise Refused("Cannot throw everything away.")


# --8<-- [end:tools]
# --8<-- [start:long]
class Diary(ChatAgent):
    model = ScriptedModel(text("I see."))
    instructions = "Listen."
    compact_above = 200  # approximate tokens; use some ten thousand in production

    async def compact(self, messages: list[ModelMessage]) -> str | None:
        return f"{len(messages)} messages about the days before."


async def keep_diary(diary: Diary) -> None:
    for day in range(1, 31):
        await diary.send(f"On day {day} it {'snowed' if day == 17 else 'rained'}.")
    matches = await diary.conversation.search("snowed")
    print("found:", matches[0]["parts"][0]["text"])
    export = await diary.conversation.export()
    print("messages:", len(export["messages"]))
    print("the model sees few:", len(export["model_messages"]) < 30)


# --8<-- [end:long]
# --8<-- [start:cost]
class Frugal(ChatAgent):
    model = ScriptedModel(text("Salt is cheap."))
    max_steps = 5
    migrations = ("CREATE TABLE spent (tokens INTEGER NOT NULL) STRICT",)

    async def before_turn(self, turn: Turn) -> None:
        spent = self.sql("SELECT coalesce(sum(tokens), 0) FROM spent").scalar(int)
        if spent > 100_000:
            raise Refused("This conversation has used all its tokens.")

    async def after_turn(self, turn: Turn) -> None:
        for used in turn.usage.values():
            tokens = used["input_tokens"] + used["output_tokens"]
            self.sql("INSERT INTO spent VALUES (?)", tokens)


# --8<-- [end:cost]
# --8<-- [start:during]
class Host(ChatAgent):
    model = ScriptedModel(text("Good evening!", delay=0.01))
    concurrency = "merge"

    async def on_start(self) -> None:
        every_evening = Cron("0 18 * * *", "Europe/Berlin", key="evening")
        self.schedule(every_evening, self.open_doors)

    async def open_doors(self) -> None:
        await self.send("It is six o'clock. Welcome the guests.")


async def welcome(host: Host) -> None:
    guests = [host.send(f"Guest {number} is here.") for number in range(1, 6)]
    turns = await asyncio.gather(*guests)
    print("host:", ", ".join(turn.status for turn in turns))


# --8<-- [end:during]


async def main(data: str) -> None:
    # --8<-- [start:settings]
    settings = Settings(
        data=data, model_requests_at_once=20, model_requests_per_minute=500
    )
    # --8<-- [end:settings]
    agents = [Cook, Parrot, Waiter, Chef, Pantry, Diary, Frugal, Host]
    async with App(agents=agents, settings=settings) as app:
        print(await ask_cook(await app.get_agent(Cook, "anna")))
        parrot = await app.get_agent(Parrot, "coco")
        print("parrot:", (await parrot.send("Hello there")).text)
        ben = await app.get_agent(Waiter, "ben")
        print("waiter:", (await ben.send("Which soup is there?")).text)
        chef = await app.get_agent(Chef, "gus")
        print("chef:", (await chef.send("Who won the football match?")).error)
        pantry = await app.get_agent(Pantry, "cellar")
        print("pantry:", (await pantry.send("What is there?")).text)
        await keep_diary(await app.get_agent(Diary, "cat"))
        frugal = await app.get_agent(Frugal, "dan")
        for name, used in (await frugal.send("What is cheap?")).usage.items():
            print(f"{name}: {used['requests']} request, cost {used['cost']}")
        await welcome(await app.get_agent(Host, "eva"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "kitchen-data"))
