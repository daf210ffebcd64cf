"""A counter and its log, to compare with the same program for Cloudflare Agents."""

import asyncio
import sys
from dataclasses import dataclass, replace

from sapwood import Agent, App, Settings, expose


# --8<-- [start:agents]
@dataclass(frozen=True)
class Count:
    count: int = 0


class Log(Agent):
    migrations = ("CREATE TABLE lines (text TEXT NOT NULL) STRICT",)

    async def add(self, text: str) -> int:
        self.sql("INSERT INTO lines VALUES (?)", text)
        return self.sql("SELECT count(*) FROM lines").scalar(int)


class Counter(Agent[Count]):
    initial_state = Count()

    @expose
    async def increment(self, by: int) -> str:
        self.set_state(replace(self.state, count=self.state.count + by))
        log = await self.sub_agent(Log, "changes")
        lines = await log.add(f"+{by}")
        return f"count {self.state.count}, lines in the log {lines}"


async def main(data: str) -> None:
    async with App(agents=[Counter], settings=Settings(data=data)) as app:
        counter = await app.get_agent(Counter, "lobby")
        print(await counter.increment(2))


# --8<-- [end:agents]
if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "counter-data"))
