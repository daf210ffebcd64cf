"""Wrong calls off the loop."""

from __future__ import annotations

from sapwood import Agent


class Counting(Agent):
    async def heavy(self) -> None:
        number: int = await self.in_thread(len, "text")
        text: str = await self.in_thread(len, "text")  # wrong
        await self.in_thread(len)  # wrong
