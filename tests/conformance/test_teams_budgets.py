"""Budgets of a whole tree: kept before the act, counted once, and told to whoever is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.conformance.drivers import running
from tests.machine import patience

from sapwood import Agent, App, Branch, ChatAgent, Limits, OverLimit, Run, Unavailable, agent_tool, tool
from sapwood.chat.models.token_estimates import OVERHEAD
from sapwood.chat.store.transcript import CHAT
from sapwood.testing import ScriptedModel, World, call, calls, fails, text
from sapwood.types import Address

MOST = 60
"""Tokens an answer may have."""
PRICES = {"scripted": (1.0, 1.0)}
"""A millionth of a dollar for each token."""
SETTINGS = {"max_tokens": MOST}


def breeding(model: Any, **settings: Any) -> Any:
    """Make a class of agents whose model can use agents of the same class."""
    cls: Any = type("Breeder", (Root,), {"model": model, "model_settings": SETTINGS, "__doc__": "Breeds.", **settings})
    cls.tools = (agent_tool(cls, name="breed"),)
    return cls


class Root(ChatAgent):
    """What the tests ask of any of them."""

    async def all_runs(self) -> list[Run]:
        return self.runs.list()

    async def deepest(self) -> int:
        return (await self.children.subtree()).deepest

    async def agents(self) -> int:
        return (await self.children.subtree()).agents

    async def tables(self) -> list[str]:
        return [str(row["name"]) for row in self.sql("SELECT name FROM sqlite_master WHERE type = 'table'")]


@asynccontextmanager
async def growing(cls: Any, **settings: Any) -> AsyncGenerator[tuple[World, Any], None]:
    async with asyncio.timeout(patience()), running(App(agents=[cls]), **settings) as world:
        yield world, await world.get_agent(cls, "b")


def results(model: Any) -> list[Any]:
    """Return what the model was told of its tool calls, each once."""
    parts = [part for asked in model.asked for message in asked for part in message.parts]
    return [*{part.tool_call_id: part.content for part in parts if part.part_kind == "tool-return"}.values()]


def total(usage: dict[str, Any]) -> int:
    return sum(one["input_tokens"] + one["output_tokens"] for one in usage.values())


def recorded(world: World) -> Counter[str]:
    """Return what the turns of all agents of the tree have stored of what they used."""
    found: Counter[str] = Counter()
    (tree,) = world.node.trees.values()
    for file in tree.folder.glob("*.db"):
        database = tree.database(file.stem, tree.limits)
        for (usage,) in database.execute("SELECT usage FROM sapwood_turns") if database.has(CHAT) else ():
            for spent in json.loads(usage).values():
                found.update(spent)
    return found


async def check_sums(world: World, agent: Any) -> None:
    """The root knows what the turns that ran have used, all of it and once."""
    stored = recorded(world)
    used = await agent.spending.total()
    rows = await agent.spending.list()
    assert sum(one["requests"] for one in used.values()) == stored["requests"]
    assert sum(one["input_tokens"] for one in used.values()) == stored["input_tokens"]
    assert sum(one["output_tokens"] for one in used.values()) == stored["output_tokens"]
    assert sum(row.input_tokens + row.output_tokens for row in rows) == total(used)
    assert len({(row.agent, row.run, row.model) for row in rows}) == len(rows)


@pytest.mark.slow
@pytest.mark.promise("B-31")
async def test_a_model_that_delegates_for_ever_is_stopped_at_exactly_the_stated_depth() -> None:
    model = ScriptedModel(call("breed", message="more"), text("enough"), each=True)
    async with growing(breeding(model, limits=Limits(depth=3))) as (world, agent):
        turn = await agent.send("go")

        assert turn.status == "completed"
        assert await agent.deepest() == 3
        (refused,) = [one for one in results(model) if "over_limit" in str(one)]
        told = json.loads(refused)
        assert (told["ok"], told["status"], told["reason"], told["retryable"]) == (False, "failed", "over_limit", False)
        assert "Limits(depth=3)" in told["error"]
        await check_sums(world, agent)


@pytest.mark.slow
@pytest.mark.parametrize("most", [0, 2])
async def test_a_model_that_delegates_for_ever_is_stopped_at_exactly_the_stated_children(most: int) -> None:
    wide = ScriptedModel(calls(*(call("breed", message="more") for _ in range(4))), text("enough"), each=True)
    async with growing(breeding(wide, limits=Limits(children=most, depth=1))) as (_, agent):
        await agent.send("go")

        runs = await agent.all_runs()
        assert await agent.agents() == 1 + most
        assert [run.reason for run in runs if not run.ok] == ["over_limit"] * (4 - most)


@pytest.mark.promise("B-4")
@pytest.mark.slow
@pytest.mark.parametrize("limits", [Limits(tokens=1000), Limits(dollars=0.001)], ids=["tokens", "dollars"])
async def test_a_model_that_delegates_for_ever_is_stopped_at_exactly_the_stated_budget(limits: Limits) -> None:
    model = ScriptedModel(calls(call("breed", message="more"), call("breed", message="more")))
    async with growing(breeding(model, limits=limits), prices=PRICES) as (world, agent):
        turn = await agent.send("go")

        used = await agent.spending.total()
        field = "tokens" if limits.tokens is not None else "dollars"
        assert (turn.status, turn.reason) == ("failed", "over_limit")
        assert f"Limits({field}=" in turn.error
        # No step has begun that did not fit, and the next one would not have.
        largest = max(len(str(asked)) for asked in model.asked) // 4 + OVERHEAD + MOST
        assert total(used) <= 1000
        assert total(used) > 1000 - largest
        assert used["scripted"]["cost"] == pytest.approx(total(used) / 1e6)
        assert used["scripted"]["requests"] == len(model.asked)
        await check_sums(world, agent)

        again = await agent.send("and now?")
        assert (again.status, again.reason, again.usage) == ("failed", "over_limit", {})
        assert total(await agent.spending.total()) == total(used)


class Gated(ChatAgent):
    """Answers when it is let."""

    model_settings = SETTINGS


class Together(Agent):
    """Has many work at once, on one budget."""

    worker: type[Agent[Any]]

    async def give(self, number: int) -> list[Run]:
        return await self.runs.gather(*(Branch(self.worker, "go", run_id=f"r{at}") for at in range(number)))

    async def give_one(self, id: str) -> Run:
        return await self.run_agent(self.worker, "go", run_id=id)

    async def count(self, status: str) -> int:
        return len(self.runs.list(status))

    async def stop(self, id: str) -> bool:
        return self.runs.cancel(id)

    async def tables(self) -> list[str]:
        return [str(row["name"]) for row in self.sql("SELECT name FROM sqlite_master WHERE type = 'table'")]

    async def delete_all(self) -> int:
        return await self.runs.clear()

    async def own(self) -> dict[str, Any]:
        return await self.spending.total(below=False)


STEP = OVERHEAD + 4 + MOST
"""What is reserved for an answer to "go"."""


def together(model: Any, *, base: type = Gated, budget: Limits | None = None, **settings: Any) -> Any:
    worker = type("Worker", (base,), {"model": model, "limits": budget})
    return type("Together", (Together,), {"worker": worker, **settings})


class Looking(Gated):
    """Has something to look at."""

    @tool
    async def look(self) -> str:
        """Look."""
        return "seen"


class Lead(Together):
    """Leads some of a crew."""

    async def on_run(self, input: int) -> list[str]:
        return [run.status for run in await self.give(input)]


class Crew(Together):
    """Has leads, who have workers."""

    async def lead(self, leads: int, workers: int) -> list[list[str]]:
        runs = await self.runs.gather(*(Branch(self.worker, workers, run_id=f"l{at}") for at in range(leads)))
        return [run.output for run in runs]

    async def try_one(self, id: str = "one") -> Run:
        return await self.run_agent(self.worker, 0, run_id=id)


def crew(model: Any, **settings: Any) -> Any:
    worker = type("Worker", (Gated,), {"model": model})
    lead = type("CrewLead", (Lead,), {"worker": worker})
    return type("Crew", (Crew,), {"worker": lead, **settings})


async def until(what: Any, wanted: Any) -> None:
    """Return when something that is seen from outside is so."""
    async with asyncio.timeout(patience()):
        while await what() != wanted:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.002)


@pytest.mark.slow
@pytest.mark.promise("B-4")
@pytest.mark.parametrize("most", [0, 1, 3])
async def test_of_many_that_ask_at_once_exactly_those_begin_whose_requests_fit_together(most: int) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("one two", gate=gate))
    async with growing(together(model, limits=Limits(tokens=STEP * (most + 1) - 1))) as (world, agent):
        giving = asyncio.create_task(agent.give(8))
        await until(lambda: agent.count("failed"), 8 - most)
        await until(lambda: asked(model), most)
        gate.set()

        runs = await giving

        assert [run.reason for run in runs if not run.ok] == ["over_limit"] * (8 - most)
        assert len([run for run in runs if run.ok]) == len(model.asked) == most
        await check_sums(world, agent)


@pytest.mark.slow
async def test_what_was_reserved_and_not_used_is_there_for_others_again() -> None:
    model = ScriptedModel(text("one two"))
    async with growing(together(model, limits=Limits(tokens=3 * STEP))) as (_, agent):
        done = 0
        while (await agent.give_one(f"r{done}")).ok:
            done += 1

        used = total(await agent.spending.total())
        assert used == done * (used // done)
        assert used + STEP > 3 * STEP >= used
        assert done > 3


async def test_a_request_that_was_cut_off_or_failed_keeps_nothing_reserved() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("one two", gate=gate), fails(ValueError("no")), text("well"))
    async with growing(together(model, limits=Limits(tokens=2 * STEP - 1))) as (_, agent):
        giving = asyncio.create_task(agent.give_one("a"))
        await until(lambda: agent.count("running"), 1)
        await until(lambda: asked(model), 1)
        assert (await agent.give_one("b")).reason == "over_limit"
        await agent.stop("a")
        assert (await giving).status == "cancelled"

        assert (await agent.give_one("c")).error.startswith("ValueError: no [error reference ")
        assert (await agent.give_one("d")).output == "well"


async def asked(model: Any) -> int:
    return len(model.asked)


@pytest.mark.nightly
@pytest.mark.promise("B-4")
@pytest.mark.slow
async def test_a_crash_at_any_commit_leaves_sums_that_equal_the_use_of_the_steps_that_ran() -> None:
    nth, passed = 0, True
    while passed:
        nth += 1
        model = ScriptedModel(call("breed", id="c1", message="more"), text("enough"), each=True)
        cls = breeding(model, limits=Limits(depth=1, tokens=10_000, runs_at_once=10))
        async with growing(cls, prices=PRICES) as (world, agent):
            await agent.tables()
            before = world.points.passed["committed"]
            world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                await agent.send("go")
            passed = world.points.passed["committed"] >= before + nth
            await world.crash()
            agent = await world.get_agent(cls, "b")
            turns = (await agent.conversation.export())["turns"]
            turn = await agent.turns.wait(turns[0]["id"]) if turns else await agent.send("go")

            assert turn.status == "completed"
            assert [run.status for run in await agent.all_runs()] == ["completed"]
            await check_sums(world, agent)
            assert world.node.trees[Address.root_of("Breeder", "b")].spending._reserved == set()


@pytest.mark.promise("B-4")
@pytest.mark.parametrize("price", [None, (0.0, 0.0)])
async def test_a_budget_of_money_lets_nobody_ask_whose_price_is_not_known(price: tuple[float, float] | None) -> None:
    model = ScriptedModel(text("it is free"))
    prices = {} if price is None else {"scripted": price}
    async with growing(breeding(model, limits=Limits(dollars=5)), prices=prices) as (_, agent):
        turn = await agent.send("go")

        if price is not None:
            assert (turn.status, turn.usage["scripted"]["cost"]) == ("completed", 0.0)
            assert (await agent.spending.total())["scripted"]["cost"] == 0.0
        else:
            assert (turn.status, turn.reason) == ("failed", "over_limit")
            assert "its price is unknown" in turn.error
            assert "Settings(prices=…)" in turn.error
            assert model.asked == []


async def test_a_price_that_nobody_knows_is_none_in_every_sum_it_is_part_of() -> None:
    model = ScriptedModel(call("breed", message="more"), text("enough"), each=True)
    async with growing(breeding(model, limits=Limits(depth=1, tokens=5000))) as (_, agent):
        await agent.send("go")

        assert (await agent.spending.total())["scripted"]["cost"] is None
        assert {row.cost for row in await agent.spending.list()} == {None}


@pytest.mark.slow
@pytest.mark.promise("B-4")
async def test_each_agent_knows_its_own_use_and_that_of_all_below_it() -> None:
    model = ScriptedModel(call("breed", message="more"), text("enough"), each=True)
    async with growing(cls := breeding(model, limits=Limits(depth=2)), prices=PRICES) as (world, agent):
        await agent.send("go")
        ((first,), (second,)) = (await agent.all_runs(), await (await below(world, cls, agent)).all_runs())
        child = await below(world, cls, agent)
        grandchild = await world.get_agent(cls, "b", sub=((cls, first.id), (cls, second.id)))

        own = [total(await one.spending.total(below=False)) for one in (agent, child, grandchild)]
        whole = [total(await one.spending.total()) for one in (agent, child, grandchild)]
        assert whole == [sum(own), own[1] + own[2], own[2]]
        rows = await agent.spending.list()
        assert [(len(row.agent), row.run, row.requests) for row in rows] == [
            (1, None, 2),
            (2, first.id, 2),
            (3, second.id, 2),
        ]
        assert [row for row in rows if len(row.agent) > 1] == await child.spending.list()
        assert sum(row.cost or 0 for row in rows) == pytest.approx((await agent.spending.total())["scripted"]["cost"])
        assert total(first.usage) == own[1]


async def below(world: World, cls: Any, agent: Any) -> Any:
    (run,) = await agent.all_runs()
    return await world.get_agent(cls, "b", sub=((cls, run.id),))


async def test_what_deleted_agents_have_used_stays_counted_above_them() -> None:
    model = ScriptedModel(text("one two"))
    async with growing(together(model, limits=Limits(tokens=10 * STEP))) as (_, agent):
        await agent.give(3)
        used = await agent.spending.total()
        assert len(await agent.spending.list()) == 3

        assert await agent.delete_all() == 3

        assert await agent.spending.total() == used
        assert await agent.spending.list() == []
        assert await agent.own() == {}


async def test_limits_of_a_class_are_a_budget_for_each_agent_of_it_with_all_below() -> None:
    model = ScriptedModel(call("look", id="c1"), text("well"), each=True)
    async with growing(together(model, base=Looking, budget=Limits(tokens=STEP + 20))) as (_, agent):
        for id in ("a", "b"):
            run = await agent.give_one(id)
            assert (run.status, run.reason) == ("failed", "over_limit")
            assert "for Together:b/Worker:" in (run.error or "")
        assert len(model.asked) == 2


async def test_a_model_is_told_that_the_agent_it_used_has_no_budget_left_and_goes_on() -> None:
    theirs = ScriptedModel(call("look"))
    worker = type("Spender", (Looking,), {"model": theirs, "limits": Limits(tokens=STEP + 20), "__doc__": "Spends."})
    ours = ScriptedModel(call("spender", id="c1", message="go"), text("it costs too much"))
    cls = type("Thrifty", (Root,), {"model": ours, "tools": (agent_tool(worker),)})
    async with growing(cls) as (world, agent):
        turn = await agent.send("go")

        assert (turn.status, turn.text, turn.reason) == ("completed", "it costs too much", None)
        (told,) = [json.loads(one) for one in results(ours)]
        assert (told["ok"], told["reason"], told["retryable"]) == (False, "over_limit", False)
        assert f"Limits(tokens={STEP + 20})" in told["error"]
        assert len(theirs.asked) == 1
        await check_sums(world, agent)


@pytest.mark.promise("B-4")
async def test_only_so_many_runs_of_a_whole_tree_are_under_way_at_once() -> None:
    """A lead and three workers fit: who gives several together waits, and who gives one more is refused."""
    gate = asyncio.Event()
    model = ScriptedModel(text("one two", gate=gate))
    async with growing(crew(model, limits=Limits(runs_at_once=4))) as (_, agent):
        giving = asyncio.create_task(agent.lead(1, 5))
        await until(lambda: asked(model), 3)
        refused = await agent.try_one()
        assert (refused.status, refused.reason) == ("failed", "over_limit")
        assert (
            "There are 4 unfinished runs, and the limit is Limits(runs_at_once=4) for Crew:b and all agents under it"
            in (refused.error or "")
        )
        assert len(model.asked) == 3
        gate.set()

        assert await giving == [["completed"] * 5]
        assert (await agent.try_one("other")).ok


@pytest.mark.slow
async def test_runs_that_a_crash_has_interrupted_anywhere_in_the_tree_count_for_those_at_once() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("one two", gate=gate))
    async with growing(cls := crew(model, limits=Limits(runs_at_once=4))) as (world, agent):
        giving = asyncio.create_task(agent.lead(1, 3))
        await until(lambda: asked(model), 3)
        await world.crash()
        await asyncio.gather(giving, return_exceptions=True)
        agent = await world.get_agent(cls, "b")

        refused = await agent.try_one()

        assert (refused.status, refused.reason) == ("failed", "over_limit")
        assert "There are 4 unfinished runs" in (refused.error or "")
        gate.set()
        await until(lambda: agent.count("completed"), 1)
        assert (await agent.try_one("other")).ok


@pytest.mark.promise("B-4")
async def test_only_so_many_runs_of_a_whole_tree_begin_in_a_minute_also_after_a_restart() -> None:
    model = ScriptedModel(text("one two"))
    async with growing(cls := together(model, limits=Limits(runs_per_minute=3))) as (world, agent):
        first = await agent.give(2)
        await world.clock.advance(30)
        assert (await agent.give_one("x")).ok
        refused = await agent.give_one("y")
        assert (refused.status, refused.reason) == ("failed", "over_limit")
        assert "Limits(runs_per_minute=3)" in (refused.error or "")
        await world.restart()
        agent = await world.get_agent(cls, "b")
        assert (await agent.give_one("z")).reason == "over_limit"
        await world.clock.advance(31)

        more = [await agent.give_one(id) for id in ("p", "q", "r")]

        assert [run.ok for run in (*first, *more)] == [True, True, True, True, False]


class Porter(Agent):
    """Does one thing, once it is let."""

    deps: dict[str, asyncio.Event]
    log: list[str]

    async def on_run(self, input: str) -> str:
        self.log.append(input)
        if input in self.deps:
            await self.deps[input].wait()
        return input


class Gang(Agent):
    """Has porters, and another gang beside it that has some too."""

    async def carry(self, inputs: list[str]) -> list[str]:
        return [run.status for run in await self.runs.map(Porter, inputs, concurrency=10)]

    async def carry_below(self, inputs: list[str]) -> list[str]:
        return await (await self.sub_agent(Gang, "below")).carry(inputs)

    async def carry_one(self, input: str) -> Run:
        return await self.run_agent(Porter, input, run_id=input)

    async def drop_below(self) -> None:
        await self.children.delete(Gang, "below")

    async def forget(self) -> int:
        return await self.runs.clear()


def gang(**limits: int) -> Any:
    Porter.log = []
    return type("Gang", (Gang,), {"limits": Limits(**limits)})


async def begun(*inputs: str) -> None:
    async def log() -> list[str]:
        return sorted(Porter.log)

    await until(log, sorted(inputs))


@pytest.mark.parametrize("how", ["ends", "is deleted"])
async def test_those_given_together_begin_when_the_limit_is_freed_elsewhere_in_the_tree(how: str) -> None:
    gates = {name: asyncio.Event() for name in ("held", "first", "second")}
    cls = gang(runs_at_once=2)
    async with asyncio.timeout(patience()), running(App(agents=[cls], deps=gates)) as world:
        agent: Any = await world.get_agent(cls, "b")
        held = asyncio.create_task(agent.carry_below(["held"]))
        await begun("held")
        giving = asyncio.create_task(agent.carry(["first", "second"]))
        await begun("held", "first")

        if how == "ends":
            gates["held"].set()
        else:
            await agent.drop_below()

        await begun("held", "first", "second")  # while the first still goes on
        gates["first"].set()
        gates["second"].set()
        assert await giving == ["completed", "completed"]
        await asyncio.gather(held, return_exceptions=True)


async def test_those_given_together_wait_for_the_minute_in_which_they_may_begin() -> None:
    cls = gang(runs_per_minute=2)
    async with asyncio.timeout(patience()), running(App(agents=[cls], deps={})) as world:
        agent: Any = await world.get_agent(cls, "b")
        giving = asyncio.create_task(agent.carry(["a", "b", "c", "d", "e"]))
        await begun("a", "b")
        await world.clock.advance(59)
        assert len(Porter.log) == 2
        await world.clock.advance(1)
        await begun("a", "b", "c", "d")
        refused = await agent.carry_one("x")
        assert "all agents under it. The next run may start in 60 seconds." in (refused.error or "")
        await world.clock.advance(60)

        assert await giving == ["completed"] * 5


async def test_where_no_run_may_ever_begin_nobody_waits() -> None:
    cls = gang(runs_per_minute=0)
    async with asyncio.timeout(patience()), running(App(agents=[cls], deps={})) as world:
        agent: Any = await world.get_agent(cls, "b")

        assert await agent.carry(["a", "b"]) == ["failed", "failed"]


@pytest.mark.parametrize("how", ["cleared", "deleted with who gave them"])
async def test_runs_count_for_their_minute_after_a_restart_even_if_they_are_no_more(how: str) -> None:
    cls = gang(runs_per_minute=2)
    async with asyncio.timeout(patience()), running(App(agents=[cls], deps={})) as world:
        agent: Any = await world.get_agent(cls, "b")
        if how == "cleared":
            assert await agent.carry(["a", "b"]) == ["completed"] * 2
            assert await agent.forget() == 2
        else:
            assert await agent.carry_below(["a", "b"]) == ["completed"] * 2
            await agent.drop_below()
        await world.restart()
        agent = await world.get_agent(cls, "b")

        assert (await agent.carry_one("x")).reason == "over_limit"
        await world.clock.advance(60)
        assert (await agent.carry_one("y")).ok


@pytest.mark.slow
async def test_without_limits_nobody_is_refused_and_agents_without_models_keep_no_account() -> None:
    async with growing(together(ScriptedModel(text("one two")))) as (world, agent):
        assert "sapwood_spending" not in await agent.tables()

        assert all(run.ok for run in await agent.give(20))

        assert total(await agent.spending.total()) > 0
        assert "sapwood_givers" not in await agent.tables()
        assert world.node.trees


async def test_code_that_is_refused_gets_a_typed_error() -> None:
    class Lonely(Agent):
        limits = Limits(children=0)

        async def make(self) -> None:
            await self.sub_agent(Gated, "g")

    async with growing(Lonely) as (_, agent):
        with pytest.raises(OverLimit) as refused:
            await agent.make()
        assert refused.value.limit == "children"
