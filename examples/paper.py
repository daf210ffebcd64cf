"""A newspaper whose editor uses agents as tools. One of them uses another."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from sapwood import Agent, App, ChatAgent, Run, Settings, agent_tool


# --8<-- [start:models]
def tool_call(number: int, tool: str, topic: str, messages: list[ModelMessage]) -> Any:
    """Return a tool call, as a model streams it."""
    arguments, id = f'{{"message": "{topic}"}}', f"call-{len(messages)}-{number}"
    return {number: DeltaToolCall(tool, arguments, tool_call_id=id)}


async def words(text: str) -> AsyncIterator[str]:
    for word in re.findall(r"\S+\s*", text):
        await asyncio.sleep(float(os.environ.get("PAUSE", "0")))
        yield word


async def as_editor(
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[Any]:
    """Call the researcher and the archive in parallel, and combine their results."""
    parts = messages[-1].parts
    if not isinstance(parts[-1], ToolReturnPart):
        yield tool_call(0, "researcher", "rivers", messages)
        yield tool_call(1, "archive", "rivers", messages)
        return
    results = [str(part.content) for part in parts if isinstance(part, ToolReturnPart)]
    async for word in words(" ".join(results)):
        yield word


async def as_researcher(
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[Any]:
    """Call the checker for a number before using it."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        async for word in words(f"The longest river has {last.content}."):
            yield word
    elif "sure" in str(getattr(last, "content", "")):
        yield "The checker was."
    else:
        yield tool_call(0, "checker", "6650 km", messages)


# --8<-- [end:models]
# --8<-- [start:agents]
class Checker(Agent):
    """Checks a number."""

    async def on_run(self, number: str) -> str:
        return f"{number}, checked"


class Archive(Agent):
    """Finds earlier articles on a topic."""

    async def on_run(self, topic: str) -> str:
        self.report_progress(message=f"looking for {topic}")
        return f"In 1987 we had a page on {topic}."


class Researcher(ChatAgent):
    """Researches a topic."""

    model = FunctionModel(stream_function=as_researcher)
    instructions = "Answer in one sentence. Check every number."
    tools = (agent_tool(Checker),)


class Editor(ChatAgent):
    model = os.environ.get("MODEL") or FunctionModel(stream_function=as_editor)
    instructions = "You edit a newspaper. Ask your helpers before you write."
    tools = (agent_tool(Researcher), agent_tool(Archive))

    async def all_runs(self) -> list[Run]:
        return self.runs.list()


app = App(agents=[Editor])
# --8<-- [end:agents]


# --8<-- [start:main]
async def main(data: str) -> None:
    async with App(agents=[Editor], settings=Settings(data=data)) as app:
        editor = await app.get_agent(Editor, "daily")
        turn = await editor.send("Write about rivers.")
        print(turn.text)

        *_, research, archive = await editor.all_runs()
        for run in (research, archive):
            print(f"{run.agent.type}, input {run.input!r}: {run.status}")

        helper = await app.get_agent(Editor, "daily", sub=[(Researcher, research.id)])
        turn = await helper.send("Are you sure?")
        print(f"follow-up answer of the researcher: {turn.text}")
        print(f"result for the editor, unchanged: {research.output}")


# --8<-- [end:main]
if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "paper-data"))
