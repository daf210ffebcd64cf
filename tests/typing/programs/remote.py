"""Calling agents on a server, as a user writes it."""

from __future__ import annotations

from typing import assert_type

from inbox import Inbox, Notebook, Page, Stats
from sapwood.client import RemoteAgent, connect

URL = "http://127.0.0.1:8000"


async def main() -> None:
    async with connect(URL, Inbox, "alice", token="secret", query={"from": "here"}) as alice:
        assert_type(alice, RemoteAgent[Inbox])
        assert_type(alice.stub, Inbox)
        assert_type(await alice.stub.note("shopping", "milk"), int)
        assert_type(alice.state, Stats)
        await alice.set_state(Stats(notes=3))
        async for state in alice.states():
            assert_type(state, Stats)
        async for message in alice.messages():
            assert_type(message, str | bytes)
        await alice.send({"any": "JSON"})

    async with connect(URL, Inbox, "alice", sub=[(Notebook, "diary")]) as notebook:
        assert_type(notebook, RemoteAgent[Notebook])
        assert_type(notebook.state, None)
        async for line in notebook.stub.lines():
            assert_type(line, str)

    async with connect(URL, Inbox, "alice", sub=((Notebook, "diary"), (Page, "1")), timeout=None) as page:
        assert_type(page.stub, Page)
