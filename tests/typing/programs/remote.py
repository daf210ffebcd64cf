"""A program that calls the agents of another server."""

from __future__ import annotations

import asyncio

from inbox import Inbox, Notebook, Stats
from sapwood.client import connect

URL = "http://127.0.0.1:8000"


async def main() -> None:
    async with connect(URL, Inbox, "alice", token="secret") as alice:
        print(await alice.stub.note("shopping", "milk"), "note")
        await alice.set_state(Stats(notes=3))
        async for state in alice.states():
            print(state.notes, "notes")

    async with connect(URL, Inbox, "alice", sub=((Notebook, "diary"),)) as diary:
        async for line in diary.stub.lines():
            print(line)


if __name__ == "__main__":
    asyncio.run(main())
