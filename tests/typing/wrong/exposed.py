"""Wrong use of exposed methods."""

from __future__ import annotations

from collections.abc import AsyncIterator

from sapwood import Agent, expose


class Open(Agent):
    @expose
    async def fine(self, text: str) -> int:
        return 1

    @expose
    async def stream(self, text: str) -> AsyncIterator[int]:
        yield 1

    @expose  # wrong
    def plain(self, text: str) -> int:
        return 1


async def main(open: Open) -> None:
    number: int = await open.fine("text")
    await open.fine(3)  # wrong
    async for item in open.stream("text"):
        text: str = item  # wrong
    open.stream()  # wrong
