"""A purchase with three nested agents: the last asks before it pays."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from sapwood import App, ChatAgent, Question, Settings, agent_tool, tool


def uses(name: str, arguments: str = '{"message": "A printer."}') -> FunctionModel:
    """Return a model that calls this tool, and answers with the result."""

    async def script(
        messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[Any]:
        last = messages[-1].parts[-1]
        if isinstance(last, ToolReturnPart):
            yield str(last.content)
        else:
            yield {0: DeltaToolCall(name, arguments)}

    return FunctionModel(stream_function=script)


# --8<-- [start:agents]
class Clerk(ChatAgent):
    """Makes payments."""

    model = uses("pay", '{"euros": 90, "what": "a printer"}')

    @tool(requires_approval=True)
    async def pay(self, euros: int, what: str) -> str:
        """Pay for something."""
        return f"{euros} euros for {what} are paid."


class Buyer(ChatAgent):
    """Buys the cheapest offer."""

    model = uses("clerk")
    tools = (agent_tool(Clerk),)


class Department(ChatAgent):
    """Collects orders."""

    model = uses("buyer")
    tools = (agent_tool(Buyer),)


class Office(ChatAgent):
    model = uses("department")
    tools = (agent_tool(Department),)


# --8<-- [end:agents]


# --8<-- [start:main]
async def main(data: str) -> None:
    async with App(agents=[Office], settings=Settings(data=data)) as app:
        office = await app.get_agent(Office, "berlin")
        for approved in (True, False):
            turn = asyncio.create_task(office.send("We need a printer."))
            question = await first_question(office)
            path = " → ".join(step.type for step in question.path)
            print(f"{path} asks: {question.tool} {question.arguments}")
            if approved:
                await office.questions.approve(question)
            else:
                await office.questions.deny(question, "We have one.")
            print((await turn).text)


async def first_question(office: Office) -> Question:
    """Wait for the first question, and return it."""
    while True:
        for question in await office.questions.list():
            return question
        await asyncio.sleep(0.05)


# --8<-- [end:main]
if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "purchase-data"))
