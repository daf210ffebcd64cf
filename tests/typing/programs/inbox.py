"""An inbox for each user: a root agent with a state, and notebooks as sub-agents with a table each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

from sapwood import Agent, App, Breaker, NotFound, Retry, Settings, expose, with_options
from sapwood.types import SubAgent


@dataclass(frozen=True)
class Stats:
    notes: int = 0


class Page(Agent):
    """A page of a notebook."""

    @expose
    async def words(self) -> AsyncIterator[str]:
        yield "word"


class Notebook(Agent):
    """A notebook. It has its own database."""

    migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)

    async def add(self, text: str) -> int:
        self.sql("INSERT INTO notes VALUES (?)", text)
        return self.sql("SELECT count(*) FROM notes").scalar(int)

    async def lines(self) -> AsyncIterator[str]:
        for row in self.sql("SELECT text FROM notes"):
            yield str(row["text"])

    async def dictate(self, text: str, on_word: Callable[[str], Awaitable[None]]) -> None:
        for word in text.split():
            await on_word(word)


class Inbox(Agent[Stats]):
    """The inbox of one user."""

    initial_state = Stats()

    @expose
    async def note(self, book: str, text: str) -> int:
        notebook = await self.sub_agent(Notebook, book)
        count = await notebook.add(text)
        self.set_state(replace(self.state, notes=self.state.notes + 1))
        return count

    async def note_once(self, book: str, text: str, id: str) -> int:
        notebook = with_options(
            await self.sub_agent(Notebook, book),
            timeout=5,
            retry=Retry(max_attempts=5),
            idempotency_key=id,
            breaker=Breaker(failures=5, reset_after=30),
        )
        return await notebook.add(text)

    @expose
    async def read(self, book: str) -> list[str]:
        if not self.children.has(Notebook, book):
            return []
        notebook = await self.sub_agent(Notebook, book)
        return [line async for line in notebook.lines()]

    async def books(self) -> list[SubAgent]:
        return self.children.list()

    async def forget(self, book: str) -> None:
        await self.children.delete(Notebook, book)


app = App(agents=[Inbox], settings=Settings(data="data"))


async def main() -> None:
    async with app:
        inbox = await app.get_agent(Inbox, "alice")
        print(await inbox.note("shopping", "milk"), "note")
        try:
            notebook = await app.get_agent(Inbox, "alice", sub=((Notebook, "diary"),))
            print(await notebook.add("Dear diary"), "line")
        except NotFound as error:
            print(error.path[-1].name, "does not exist")


if __name__ == "__main__":
    asyncio.run(main())
