"""Wrong roots and paths."""

from __future__ import annotations

from notebooks import Inbox, Notebook, Plain, app
from sapwood import App


async def main() -> None:
    inbox: Inbox = await app.get_agent(Inbox, "alice")
    notebook: Notebook = await app.get_agent(Inbox, "alice", sub=[(Notebook, "n")])
    wrong: Inbox = await app.get_agent(Inbox, "alice", sub=[(Notebook, "n")])  # wrong
    last: Notebook = await app.get_agent(Inbox, "alice", sub=((Inbox, "i"), (Notebook, "n")))
    not_last: Inbox = await app.get_agent(Inbox, "alice", sub=((Inbox, "i"), (Notebook, "n")))  # wrong
    unclear: Inbox = await app.get_agent(Inbox, "alice", sub=[(Inbox, "i"), (Notebook, "n")])  # wrong
    await app.get_agent(Inbox, "alice", sub=((Plain, "p"), (Notebook, "n")))  # wrong
    await app.get_agent(Inbox, "alice", sub=(Notebook, "n"))  # wrong
    await app.get_agent(Plain, "alice")  # wrong
    App(agents=[Plain])  # wrong
