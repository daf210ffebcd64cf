"""A manuscript with a past: moments are marked, forked, and gone back to."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from sapwood import Agent, App, Settings
from sapwood.types import Fork


# --8<-- [start:agent]
class Manuscript(Agent):
    migrations = ("CREATE TABLE lines (text TEXT NOT NULL) STRICT",)

    async def write(self, text: str) -> None:
        self.sql("INSERT INTO lines VALUES (?)", text)

    async def finish_draft(self, name: str) -> None:
        self.history.mark(name)

    async def lines(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM lines")]


app = App(agents=[Manuscript], settings=Settings(history=7 * 86400))
# --8<-- [end:agent]


# --8<-- [start:moments]
async def drafts(app: App) -> list[str]:
    moments = await app.moments(Manuscript, "novel")
    return [moment.label for moment in moments if moment.kind == "mark"]
    # --8<-- [end:moments]


# --8<-- [start:fork]
async def another_ending(app: App) -> list[str]:
    fork = await app.fork(Manuscript, "novel", to="novel~sad", at="first draft")
    novel = await app.get_agent(Manuscript, fork.name)
    await novel.write("They never met again.")
    return await novel.lines()
    # --8<-- [end:fork]


# --8<-- [start:rewind]
async def discard_second_draft(app: App) -> Fork:
    return await app.rewind(
        Manuscript, "novel", at="first draft", keep_as="novel~second-draft"
    )
    # --8<-- [end:rewind]


# --8<-- [start:time]
async def as_of_yesterday(app: App) -> Fork:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    return await app.fork(Manuscript, "novel", to="novel~yesterday", at=yesterday)
    # --8<-- [end:time]


async def main(data: str) -> None:
    app.configure(data=data)
    async with app:
        novel = await app.get_agent(Manuscript, "novel")
        await novel.write("They met.")
        await novel.finish_draft("first draft")
        await novel.write("They danced.")
        print("drafts:", set(await drafts(app)))
        fork = await app.rewind(Manuscript, "novel", at="first draft")
        novel = await app.get_agent(Manuscript, fork.name)
        print("last line:", (await novel.lines())[-1])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(Settings().data)))
