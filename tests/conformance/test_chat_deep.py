"""A chat agent far down in a tree talks, is interrupted and asks as a root does, and every ancestor can answer it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.cases import slow
from tests.conformance.chats import RESPONSE, approval, caught_up, chunks, done, resume, said, say, streamed, take, user
from tests.conformance.served import served, type_of
from tests.conformance.worlds import until

from sapwood import Agent, App, ChatAgent, Question, tool
from sapwood.testing import ScriptedModel, call, text

pytestmark = pytest.mark.core("temporal")

CHILD = "/agents/deep-root/r/sub/deep-middle/m/sub/deep-teller/d"


class DeepTeller(ChatAgent):
    """Asks before it tells."""

    @tool(requires_approval=True)
    async def reveal(self) -> str:
        """Reveal it."""
        return "the secret"

    async def tables(self) -> list[str]:
        return tables_of(self)


class DeepMiddle(Agent):
    async def ask(self) -> str:
        teller = await self.sub_agent(DeepTeller, "d")
        return (await teller.send("tell me")).status

    async def approvals(self) -> list[Question]:
        return await (await self.sub_agent(DeepTeller, "d")).questions.list()

    async def answer(self, id: str) -> bool:
        return await (await self.sub_agent(DeepTeller, "d")).questions.approve(id)

    async def tables(self) -> list[str]:
        return tables_of(self)


class DeepRoot(Agent):
    async def ask(self) -> str:
        return await (await self.sub_agent(DeepMiddle, "m")).ask()

    async def answer(self, id: str) -> bool:
        return await (await self.sub_agent(DeepMiddle, "m")).answer(id)

    async def tables(self) -> list[str]:
        return tables_of(self)


def tables_of(agent: Agent) -> list[str]:
    return [str(row["name"]) for row in agent.sql("SELECT name FROM sqlite_master WHERE type = 'table'")]


@pytest.mark.promise("A-128")
async def test_what_a_deep_chat_streams_is_kept_in_its_own_database_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("once upon a time", gate=gate))
    monkeypatch.setattr(DeepTeller, "model", model)
    async with served(App(agents=[DeepRoot])) as one:
        root = await one.world.get_agent(DeepRoot, "r")
        assert not await root.answer("nothing was asked")
        client, parents = await one.join(CHILD), await one.join("/agents/deep-root/r")
        await say(client, "r1", user("tell", "u1"))
        await streamed(client, "r1", "once")

        await one.world.crash()
        await until(lambda: len(model.asked) == 2)
        late = await one.join(CHILD)
        assert (await resume(late))["id"] == "r1"
        await take(late, "r1")
        await caught_up(late, "r1")
        gate.set()
        await done(late, "r1")

        assert said(chunks(late, "r1")) == "once upon a time"
        assert not parents.of_type(RESPONSE)
        root = await one.world.get_agent(DeepRoot, "r")
        middle = await one.world.get_agent(DeepRoot, "r", sub=[(DeepMiddle, "m")])
        teller = await one.world.get_agent(DeepRoot, "r", sub=[(DeepMiddle, "m"), (DeepTeller, "d")])
        assert "sapwood_chunks" in await teller.tables()
        for ancestor in (root, middle):
            assert not {"sapwood_chunks", "sapwood_messages", "sapwood_turns"} & set(await ancestor.tables())


@pytest.mark.promise("B-39")
@pytest.mark.parametrize("where", ["root", "url", *slow(["middle", "address"])])
async def test_a_question_of_a_deep_chat_survives_a_crash_and_is_answered_by_any_ancestor(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeepTeller, "model", ScriptedModel(call("reveal", id="c"), text("now you know")))
    async with served(App(agents=[DeepRoot])) as one:
        root: Any = await one.world.get_agent(DeepRoot, "r")
        assert await root.ask() == "waiting"

        await one.world.crash()
        root = await one.world.get_agent(DeepRoot, "r")
        middle: Any = await one.world.get_agent(DeepRoot, "r", sub=[(DeepMiddle, "m")])
        teller: Any = await one.world.get_agent(DeepRoot, "r", sub=[(DeepMiddle, "m"), (DeepTeller, "d")])
        assert await middle.approvals() == [Question("c", "reveal", {})]
        if where == "url":
            client = await one.join(CHILD)
            await approval(client, "c", approved=True)
            await client.until(lambda frame: type_of(frame) == RESPONSE and frame["done"])
        else:
            answers = {"root": root.answer, "middle": middle.answer, "address": teller.questions.approve}
            assert await answers[where]("c")

        (turn,) = (await teller.conversation.export())["turns"]
        ended = await teller.turns.wait(turn["id"])
        assert (ended.status, ended.text) == ("completed", "now you know")
