"""Wrong calls to a server."""

from __future__ import annotations

from notebooks import Inbox, Notebook, Stats
from sapwood.client import connect


async def main() -> None:
    async with connect("http://127.0.0.1", Notebook, "n") as remote:
        number: int = await remote.stub.add("text")
        await remote.stub.add(3)  # wrong
        text: str = await remote.stub.add("text")  # wrong
        await remote.stub.remove("text")  # wrong
        notes: int = remote.state.notes
        wrong_notes: str = remote.state.notes  # wrong
        await remote.set_state(Stats(1))
        await remote.set_state(1)  # wrong
        async for line in remote.stub.lines():
            other: int = line  # wrong
    async with connect("http://127.0.0.1", Inbox, "i", sub=((Inbox, "j"), (Notebook, "n"))) as last:
        await last.stub.add("text")
        await last.stub.open()  # wrong
    connect("http://127.0.0.1", Notebook)  # wrong
