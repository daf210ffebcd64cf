"""Methods that do not exist."""

from __future__ import annotations

from notebooks import Notebook


async def main(notebook: Notebook) -> None:
    await notebook.remove("text")  # wrong
    await notebook.state.missing()  # wrong
