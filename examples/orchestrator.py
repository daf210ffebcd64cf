"""A parent that delegates: each question goes to a researcher with its own memory.

Run it twice: the researchers remember their questions. To store the data elsewhere,
pass a folder as the first argument.
"""

import asyncio
import re
import sys
from dataclasses import dataclass, replace

from sapwood import Agent, App, Settings

LIBRARY = {
    "On sapwood": "Sapwood is alive; it carries water from the roots to the leaves.",
    "On heartwood": "Heartwood is dead; it carries nothing, and holds the tree up.",
    "On rings": "Trees grow one ring every year: light in spring, dark in summer.",
    "On rivers": "A river carries water from the mountains to the sea.",
}


# --8<-- [start:agents]
@dataclass(frozen=True)
class Finding:
    source: str
    text: str
    times_asked: int


@dataclass(frozen=True)
class Progress:
    questions: int = 0


class Researcher(Agent):
    """Looks up answers, and keeps a log in its own database."""

    migrations = (
        "CREATE TABLE log (question TEXT NOT NULL, source TEXT NOT NULL) STRICT",
    )

    async def find(self, question: str) -> Finding:
        source = best_source(question)
        self.sql("INSERT INTO log VALUES (?, ?)", question, source)
        times = self.sql(
            "SELECT count(*) FROM log WHERE question = ?", question
        ).scalar(int)
        return Finding(source, LIBRARY[source], times)


class Orchestrator(Agent[Progress]):
    """Chooses the researcher, and counts the questions."""

    initial_state = Progress()

    async def ask(self, field: str, question: str) -> Finding:
        # Creates the sub-agent, or returns the existing one.
        researcher = await self.sub_agent(Researcher, field)
        finding = await researcher.find(question)
        self.set_state(replace(self.state, questions=self.state.questions + 1))
        return finding

    async def progress(self) -> Progress:
        return self.state


# --8<-- [end:agents]


def best_source(question: str) -> str:
    """Stand in for a search: return the source that shares most words."""

    def words(text: str) -> set[str]:
        return set(re.findall(r"\w{4,}", text.lower()))

    return max(
        LIBRARY, key=lambda source: len(words(question) & words(LIBRARY[source]))
    )


async def main(data: str) -> None:
    async with App(agents=[Orchestrator], settings=Settings(data=data)) as app:
        orchestrator = await app.get_agent(Orchestrator, "alice")
        for field, question in [
            ("trees", "what carries water from the roots of a tree?"),
            ("trees", "how many rings do trees grow every year?"),
            ("water", "what flows from the mountains to the sea?"),
        ]:
            finding = await orchestrator.ask(field, question)
            print(f"[{field}] {question}")
            print(f"    {finding.text}")
            print(f"    ({finding.source}; asked so far: {finding.times_asked})")
        print("questions so far:", (await orchestrator.progress()).questions)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
