"""Results of calls, used as another type."""

from __future__ import annotations

from notebooks import Notebook


async def main(notebook: Notebook) -> None:
    number: int = await notebook.add("text")
    text: str = await notebook.add("text")  # wrong
    forgotten: int = notebook.add("text")  # wrong
    async for line in notebook.lines():
        same: str = line
        other: int = line  # wrong
