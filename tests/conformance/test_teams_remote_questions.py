"""Questions of runs on another server: shown to all above the caller, and answered there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from tests.conformance.far import KEY, PROTOCOL, Both, at, both
from tests.conformance.served import Served, served
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Question, Run, Unavailable, agent_tool, tool
from sapwood.auth import ANY_CLIENT
from sapwood.errors import Refused
from sapwood.runs.execution.clients import RunClients
from sapwood.runs.tables.decisions import Decisions, read
from sapwood.testing import ScriptedModel, call, text
from sapwood.types import PathSegment

pytestmark = pytest.mark.slow  # two servers, many crashes

DEPTH = 3
"""How many levels below the root the agent is that starts the remote run."""
CHILD = "agent-tool:c1"
HIDDEN = "not for the near server"


class FarTreasurer(ChatAgent):
    """Asks before it pays."""

    expose_runs = True
    model = ScriptedModel(call("pay", id="k", amount=7), text("paid"), each=True)
    paid: list[int]

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self, amount: int) -> str:
        """Pay."""
        FarTreasurer.paid.append(amount)
        return "done"

    async def may_answer(self, user: Any, question: Question) -> bool | str:
        return HIDDEN if question.arguments["amount"] > 100 else True

    async def decisions(self) -> list[Any]:
        return [one.told() for one in self._actor.of(Decisions).all()]


class FarBank(ChatAgent):
    """Has one below that asks."""

    expose_runs = True
    model = ScriptedModel(call("far_treasurer", id="c1", message="pay"), text("settled"), each=True)
    tools = (agent_tool(FarTreasurer),)

    async def decisions(self) -> list[Any]:
        return await (await self.sub_agent(FarTreasurer, CHILD)).decisions()


def level(url: str) -> type[Any]:
    """Make the agents of the near server: each gives the run to one below it, and the lowest one to the far server."""
    stand_ins = {cls.__name__: at(url, cls) for cls in (FarTreasurer, FarBank)}

    class NearRung(Agent):
        refusals: ClassVar[list[str]] = []

        async def on_run(self, input: list[Any]) -> Any:
            return (await self.give(*input)).output

        async def give(self, who: str, depth: int = DEPTH) -> Run:
            if depth:
                return await self.run_agent(NearRung, [who, depth - 1], run_id="r")
            return await self.run_agent(stand_ins[who], "go", run_id="r")

        async def may_answer(self, user: Any, question: Question) -> bool | str:
            return self.refusals[0] if self.refusals else True

        async def answer(
            self, question: Question, arguments: dict[str, Any] | None = None, *, yes: bool = True
        ) -> bool:
            if yes:
                return await self.questions.approve(question, arguments)
            return await self.questions.deny(question, "no")

        async def one(self) -> Run | None:
            return self.runs.get("r")

        async def stop(self) -> None:
            self.runs.cancel("r", "enough")

        async def decided(self, depth: int = DEPTH) -> list[Any]:
            if depth:
                return await (await self.sub_agent(NearRung, "r")).decided(depth - 1)
            database = self._actor.of(RunClients).database_of("r")
            assert database is not None
            return [one.told() for one in read(database)]

    return NearRung


class Near:
    """The near server, while a run of the far one asks."""

    def __init__(self, two: Both, near: Served, cls: type[Any]) -> None:
        self.two, self.near, self.cls = two, near, cls

    async def root(self) -> Any:
        return await self.near.world.get_agent(self.cls, "n")

    async def asked(self, count: int = 1) -> list[Question]:
        async with asyncio.timeout(patience()):
            while len(found := await (await self.root()).questions.list()) != count:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)
        return found

    async def ended(self) -> Run:
        async with asyncio.timeout(patience()):
            while (run := await (await self.root()).one()).status in ("queued", "running"):  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)
        return run

    async def far(self, cls: type[Any]) -> Any:
        """Return the agent of the far server that executes the run."""
        return await self.two.far.world.get_agent(cls, self.session)

    @property
    def session(self) -> str:
        (tree,) = self.near.world.node.trees.values()
        ((session,),) = tree.root.execute("SELECT session FROM sapwood_remote_sessions")
        return session


@asynccontextmanager
async def asking(who: str = "FarBank", depth: int = DEPTH) -> AsyncGenerator[Near, None]:
    """Start a remote run; it, or one below it, asks."""
    FarTreasurer.paid = []
    async with both(far=[FarTreasurer, FarBank]) as two:
        cls = level(f"http://127.0.0.1:{two.far.site.port}")
        async with served(App(agents=[cls], deps=two.bench)) as near:
            one = Near(two, near, cls)
            giving = asyncio.create_task((await one.root()).give(who, depth))
            try:
                await one.asked()
                yield one
            finally:
                giving.cancel()
                await asyncio.gather(giving, return_exceptions=True)


@pytest.mark.promise("B-39")
@pytest.mark.parametrize("who", ["FarBank", "FarTreasurer"])
async def test_a_question_of_another_server_is_listed_at_the_root_and_answered_there(who: str) -> None:
    async with asking(who) as near:
        (question,) = await near.asked()

        assert question.path == (*[PathSegment("NearRung", "r")] * DEPTH, PathSegment(f"At{who}", "r"))
        assert question.remote == ((PathSegment("FarTreasurer", CHILD),) if who == "FarBank" else ())
        assert (question.tool, question.arguments) == ("pay", {"amount": 7})
        session = near.session
        assert session not in repr(question)
        far = await near.far(FarBank if who == "FarBank" else FarTreasurer)

        assert await (await near.root()).answer(question, {"amount": 8})

        assert (await near.ended()).status == "completed"
        assert FarTreasurer.paid == [8]
        assert await near.asked(0) == []
        (there, *_), (here,) = await far.decisions(), await (await near.root()).decided()
        assert (there["kind"], there["user"], there["arguments"]) == ("approved", "near", {"amount": 8})
        assert there["channel"] == 'http, on behalf of "code NearRung:n" (claimed)'
        assert (here["kind"], here["user"], here["channel"]) == ("approved", None, "code NearRung:n")
        assert here["digest"] == there["digest"] == question.digest
        assert not await (await near.root()).answer(question)


async def test_clients_of_the_caller_see_it_on_sockets_and_over_http_and_answer_it() -> None:
    async with asking() as near:
        path = "/agents/near-rung/n"
        client = await near.near.join(path)
        await client.until(lambda _: any('"pay"' in json.dumps(frame) for frame in client.frames))
        (listed,) = (await near.near.site.http(f"{path}/questions")).json()["questions"]
        assert listed["remote"] == [{"type": "FarTreasurer", "name": CHILD}]
        wrong = {"id": listed["id"], "path": listed["path"], "approved": True, "digest": "0" * 64}
        refused = await near.near.site.http(f"{path}/questions", method="POST", body=json.dumps(wrong).encode())
        assert refused.status == 409
        assert FarTreasurer.paid == []

        right = json.dumps(wrong | {"digest": listed["digest"]}).encode()
        answered = await near.near.site.http(f"{path}/questions", method="POST", body=right)

        assert (answered.status, answered.json()) == (200, {"answered": True})
        assert (await near.ended()).status == "completed"


@pytest.mark.parametrize("who", ["near", "far", "both"])
async def test_a_question_survives_a_crash_of_either_server(who: str) -> None:
    async with asking() as near:
        (before,) = await near.asked()
        for name, world in (("near", near.near.world), ("far", near.two.far.world)):
            if who in (name, "both"):
                await world.crash()

        (after,) = await near.asked()

        assert after == before
        assert await _answered(near, after)
        assert (await near.ended()).status == "completed"
        assert FarTreasurer.paid == [7]


async def _answered(near: Near, question: Question) -> bool:
    """Answer, and retry while the other server restarts."""
    async with asyncio.timeout(patience()):
        while True:
            try:
                return await (await near.root()).answer(question)
            except Unavailable:
                await asyncio.sleep(0.01)


async def test_a_server_that_is_away_makes_an_answer_retryable_and_the_question_stays_open() -> None:
    async with asking() as near:
        (question,) = await near.asked()
        await near.two.cut_off()
        with pytest.raises(Unavailable):
            await (await near.root()).answer(question)
        body = {"id": question.id, "path": [{"type": s.type, "name": s.name} for s in question.path]}
        body |= {"approved": True, "digest": question.digest}
        told = await near.near.site.http("/agents/near-rung/n/questions", method="POST", body=json.dumps(body).encode())
        assert told.status == 503
        await near.near.world.crash()

        assert await near.asked() == [question]  # also after a restart without the other server

        near.two.bench.is_down = False
        assert await _answered(near, question)
        assert (await near.ended()).status == "completed"


async def test_a_cancelled_caller_withdraws_the_question() -> None:
    async with asking() as near:
        client = await near.near.join("/agents/near-rung/n")
        await client.until(lambda _: any('"pay"' in json.dumps(frame) for frame in client.frames))
        (question,) = await near.asked()

        await (await near.root()).stop()

        assert await near.asked(0) == []
        await client.until(lambda _: not _shown(client))
        assert not await (await near.root()).answer(question)
        assert FarTreasurer.paid == []


def _shown(client: Any) -> list[Any]:
    """Return the questions that a client was shown last."""
    return [frame for frame in client.frames if frame.get("type") == "sapwood_questions"][-1]["questions"]


async def test_a_denied_call_is_not_made() -> None:
    async with asking() as near:
        (question,) = await near.asked()

        assert await (await near.root()).answer(question, yes=False)

        assert (await near.ended()).status == "completed"
        assert FarTreasurer.paid == []


async def test_the_hooks_of_both_servers_decide_and_a_refusal_leaves_the_question_open() -> None:
    async with asking() as near:
        (question,) = await near.asked()
        body = {"id": question.id, "path": [{"type": s.type, "name": s.name} for s in question.path]}
        body |= {"approved": True, "digest": question.digest}

        async def post(**more: Any) -> Any:
            sent = json.dumps(body | more).encode()
            return await near.near.site.http("/agents/near-rung/n/questions", method="POST", body=sent)

        near.cls.refusals.append("not today")
        here = await post()
        near.cls.refusals.clear()
        there = await post(arguments={"amount": 1000})

        assert (here.status, here.json()["refused"]) == (403, "not today")
        assert (there.status, there.json()["refused"]) == (403, HIDDEN)
        assert await near.asked() == [question]
        with pytest.raises(Refused, match=HIDDEN):
            await (await near.root()).answer(question, {"amount": 1000})
        assert await (await near.root()).answer(question)
        assert (await near.ended()).status == "completed"
        assert FarTreasurer.paid == [7]


@pytest.mark.parametrize("case", ["digest", "key", "id", "kind"])
async def test_the_other_server_checks_an_answer_itself(case: str) -> None:
    async with asking() as near:
        (question,) = await near.asked()
        sent: dict[str, Any] = {"id": question.id, "digest": question.digest, "approved": True, "on_behalf_of": "root"}
        headers = dict(PROTOCOL)
        if case == "digest":
            sent["digest"] = "0" * 64
        elif case == "key":
            headers["authorization"] = "Bearer guess"
        elif case == "id":
            sent["id"] = '[["FarTreasurer","nobody"],"k"]'
        else:
            del sent["digest"]
        path = f"/agents/far-bank/{near.session}/run/answer"

        told = await near.two.far.site.http(path, method="POST", headers=headers, body=json.dumps(sent).encode())

        wanted = {"digest": (200, False), "key": (401, None), "id": (200, False), "kind": (400, None)}[case]
        assert told.status == wanted[0]
        if wanted[1] is not None:
            assert told.json()["answered"] is wanted[1]
        assert KEY not in told.text
        assert await near.asked() == [question]
        assert FarTreasurer.paid == []
