"""Wrong options of a call."""

from __future__ import annotations

from notebooks import Notebook
from sapwood import with_options


async def main(notebook: Notebook) -> None:
    number: int = await with_options(notebook, timeout=3, idempotency_key="k").add("text")
    with_options(notebook, timeout="3")  # wrong
    with_options(notebook, retry=3)  # wrong
    with_options(notebook, idempotency_key=3)  # wrong
    with_options(notebook, 3)  # wrong
    await with_options(notebook, timeout=3).add(3)  # wrong
