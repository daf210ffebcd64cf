"""The types that both checkers have to infer in the programs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from help_desk import Desk
from inbox import Inbox, Notebook, Page, Stats
from research import Checker, Findings, Lead, Researcher, Topic, Verdict
from sapwood import Agent, App, Branch, ChatAgent, NotFound, Question, Run, Turn, with_options
from sapwood.client import RemoteAgent, connect
from sapwood.types import PathSegment, Schedule, SubAgent, SubAgentStatus, Subtree


class Plain(ChatAgent):
    """A chat agent without brackets."""


class Counter(ChatAgent[int]):
    """A chat agent with an output."""


class Caller(Agent[Stats]):
    async def stubs(self) -> None:
        notebook = await self.sub_agent(Notebook, "diary")
        assert_type(notebook, Notebook)
        assert_type(with_options(notebook, timeout=5), Notebook)
        assert_type(await notebook.add("text"), int)
        async for line in notebook.lines():
            assert_type(line, str)
        assert_type(self.state, Stats)
        assert_type(notebook.state, None)

    async def ask(self) -> None:
        assert_type(await self.questions.ask("Which of these?", options=["a", "b"]), str)
        assert_type(await self.questions.ask("What did you find?", schema=Findings), Findings)

    async def children_of(self) -> None:
        assert_type(self.children.list(), list[SubAgent])
        assert_type(self.children.status(Notebook, "diary"), SubAgentStatus)
        assert_type(await self.children.subtree(), Subtree)
        assert_type(self.schedule(timedelta(days=1), self.children_of), Schedule)

    async def chats(self, plain: Plain, counter: Counter, lead: Lead) -> None:
        assert_type(await plain.send("text"), Turn[str])
        assert_type((await plain.send("text")).output, str)
        assert_type((await counter.send("text")).output, int)
        assert_type(await counter.turns.start("text"), Turn[int])
        assert_type((await counter.turns.wait("id")).output, int)
        assert_type(lead.state.done, int)
        assert_type(plain.state, Any)

    async def one_run(self) -> None:
        checked = await self.run_agent(Checker, Findings("text"))
        assert_type(checked, Run[Verdict])
        assert_type(checked.output, Verdict)
        assert_type(await checked.result(), Run[Verdict])
        assert_type((await self.start_run(Checker, Findings("text"))).output, Verdict)
        assert_type((await self.run_agent(Researcher, Topic("text"))).output, Findings)
        assert_type((await self.run_agent(Plain, "text")).output, str)
        assert_type(self.runs.get("id"), Run[Any] | None)

    async def several_runs(self) -> None:
        branch = Branch(Checker, Findings("text"), timeout=5)
        assert_type(await self.runs.map(Checker, [Findings("text")]), list[Run[Verdict]])
        assert_type(await self.runs.gather(branch, branch), list[Run[Verdict]])
        assert_type(await self.runs.race(branch), Run[Verdict])

    async def people(self, desk: Desk) -> None:
        for question in await desk.questions.list():
            assert_type(question, Question)
            assert_type(await desk.questions.approve(question), bool)


async def roots(app: App) -> None:
    try:
        assert_type(await app.get_agent(Inbox, "alice"), Inbox)
        assert_type(await app.get_agent(Inbox, "alice", sub=[(Notebook, "diary")]), Notebook)
        page = await app.get_agent(Inbox, "alice", sub=((Notebook, "diary"), (Page, "1")))
        assert_type(page, Page)
        assert_type(await page.get_agent(Inbox, "alice", sub=((Notebook, "a"), (Inbox, "b"), (Page, "c"))), Page)
    except NotFound as error:
        assert_type(error.path, tuple[PathSegment, ...])


async def remote(url: str) -> None:
    async with connect(url, Inbox, "alice") as alice:
        assert_type(alice, RemoteAgent[Inbox])
        assert_type(await alice.stub.note("shopping", "milk"), int)
        assert_type(alice.state, Stats)
        async for state in alice.states():
            assert_type(state, Stats)
        async for message in alice.messages():
            assert_type(message, str | bytes)
    async with connect(url, Inbox, "alice", sub=((Notebook, "diary"), (Page, "1")), timeout=None) as page:
        assert_type(page.stub, Page)
        assert_type(page.state, None)
        async for word in page.stub.words():
            assert_type(word, str)
