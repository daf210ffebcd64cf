"""Progress and waiting at depth: what happens in a run below counts for every run above that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from tests.conformance.errands import Bench, Giving, again, boss, caller, helper, over, running, status, working
from tests.machine import patience

from sapwood import Agent, ChatAgent, Run, agent_tool, tool
from sapwood.admin.admin import Admin
from sapwood.testing import ScriptedModel, call, text

pytestmark = pytest.mark.slow

SILENCE = 120.0
LEVELS = pytest.mark.parametrize("levels", [1, 2, 3])
"""How many silent runs are between the caller and the run that speaks."""


class Words(Bench):
    """A bench with words for the deepest run to say."""

    def __init__(self) -> None:
        super().__init__()
        self.words: asyncio.Queue[str | None] = asyncio.Queue()

    async def say(self, word: str) -> None:
        """Return when the deepest run has said this."""
        self.words.put_nowait(word)
        await self.seen(word)


class Speaker(Agent):
    """Says what the test puts on the bench."""

    deps: Words

    async def on_run(self, input: Any) -> AsyncIterator[str]:
        self.deps.log.append("begun")
        while (word := await self.deps.words.get()) is not None:
            yield word
            self.deps.log.append(word)


class Middle(Agent):
    """Says nothing, and waits for the run below."""

    worker: type[Agent[Any]]
    deps: Words

    async def on_run(self, input: Any) -> Any:
        run = await self.run_agent(self.worker, input, run_id="below")
        return run.output if run.ok else run.reason


def nested(levels: int, worker: type = Speaker, middle: type = Middle) -> Any:
    """Make a class of agents with this many silent levels above the worker."""
    for level in range(levels):
        worker = type(f"{middle.__name__}{level}", (middle,), {"worker": worker})
    return worker


def nested_helper(levels: int) -> Any:
    """Make the same of chat agents, whose models use the one below."""
    found: Any = agent_tool(Speaker, description="Speaks.")
    name = "speaker"
    for level in range(levels):
        model = ScriptedModel(call(name, id=f"k{level}", message="go"), text(f"done {level}"), each=True)
        found, name = helper(model, f"Helper{level}", tools=[found]), f"helper{level}"
        found = agent_tool(found, name=name)
    return found


async def crashed(one: Any, cls: type, *waiting: asyncio.Task[Any]) -> Any:
    """Crash the world, and return the agent of the test as it is then."""
    await one.world.crash()
    await asyncio.gather(*waiting, return_exceptions=True)
    return await again(one, cls)


async def speaks_for_long(one: Any, agent: Any, bench: Words) -> None:
    """Have the deepest run say something now and then, for much longer than a run may be silent."""
    for at in range(4):
        await one.world.clock.advance(SILENCE - 20)
        assert finishes(await agent.hooks()) == []
        await bench.say(f" {at}")


def finishes(hooks: list[tuple[str, str, str]]) -> list[str]:
    return [status for hook, _, status in hooks if hook == "finish"]


async def check_speaks_after_a_crash(one: Any, cls: type, agent: Any, bench: Words) -> None:
    """Start a run and crash. Check that the run is not given up while the lowest one speaks, and ends as usual."""
    giving = asyncio.create_task(agent.give(run_id="r1"))
    await bench.seen("begun")
    agent = await crashed(one, cls, giving)
    await bench.seen("begun", 2)

    await speaks_for_long(one, agent, bench)
    bench.words.put_nowait(None)

    assert (await over(agent, "r1")).output == " 0 1 2 3"
    assert finishes(await agent.hooks()) == ["completed"]


@LEVELS
@pytest.mark.promise("A-256", "B-14", "CF-104")
async def test_after_a_restart_a_run_is_not_silent_while_one_below_speaks(level: str, levels: int) -> None:
    async with working(cls := boss(nested(levels)), bench=Words(), durability=level) as (one, agent, bench):
        await check_speaks_after_a_crash(one, cls, agent, bench)


@LEVELS
@pytest.mark.promise("A-256", "B-14", "CF-104")
async def test_after_a_restart_a_turn_waits_for_its_helper_while_one_below_speaks(levels: int) -> None:
    top = nested_helper(levels)
    ours = ScriptedModel(call(f"helper{levels - 1}", id="c1", message="go"), text("thanks"))
    async with working(cls := caller(ours, top), bench=Words()) as (one, agent, bench):
        sending = asyncio.create_task(agent.send("go"))
        await bench.seen("begun")
        agent = await crashed(one, cls, sending)
        await bench.seen("begun", 2)

        await speaks_for_long(one, agent, bench)
        bench.words.put_nowait(None)

        assert (await over(agent, "agent-tool:c1")).output == f"done {levels - 1}"
        await turn_over(agent)
        assert len(ours.asked) == 2
        assert "childStillRunning" not in str(ours.asked[-1])


async def turn_over(agent: Any) -> None:
    """Wait until the turn of a caller has completed."""
    async with asyncio.timeout(patience()):
        while [end for _, end in await agent.ends()] != ["completed"]:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.005)


class Sending(Giving, Agent):
    async def send_off(self, silence: float = SILENCE) -> None:
        await self.start_run(self.worker, "go", run_id="r1", idle_timeout=timedelta(seconds=silence))

    async def open_questions(self) -> list[str]:
        return [question.id for question in await self.questions.list()]

    async def approve_all(self) -> None:
        for question in await self.questions.list():
            await self.questions.approve(question)


class Reporting(Middle):
    """Says something once, and then waits for the run below."""

    async def on_run(self, input: Any) -> Any:
        self.report_progress(0.1)
        return await super().on_run(input)


@LEVELS
@pytest.mark.parametrize("middle", [Middle, Reporting])
@pytest.mark.promise("CF-123")
async def test_a_started_run_is_not_silent_while_one_below_speaks(levels: int, middle: type) -> None:
    async with working(boss(nested(levels, middle=middle), base=Sending), bench=Words()) as (one, agent, bench):
        await agent.send_off()
        await bench.seen("begun")

        await speaks_for_long(one, agent, bench)
        assert (await agent.one("r1")).status == "running"
        await one.world.clock.advance(SILENCE + 10)

        run = await status(agent, "r1", "interrupted")
        assert (run.reason, run.still_running) == ("no-progress", True)
        bench.words.put_nowait(None)
        assert (await over(agent, "r1")).output == " 0 1 2 3"


@LEVELS
@pytest.mark.promise("CF-123")
async def test_after_a_restart_a_started_run_counts_what_was_said_below_before(levels: int) -> None:
    async with working(cls := boss(nested(levels), base=Sending), bench=Words()) as (one, agent, bench):
        await agent.send_off()
        await bench.say("hello")
        agent = await crashed(one, cls)
        await bench.seen("begun", 2)
        await speaks_for_long(one, agent, bench)
        assert (await agent.one("r1")).status == "running"

        agent = await crashed(one, cls)
        await bench.seen("begun", 3)
        await one.world.clock.advance(SILENCE + 10)

        # The deepest run is given up by its own caller, who goes on and says so.
        assert (await over(agent, "r1")).output == "no-progress"


@LEVELS
@pytest.mark.promise("B-14", "CF-102", "CF-104")
async def test_of_a_tree_that_is_silent_the_deepest_run_is_given_up_and_its_caller_goes_on(levels: int) -> None:
    async with working(cls := boss(nested(levels)), bench=Words()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give(run_id="r1"))
        await bench.say("hello")
        agent = await crashed(one, cls, giving)
        await bench.seen("begun", 2)
        await running(agent, "r1")

        await one.world.clock.advance(SILENCE + 10)

        assert (await over(agent, "r1")).output == "no-progress"
        assert finishes(await agent.hooks()) == ["completed"]


class Hanging(Middle):
    """Hangs once the run below is over."""

    async def on_run(self, input: Any) -> Any:
        await super().on_run(input)
        await asyncio.get_running_loop().create_future()


class Insisting(Middle):
    """Asks for the run below again whenever it is given up."""

    async def on_run(self, input: Any) -> Any:
        while not (run := await self.run_agent(self.worker, input, run_id="below")).ok:
            self.deps.log.append("insists")
        return run.output


class Leaving(Middle):
    """Starts the run below, does not wait for it, and hangs."""

    async def on_run(self, input: Any) -> Any:
        await self.start_run(self.worker, input, run_id="below")
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("middle", [Hanging, Insisting, Leaving])
@pytest.mark.promise("B-14", "CF-102")
async def test_a_run_that_hangs_is_given_up_whatever_it_does_with_the_one_below(middle: type) -> None:
    async with working(cls := boss(nested(1, middle=middle)), bench=Words()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give(run_id="r1"))
        await bench.seen("begun")
        agent = await crashed(one, cls, giving)
        await bench.seen("begun", 2)

        for at in range(4):
            await one.world.clock.advance(SILENCE / 2)
            if middle is Leaving:
                await bench.say(f" {at}")
        await one.world.clock.advance(10)

        run = await status(agent, "r1", "interrupted")
        assert (run.reason, run.still_running) == ("no-progress", True)


class Awaiting(Middle):
    """Starts the run below, and waits for it later."""

    async def on_run(self, input: Any) -> Any:
        await self.start_run(self.worker, input, run_id="below", idle_timeout=None)
        return await super().on_run(input)


@pytest.mark.nightly
@pytest.mark.core("temporal")
async def test_a_started_run_that_is_awaited_counts_as_below() -> None:
    async with working(cls := boss(nested(2, middle=Awaiting)), bench=Words()) as (one, agent, bench):
        await check_speaks_after_a_crash(one, cls, agent, bench)


class Silent(Agent):
    """Ends when the test lets it, without a word."""

    deps: Words

    async def on_run(self, input: Any) -> Any:
        self.deps.log.append(f"begun {input}")
        return await self.deps.words.get()


class InTurn(Middle):
    """Has one run after the other done."""

    async def on_run(self, input: Any) -> Any:
        return [(await self.run_agent(self.worker, at, run_id=f"part {at}")).output for at in range(4)]


async def test_runs_below_that_start_and_end_are_progress_too() -> None:
    async with working(cls := boss(nested(2, nested(1, Silent, InTurn))), bench=Words()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give(run_id="r1"))
        await bench.seen("begun 0")
        agent = await crashed(one, cls, giving)
        await bench.seen("begun 0", 2)

        for at in range(4):
            await bench.seen(f"begun {at}")
            await one.world.clock.advance(SILENCE - 20)
            bench.words.put_nowait(str(at))

        assert (await over(agent, "r1")).output == ["0", "1", "2", "3"]
        assert finishes(await agent.hooks()) == ["completed"]


class Seller(ChatAgent):
    """Has to ask a person."""

    deps: Words
    model = ScriptedModel(call("sell", id="k1"), text("sold"), each=True)

    @tool(requires_approval=True)
    async def sell(self) -> str:
        """Sell."""
        self.deps.log.append("sells")
        return await self.deps.words.get() or ""


async def asked(agent: Any) -> None:
    """Wait until a run below waits for a person."""
    async with asyncio.timeout(patience()):
        while not await agent.open_questions():  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.005)


@LEVELS
@pytest.mark.parametrize("middle", [Middle, Awaiting])
@pytest.mark.parametrize("is_started", [False, True])
async def test_a_run_is_not_silent_while_one_below_waits_for_a_person(
    levels: int, middle: type, is_started: bool
) -> None:
    cls = boss(nested(levels, Seller, middle), base=Sending)
    async with working(cls, bench=Words()) as (one, agent, bench):
        giving = asyncio.create_task(agent.send_off() if is_started else agent.give("go", run_id="r1"))
        await asked(agent)
        agent = await crashed(one, cls, giving)
        await asked(agent)
        for _ in range(3):
            await one.world.clock.advance(SILENCE + 10)
        assert finishes(await agent.hooks()) == []
        await agent.approve_all()
        await bench.seen("sells")
        await one.world.clock.advance(SILENCE - 20)
        bench.words.put_nowait("well")

        assert (await over(agent, "r1")).output == "sold"
        assert finishes(await agent.hooks()) == ["completed"]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.promise("A-256", "B-14")
async def test_killed_at_any_commit_a_run_is_followed_while_one_below_speaks() -> None:
    nth, passed = 0, True
    while passed:
        nth += 1
        async with working(cls := boss(nested(2)), bench=Words()) as (one, agent, bench):
            await agent.wake()
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            giving = asyncio.create_task(agent.give("go", run_id="r1"))
            bench.words.put_nowait("hello")
            await begun_or_dead(one, bench)
            passed = one.world.points.passed["committed"] >= before + nth
            begun = bench.log.count("begun")
            agent = await crashed(one, cls, giving)
            giving = asyncio.create_task(agent.give("go", run_id="r1"))
            await bench.seen("begun", begun + 1)
            await speaks_for_long(one, agent, bench)
            bench.words.put_nowait(None)

            assert (await giving).ok
            assert finishes(await agent.hooks()) == ["completed"]


async def begun_or_dead(one: Any, bench: Words) -> None:
    async with asyncio.timeout(patience()):
        while "hello" not in bench.log and not one.world.points.ended:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.001)


class Planner(Giving, Agent):
    """Starts a run in a fiber, and ends the fiber once the run has ended or was given up."""

    async def plan(self) -> None:
        self.start_fiber("plan", self.work)

    async def work(self) -> None:
        run = await self.run_agent(self.worker, "go", run_id="r1")
        self.deps.log.append(f"planned {run.status}")


class Resting(Middle):
    """Returns the run below it."""

    async def below(self) -> Run | None:
        return self.runs.get("below")


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.promise("B-14", "CF-104", "CF-105")
async def test_a_run_given_up_by_a_fiber_that_completed_continues_with_and_without_a_restart(restarts: int) -> None:
    async with working(cls := boss(Speaker, base=Planner), bench=Words()) as (one, agent, bench):
        await agent.plan()
        await bench.seen("begun")
        agent = await crashed(one, cls)
        await bench.seen("begun", 2)
        await one.world.clock.advance(SILENCE + 1)
        await bench.seen("planned interrupted")

        if restarts:
            agent = await crashed(one, cls)
            await bench.seen("begun", 3)
        await bench.say("late")
        bench.words.put_nowait(None)

        run = await over(agent, "r1")
        assert (run.status, run.output, run.reason) == ("completed", "late", None)
        of_run = "SELECT status FROM sapwood_spans WHERE kind = 'run'"
        assert (await Admin(one.world.node).sql("Boss:b", of_run, []))["rows"] == [["completed"]]


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.promise("B-14", "CF-104", "CF-105")
async def test_a_run_given_up_by_a_turn_that_completed_continues_with_and_without_a_restart(restarts: int) -> None:
    ours = ScriptedModel(call("speaker", id="c1", message="go"), text("thanks"))
    tool_ = agent_tool(Speaker, description="Speaks.")
    async with working(cls := caller(ours, tool_), bench=Words()) as (one, agent, bench):
        sending = asyncio.create_task(agent.send("go"))
        await bench.seen("begun")
        agent = await crashed(one, cls, sending)
        await bench.seen("begun", 2)
        await one.world.clock.advance(SILENCE + 1)
        await turn_over(agent)
        assert "childStillRunning" in str(ours.asked[-1])

        if restarts:
            agent = await crashed(one, cls)
            await bench.seen("begun", 3)
        await bench.say("late")
        bench.words.put_nowait(None)

        run = await over(agent, "agent-tool:c1")
        assert (run.status, run.output, run.reason) == ("completed", "late", None)


class Asking(Giving, Agent):
    async def below(self) -> Run:
        child: Any = await self.sub_agent(self.worker, "r1")
        return await child.below()

    async def settled_below(self) -> Run:
        while (run := await self.below()).status in ("running", "interrupted"):  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.005)
        return run


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.promise("B-14", "CF-104", "CF-105")
async def test_a_run_given_up_by_a_run_that_completed_continues_with_and_without_a_restart(restarts: int) -> None:
    worker = nested(1, middle=Resting)
    async with working(cls := boss(worker, base=Asking), bench=Words()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give(run_id="r1"))
        await bench.seen("begun")
        agent = await crashed(one, cls, giving)
        await bench.seen("begun", 2)
        await one.world.clock.advance(SILENCE + 10)
        assert (await over(agent, "r1")).output == "no-progress"

        if restarts:
            agent = await crashed(one, cls)
            await agent.below()
            await bench.seen("begun", 3)
        await bench.say("late")
        bench.words.put_nowait(None)

        assert (await agent.settled_below()).output == "late"


class Failing(Resting):
    """Fails if the run below was given up."""

    async def on_run(self, input: Any) -> Any:
        raise ValueError(await super().on_run(input))


@pytest.mark.parametrize("restarts", [0, 1])
async def test_a_run_given_up_by_a_run_that_failed_is_cancelled_with_and_without_a_restart(restarts: int) -> None:
    worker = nested(1, middle=Failing)
    async with working(cls := boss(worker, base=Asking), bench=Words()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give(run_id="r1"))
        await bench.seen("begun")
        agent = await crashed(one, cls, giving)
        await bench.seen("begun", 2)
        await one.world.clock.advance(SILENCE + 10)
        assert (await over(agent, "r1")).status == "failed"
        if restarts:
            agent = await crashed(one, cls)

        async with asyncio.timeout(5):
            run = await agent.settled_below()
        assert (run.status, run.reason) == ("cancelled", "caller-cancelled")
