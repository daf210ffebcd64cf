"""Patterns for teams of agents: nesting, fan-out, callbacks, streams."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

from sapwood import Agent, App, Settings, TimedOut, deadline


class Worker(Agent):
    """The lowest level: does the tasks, and counts them."""

    migrations = ("CREATE TABLE done (task TEXT NOT NULL) STRICT",)

    async def do(self, task: str) -> str:
        self.sql("INSERT INTO done VALUES (?)", task)
        number = self.sql("SELECT count(*) FROM done").scalar(int)
        return f"{task} by {self.name} (its task {number})"

    # --8<-- [start:callback]
    async def do_slowly(
        self, task: str, progress: Callable[[int], Awaitable[None]]
    ) -> str:
        for percent in (25, 50, 75, 100):
            await asyncio.sleep(0.01)
            await progress(percent)  # runs in the agent that passed it
        return await self.do(task)

    # --8<-- [end:callback]

    # --8<-- [start:stream]
    async def dictate(self, text: str) -> AsyncIterator[str]:
        for word in text.split():
            await asyncio.sleep(0.01)
            yield word

    # --8<-- [end:stream]


class TeamLead(Agent):
    """The middle level: splits a task among workers that run in parallel."""

    # --8<-- [start:fan-out]
    async def deliver(self, product: str, parts: list[str]) -> list[str]:
        workers = [
            await self.sub_agent(Worker, f"worker-{n}") for n in range(len(parts))
        ]
        return await asyncio.gather(
            *(
                worker.do(f"{part} of the {product}")
                for worker, part in zip(workers, parts, strict=True)
            )
        )

    # --8<-- [end:fan-out]


class Manager(Agent):
    """The top level: knows the teams, but not their workers."""

    migrations = ("CREATE TABLE reports (line TEXT NOT NULL) STRICT",)

    async def build(self, product: str) -> list[str]:
        carpenters = await self.sub_agent(TeamLead, "carpenters")
        return await carpenters.deliver(product, ["legs", "seat", "back"])

    # --8<-- [start:watch]
    async def watch(self, task: str) -> str:
        worker = await self.sub_agent(Worker, "apprentice")

        async def report(percent: int) -> None:
            self.sql("INSERT INTO reports VALUES (?)", f"{task}: {percent} %")
            print(f"  {task}: {percent} %")

        return await worker.do_slowly(task, report)

    # --8<-- [end:watch]

    # --8<-- [start:deadline]
    async def hurry(self, task: str) -> str:
        worker = await self.sub_agent(Worker, "apprentice")

        async def ignore(percent: int) -> None: ...

        try:
            with deadline(0.025):
                return await worker.do_slowly(task, ignore)
        except TimedOut as error:
            return f"too slow: {error}"

    # --8<-- [end:deadline]

    # --8<-- [start:letter]
    async def letter(self) -> AsyncIterator[str]:
        """Forward the stream of a child, item by item."""
        worker = await self.sub_agent(Worker, "scribe")
        async for word in worker.dictate("the chair is ready"):
            yield word.upper()

    # --8<-- [end:letter]


async def main(data: str) -> None:
    async with App(agents=[Manager], settings=Settings(data=data)) as app:
        manager = await app.get_agent(Manager, "workshop")

        print("nested and fanned out:")
        for line in await manager.build("chair"):
            print(f"  {line}")

        print("a callback:")
        print(f"  {await manager.watch('polishing')}")

        print("a deadline:")
        print(f"  {await manager.hurry('carving')}")

        print("a stream:")
        async for word in manager.letter():
            print(f"  {word}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
