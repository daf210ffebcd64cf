"""A chat that continues a conversation from another system."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypedDict

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from sapwood import App, ChatAgent, Settings


async def recall(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    """Stand in for a model: find the order in what it was told."""
    (order,) = set(re.findall(r"order \d+", info.instructions or ""))
    yield f"It was {order}."


MODEL = FunctionModel(stream_function=recall)


# --8<-- [start:agent]
class Message(TypedDict):
    role: str
    text: str


class Desk(ChatAgent):
    model = MODEL  # such as "openai:gpt-5"
    migrations = (
        "CREATE TABLE earlier (number INTEGER PRIMARY KEY, line TEXT NOT NULL) STRICT",
    )

    async def import_messages(self, messages: list[Message]) -> None:
        for number, message in enumerate(messages):
            line = f"{message['role']}: {message['text']}"
            self.sql("INSERT OR REPLACE INTO earlier VALUES (?, ?)", number, line)

    def get_instructions(self) -> str:
        rows = self.sql("SELECT line FROM earlier ORDER BY number")
        earlier = [str(row["line"]) for row in rows]
        return "\n".join(["You handle complaints. Earlier messages:", *earlier])


# --8<-- [end:agent]
EARLIER: list[Message] = [
    {"role": "user", "text": "The vase of order 17 is broken."},
    {"role": "assistant", "text": "You get 25 euros for the vase."},
]


async def main(data: str, earlier: list[Message]) -> None:
    async with App(agents=[Desk], settings=Settings(data=data)) as app:
        ann = await app.get_agent(Desk, "ann")
        await ann.import_messages(earlier)
        turn = await ann.send("Which order was it?")
        print(turn.text)


if __name__ == "__main__":
    data, *files = sys.argv[1:] or ["continued-data"]
    earlier = json.loads(Path(files[0]).read_text()) if files else EARLIER
    asyncio.run(main(data, earlier))
