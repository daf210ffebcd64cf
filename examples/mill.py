"""A class with long computations, in its own pool of processes.

    sapwood serve mill:app --workers 2 --pool heavy=1

If you run this file with Python, everything is in one process, without the pool.
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
    """Responds at once, even while mills compute."""

    async def order(self, what: str) -> str:
        mill = await self.get_agent(Mill, what)
        return await mill.grind(what, 50_000)

    async def shares_process(self, what: str) -> bool:
        """Return whether a mill is in the same process as the shop."""
        mill = await self.get_agent(Mill, what)
        return await mill.process() == os.getpid()


app = App(agents=[Shop, Mill])
# --8<-- [end:pool]


async def main(data: str) -> None:
    async with App(agents=app.agents, settings=Settings(data=data)) as alone:
        shop = await alone.get_agent(Shop, "corner")
        print("ground:", (await shop.order("rye"))[:12])
        print("in one process:", await shop.shares_process("rye"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
