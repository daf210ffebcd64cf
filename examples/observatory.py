"""An observatory that pins some of its observations. Retention deletes the rest."""

import asyncio
import sys
from datetime import timedelta
from typing import ClassVar

from sapwood import Agent, App, Retention, Settings


class Observer(Agent):
    """Observes one star, and stores the picture in its own database."""

    migrations = ("CREATE TABLE pictures (picture BLOB NOT NULL) STRICT",)

    async def on_run(self, star: str) -> str:
        self.sql("INSERT INTO pictures VALUES (zeroblob(100_000))")
        return f"{star} is {'red' if star == 'Mars' else 'white'}"


class Assistant(Agent):
    async def on_run(self, errand: str) -> str:
        return f"{errand}: done"


# --8<-- [start:keep]
class Observatory(Agent):
    run_retention: ClassVar = {
        Observer: Retention(age=timedelta(days=30), bytes=500_000_000, last=2),
        Assistant: Retention(count=0),
    }
    # --8<-- [end:keep]

    async def observe(self, *stars: str) -> list[str]:
        await self.run_agent(Assistant, "open the roof")
        runs = [await self.run_agent(Observer, star) for star in stars]
        return [run.output for run in runs]

    # --8<-- [start:pin]
    async def keep(self, star: str) -> None:
        for run in self.runs.list("completed"):
            if run.input == star:
                self.runs.pin(run.id)

    # --8<-- [end:pin]
    # --8<-- [start:sizes]
    async def archive(self) -> list[str]:
        return [
            f"{run.input}{' (pinned)' if run.pinned else ''}, {run.bytes // 1000} kB"
            for run in self.runs.list()
        ]

    # --8<-- [end:sizes]


async def main(data: str) -> None:
    async with App(agents=[Observatory], settings=Settings(data=data)) as app:
        hill = await app.get_agent(Observatory, "hill")
        print(await hill.observe("Vega", "Mars"))
        await hill.keep("Mars")
        print(await hill.archive())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "observatory-data"))
