"""A bakery that chats with customers, and asks the baker before it sells."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from sapwood import App, ChatAgent, Settings, tool


# --8<-- [start:model]
async def script(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Stand in for a model, word by word. It needs no API key and no network."""
    last = messages[-1].parts[-1]
    content = str(getattr(last, "content", ""))
    if isinstance(last, ToolReturnPart) and last.tool_name == "look":
        answer = f"There are {content} loaves of rye. How many may I give you?"
    elif isinstance(last, ToolReturnPart):
        answer = f"The baker says: {content}"
    elif "take" in content:
        yield {0: DeltaToolCall("sell", '{"bread": "rye", "loaves": 3}')}
        return
    elif "rye" in content:
        yield {0: DeltaToolCall("look", '{"bread": "rye"}')}
        return
    else:
        answer = "Come again!"
    for word in re.findall(r"\S+\s*", answer):
        await asyncio.sleep(float(os.environ.get("PAUSE", "0")))
        yield word


# --8<-- [end:model]
# --8<-- [start:agent]
class Bakery(ChatAgent):
    model = os.environ.get("MODEL") or FunctionModel(stream_function=script)
    instructions = "You sell bread. Look at the shelf before you promise anything."
    migrations = (
        "CREATE TABLE shelf (bread TEXT PRIMARY KEY, loaves INTEGER NOT NULL) STRICT",
        "INSERT INTO shelf VALUES ('rye', 12), ('wheat', 30)",
    )

    @tool
    async def look(self, bread: str) -> int:
        """Return how many loaves of this bread are on the shelf."""
        return self.sql("SELECT loaves FROM shelf WHERE bread = ?", bread).scalar(int)

    @tool(requires_approval=True)
    async def sell(self, bread: str, loaves: int) -> str:
        """Sell this many loaves of this bread."""
        self.sql("UPDATE shelf SET loaves = loaves - ? WHERE bread = ?", loaves, bread)
        return f"{loaves} loaves of {bread}, here you are."


app = App(agents=[Bakery])


# --8<-- [end:agent]
def text_of(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


# --8<-- [start:main]
async def main(data: str) -> None:
    async with App(agents=[Bakery], settings=Settings(data=data)) as app:
        shop = await app.get_agent(Bakery, "corner")
        turn = await shop.send("Do you have rye bread?")
        print(f"{turn.status}, {turn.steps} steps: {turn.text}")

        turn = await shop.send("I take three.")
        print(turn.status)
        for question in await shop.questions.list():
            print("the baker is asked:", question.tool, question.arguments)
            await shop.questions.approve(question.id)
        turn = await shop.turns.wait(turn.id)
        print(f"{turn.status}: {turn.text}")

        await shop.send("Thank you.")
        for message in await shop.conversation.messages():
            print(f"  {message['role']}: {text_of(message)}")


# --8<-- [end:main]
if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "bakery-data"))
