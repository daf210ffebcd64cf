"""The app that `load.py` puts under load: trees of agents with many clients, one of which shouts."""

from __future__ import annotations

import asyncio

from sapwood import Agent, App, Settings, expose


class Member(Agent):
    """Echoes, keeps what it is told, and shouts."""

    create_from_url = True
    migrations = ("CREATE TABLE kept (what TEXT PRIMARY KEY) STRICT",)

    @expose
    async def echo(self, value: dict[str, object]) -> dict[str, object]:
        return value

    @expose
    async def keep(self, what: str) -> str:
        self.sql("INSERT INTO kept VALUES (?)", what)
        return what

    @expose
    async def kept(self) -> list[str]:
        return [str(row["what"]) for row in self.sql("SELECT what FROM kept")]

    @expose
    async def shout(self, times: int, size: int, pause: float) -> None:
        """Send everybody more than a client that does not read may leave lying."""
        for _ in range(times):
            self.broadcast(b"x" * size)
            await asyncio.sleep(pause)


class Head(Member):
    """A root; its sub-agents are members."""


class Observer(Agent):
    """Tells from inside what cannot be seen from outside."""

    @expose
    async def look(self) -> dict[str, int]:
        node = app.node
        awake = [address for tree in node.trees.values() for address in tree.actors if address != self._actor.address]
        return {"awake": len(awake), "sockets": node.sockets.count}


app = App(agents=[Head, Observer], settings=Settings(sleep_after=1, slow_after=10))
