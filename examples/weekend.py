"""A trip planner that delegates to a researcher, and asks before it books."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from sapwood import App, ChatAgent, Settings, agent_tool, tool


async def script(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Stand in for the models. It needs no API key and no network."""
    last = messages[-1].parts[-1]
    if not info.function_tools:  # the researcher has no tools
        yield "Porto is warm in May."
    elif not isinstance(last, ToolReturnPart):
        yield {
            0: DeltaToolCall("researcher", '{"message": "Where is it warm in May?"}')
        }
    elif last.tool_name == "researcher":
        yield {0: DeltaToolCall("book", '{"city": "Porto", "nights": 2}')}
    else:
        yield str(last.content)


MODEL = os.environ.get("MODEL") or FunctionModel(stream_function=script)


# --8<-- [start:agents]
class Researcher(ChatAgent):
    """Researches destinations."""

    model = MODEL  # such as "openai:gpt-5"


class Planner(ChatAgent):
    model = MODEL
    instructions = "Plan weekend trips. Research before you book."
    tools = (agent_tool(Researcher),)

    @tool(requires_approval=True)
    async def book(self, city: str, nights: int) -> str:
        """Book a hotel."""
        return f"Booked: {nights} nights in {city}."


# --8<-- [end:agents]
app = App(agents=[Planner])


async def main(data: str) -> None:
    async with App(agents=[Planner], settings=Settings(data=data)) as app:
        ann = await app.get_agent(Planner, "ann")
        turn = await ann.send("Somewhere warm, please.")
        for question in await ann.questions.list():
            print("approve?", question.tool, question.arguments)
            await ann.questions.approve(question)
        turn = await ann.turns.wait(turn.id)
        print(turn.status + ":", turn.text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "weekend-data"))
