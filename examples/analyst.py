"""An analyst that answers with Python code. The code can call one method."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from sapwood import Agent, App, ChatAgent, Settings, tool
from sapwood.errors import UsageError
from sapwood.sandbox import Bubblewrap, CodeLimits, run_code

BEST = """
totals = {}
for product in ["rye", "wheat", "oat"]:
    totals[product] = sum(sale["loaves"] for sale in sales(product))
print(totals)
max(totals, key=lambda product: totals[product])
"""
PEEK = "open('/etc/passwd').read()"


async def script(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Stand in for a model that writes Python. It needs no API key and no network."""
    last = messages[-1].parts[-1]
    if not isinstance(last, ToolReturnPart):
        code = PEEK if "password" in str(getattr(last, "content", "")) else BEST
        yield {0: DeltaToolCall("run_python", json.dumps({"code": code}))}
        return
    for word in re.findall(
        r"\S+\s*", f"I ran some Python, and it says:\n{last.content}"
    ):
        yield word


# --8<-- [start:agents]
@dataclass(frozen=True)
class Sale:
    product: str
    loaves: int


class Books(Agent):
    """Stores the sales. Only the analyst can call it, and only its methods."""

    migrations = (
        "CREATE TABLE sales (product TEXT NOT NULL, loaves INTEGER NOT NULL) STRICT",
        "INSERT INTO sales VALUES ('rye', 12), ('rye', 7), ('wheat', 30), ('oat', 4)",
    )

    async def sales(self, product: str) -> list[Sale]:
        return self.sql("SELECT * FROM sales WHERE product = ?", product).into(Sale)

    async def burn(self) -> None:
        self.sql("DELETE FROM sales")


class Analyst(ChatAgent):
    model = os.environ.get("MODEL") or FunctionModel(stream_function=script)
    instructions = "Answer questions about sales with Python."

    @tool(idempotent=True)
    async def run_python(self, code: str) -> str:
        """Run Python. Return its output and the value of its last expression.

        There are no files, no network and no packages. The code can call
        sales(product), which returns a list of {"product", "loaves"}.
        """
        books = await self.sub_agent(Books, "books")
        return str(await run_code(code, {"sales": books.sales}))

    # --8<-- [end:agents]
    # --8<-- [start:fiber]
    async def close_month(self, code: str) -> str:
        self.start_fiber("month", self.run_month, code)
        return await self.fibers.result("month")

    async def run_month(self, code: str) -> str:
        books = await self.sub_agent(Books, "books")
        limits = CodeLimits(seconds=1, calls=10, output_bytes=1000)
        result = await run_code(
            code, {"sales": books.sales}, inputs={"month": "May"}, limits=limits
        )
        if result.failure is not None:
            return f"not closed, {result.failure.kind}: {result.failure.message}"
        return f"closed after {result.calls} calls: {result.value}"

    # --8<-- [end:fiber]


# --8<-- [start:packages]
async def with_packages() -> str:
    code = "import statistics\nstatistics.stdev(numbers)"  # not available in Monty
    try:
        return str(
            await run_code(code, inputs={"numbers": [1, 2, 3]}, executor=Bubblewrap())
        )
    except UsageError as error:  # Bubblewrap is not installed, or not permitted
        return str(error)


# --8<-- [end:packages]
async def main(data: str) -> None:
    async with App(agents=[Analyst], settings=Settings(data=data)) as app:
        analyst = await app.get_agent(Analyst, "ann")
        for question in ("Which bread sells best?", "What is in the password file?"):
            turn = await analyst.send(question)
            print(question, *turn.text.splitlines(), sep="\n  ")

        print(
            await analyst.close_month("f'{month}: {len(sales(\"rye\"))} sales of rye'")
        )
        print("behind Bubblewrap:", await with_packages())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "analyst-data"))
