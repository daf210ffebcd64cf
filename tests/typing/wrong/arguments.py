"""Calls with wrong arguments."""

from __future__ import annotations

from notebooks import Notebook


async def main(notebook: Notebook) -> None:
    await notebook.add("text", times=2)
    await notebook.add(3)  # wrong
    await notebook.add()  # wrong
    await notebook.add("text", 2)  # wrong
    await notebook.add("text", often=2)  # wrong
