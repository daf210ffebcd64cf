"""Three ways to run work that would block all other agents.

A thread for blocking I/O, a process for computation, `read_sql` for a long query.
"""

import asyncio
import hashlib
import sys
import time

from sapwood import Agent, App, Settings
from sapwood.errors import SlowSql


# --8<-- [start:functions]
def fetch(name: str) -> str:
    """Stand in for a library that blocks, such as a client without async."""
    time.sleep(0.2)
    return f"contents of {name}"


def digest(text: str, rounds: int) -> str:
    """Stand in for heavy computation."""
    value = text.encode()
    for _ in range(rounds):
        value = hashlib.sha256(value).digest()
    return value.hex()


# --8<-- [end:functions]

NUMBERS = """
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
    SELECT count(*) AS n FROM n
"""


class Clerk(Agent):
    migrations = (
        "CREATE TABLE files (name TEXT PRIMARY KEY, digest TEXT NOT NULL) STRICT",
    )

    # --8<-- [start:doors]
    async def file(self, name: str) -> str:
        text = await self.in_thread(fetch, name)
        value = await self.in_process(digest, text, 200_000)
        self.sql("INSERT INTO files VALUES (?, ?) ON CONFLICT DO NOTHING", name, value)
        return value

    # --8<-- [end:doors]

    # --8<-- [start:read-sql]
    async def count_to(self, number: int) -> int:
        rows = await self.read_sql(NUMBERS, number)
        return rows.scalar(int)

    # --8<-- [end:read-sql]

    async def count_on_the_loop(self, number: int) -> int:
        return self.sql(NUMBERS, number).scalar(int)

    async def ticks(self, seconds: float) -> int:
        """Count the iterations of the event loop during the work."""
        count, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(0.01)
            count += 1
        return count


async def main(data: str) -> None:
    async with App(
        agents=[Clerk], settings=Settings(data=data, sql_timeout=0.05)
    ) as app:
        clerk = await app.get_agent(Clerk, "archive")
        other = await app.get_agent(Clerk, "watcher")
        filed, ticks = await asyncio.gather(clerk.file("letter.txt"), other.ticks(0.3))
        print("filed:", filed[:12])
        print("other tasks ran during it:", ticks > 5)

        print("off the loop:", await clerk.count_to(2_000_000))
        try:
            await clerk.count_on_the_loop(2_000_000)
        except SlowSql as error:
            print("on the loop:", str(error).partition(" and was")[0])


# --8<-- [start:main]
if __name__ == "__main__":  # needed: a process that in_process starts imports this file
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
# --8<-- [end:main]
