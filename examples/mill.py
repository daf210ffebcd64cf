"""A class that computes for long, in processes of its own.

    sapwood serve mill:app --workers 2 --pool heavy=1

Run as it is, everything is in one process, and the pool means nothing.
"""

import asyncio
import hashlib
import os
import sys

from sapwood import Agent, App, Settings, agent

# --8<-- [start:pool]


@agent(pool="heavy")
class Mill(Agent):
    """Computes for a long time, and blocks only other mills."""

    async def grind(self, text: str, rounds: int) -> str:
        value = text.encode()
        for _ in range(rounds):
            value = hashlib.sha256(value).digest()
        return value.hex()

    async def process(self) -> int:
        return os.getpid()


class Shop(Agent):
    """Answers at once, whatever the mills do."""

    async def order(self, what: str) -> str:
        mill = await self.get_agent(Mill, what)
        return await mill.grind(what, 50_000)

    async def is_beside(self, what: str) -> bool:
        """Return whether a mill is in the process of the shop."""
        mill = await self.get_agent(Mill, what)
        return await mill.process() == os.getpid()


app = App(agents=[Shop, Mill])
# --8<-- [end:pool]


async def main(data: str) -> None:
    async with App(agents=app.agents, settings=Settings(data=data)) as alone:
        shop = await alone.get_agent(Shop, "corner")
        print("ground:", (await shop.order("rye"))[:12])
        print("in one process:", await shop.is_beside("rye"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
