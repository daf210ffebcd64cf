"""A root with a child and a table, as a user writes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import assert_type

from sapwood import Agent, App, Breaker, NotFound, Retry, Settings, expose, with_options
from sapwood.types import PathSegment, SubAgent, SubAgentStatus, Subtree


@dataclass(frozen=True)
class Stats:
    notes: int = 0


class Notebook(Agent):
    """A child: it has a SQLite file of its own."""

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


class Page(Agent):
    """A child of the child."""

    @expose
    async def words(self) -> AsyncIterator[str]:
        yield "word"


class Inbox(Agent[Stats]):
    """A root: one per user."""

    initial_state = Stats()

    @expose
    async def note(self, book: str, text: str) -> int:
        notebook = await self.sub_agent(Notebook, book)
        count = await notebook.add(text)
        self.set_state(replace(self.state, notes=self.state.notes + 1))
        assert_type(notebook, Notebook)
        assert_type(count, int)
        assert_type(self.state, Stats)
        return count

    @expose
    async def read(self, book: str) -> list[str]:
        if not self.children.has(Notebook, book):
            return []
        notebook = await self.sub_agent(Notebook, book)
        return [line async for line in notebook.lines()]

    async def look(self, book: str) -> tuple[list[SubAgent], SubAgentStatus, Subtree]:
        return self.children.list(), self.children.status(Notebook, book), await self.children.subtree()

    async def note_once(self, book: str, text: str, id: str) -> int:
        notebook = with_options(
            await self.sub_agent(Notebook, book),
            timeout=5,
            retry=Retry(max_attempts=5),
            idempotency_key=id,
            breaker=Breaker(failures=5, reset_after=30),
        )
        assert_type(notebook, Notebook)
        return await notebook.add(text)

    async def forget(self, book: str) -> None:
        await self.children.delete(Notebook, book)


app = App(agents=[Inbox], settings=Settings(data="data"))


async def main() -> None:
    async with app:
        inbox = await app.get_agent(Inbox, "alice")
        assert_type(await inbox.note("shopping", "milk"), int)
        try:
            notebook = await app.get_agent(Inbox, "alice", sub=[(Notebook, "diary")])
            assert_type(notebook, Notebook)
            page = await app.get_agent(Inbox, "alice", sub=((Notebook, "diary"), (Page, "1")))
            assert_type(page, Page)
            deep = await page.get_agent(Inbox, "alice", sub=((Inbox, "a"), (Notebook, "b"), (Inbox, "c"), (Page, "d")))
            assert_type(deep, Page)
        except NotFound as error:
            assert_type(error.path, tuple[PathSegment, ...])
            print(error.path[-1].name, error.code, error.retryable)


if __name__ == "__main__":
    asyncio.run(main())
