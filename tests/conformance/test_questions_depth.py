"""Questions at depth: each agent above lists the question, may refuse an answer, and can answer or cancel it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.conformance.errands import Bench
from tests.conformance.served import Client, Served, served, type_of
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Question, Run, tool
from sapwood.address import kebab
from sapwood.testing import ScriptedModel, call, text
from sapwood.types import PathSegment

pytestmark = pytest.mark.slow

QUESTIONS = "sapwood_questions"
LEVELS = pytest.mark.parametrize("levels", [1, 2, 3])
"""How many levels below the root the agent is that asks."""
HOUR = 3600.0


class Desk(Bench):
    """A bench that says which agent refuses answers."""

    refusing: int | None = None
    """The level of the agent whose `may_answer` refuses. `None` means that all of them allow."""

    def __init__(self) -> None:
        super().__init__()
        self.checked: list[tuple[int, int]] = []
        """The level of each agent whose `may_answer` was called, and the length of the path that it was shown."""


class Clerk(Agent):
    """Waits for the run below."""

    worker: type[Agent[Any]]
    is_started: bool
    deps: Desk

    async def on_run(self, input: Any) -> Any:
        run = await self.give()
        return run.output if run.ok else run.reason

    async def give(self) -> Run:
        if self.is_started:
            await self.start_run(self.worker, "sell", run_id="r")
        return await self.run_agent(self.worker, "sell", run_id="r")

    async def begin(self) -> None:
        self.start_fiber("begin", self.give)

    async def one(self) -> Run | None:
        return self.runs.get("r")

    async def stop(self) -> bool:
        return self.runs.cancel("r", "enough")

    async def delete(self) -> None:
        await self.children.delete(self.worker, "r")

    async def may_answer(self, user: Any, question: Question) -> bool | str:
        level = len(self.address.segments) - 1
        self.deps.checked.append((level, len(question.path)))
        return f"Level {level} refuses." if level == self.deps.refusing else True


class DeepSeller(ChatAgent):
    """Asks before it sells."""

    deps: Desk
    model = ScriptedModel(call("sell", id="k", what="it"), text("sold"), each=True)

    @tool(requires_approval=True)
    async def sell(self, what: str) -> str:
        """Sell it."""
        self.deps.log.append(f"sold {what}")
        return "sold"


DIGEST = Question.about("k", "sell", {"what": "it"}, "approval").digest


class Chain:
    """A root, the agents below it, and the lowest one, which asks."""

    def __init__(self, served: Served, classes: list[Any]) -> None:
        self.served, self.world = served, served.world
        self.root, *self.below = classes
        self.levels = len(self.below)

    async def agent(self, level: int, name: str = "c") -> Any:
        """Return the agent that is this many levels below the root."""
        sub = [(cls, "r") for cls in self.below[:level]]
        return await self.world.get_agent(self.root, name, sub=sub)

    async def ask(self, name: str = "c") -> None:
        """Start the runs of a root; return when it lists the question."""
        await (await self.agent(0, name)).begin()
        await self.until_listed(name)

    async def until_listed(self, name: str = "c") -> None:
        async with asyncio.timeout(patience()):
            while not await (await self.agent(0, name)).questions.list():  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.005)

    async def run(self, level: int, *wanted: str, name: str = "c") -> Run:
        """Return the run that the agent of this level started, once it has one of these statuses."""
        async with asyncio.timeout(patience()):
            while (run := await (await self.agent(level, name)).one()) is None or run.status not in wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return run

    def path(self, level: int) -> tuple[PathSegment, ...]:
        """Return the path from this level down to the agent that asks."""
        return tuple(PathSegment(cls.__name__, "r") for cls in self.below[level:])

    def wire_path(self, level: int) -> list[dict[str, str]]:
        return [{"type": step.type, "name": step.name} for step in self.path(level)]

    def url(self, level: int, name: str = "c") -> str:
        hops = "".join(f"/sub/{kebab(cls.__name__)}/r" for cls in self.below[:level])
        return f"/agents/{kebab(self.root.__name__)}/{name}{hops}"

    async def post(self, level: int, name: str = "c") -> Any:
        """Approve by the URL of the agent of this level."""
        body = {"path": self.wire_path(level), "id": "k", "digest": DIGEST, "approved": True}
        url = f"{self.url(level, name)}/questions"
        return await self.served.site.http(url, method="POST", body=json.dumps(body).encode())

    async def join(self, level: int, name: str = "c") -> Client:
        return await self.served.join(self.url(level, name))

    def frame(self, level: int) -> dict[str, Any]:
        """Return the approval that a client of the agent of this level sends."""
        found = {"type": "cf_agent_tool_approval", "toolCallId": "k", "approved": True, "autoContinue": True}
        return found | ({"path": self.wire_path(level)} if self.path(level) else {})

    async def check_listed(self) -> None:
        """Check that the agents of all levels show the question to Python, by URL and by socket."""
        for level in range(self.levels + 1):
            question = Question("k", "sell", {"what": "it"}, self.path(level))
            assert await (await self.agent(level)).questions.list() == [question]
            (shown,) = (await self.served.site.http(f"{self.url(level)}/questions")).json()["questions"]
            assert (shown["id"], shown["path"]) == ("k", self.wire_path(level))
            if level < self.levels:
                told = await (await self.join(level)).until(lambda frame: type_of(frame) == QUESTIONS)
                assert (told["path"], len(told["questions"])) == (self.wire_path(level), 1)

    async def check_gone(self, *, down_to: int | None = None) -> None:
        """Check that no agent lists the question any more, down to this level."""
        for level in range((self.levels if down_to is None else down_to) + 1):
            assert await (await self.agent(level)).questions.list() == []


@asynccontextmanager
async def asked(levels: int, *, is_started: bool = False) -> AsyncGenerator[tuple[Chain, Desk], None]:
    """Run an app in which an agent this many levels below its root asks."""
    classes: list[Any] = [DeepSeller]
    for level in range(levels - 1, -1, -1):
        classes.insert(0, type(f"Clerk{level}", (Clerk,), {"worker": classes[0], "is_started": is_started}))
    desk = Desk()
    async with asyncio.timeout(patience()), served(App(agents=[classes[0]], deps=desk)) as one:
        chain = Chain(one, classes)
        await chain.ask()
        yield chain, desk


@LEVELS
@pytest.mark.parametrize("is_started", [False, True], ids=["awaited", "started"])
@pytest.mark.promise("B-39")
async def test_every_agent_above_lists_a_question_also_after_a_restart_and_a_crash(
    levels: int, is_started: bool
) -> None:
    async with asked(levels, is_started=is_started) as (chain, desk):
        await chain.check_listed()
        await chain.world.restart()
        await chain.check_listed()
        await chain.world.crash()
        await chain.world.clock.advance(HOUR)
        await chain.check_listed()

        assert (await chain.post(0)).json() == {"answered": True}
        assert (await chain.run(0, "completed")).output == "sold"
        await chain.check_gone()
        assert desk.log == ["sold it"]


@LEVELS
@pytest.mark.parametrize("door", ["python", "url", "socket"])
@pytest.mark.promise("B-39")
async def test_a_question_is_answered_at_each_agent_above_after_a_crash(levels: int, door: str) -> None:
    async with asked(levels) as (chain, desk):
        for level in range(levels + 1):
            name = f"c{level}"
            await chain.ask(name)
        await chain.world.crash()
        for level in range(levels + 1):
            name = f"c{level}"
            if door == "python":
                agent = await chain.agent(level, name)
                (question,) = await agent.questions.list()
                assert await agent.questions.approve(question)
                assert not await agent.questions.approve(question)
            elif door == "url":
                assert (await chain.post(level, name)).json() == {"answered": True}
                assert (await chain.post(level, name)).status == 409
            else:
                await (await chain.join(level, name)).send(chain.frame(level))

            assert (await chain.run(0, "completed", name=name)).output == "sold"
        assert desk.log == ["sold it"] * (levels + 1)


@LEVELS
@pytest.mark.promise("B-39")
async def test_each_agent_above_may_refuse_an_answer_and_the_question_stays_open(levels: int) -> None:
    async with asked(levels) as (chain, desk):
        for desk.refusing in range(levels):
            for level in range(levels + 1):
                refused = await chain.post(level)
                assert (refused.status, refused.json()["refused"]) == (403, f"Level {desk.refusing} refuses.")
                client = await chain.join(level)
                await client.send(chain.frame(level))
                told = await client.until(lambda frame: type_of(frame) == QUESTIONS and "refused" in frame)
                assert told["refused"]["reason"] == f"Level {desk.refusing} refuses."
                await client.close()
            await chain.world.crash()
            await chain.world.clock.advance(HOUR)  # what was interrupted twice is begun again after a while
            assert [one.id for one in await (await chain.agent(0)).questions.list()] == ["k"]
        desk.refusing = None
        desk.checked.clear()

        assert (await chain.post(0)).json() == {"answered": True}

        assert (await chain.run(0, "completed")).output == "sold"
        assert {*desk.checked} == {(level, levels - level) for level in range(levels)}
        assert desk.log == ["sold it"]


@LEVELS
@pytest.mark.parametrize("how", ["cancels", "deletes"])
@pytest.mark.parametrize("is_started", [False, True], ids=["awaited", "started"])
async def test_each_agent_above_ends_the_run_that_asks_and_no_agent_lists_the_question(
    levels: int, how: str, is_started: bool
) -> None:
    for level in range(levels):
        async with asked(levels, is_started=is_started) as (chain, desk):
            page = await chain.join(0)
            await page.until(lambda frame: type_of(frame) == QUESTIONS and frame["questions"])
            (question,) = await (await chain.agent(0)).questions.list()
            agent = await chain.agent(level)

            await (agent.stop() if how == "cancels" else agent.delete())

            run = await chain.run(level, "cancelled", "failed")
            assert (run.status, run.reason) == (("cancelled", "enough") if how == "cancels" else ("failed", None))
            await page.until(lambda frame: type_of(frame) == QUESTIONS and not frame["questions"])
            await chain.check_gone(down_to=level)
            assert not await (await chain.agent(0)).questions.approve(question)
            if level:
                output = "enough" if how == "cancels" else None
                assert (await chain.run(0, "completed")).output == output
            if how == "cancels":
                (turn,) = (await (await chain.agent(levels)).conversation.export())["turns"]
                assert turn["status"] == "cancelled"
            await chain.world.crash()
            await chain.check_gone(down_to=level)
            assert desk.log == []


@LEVELS
@pytest.mark.nightly
async def test_killed_at_any_commit_of_an_answer_the_tool_is_called_once_and_all_runs_end(levels: int) -> None:
    async with asked(levels) as (chain, desk):
        nth, was_killed = 0, True
        while was_killed:
            nth += 1
            name = f"n{nth}"
            await chain.ask(name)
            await chain.world.settled()
            desk.log.clear()
            before = chain.world.points.passed["committed"]
            chain.world.crash_at("committed", nth)
            await asyncio.gather(approve(chain, name), return_exceptions=True)
            await chain.world.settled()
            was_killed = chain.world.points.passed["committed"] >= before + nth
            await chain.world.crash()
            async with asyncio.timeout(patience()):
                while (await (await chain.agent(0, name)).one()).status == "running":
                    await approve(chain, name)
                    await chain.world.clock.advance(1)

            assert (await chain.run(0, "completed", name=name)).output == "sold"
            # The model is told that a call was interrupted, if the process died while it was made.
            assert desk.log == ["sold it"] or (was_killed and not desk.log), nth
        assert nth > 5


async def approve(chain: Chain, name: str) -> None:
    """Approve what the root lists, if it lists anything."""
    agent = await chain.agent(0, name)
    for question in await agent.questions.list():
        await agent.questions.approve(question)
