"""A digest that a model writes, sent after a while: in Pydantic AI with DBOS.

The same program in sapwood is `examples/digest.py`.
"""

import asyncio
import sys

from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


def summarize(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Stand in for a model: return the first two words."""
    article = str(messages[-1].parts[-1].content)
    return ModelResponse(parts=[TextPart(" ".join(article.split()[:2]) + ".")])


MODEL = FunctionModel(summarize)


# --8<-- [start:workflow]
writer = Agent(
    MODEL, name="writer", instructions="Summarize.", capabilities=[DBOSDurability()]
)


@DBOS.step()
async def fetch(source: str) -> str:
    print(f"fetch {source}")
    return f"{source} grow slowly, as we have known for long"


@DBOS.step(retries_allowed=True, max_attempts=3)
async def send(lines: list[str]) -> str:
    return f"sent: {' '.join(lines)}"


@DBOS.workflow()
async def digest(sources: list[str]) -> str:
    lines: list[str] = []
    for source in sources:
        article = await fetch(source)
        lines.append((await writer.run(article)).output)
    await DBOS.sleep_async(1)
    return await send(lines)


# --8<-- [end:workflow]
# --8<-- [start:use]
async def main(data: str) -> None:
    DBOS(config={"name": "digest", "system_database_url": f"sqlite:///{data}"})
    DBOS.launch()
    with SetWorkflowID("monday"):
        handle = await DBOS.start_workflow_async(digest, ["Oaks", "Elms"])
    print(await handle.get_result())
    DBOS.destroy()


# --8<-- [end:use]
if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "digest.db"))
