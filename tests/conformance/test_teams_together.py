"""Where the parts of teams meet: what rests is stopped, cleared and kept like what goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.conformance.drivers import running
from tests.conformance.worlds import asleep
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Retention, Run, Turn, Unavailable, agent_tool, on_child_state, tool
from sapwood.capabilities.children import Children
from sapwood.chat.turn.intake import Intake
from sapwood.kernel.durability.local_gates import DiskGate
from sapwood.kernel.trees.deletion import child_stem
from sapwood.kernel.trees.usage import Spent
from sapwood.runs.dispatch.run_monitors import RunMonitors
from sapwood.storage.database import Database
from sapwood.testing import ScriptedModel, World, call, text
from sapwood.types import PathSegment

RUN = "agent-tool:c1"
SLOW = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) SELECT max(i) FROM n"


class PactDeep(ChatAgent):
    """Asks before it signs."""

    model = ScriptedModel(call("sign", id="k"), text("signed"), each=True)
    signed: list[str]
    may_ask: asyncio.Event

    async def before_turn(self, turn: Turn) -> None:
        await PactDeep.may_ask.wait()

    @tool(requires_approval=True)
    async def sign(self) -> str:
        """Sign it."""
        PactDeep.signed.append("it")
        return "a name"

    async def wipe(self) -> None:
        await self.conversation.clear()

    async def hear(self, said: str) -> None:
        message = {"id": "u9", "role": "user", "parts": [{"type": "text", "text": said}]}
        self._actor.of(Intake).ask([message], id="r9")


class PactMiddle(ChatAgent):
    """Asks the one below."""

    model = ScriptedModel(call("pact_deep", id="c1", message="go"), text("middle done"), each=True)
    tools = (agent_tool(PactDeep),)

    async def forget_runs(self) -> int:
        return await self.runs.clear()

    async def delegates(self) -> bool:
        return bool(self.runs.list("running"))

    async def rests(self) -> bool:
        return self._actor.of(RunMonitors).rests(RUN)


class PactTop(ChatAgent):
    """Asks the one below."""

    model = ScriptedModel(call("pact_middle", id="c1", message="go"), text("all done"), each=True)
    tools = (agent_tool(PactMiddle),)

    async def begin(self) -> None:
        message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "go"}]}
        self._actor.of(Intake).ask([message], id="r1")

    async def all_runs(self) -> list[Run]:
        return self.runs.list()

    async def has_middle(self) -> bool:
        return self.children.has(PactMiddle, RUN)

    async def forget_runs(self) -> int:
        return await self.runs.clear()

    async def rests(self) -> bool:
        return self._actor.of(RunMonitors).rests(RUN)

    async def count(self) -> None:
        await self.read_sql(SLOW)


class PactStalled(PactTop):
    """Asks the one below, once its model speaks."""

    stall_timeout = 60.0


CHAIN: tuple[tuple[type[Any], str], ...] = ((PactMiddle, RUN), (PactDeep, RUN))


@pytest.fixture(autouse=True)
def signed() -> list[str]:
    PactDeep.signed, PactDeep.may_ask = [], asyncio.Event()
    PactDeep.may_ask.set()
    return PactDeep.signed


@asynccontextmanager
async def resting(*, sleeps: bool = True, **settings: Any) -> AsyncGenerator[World, None]:
    """Have a question wait two levels down, and everybody rest or sleep."""
    async with asyncio.timeout(patience()), running(App(agents=[PactTop]), **settings) as world:
        top = await world.get_agent(PactTop, "t")
        await top.begin()
        while not await top.questions.list():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        while not await top.rests():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        if sleeps:
            await asleep(world)
        yield world


async def below(world: World, depth: int) -> Any:
    return await world.get_agent(PactTop, "t", sub=CHAIN[:depth])


async def ended(world: World) -> Any:
    async with asyncio.timeout(patience()):
        while True:
            try:
                return await (await world.get_agent(PactTop, "t")).turns.wait("r1")
            except Unavailable:
                await asyncio.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["is stopped there", "is answered"])
async def test_what_follows_is_durable_only_after_those_above_are_woken(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    order: list[tuple[str, str]] = []
    follows = DiskGate.follows

    def noted(self: DiskGate, database: Database, other: Database) -> None:
        order.append((database.path.stem, other.path.stem))
        follows(self, database, other)

    async with resting(sleeps=False, durability="disk") as world:
        monkeypatch.setattr(DiskGate, "follows", noted)
        deep = await below(world, 2)
        assert await (deep.turns.cancel(RUN) if how == "is stopped there" else deep.questions.deny("k"))
        assert (await ended(world)).status == "completed"
    middle = child_stem("root", 1)
    assert (child_stem(middle, 1), middle) in order


async def in_read_sql(world: World, agent: Any) -> asyncio.Task[None]:
    """Have an agent of the only tree run a query in read_sql."""
    counting = asyncio.create_task(agent.count())
    trees = world.node.trees.values()
    while not any(one.readers for tree in trees for one in tree.databases.values()):  # noqa: ASYNC110
        await asyncio.sleep(0)
    return counting


@pytest.mark.slow
@pytest.mark.parametrize("how", ["is stopped there", "is told something else", "is cleared there"])
async def test_who_asks_and_ends_otherwise_has_those_above_go_on(how: str) -> None:
    async with resting() as world:
        deep = await below(world, 2)
        if how == "is stopped there":
            assert await deep.turns.cancel(RUN)
        elif how == "is cleared there":
            await deep.wipe()
        else:
            await deep.hear("never mind")

        assert (await ended(world)).status == "completed"
        assert PactDeep.signed == []


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
async def test_who_rests_is_stopped_during_read_sql_of_one_above(depth: int) -> None:
    async with resting(sleeps=False) as world:
        agent = await below(world, depth)
        counting = await in_read_sql(world, await world.get_agent(PactTop, "t"))
        assert await agent.turns.cancel(RUN)
        await counting

        assert (await ended(world)).status == "completed"
        assert (await agent.turns.wait(RUN)).status == "cancelled"
        assert PactDeep.signed == []


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1])
async def test_who_waits_for_a_run_that_rests_and_is_cleared_goes_on(depth: int) -> None:
    async with resting() as world:
        agent = await below(world, depth) if depth else await world.get_agent(PactTop, "t")
        assert await agent.forget_runs() == 1

        turn = await ended(world)
        assert turn.status == ("completed" if depth else "failed")
        assert await (await world.get_agent(PactTop, "t")).questions.list() == []
        await asleep(world)


class PactKeeper(PactTop):
    """Keeps none of the runs that are over."""

    model = ScriptedModel(call("pact_talker", id="c1", message="go"), text("all done"), each=True)
    run_retention = Retention(count=0)

    async def unpin(self, id: str) -> None:
        self.runs.unpin(id)


class PactTalker(PactDeep):
    """Does its run at once, and asks when somebody talks to it later."""

    model = ScriptedModel(text("done"), call("sign", id="k"), text("signed"))


PactKeeper.tools = (agent_tool(PactTalker),)


@pytest.mark.slow
async def test_a_run_is_kept_while_somebody_is_asked_in_a_later_turn_of_its_sub_agent() -> None:
    async with asyncio.timeout(patience()), running(App(agents=[PactKeeper])) as world:
        keeper = await world.get_agent(PactKeeper, "t")
        await keeper.begin()
        assert (await keeper.turns.wait("r1")).status == "completed"
        talker = await world.get_agent(PactKeeper, "t", sub=((PactTalker, RUN),))
        await talker.hear("one more thing")
        while not await keeper.questions.list():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

        await world.clock.advance(61)
        await world.settled()
        (approval,) = await keeper.questions.list()
        assert await keeper.questions.approve(approval)
        assert (await talker.turns.wait("r9")).status == "completed"
        assert PactDeep.signed == ["it"]

        await world.clock.advance(300)
        await world.settled()
        assert [run.pinned for run in await keeper.all_runs()] == [True]  # a person has decided in it

        await keeper.unpin(RUN)
        await world.clock.advance(300)
        await world.settled()
        assert await keeper.all_runs() == []


class PactGauge(Agent[int]):
    """Shows what it measured."""

    initial_state = 0

    async def on_run(self, input: int) -> int:
        self.set_state(input)
        return input


class PactReader(Agent):
    """Keeps no run, and is told of what they showed."""

    run_retention = Retention(count=0)
    may_read: asyncio.Event
    read: list[int]

    async def measure(self, number: int) -> Run:
        return await self.run_agent(PactGauge, number, run_id="r1")

    async def all_runs(self) -> list[Run]:
        return self.runs.list()

    @on_child_state(PactGauge)
    async def note(self, child: PathSegment, state: int) -> None:
        await PactReader.may_read.wait()
        PactReader.read.append(state)


async def test_a_run_is_kept_until_its_sub_agent_has_told_its_state() -> None:
    PactReader.may_read, PactReader.read = asyncio.Event(), []
    async with asyncio.timeout(patience()), running(App(agents=[PactReader])) as world:
        reader = await world.get_agent(PactReader, "t")
        assert (await reader.measure(7)).ok
        await world.clock.advance(61)
        assert [run.id for run in await reader.all_runs()] == ["r1"]

        PactReader.may_read.set()
        await world.clock.advance(300)
        await world.settled()
        assert await reader.all_runs() == []
        assert PactReader.read == [7]


class PactRunner(Agent):
    """Arrives when it may."""

    may_arrive: asyncio.Event

    async def on_run(self, input: str) -> str:
        await PactRunner.may_arrive.wait()
        return input


class PactSpender(Agent):
    """Is asked what its tree has used."""

    async def lose(self, kept: dict[str, Spent]) -> dict[str, Any]:
        """Count two models, and go on with what a loss of power has left of that in the agent that asked them."""
        child = await self._actor.of(Children).get(PactRunner, "c")
        spending = self._actor.home.spending  # pyright: ignore[reportAttributeAccessIssue]
        for model in ("large", "small"):
            spending.add(child, "r1", model, Spent(1, 50, 5))
        spending.put_right(child, "r1", kept)
        return {model: used["requests"] for model, used in (await self.spending.total()).items()}

    async def lose_all(self) -> dict[str, Any]:
        return await self.lose({})

    async def lose_one(self) -> dict[str, Any]:
        return await self.lose({"small": Spent(1, 50, 5)})


@pytest.mark.parametrize(("what", "left"), [("all", {"large": 0, "small": 0}), ("one", {"large": 0, "small": 1})])
async def test_what_a_loss_of_power_took_from_a_turn_is_not_counted_at_the_root(
    what: str, left: dict[str, int]
) -> None:
    async with running(App(agents=[PactSpender])) as world:
        spender = await world.get_agent(PactSpender, "t")
        assert await (spender.lose_all() if what == "all" else spender.lose_one()) == left


@pytest.mark.slow
async def test_a_resting_turn_is_cancelled_also_if_its_model_has_stalled() -> None:
    model = ScriptedModel(text("well", gate=asyncio.Event()), call("pact_middle", id="c1", message="go"))
    PactStalled.model = model
    async with asyncio.timeout(patience()), running(App(agents=[PactStalled])) as world:
        top = await world.get_agent(PactStalled, "t")
        await top.begin()
        while len(model.asked) < 2:
            await world.clock.advance(61)
            await asyncio.sleep(0.005)
        while not await top.rests():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

        assert await top.turns.cancel("r1")

        assert (await top.turns.wait("r1")).status == "cancelled"
