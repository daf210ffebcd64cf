"""A desk that answers questions about rivers. It asks a scout, who has a table."""

import os
import re
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from sapwood import App, ChatAgent, agent_tool, tool

LENGTHS = """
Amazon 6400, Amur 2824, Congo 4700, Danube 2850, Elbe 1094, Ganges 2525, Indus 3180,
Loire 1006, Mekong 4350, Mississippi 3766, Niger 4180, Nile 6650, Oder 840, Po 652,
Rhine 1233, Rhone 813, Seine 777, Thames 346, Volga 3530, Yangtze 6300
"""
KILOMETERS = {river: int(km) for river, km in map(str.split, LENGTHS.split(","))}


# --8<-- [start:models]
async def scout(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Stand in for a model that looks a river up."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        yield f"{last.content} km"
    else:
        river = str(getattr(last, "content", ""))
        yield {0: DeltaToolCall("length", f'{{"river": "{river}"}}')}


async def careful(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Stand in for a model that asks the scout."""
    river, last = river_in(messages), messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        yield f"The {river} is {last.content} long."
    else:
        yield {0: DeltaToolCall("scout", f'{{"message": "{river}"}}')}


async def hasty(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Stand in for a model that answers from memory."""
    yield f"The {river_in(messages)} is about 1000 km long."


# --8<-- [end:models]
def river_in(messages: list[ModelMessage]) -> str:
    """Return the river that the user asks about."""
    texts = [
        str(part.content)
        for one in messages
        for part in one.parts
        if part.part_kind == "user-prompt"
    ]
    return re.sub(r".* the (\w+)\?", r"\1", texts[-1])


# --8<-- [start:app]
class Scout(ChatAgent):
    """Looks up the length of a river."""

    model = FunctionModel(stream_function=scout, model_name="scout")

    @tool
    async def length(self, river: str) -> int:
        """Return the length of a river in kilometers."""
        return KILOMETERS[river]


class Desk(ChatAgent):
    """Answers questions about rivers."""

    model = os.environ.get("MODEL") or FunctionModel(
        stream_function=careful, model_name="careful"
    )
    instructions = "Answer in one sentence. Ask the scout."
    tools = (agent_tool(Scout),)


app = App(
    agents=[Desk],
    models={
        "careful": FunctionModel(stream_function=careful, model_name="careful"),
        "hasty": FunctionModel(stream_function=hasty, model_name="hasty"),
    },
)
# --8<-- [end:app]
