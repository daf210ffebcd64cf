"""Two agents with the agents below them, compared."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from sapwood import Agent, App, Settings
from sapwood.types import TreeDiff


# --8<-- [start:agents]
class Course(Agent):
    migrations = (
        "CREATE TABLE dishes (name TEXT PRIMARY KEY NOT NULL, cents INTEGER NOT NULL)",
    )

    async def offer(self, name: str, cents: int) -> None:
        self.sql("INSERT OR REPLACE INTO dishes VALUES (?, ?)", name, cents)


@dataclass(frozen=True)
class Card:
    title: str = ""
    is_vegan: bool = False


class Menu(Agent[Card]):
    initial_state = Card()

    async def call_it(self, title: str) -> None:
        self.set_state(Card(title))

    async def offer(self, course: str, name: str, cents: int) -> None:
        await (await self.sub_agent(Course, course)).offer(name, cents)


# --8<-- [end:agents]
app = App(agents=[Menu])


# --8<-- [start:compare]
async def compare(app: App) -> TreeDiff:
    diff = await app.diff((Menu, "monday"), (Menu, "tuesday"))
    print(f"{diff.changed} of {diff.both} agents differ")
    print("only in the second:", *diff.agents_only_b)
    for agent in diff.agents_changed:
        for part in agent.parts:
            for change in part.changes:
                print(agent.path or "Menu", part.kind, change.kind, change.key)
                print("   ", change.a, "->", change.b)
    return diff


# --8<-- [end:compare]
async def main(data: str) -> None:
    app.configure(data=data)
    async with app:
        for day in ("monday", "tuesday"):
            menu = await app.get_agent(Menu, day)
            await menu.call_it(f"The menu of {day}")
            await menu.offer("soups", "leek", 450)
            await menu.offer("soups", "onion", 500)
        await menu.offer("soups", "onion", 550)
        await menu.offer("cakes", "plum", 300)
        await compare(app)
        same = await app.diff("Menu:monday/Course:soups", "Menu:monday/Course:soups")
        print("the same agent:", "no differences" if same.is_empty else same)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(Settings().data)))
