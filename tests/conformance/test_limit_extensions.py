"""A limit with `extend_by`: the request waits, and a person who is asked may allow more."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from tests.cases import slow
from tests.conformance.drivers import running
from tests.conformance.serving import door
from tests.conformance.worlds import asleep
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Limits, Per, Question, Run, Unavailable, agent_tool
from sapwood.auth import ANY_CLIENT, User
from sapwood.chat.models.token_estimates import OVERHEAD
from sapwood.kernel.trees.limit_extensions import EXTENSIONS
from sapwood.testing import ScriptedModel, World, call, text
from sapwood.types import Address

MOST = 60
STEP = OVERHEAD + 4 + MOST
ONE = STEP + 20
"""A budget for one answer."""
AT = datetime(2027, 3, 1, 20, tzinfo=UTC)
MORE = 2 * ONE


FAMILY = Address.root_of("Household", "h")


class Teller(ChatAgent):
    """Answers."""

    model_settings: ClassVar[Any] = {"max_tokens": MOST}


class Steward(Agent):
    """Has its teller answer."""

    async def on_run(self, input: str) -> str:
        run = await self.run_agent(Teller, input, run_id=input)
        if not run.ok:
            raise ValueError(run.reason or run.error)
        return str(run.output)


class Household(Agent):
    """Has the budget."""

    limits = Limits(tokens=Per("day", ONE, extend_by=MORE))

    async def give(self, id: str, deep: bool = False) -> Run:
        return await self.run_agent(Steward if deep else Teller, id, run_id=id)

    async def start(self, id: str, deep: bool = False) -> None:
        await self.start_run(Steward if deep else Teller, id, run_id=id)

    async def ended(self, id: str) -> tuple[str, str | None, str | None]:
        run = self.runs.get(id)
        assert run is not None
        return run.status, run.reason, run.error

    async def stop(self, id: str) -> None:
        self.runs.cancel(id)


@asynccontextmanager
async def household(**settings: Any) -> AsyncGenerator[tuple[World, Any], None]:
    Teller.model = ScriptedModel(text("one two"), each=True)
    async with asyncio.timeout(patience()), running(App(agents=[Household]), **settings) as world:
        world.clock.jump(AT)
        yield world, await world.get_agent(Household, "h")


async def asked(agent: Any, number: int = 1) -> list[Question]:
    """Return the questions, once there are so many."""
    async with asyncio.timeout(patience()):
        while len(found := await agent.questions.list()) != number:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
    return found


async def over(agent: Any, id: str) -> tuple[str, str | None, str | None]:
    async with asyncio.timeout(patience()):
        while (end := await agent.ended(id))[0] in ("running", "waiting", "queued"):  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
    return end


@pytest.mark.parametrize("deep", [True, *slow([False])])
async def test_a_person_is_asked_at_the_agent_that_has_the_limit_and_the_request_continues(deep: bool) -> None:
    async with household() as (_world, agent):
        assert (await agent.give("a", deep)).ok
        await agent.start("b", deep)
        (question,) = await asked(agent)

        assert question.prompt == (
            f"Household:h and all agents under it have reached their limit of {ONE} tokens per day until "
            f"2027-03-02T00:00:00+00:00. Allow {MORE} tokens more in this day?"
        )
        assert question.options == ("allow", "deny")
        assert question.path == ()
        assert await agent.questions.answer(question, "allow")
        assert await over(agent, "b") == ("completed", None, None)
        assert await agent.questions.list() == []
        assert (await agent.give("c", deep)).ok  # what was allowed holds for the whole period


@pytest.mark.parametrize("how", ["answer", "deny"])
async def test_a_request_that_is_denied_fails_as_without_a_question(how: str) -> None:
    async with household() as (_world, agent):
        assert (await agent.give("a")).ok
        await agent.start("b")
        (question,) = await asked(agent)
        if how == "deny":
            await agent.questions.deny(question, "Not this month.")
        else:
            await agent.questions.answer(question, "deny")

        status, reason, error = await over(agent, "b")
        assert (status, reason) == ("failed", "over_limit")
        assert ("Not this month." if how == "deny" else "The question was denied.") in str(error)


async def test_two_requests_that_wait_ask_once_and_both_continue() -> None:
    async with household() as (world, agent):
        assert (await agent.give("a")).ok
        await agent.start("b")
        await agent.start("c", deep=True)
        await world.until(lambda: len(waits(world)) == 2)
        (question,) = await asked(agent)
        await agent.questions.answer(question, "allow")

        assert [(await over(agent, id))[0] for id in "bc"] == ["completed"] * 2
        await world.settled()
        assert waits(world) == []


async def test_a_run_that_is_cancelled_withdraws_the_question_once_no_other_waits() -> None:
    async with household() as (world, agent):
        assert (await agent.give("a")).ok
        await agent.start("b", deep=True)
        await agent.start("c")
        await world.until(lambda: len(waits(world)) == 2)
        await asked(agent)

        await agent.stop("b")
        assert (await over(agent, "b"))[0] == "cancelled"
        await world.until(lambda: len(waits(world)) == 1)
        assert len(await agent.questions.list()) == 1

        await agent.stop("c")
        assert await asked(agent, 0) == []
        await world.until(lambda: waits(world) == [])
        await agent.start("d")
        await asked(agent)  # it is asked anew


async def test_the_next_period_lets_the_request_proceed_without_an_answer() -> None:
    async with household() as (world, agent):
        assert (await agent.give("a")).ok
        await agent.start("b", deep=True)
        (question,) = await asked(agent)
        await world.settled()
        await world.clock.advance(4 * 3600)

        assert await over(agent, "b") == ("completed", None, None)
        assert await asked(agent, 0) == []
        assert not await agent.questions.answer(question, "allow")


async def test_what_was_allowed_ends_with_the_period() -> None:
    async with household() as (world, agent):
        assert (await agent.give("a")).ok
        await agent.start("b")
        await agent.questions.answer((await asked(agent))[0], "allow")
        assert (await over(agent, "b"))[0] == "completed"
        await world.clock.advance(4 * 3600)

        assert (await agent.give("c")).ok
        await agent.start("d")
        await asked(agent)


class Expert(ChatAgent):
    """Needs more than is left."""

    model_settings: ClassVar[Any] = {"max_tokens": 900}
    model = ScriptedModel(text("It is so."), each=True)


class Lead(ChatAgent):
    """Asks an expert."""

    model_settings: ClassVar[Any] = {"max_tokens": MOST}
    model = ScriptedModel(call("expert", message="go"), text("The expert knows."), each=True)
    tools = (agent_tool(Expert),)


class Chief(ChatAgent):
    """Asks a lead, on a budget for all."""

    model_settings: ClassVar[Any] = {"max_tokens": MOST}
    model = ScriptedModel(call("lead", message="go"), text("It is known."), each=True)
    tools = (agent_tool(Lead),)
    limits = Limits(tokens=Per("day", 700, extend_by=2000))


@pytest.mark.slow
async def test_turns_that_wait_three_levels_below_use_no_memory_and_continue_after_a_crash() -> None:
    async with asyncio.timeout(patience()), running(App(agents=[Chief])) as world:
        world.clock.jump(AT)
        agent = await world.get_agent(Chief, "c")
        turn = await agent.turns.start("go")
        await asked(agent)
        await world.clock.advance(61)
        await asleep(world)

        await world.crash()
        agent = await world.get_agent(Chief, "c")
        (question,) = await agent.questions.list()
        assert question.path == ()
        assert await agent.questions.answer(question, "allow")
        done = await agent.turns.wait(turn.id)
        assert (done.status, done.text) == ("completed", "It is known.")


@pytest.mark.core("workers", "temporal")
async def test_a_run_that_waits_continues_after_a_crash() -> None:
    async with household() as (world, agent):
        assert (await agent.give("a", True)).ok
        await agent.start("b", True)
        await asked(agent)
        await world.crash()

        agent = await world.get_agent(Household, "h")
        (question,) = await agent.questions.list()
        assert await agent.questions.answer(question, "allow")
        assert await over(agent, "b") == ("completed", None, None)


@pytest.mark.parametrize(
    ("answer", "step"),
    [
        pytest.param("allow", 6, marks=pytest.mark.slow),
        pytest.param("deny", 12, marks=pytest.mark.nightly),
        pytest.param("allow", 1, marks=pytest.mark.nightly),
        pytest.param("deny", 1, marks=pytest.mark.nightly),
    ],
)
async def test_a_crash_at_any_commit_asks_and_answers_once(answer: str, step: int) -> None:
    nth, passed = 1 - step, True
    while passed:
        nth += step
        async with household() as (world, agent):
            assert (await agent.give("a", True)).ok
            before = world.points.passed["committed"]
            world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                await agent.start("b", True)
                await agent.questions.answer((await asked(agent))[0], answer)
                await over(agent, "b")
                await world.settled()
            passed = world.points.passed["committed"] >= before + nth
            await world.crash()
            agent = await world.get_agent(Household, "h")
            await agent.start("b", True)
            if (await agent.ended("b"))[0] not in ("completed", "failed"):
                await answer_all(world, agent, "b", answer)

            assert (await over(agent, "b"))[0] == ("completed" if answer == "allow" else "failed"), nth
            await world.settled()
            assert waits(world) == []
            assert await agent.questions.list() == []
            allowed = [row for row in extensions(world) if row[1] is not None]
            assert len(allowed) == (answer == "allow")


async def answer_all(world: World, agent: Any, id: str, answer: str) -> None:
    """Answer what is asked until a run is over: a denial that was not delivered is asked again."""
    async with asyncio.timeout(patience()):
        while (await agent.ended(id))[0] not in ("completed", "failed", "cancelled"):
            for question in await agent.questions.list():
                await agent.questions.answer(question, answer)
            await asyncio.sleep(0.01)


class Desk(ChatAgent):
    """Has a budget of its own."""

    model_settings: ClassVar[Any] = {"max_tokens": MOST}
    limits = Limits(tokens=Per("day", ONE, extend_by=MORE))

    async def status(self, id: str) -> str:
        turns = (await self.conversation.export())["turns"]
        return next(turn["status"] for turn in turns if turn["id"] == id)


@asynccontextmanager
async def desk(cls: Any = Desk, **settings: Any) -> AsyncGenerator[tuple[World, Any], None]:
    cls.model = ScriptedModel(text("one two"), each=True)
    async with asyncio.timeout(patience()), running(App(agents=[cls]), **settings) as world:
        world.clock.jump(AT)
        yield world, await world.get_agent(cls, "d")


async def test_a_conversation_whose_turn_waits_says_so_and_keeps_later_messages_for_later() -> None:
    async with desk() as (world, agent):
        assert (await agent.send("go")).status == "completed"
        waiting = await agent.send("go")
        assert (waiting.status, waiting.reason) == ("waiting", "over_limit")
        later = await agent.turns.start("and then")
        await world.settled()
        assert await agent.status(later.id) == "queued"

        (question,) = await asked(agent)
        await agent.questions.answer(question, "allow")
        assert (await agent.turns.wait(waiting.id)).status == "completed"
        await world.settled()
        assert await agent.status(later.id) in ("completed", "waiting")


async def test_a_turn_that_waits_can_be_cancelled() -> None:
    async with desk() as (_world, agent):
        assert (await agent.send("go")).status == "completed"
        waiting = await agent.send("go")
        await asked(agent)
        assert await agent.turns.cancel(waiting.id)
        assert await asked(agent, 0) == []
        assert await agent.status(waiting.id) == "cancelled"


class Interrupted(Desk):
    """Is interrupted by a new message."""

    concurrency = "interrupt"


async def test_a_message_interrupts_a_turn_that_waits() -> None:
    async with desk(Interrupted) as (_world, agent):
        assert (await agent.send("go")).status == "completed"
        waiting = await agent.send("go")
        again = await agent.send("go")
        assert (again.status, again.reason) == ("waiting", "over_limit")
        assert await agent.status(waiting.id) == "cancelled"
        assert len(await asked(agent)) == 1


async def test_a_request_larger_than_the_step_asks_for_as_much_as_it_needs() -> None:
    class Small(Desk):
        limits = Limits(dollars=Per("month", 1e-6, extend_by=1e-5))

    async with desk(Small, prices={"scripted": (1.0, 1.0)}) as (world, agent):
        assert (await agent.send("go")).reason == "over_limit"
        (question,) = await asked(agent)
        assert "limit of $1e-06 per month" in question.prompt
        assert "Allow $0.00012 more in this month?" in question.prompt
        await agent.questions.answer(question, "allow")
        await world.settled()
        assert await asked(agent, 0) == []


async def test_a_limit_without_a_question_refuses_first() -> None:
    class Both(Desk):
        limits = Limits(tokens=(Per("day", ONE, extend_by=MORE), Per("day", ONE)))

    async with desk(Both) as (_, agent):
        assert (await agent.send("go")).status == "completed"
        assert ((refused := await agent.send("go")).status, refused.reason) == ("failed", "over_limit")


class Shop(Desk):
    """Lets managers raise its budget."""

    limits = Limits(tokens=Per("day", ONE, extend_by=MORE, approvers="manager"))


class OpenShop(Desk):
    """Lets every client raise its budget."""

    limits = Limits(tokens=Per("day", ONE, extend_by=MORE, approvers=ANY_CLIENT))


def user(request: Any) -> User:
    name = request.headers["x-user"]
    return User(name, claims={"roles": ["manager"] if name == "mia" else []})


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "may"), [(Desk, ""), (Shop, "mia"), (OpenShop, "carl mia")])
async def test_a_customer_raises_no_budget_unless_the_class_says_so(cls: Any, may: str) -> None:
    cls.model = ScriptedModel(text("one two"), each=True)
    async with asyncio.timeout(patience()), door(cls, authenticate=user) as site:
        agent = await site.world.get_agent(cls, "d")
        path = f"/agents/{'open-shop' if cls is OpenShop else cls.__name__.lower()}/d/questions"
        await agent.send("go")
        await agent.send("go")
        for name in ("carl", "mia"):
            (question,) = await asked(agent)
            seen = await site.http(path, headers={"x-user": name})
            answer = {"id": question.id, "output": "allow", "digest": question.digest}
            told = await site.http(path, method="POST", body=json.dumps(answer).encode(), headers={"x-user": name})
            if name in may:
                assert question.id in seen.text
                assert told.status == 200
                break
            assert question.id not in seen.text
            assert told.status == 403
        if not may:
            await agent.questions.answer(question, "allow")
        decisions = (await agent.conversation.export())["decisions"]
        (last,) = decisions
        assert (last["kind"], last["arguments"]) == ("answered", "allow")
        assert last["user"] == (may.split(maxsplit=1)[0] if may else None)


def tree_of(world: World) -> Any:
    return world.node.trees[FAMILY]


def waits(world: World) -> list[Any]:
    root = tree_of(world).root
    return root.execute("SELECT waiter, turn FROM sapwood_limit_waits") if root.has(EXTENSIONS) else []


def extensions(world: World) -> list[Any]:
    root = tree_of(world).root
    return root.execute("SELECT question, allowed_at FROM sapwood_limit_extensions") if root.has(EXTENSIONS) else []
