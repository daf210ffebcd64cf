"""Correct classes, for the wrong programs beside this file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from sapwood import Agent, App


@dataclass(frozen=True)
class Stats:
    notes: int = 0


class Notebook(Agent[Stats]):
    initial_state = Stats()

    async def add(self, text: str, *, times: int = 1) -> int:
        return len(text) * times

    async def lines(self) -> AsyncIterator[str]:
        yield "line"


class Inbox(Agent):
    async def open(self) -> Notebook:
        return await self.sub_agent(Notebook, "n")


class Plain:
    """Not an agent."""

    async def add(self, text: str) -> int:
        return 1


app = App(agents=[Inbox])
