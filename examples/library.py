"""A library that reminds its readers: schedules, queues and fibers."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from sapwood import After, Agent, App, Cron, Settings


class Library(Agent):
    migrations = (
        "CREATE TABLE readers (name TEXT PRIMARY KEY, home TEXT NOT NULL) STRICT",
        "CREATE TABLE loans (book TEXT PRIMARY KEY, reader TEXT NOT NULL) STRICT",
    )

    # --8<-- [start:cron]
    async def on_start(self) -> None:
        every_night = Cron("30 2 * * *", "Europe/Berlin", key="tidy up")
        self.schedule(every_night, self.tidy_up)

    async def tidy_up(self) -> None:
        self.sql("DELETE FROM readers WHERE name NOT IN (SELECT reader FROM loans)")

    # --8<-- [end:cron]
    async def join(self, reader: str, home: str) -> None:
        self.sql("INSERT OR REPLACE INTO readers VALUES (?, ?)", reader, home)

    # --8<-- [start:schedule]
    async def lend(self, book: str, reader: str, time: timedelta) -> None:
        self.sql("INSERT OR REPLACE INTO loans VALUES (?, ?)", book, reader)
        self.schedule(After(time, key=book), self.remind, book)

    async def give_back(self, book: str) -> bool:
        self.sql("DELETE FROM loans WHERE book = ?", book)
        return self.schedules.cancel(book)

    # --8<-- [end:schedule]
    # --8<-- [start:remind]
    async def remind(self, book: str) -> None:
        reader = self.sql("SELECT reader FROM loans WHERE book = ?", book).scalar(str)
        self.queues[reader].add(self.send, reader, f"we miss {book}")
        self.schedule(After(timedelta(weeks=1), key=book), self.remind, book)

    # --8<-- [end:remind]
    # --8<-- [start:send]
    async def send(self, reader: str, text: str) -> None:
        row = self.sql("SELECT home FROM readers WHERE name = ?", reader).first()
        if row is None:
            raise LookupError(f"There is no address for {reader}.")
        await asyncio.sleep(0.01)  # stands in for the post
        print(f"  to {reader}, {row['home']}: {text}")

    # --8<-- [end:send]
    # --8<-- [start:look]
    async def pending(self) -> list[str]:
        calls = [*self.schedules.list(), *self.queues.list()]
        return [" ".join([call.method, *call.arguments.values()]) for call in calls]

    # --8<-- [end:look]
    async def is_idle(self) -> bool:
        """Return whether nothing is queued, and no schedule is due."""
        due = [schedule.due_at for schedule in self.schedules.list()]
        return not self.queues.list() and min(due) > datetime.now(UTC)

    # --8<-- [start:dead]
    async def failures(self) -> list[str]:
        return [
            f"{letter.method} after {letter.attempts} attempts: {letter.error}"
            for letter in self.dead_letters.list()
        ]

    async def try_again(self) -> None:
        for letter in self.dead_letters.list():
            self.dead_letters.replay(letter.id)

    # --8<-- [end:dead]
    # --8<-- [start:fiber]
    async def take_stock(self, year: int) -> int:
        self.start_fiber(f"stock {year}", self.count_books, ["A to K", "L to Z"])
        return await self.fibers.result(f"stock {year}")

    async def count_books(self, shelves: list[str]) -> int:
        total = 0
        for shelf in shelves:
            total += await self.step(f"count {shelf}", self._count, shelf)
        return total

    async def _count(self, shelf: str) -> int:
        print(f"  counting {shelf}")
        await asyncio.sleep(0.01)  # stands in for an hour of work
        return len(shelf) * 100

    # --8<-- [end:fiber]


async def main(data: str) -> None:
    app = App(agents=[Library], settings=Settings(data=data))
    async with app:
        town = await app.get_agent(Library, "town")
        await town.join("ann", "Mill Lane 1")
        await town.lend("Emma", "ann", timedelta(seconds=1))
        await town.lend("Walden", "ann", timedelta(seconds=1))
        await town.lend("Middlemarch", "bob", timedelta(seconds=1))
        print("Emma was returned, reminder cancelled:", await town.give_back("Emma"))
        print("pending:", await town.pending())
    print("the library is closed for a second")
    await asyncio.sleep(1)

    async with App(agents=[Library], settings=Settings(data=data)) as app:
        print("it is open again, and no client calls it")
        await asyncio.sleep(1)
        town = await app.get_agent(Library, "town")
        while not await town.is_idle():  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
        print("dead letters:", await town.failures())
        await town.join("bob", "High Street 2")
        await town.try_again()
        while not await town.is_idle():  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
        print("pending:", await town.pending())

        print("taking stock")
        print("books:", await town.take_stock(2026))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "library-data"))
