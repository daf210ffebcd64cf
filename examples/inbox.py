"""An inbox with notebooks: a root and its sub-agents, each with its own database."""

import asyncio

from sapwood import Agent, App


class Notebook(Agent):
    migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)

    async def add(self, text: str) -> int:
        self.sql("INSERT INTO notes VALUES (?)", text)
        return self.sql("SELECT count(*) FROM notes").scalar(int)


class Inbox(Agent):
    async def note(self, book: str, text: str) -> int:
        notebook = await self.sub_agent(Notebook, book)
        return await notebook.add(text)


async def main() -> None:
    async with App(agents=[Inbox]) as app:
        alice = await app.get_agent(Inbox, "alice")
        print("notes in shopping:", await alice.note("shopping", "milk"))


if __name__ == "__main__":
    asyncio.run(main())
