"""Sub-agents of the wrong class or name."""

from __future__ import annotations

from notebooks import Inbox, Notebook, Plain
from sapwood import Agent


class Parent(Agent):
    async def open(self) -> None:
        notebook: Notebook = await self.sub_agent(Notebook, "n")
        inbox: Inbox = await self.sub_agent(Notebook, "n")  # wrong
        await self.sub_agent(Plain, "n")  # wrong
        await self.sub_agent(Notebook, 3)  # wrong
        await self.children.delete(Plain, "n")  # wrong
        self.children.abort(Notebook)  # wrong
        parent: Inbox = await self.parent_agent(Inbox)
        wrong_parent: Notebook = await self.parent_agent(Inbox)  # wrong
