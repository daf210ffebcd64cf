"""An operator sees the open questions of an agent and of all below it, with and without a server. No agent is woken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import loops
from tests.unit.admin_requests import ask

from sapwood import Agent, App, ChatAgent, Question, Settings, tool
from sapwood.cli.commands import cli
from sapwood.testing import ScriptedModel, call, running, text
from sapwood.types import Address


class ReturnedGoods(Agent):
    """Asks what to do with a parcel."""

    async def receive(self, order: int) -> None:
        self.start_fiber(f"order {order}", self._decide, order)

    async def _decide(self, order: int) -> str:
        return await self.questions.ask(f"Order {order} came back.", options=["refund", "send again"])


class Till(ChatAgent):
    """Pays after an approval, and asks a question in its own code."""

    model = ScriptedModel(call("pay", id="k", euros=90), text("It is paid."), each=True)

    async def open(self) -> list[Question]:
        """Ask three questions, and return them."""
        await self.send("Pay the baker.")
        self.start_fiber("name", self._ask)
        await (await self.sub_agent(ReturnedGoods, "dock")).receive(17)
        while len(asked := await self.questions.list()) < 3:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
        return asked

    async def open_dock(self) -> None:
        await self.sub_agent(ReturnedGoods, "dock")

    async def _ask(self) -> str:
        return await self.questions.ask("Which name goes on the receipt?")

    @tool(requires_approval=True)
    async def pay(self, euros: int) -> str:
        """Pay a bill."""
        return f"{euros} euros are paid"


async def test_the_questions_of_an_agent_and_below_are_found_and_no_agent_is_woken() -> None:
    async with running(App(agents=[Till])) as world:
        till = await world.get_agent(Till, "main")
        await till.open()
        await world.restart()

        *own, dock = (await ask(world, "questions", address="Till:main"))["rows"]
        below = (await ask(world, "questions", address="Till:main/ReturnedGoods:dock"))["rows"]

        assert sorted((one["address"], one["kind"], one["tool"], one["prompt"]) for one in own) == [
            ("Till:main", "approval", "pay", None),
            ("Till:main", "text", None, "Which name goes on the receipt?"),
        ]
        assert (dock["address"], dock["prompt"]) == ("Till:main/ReturnedGoods:dock", "Order 17 came back.")
        assert below == [dock]
        assert Till not in {type(actor.agent) for tree in world.node.trees.values() for actor in tree.actors.values()}


async def test_an_answered_question_is_not_listed_any_more() -> None:
    async with running(App(agents=[Till])) as world:
        till = await world.get_agent(Till, "main")
        for question in await till.open():
            await till.questions.deny(question)

        async def listed() -> list[Any]:
            return (await ask(world, "questions", address="Till:main"))["rows"]

        while await listed():  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)


@pytest.fixture
def asked(tmp_path: Path) -> list[Question]:
    """Return the open questions in the data folder."""

    async def ask() -> list[Question]:
        async with App(agents=[Till], settings=Settings(data=tmp_path / "data")) as app:
            return await (await app.get_agent(Till, "main")).open()

    return loops.play(ask())


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*words: str) -> str:
        cli(["questions", *words, "--data", str(tmp_path / "data")])
        return capsys.readouterr().out

    return run


def test_the_command_prints_who_asks_what_without_a_server(asked: list[Question], printed: Callable[..., str]) -> None:
    pay, name, dock = asked

    assert printed("Till:main").splitlines() == [
        "Till:main",
        "  k  approval: pay(euros=90)",
        f"  {name.id}  text: Which name goes on the receipt?",
        "Till:main/ReturnedGoods:dock",
        f"  {dock.id}  choice: Order 17 came back. (refund, send again)",
    ]
    assert pay.id == "k"


def test_the_questions_as_json_have_the_digests_of_what_is_shown(
    asked: list[Question], printed: Callable[..., str]
) -> None:
    found = json.loads(printed("Till:main", "--json"))["questions"]

    assert [(one["id"], one["digest"]) for one in found] == [(one.id, one.digest) for one in asked]
    assert found[0] == {
        "address": "Till:main",
        "path": [],
        "id": "k",
        "kind": "approval",
        "tool": "pay",
        "input": {"euros": 90},
        "digest": asked[0].digest,
    }
    assert found[2]["path"] == [{"type": "ReturnedGoods", "name": "dock"}]


def test_an_agent_without_questions_says_so(tmp_path: Path, printed: Callable[..., str]) -> None:
    async def make() -> None:
        async with App(agents=[Till], settings=Settings(data=tmp_path / "data")) as app:
            await (await app.get_agent(Till, "main")).open_dock()

    loops.play(make())

    assert printed("Till:main") == "Till:main and the agents under it have no open questions.\n"


async def test_a_damaged_question_hides_only_those_of_its_tree() -> None:
    async with running(App(agents=[Till])) as world:
        await (await world.get_agent(Till, "main")).open()
        await (await world.get_agent(Till, "other")).open()
        tree = world.node.trees[Address.root_of("Till", "main")]
        tree.root.begin()
        tree.root.execute("UPDATE sapwood_questions SET body = '{'")
        tree.slices.commit()

        told = await ask(world, "questions")

        assert {one["address"] for one in told["rows"]} == {"Till:other", "Till:other/ReturnedGoods:dock"}
        (unread,) = told["unread"]
        assert unread["address"] == "Till:main"
        assert "cannot be read" in unread["error"]
