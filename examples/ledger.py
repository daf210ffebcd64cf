"""Stored data: tables and migrations, a versioned state, a backup."""

import asyncio
import sys
import tempfile
from dataclasses import dataclass, replace
from typing import Any

from sapwood import Agent, App, Settings


# --8<-- [start:tables]
@dataclass(frozen=True)
class Entry:
    text: str
    cents: int


class Ledger(Agent):
    migrations = (
        "CREATE TABLE entries (text TEXT NOT NULL, cents INTEGER NOT NULL) STRICT",
        "CREATE INDEX entries_by_text ON entries (text)",  # added later
    )

    async def book(self, text: str, cents: int) -> int:
        self.sql("INSERT INTO entries VALUES (?, ?)", text, cents)
        return self.sql("SELECT sum(cents) FROM entries").scalar(int)

    async def entries(self, text: str) -> list[Entry]:
        rows = self.sql("SELECT text, cents FROM entries WHERE text = :text", text=text)
        return rows.into(Entry)

    async def move(self, cents: int) -> None:
        with self.transaction():  # both, or neither
            self.sql("INSERT INTO entries VALUES ('out', ?)", -cents)
            self.sql("INSERT INTO entries VALUES ('in', ?)", cents)


# --8<-- [end:tables]


# --8<-- [start:state]
@dataclass(frozen=True)
class Account:
    owner: str = "unknown"
    visits: int = 0


class Office(Agent[Account]):
    initial_state = Account()
    state_version = 2

    def upgrade_state(self, old: Any, version: int) -> Account:
        return Account(owner=old["name"])  # version 1 had only a name

    async def visit(self, owner: str) -> int:
        self.set_state(replace(self.state, owner=owner, visits=self.state.visits + 1))
        return self.state.visits

    async def book(self, text: str, cents: int) -> int:
        ledger = await self.sub_agent(Ledger, "main")
        return await ledger.book(text, cents)


# --8<-- [end:state]


async def main(data: str) -> None:
    app = App(agents=[Office], settings=Settings(data=data))
    async with app:
        office = await app.get_agent(Office, "berlin")
        print("visits:", await office.visit("alice"))
        print("balance:", await office.book("coffee", 250))
        with tempfile.TemporaryDirectory() as folder:
            # --8<-- [start:backup]
            await app.backup(f"{folder}/friday")
            await office.book("regretted", 99_999)
            await app.restore(f"{folder}/friday", Office, "berlin")
            # --8<-- [end:backup]
        print("after the restore:", await office.book("tea", 0))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ledger-data"))
