"""Limits: an operation that would exceed one is rejected before it starts."""

import asyncio
import sys

from sapwood import Agent, App, Limits, OverLimit, Settings


# --8<-- [start:limits]
class Leaf(Agent):
    limits = Limits(depth=0)  # no sub-agents

    async def grow(self) -> None:
        await self.sub_agent(Leaf, "next")

    async def read(self, text: str) -> int:
        return len(text)


class Branch(Agent):
    limits = Limits(children=3, database_bytes=128 * 1024)
    migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)

    async def grow(self, name: str) -> int:
        await self.sub_agent(Leaf, name)
        return len(self.children.list())

    async def write(self, text: str) -> None:
        self.sql("INSERT INTO notes VALUES (?)", text)

    async def ask(self, name: str, question: str) -> int:
        leaf = await self.sub_agent(Leaf, name)
        return await leaf.read(question)

    async def ask_to_grow(self, name: str) -> None:
        leaf = await self.sub_agent(Leaf, name)
        await leaf.grow()


# --8<-- [end:limits]


async def main(data: str) -> None:
    # --8<-- [start:app]
    app = App(
        agents=[Branch],
        settings=Settings(data=data, limits=Limits(payload_bytes=10_000)),
    )
    # --8<-- [end:app]
    async with app:
        branch = await app.get_agent(Branch, "oak")
        for name in ("first", "second", "third"):
            print("leaves:", await branch.grow(name))

        # --8<-- [start:refused]
        try:
            await branch.grow("fourth")
        except OverLimit as error:
            print(f"{error.limit}: {error}")
        # --8<-- [end:refused]

        for operation in (
            lambda: branch.ask_to_grow("first"),
            lambda: branch.ask("first", "x" * 20_000),
            lambda: fill(branch),
        ):
            try:
                await operation()
            except OverLimit as error:
                print(f"{error.limit}: {error}")


async def fill(branch: Branch) -> None:
    while True:
        await branch.write("x" * 5_000)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
