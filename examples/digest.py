"""A digest that a model writes, sent after a while."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from sapwood import Agent, App, ChatAgent, Retry, Settings, StepOptions


async def summarize(
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[Any]:
    """Stand in for a model: return the first two words."""
    article = str(getattr(messages[-1].parts[-1], "content", ""))
    yield " ".join(article.split()[:2]) + "."


MODEL = FunctionModel(stream_function=summarize)


# --8<-- [start:agent]
class Writer(ChatAgent):
    model = MODEL
    instructions = "Summarize."


class Digest(Agent):
    async def make(self, day: str, sources: list[str]) -> str:
        self.start_fiber(day, self.write, sources)
        return await self.fibers.result(day)

    async def write(self, sources: list[str]) -> str:
        lines: list[str] = []
        for source in sources:
            article = await self.step(f"fetch {source}", self.fetch, source)
            lines.append((await self.run_agent(Writer, article)).output)
        await self.sleep_until(datetime.now(UTC) + timedelta(seconds=1))
        thrice = StepOptions("send", retry=Retry(max_attempts=3))
        return await self.step(thrice, self.send, lines)

    async def fetch(self, source: str) -> str:
        print(f"fetch {source}")
        return f"{source} grow slowly, as we have known for long"

    async def send(self, lines: list[str]) -> str:
        return f"sent: {' '.join(lines)}"


# --8<-- [end:agent]
app = App(agents=[Digest])


# --8<-- [start:use]
async def main(data: str) -> None:
    async with App(agents=[Digest], settings=Settings(data=data)) as app:
        trees = await app.get_agent(Digest, "trees")
        print(await trees.make("monday", ["Oaks", "Elms"]))


# --8<-- [end:use]
if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "digest-data"))
