"""A model asks the customer: a tool that puts a question, with or without options."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from sapwood import App, ChatAgent, Settings, tool


# The model is a function, so that the example needs no API key.
async def sew(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        yield f"The coat will be {last.content}."
    else:
        arguments = '{"question": "Which color?", "options": ["green", "gray"]}'
        yield {0: DeltaToolCall("ask_customer", arguments)}


# --8<-- [start:tool]
class Tailor(ChatAgent):
    model = FunctionModel(stream_function=sew)

    @tool(idempotent=True)
    async def ask_customer(
        self, question: str, options: list[str] | None = None
    ) -> str:
        """Ask the customer, and return the answer. With options, it is one of them."""
        return await self.questions.ask(question, options=options)


# --8<-- [end:tool]


async def main(data: str) -> None:
    async with App(agents=[Tailor], settings=Settings(data=data)) as app:
        tailor = await app.get_agent(Tailor, "main")
        turn = await tailor.turns.start("I need a coat.")
        async for event in tailor.subscribe():
            if event.kind == "waiting":
                break
        for question in await tailor.questions.list():
            print(f"{question.prompt} {', '.join(question.options or ())}")
            await tailor.questions.answer(question, "green")
        print((await tailor.turns.wait(turn.id)).text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "tailor-data"))
