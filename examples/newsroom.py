"""A newsroom with desks, and desks with reporters: three levels of agents."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

from sapwood import Agent, App, Settings
from sapwood.errors import Aborted

Progress = Callable[[str], Awaitable[None]]


class Reporter(Agent):
    """Writes articles, and stores them in its own database."""

    migrations = ("CREATE TABLE articles (topic TEXT NOT NULL) STRICT",)

    # --8<-- [start:up]
    async def write(self, topic: str, progress: Progress) -> str:
        await progress(f"{self.name} asks around")
        await asyncio.sleep(0.01)  # stands in for the work
        self.sql("INSERT INTO articles VALUES (?)", topic)
        newsroom = await self.root_agent(Newsroom)
        return f"No. {await newsroom.next_number()}: {topic}, by {self.name}"

    # --8<-- [end:up]
    # --8<-- [start:stream]
    async def dictate(self, text: str) -> AsyncIterator[str]:
        for word in text.split():
            await asyncio.sleep(0.01)
            yield word

    # --8<-- [end:stream]
    async def article_count(self) -> int:
        return self.sql("SELECT count(*) FROM articles").scalar(int)

    async def investigate(self) -> None:
        await asyncio.sleep(3600)


class Desk(Agent):
    """Assigns each topic to a reporter."""

    # --8<-- [start:parallel]
    async def cover(self, topics: dict[str, str], progress: Progress) -> list[str]:
        reporters = [await self.sub_agent(Reporter, name) for name in topics]
        return await asyncio.gather(
            *(
                reporter.write(topic, progress)
                for reporter, topic in zip(reporters, topics.values(), strict=True)
            )
        )

    # --8<-- [end:parallel]
    # --8<-- [start:look]
    async def staff(self) -> list[str]:
        lines: list[str] = []
        for child in self.children.list(Reporter):
            status = self.children.status(Reporter, child.name)
            lines.append(f"{child.generation} {child.name}: {status.state}")
        return lines

    # --8<-- [end:look]
    # --8<-- [start:pass-on]
    async def phone(self, name: str, text: str) -> AsyncIterator[str]:
        reporter = await self.sub_agent(Reporter, name)
        async for word in reporter.dictate(text):
            yield word

    # --8<-- [end:pass-on]
    # --8<-- [start:abort]
    async def give_up(self, name: str) -> str:
        reporter = await self.sub_agent(Reporter, name)
        work = asyncio.create_task(reporter.investigate())
        await asyncio.sleep(0.01)
        self.children.abort(Reporter, name, "the story is dead")
        try:
            await work
        except Aborted as error:
            return f"{name} was stopped: {error.reason}"
        return f"{name} was faster"

    # --8<-- [end:abort]
    # --8<-- [start:delete]
    async def replace(self, name: str) -> int:
        await self.children.delete(Reporter, name)
        assert not self.children.has(Reporter, name)
        successor = await self.sub_agent(Reporter, name)
        return await successor.article_count()

    # --8<-- [end:delete]


class Newsroom(Agent):
    """The root. It numbers the articles of all desks."""

    migrations = ("CREATE TABLE issued (number INTEGER PRIMARY KEY) STRICT",)

    async def next_number(self) -> int:
        rows = self.sql("INSERT INTO issued DEFAULT VALUES RETURNING number")
        return rows.scalar(int)

    # --8<-- [start:callback]
    async def cover(self, name: str, topics: dict[str, str]) -> list[str]:
        desk = await self.sub_agent(Desk, name)

        async def report(line: str) -> None:
            print(f"  … {line}")

        return await desk.cover(topics, report)

    # --8<-- [end:callback]


async def main(data: str) -> None:
    async with App(agents=[Newsroom], settings=Settings(data=data)) as app:
        daily = await app.get_agent(Newsroom, "daily")
        print("two articles:")
        for line in await daily.cover("sport", {"ann": "the cup", "ben": "the race"}):
            print(f"  {line}")

        # --8<-- [start:outside]
        desk = await app.get_agent(Newsroom, "daily", sub=[(Desk, "sport")])
        print("staff:", await desk.staff())
        # --8<-- [end:outside]
        print("a stream:")
        async for word in desk.phone("ann", "a late goal decides it"):
            print(f"  {word}")

        print(await desk.give_up("ben"))
        print("staff:", await desk.staff())

        print("articles of the new ann:", await desk.replace("ann"))
        print("staff:", await desk.staff())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "newsroom-data"))
