"""Three sub-agents with different points of view, and a coordinator that sums up.

They run in parallel. One of them fails on purpose: the summary uses the other answers,
and names the missing one. Run it twice: every perspective has its own history.
"""

import asyncio
import sys
from dataclasses import dataclass

from sapwood import Agent, App, Settings
from sapwood.errors import Crashed


@dataclass(frozen=True)
class Opinion:
    view: str
    text: str
    number: int
    """The number of opinions of this perspective so far."""


class Perspective(Agent):
    """One point of view. Its answers are in its own database."""

    migrations = (
        "CREATE TABLE opinions (proposal TEXT NOT NULL, text TEXT NOT NULL) STRICT",
    )

    async def consider(self, proposal: str) -> Opinion:
        await asyncio.sleep(0.05)  # stands in for a slow model
        text = self._think(proposal)
        self.sql("INSERT INTO opinions VALUES (?, ?)", proposal, text)
        return Opinion(
            self.name, text, self.sql("SELECT count(*) FROM opinions").scalar(int)
        )

    async def past(self) -> list[str]:
        return [
            str(row["text"])
            for row in self.sql("SELECT text FROM opinions ORDER BY rowid")
        ]

    def _think(self, proposal: str) -> str:
        raise NotImplementedError


class Engineer(Perspective):
    def _think(self, proposal: str) -> str:
        return "It can be built: most of it is already there."


class Customer(Perspective):
    def _think(self, proposal: str) -> str:
        return "I would use it every day."


class Accountant(Perspective):
    def _think(self, proposal: str) -> str:
        if "€" not in proposal:
            raise ValueError("I cannot judge a proposal without a price.")
        return "At that price it pays for itself within a year."


class Coordinator(Agent):
    """Asks all perspectives in parallel, and sums up the answers."""

    migrations = (
        "CREATE TABLE syntheses (proposal TEXT NOT NULL, text TEXT NOT NULL) STRICT",
    )

    # --8<-- [start:coordinator]
    async def discuss(self, proposal: str) -> str:
        perspectives = [
            await self.sub_agent(cls, cls.__name__.lower())
            for cls in (Engineer, Customer, Accountant)
        ]
        answers = await asyncio.gather(
            *(one.consider(proposal) for one in perspectives), return_exceptions=True
        )
        lines: list[str] = []
        for answer in answers:
            if isinstance(answer, Opinion):
                lines.append(f"{answer.view} (opinion {answer.number}): {answer.text}")
            elif isinstance(answer, Crashed):
                lines.append(f"{answer.path[-1][1]} could not answer: {answer}")
            else:
                raise answer
        count = sum(isinstance(answer, Opinion) for answer in answers)
        text = "\n".join(
            [f"{proposal}: {count} of {len(answers)} perspectives.", *lines]
        )
        self.sql("INSERT INTO syntheses VALUES (?, ?)", proposal, text)
        return text

    # --8<-- [end:coordinator]

    async def engineer_opinions(self) -> list[str]:
        engineer = await self.sub_agent(Engineer, "engineer")
        return await engineer.past()


async def main(data: str) -> None:
    async with App(agents=[Coordinator], settings=Settings(data=data)) as app:
        coordinator = await app.get_agent(Coordinator, "product")
        print(await coordinator.discuss("A notebook that answers back"))
        print(
            await coordinator.discuss("A notebook that answers back, for 9 € a month")
        )
        print(
            "the engineer has spoken",
            len(await coordinator.engineer_opinions()),
            "times",
        )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
