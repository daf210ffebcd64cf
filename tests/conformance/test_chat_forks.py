"""A fork of a conversation: what was said stays, nothing is done by itself, and open questions can be answered."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
from tests.conformance.worlds import Run, until

from sapwood import Agent, ChatAgent, agent_tool, tool
from sapwood.testing import ScriptedModel, call, calls, text

pytestmark = pytest.mark.slow


class ForkPayer(ChatAgent):
    """Pays."""

    paid: ClassVar[list[str]] = []
    """What was done to the world."""

    @tool(requires_approval=True)
    async def pay(self, amount: int) -> str:
        """Pay."""
        ForkPayer.paid.append(f"{amount} {self.address}")
        return f"paid {amount}"

    async def after_turn(self, turn: Any) -> None:
        ForkPayer.paid.append(f"{turn.status} {self.address}")

    async def said(self) -> list[str]:
        return [
            part["text"]
            for message in await self.conversation.messages()
            for part in message["parts"]
            if part["type"] == "text"
        ]

    async def last_turn(self) -> tuple[str, str | None]:
        turn = (await self.conversation.export())["turns"][-1]
        return turn["status"], turn["reason"]

    async def seen(self) -> int:
        return len(self.conversation.history())


class ForkClerk(ForkPayer):
    """Has its payments made by a child."""


class ForkBoss(ForkPayer):
    """Has its payments made by a child of a child."""


class ForkAsker(Agent):
    asked: ClassVar[list[str]] = []
    gates: ClassVar[dict[str, asyncio.Event]] = {}

    async def begin(self) -> None:
        self.start_fiber("ask", self.ask)

    async def ask(self) -> str:
        await self.step("before", lambda: ForkAsker.asked.append(f"before {self.name}"))
        answer = await self.questions.ask("Which?", options=["a", "b"])
        ForkAsker.asked.append(f"{answer} {self.name}")
        return answer

    async def begin_both(self, order: str) -> None:
        self.start_fiber("ask", self.do_both, order)

    async def do_both(self, order: str) -> str:
        async def pay() -> None:
            ForkAsker.asked.append(f"begins {self.name}")
            await ForkAsker.gates[self.name].wait()

        both = [self.step("pay", pay), self.questions.ask("Which?", options=["a", "b"])]
        answers = await asyncio.gather(*(both if order == "step first" else reversed(both)))
        return next(answer for answer in answers if answer is not None)

    async def result(self) -> str:
        return await self.fibers.result("ask")

    async def resume(self) -> bool:
        return self.fibers.resume("ask")

    async def fiber_status(self) -> str:
        fiber = self.fibers.get("ask")
        assert fiber is not None
        return fiber.status


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    ForkPayer.paid.clear()
    ForkAsker.asked.clear()
    monkeypatch.setattr(ForkPayer, "model", ScriptedModel(call("pay", amount=5), text("done"), each=True))
    monkeypatch.setattr(ForkPayer, "tools", ())
    monkeypatch.setattr(ForkClerk, "model", ScriptedModel(call("payer", message="pay"), text("it is paid"), each=True))
    monkeypatch.setattr(ForkClerk, "tools", (agent_tool(ForkPayer, name="payer"),))
    monkeypatch.setattr(ForkBoss, "model", ScriptedModel(call("clerk", message="pay"), text("all is paid"), each=True))
    monkeypatch.setattr(ForkBoss, "tools", (agent_tool(ForkClerk, name="clerk"),))


async def test_a_turn_that_runs_is_cancelled_in_the_fork_and_keeps_what_was_said(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("first"), text("once upon a time", gate=gate), text("another"))
    monkeypatch.setattr(ForkPayer, "model", model)
    async with run(ForkPayer) as world:
        payer: Any = await world.get_agent(ForkPayer, "a")
        await payer.send("one")
        await payer.turns.start("two", id="t2")
        await payer.turns.start("three", id="t3")
        await until(lambda: len(model.asked) == 2)
        await world.clock.advance(1)

        fork = await world.app.fork(ForkPayer, "a", to="b")

        assert fork.held.turns == 2
        copy: Any = await world.get_agent(ForkPayer, "b")
        assert await copy.said() in (["one", "first", "two", "once"], ["one", "first", "two"])
        assert await copy.last_turn() == ("cancelled", "forked")
        gate.set()
        assert (await payer.turns.wait("t2")).text == "once upon a time"
        assert (await payer.turns.wait("t3")).text == "another"
        asked = len(model.asked)
        turn = await copy.send("what if?")
        assert (turn.status, turn.text, len(model.asked)) == ("completed", "another", asked + 1)
        assert "what if?" not in await payer.said()
        assert [line for line in ForkPayer.paid if "ForkPayer:b" in line] == ["completed ForkPayer:b"]


async def test_an_approval_is_asked_in_both_and_each_answer_counts_once(run: Run) -> None:
    async with run(ForkPayer) as world:
        payer: Any = await world.get_agent(ForkPayer, "a")
        assert (await payer.send("pay")).status == "waiting"

        fork = await world.app.fork(ForkPayer, "a", to="b")

        assert (fork.held.questions, fork.held.turns) == (1, 0)
        copy: Any = await world.get_agent(ForkPayer, "b")
        (question,) = await copy.questions.list()
        assert await copy.questions.approve(question)
        await until(lambda: ForkPayer.paid == ["5 ForkPayer:b", "completed ForkPayer:b"])
        assert (await payer.last_turn())[0] == "waiting"
        (question,) = await payer.questions.list()
        assert await payer.questions.deny(question)
        await until(lambda: ForkPayer.paid[2:] == ["completed ForkPayer:a"])


@pytest.mark.core("workers", "cluster")
async def test_an_approval_three_levels_down_is_answered_at_the_fork_and_continues_all_above(run: Run) -> None:
    async with run(ForkBoss) as world:
        boss: Any = await world.get_agent(ForkBoss, "a")
        await boss.turns.start("pay", id="t")
        await until_async(lambda: has_question(boss))

        fork = await world.app.fork(ForkBoss, "a", to="b")

        assert (fork.agents, fork.held.questions, fork.held.turns, fork.held.runs) == (3, 1, 0, 0)
        copy: Any = await world.get_agent(ForkBoss, "b")
        (question,) = await copy.questions.list()
        assert await copy.questions.approve(question)
        assert (await copy.turns.wait("t")).text == "all is paid"
        assert [line for line in ForkPayer.paid if line.startswith("5 ")] == [
            line for line in ForkPayer.paid if "5 ForkBoss:b" in line
        ]
        assert await has_question(boss)
        (question,) = await boss.questions.list()
        assert await boss.questions.approve(question)
        assert (await boss.turns.wait("t")).text == "all is paid"
        assert len([line for line in ForkPayer.paid if line.startswith("5 ")]) == 2


async def test_runs_below_a_turn_end_with_it_and_no_model_is_asked_by_the_fork(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("slow answer", gate=gate), each=True)
    monkeypatch.setattr(ForkPayer, "model", model)
    async with run(ForkBoss) as world:
        boss: Any = await world.get_agent(ForkBoss, "a")
        await boss.turns.start("pay", id="t")
        await until(lambda: len(model.asked) == 1)

        fork = await world.app.fork(ForkBoss, "a", to="b")

        assert (fork.held.turns, fork.held.runs) == (3, 2)
        copy: Any = await world.get_agent(ForkBoss, "b")
        assert await copy.last_turn() == ("cancelled", "forked")
        await world.clock.advance(60)
        gate.set()
        assert (await boss.turns.wait("t")).text == "all is paid"
        assert len(model.asked) == 1
        assert [line for line in ForkPayer.paid if "ForkBoss:b" in line] == []
        assert (await copy.send("again")).text == "all is paid"


async def test_a_question_of_code_is_answered_in_the_fork_and_the_fiber_continues_there(run: Run) -> None:
    async with run(ForkAsker) as world:
        asker: Any = await world.get_agent(ForkAsker, "a")
        await asker.begin()
        await until_async(lambda: has_question(asker))

        fork = await world.app.fork(ForkAsker, "a", to="b")

        assert (fork.held.questions, fork.held.fibers) == (1, 0)
        copy: Any = await world.get_agent(ForkAsker, "b")
        assert await copy.fiber_status() == "waiting"
        (question,) = await copy.questions.list()
        assert await copy.questions.answer(question, "b")
        assert await copy.result() == "b"
        assert await has_question(asker)
        (question,) = await asker.questions.list()
        assert await asker.questions.answer(question, "a")
        assert await asker.result() == "a"
        assert ForkAsker.asked == ["before a", "b b", "a a"]


@pytest.mark.parametrize("kind", [ForkPayer, ForkClerk], ids=["root", "below"])
async def test_an_approval_that_waits_for_another_one_is_asked_again_in_the_fork(
    kind: type[ForkPayer], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = calls(call("pay", amount=1), call("pay", amount=2))
    monkeypatch.setattr(ForkPayer, "model", ScriptedModel(two, text("done"), each=True))
    async with run(kind) as world:
        payer: Any = await world.get_agent(kind, "a")
        await payer.turns.start("pay", id="t")
        await until_async(lambda: has_questions(payer, 2))
        first, _ = await payer.questions.list()
        assert await payer.questions.approve(first)

        fork = await world.app.fork(kind, "a", to="b")

        assert (fork.held.questions, fork.held.turns) == (2, 0)
        copy: Any = await world.get_agent(kind, "b")
        one, other = await copy.questions.list()
        assert {one.arguments["amount"], other.arguments["amount"]} == {1, 2}
        if kind is ForkPayer:
            parts = (await copy.conversation.messages())[-1]["parts"]
            assert [part["state"] for part in parts if "toolCallId" in part] == ["approval-requested"] * 2
        assert await copy.questions.deny(one)
        assert await copy.questions.deny(other)
        assert (await copy.turns.wait("t")).status == "completed"
        assert [line for line in ForkPayer.paid if line[0].isdigit()] == []
        (question,) = await payer.questions.list()
        assert await payer.questions.deny(question)
        assert (await payer.turns.wait("t")).status == "completed"
        (paid,) = [line for line in ForkPayer.paid if line[0].isdigit()]
        assert paid.startswith(f"{first.arguments['amount']} {kind.__name__}:a")


@pytest.mark.parametrize("order", ["step first", "question first"])
async def test_a_fiber_that_does_a_step_beside_its_question_is_held(order: str, run: Run) -> None:
    async with run(ForkAsker) as world:
        ForkAsker.gates = {"a": asyncio.Event(), "b": asyncio.Event(), "c": asyncio.Event()}
        asker: Any = await world.get_agent(ForkAsker, "a")
        await asker.begin_both(order)
        await until_async(lambda: has_question(asker))
        await until(lambda: ForkAsker.asked == ["begins a"])

        fork = await world.app.fork(ForkAsker, "a", to="b")

        assert (fork.held.questions, fork.held.fibers) == (0, 1)
        copy: Any = await world.get_agent(ForkAsker, "b")
        assert await copy.fiber_status() == "interrupted"
        ForkAsker.gates["a"].set()
        await world.clock.advance(1)
        fork = await world.app.fork(ForkAsker, "a", to="c")  # the step is stored, so now the fiber only waits
        assert (fork.held.questions, fork.held.fibers) == (1, 0)
        for name in ("a", "c"):
            agent: Any = await world.get_agent(ForkAsker, name)
            (question,) = await agent.questions.list()
            assert await agent.questions.answer(question, "b")
            assert await agent.result() == "b"
        assert ForkAsker.asked == ["begins a"]
        assert await copy.resume()
        await until_async(lambda: has_question(copy))
        assert ForkAsker.asked == ["begins a", "begins b"]


async def has_question(agent: Any) -> bool:
    return await has_questions(agent, 1)


async def has_questions(agent: Any, count: int) -> bool:
    return len(await agent.questions.list()) == count


async def until_async(is_so: Any) -> None:
    for _ in range(500):
        if await is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("It did not come to be.")
