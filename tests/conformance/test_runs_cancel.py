"""Stopping runs: from a client, from code, from above, before they start; to the bottom, and for good."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.cases import slow
from tests.conformance.chats import Talking, cancel, dones, say, text_of
from tests.conformance.errands import (
    BOSS,
    CALLER,
    Digger,
    Giving,
    again,
    boss,
    caller,
    check_sequence,
    frames,
    helper,
    joined_later,
    kinds,
    over,
    running,
    told_end,
    told_text,
    working,
)
from tests.conformance.worlds import happens, until
from tests.machine import patience

from sapwood import Agent, ChatAgent, Run, Turn, agent_tool, expose, tool
from sapwood.testing import ScriptedModel, call, calls, text
from sapwood.testing.loop import VirtualLoop
from sapwood.timings import Timings

pytestmark = pytest.mark.core("temporal")


@pytest.mark.promise("A-100", "A-158", "A-159", "A-190", "A-191", "A-196", "A-233", "CF-94")
async def test_stop_in_a_client_stops_the_helper_and_its_models_request(level: str) -> None:
    ours = ScriptedModel(call("helper", id="c1", message="x"), text("never said"))
    theirs = ScriptedModel(text("a long story", gate=asyncio.Event()))
    async with working(cls := caller(ours, helper(theirs)), durability=level) as (one, agent, _):
        client = await one.join(CALLER)
        await say(client, "r1", "go")
        await told_text(client, "agent-tool:c1", "a")

        await cancel(client, "r1")
        end = await told_end(client, "agent-tool:c1")
        run = await over(agent, "agent-tool:c1")

        assert theirs.cancelled == 1
        assert len(ours.asked) == 1
        assert (run.status, run.reason, run.retryable) == ("cancelled", "parent-interrupted", False)
        assert end["event"] == {"kind": "aborted", "runId": "agent-tool:c1", "reason": "parent-interrupted"}
        check_sequence(frames(client, "agent-tool:c1"))
        await client.until(lambda _: dones(client, "r1"))
        child = await one.world.get_agent(cls, "c", sub=[(cls.worker, "agent-tool:c1")])
        assert [text_of(message) for message in await child.conversation.messages()] == ["x", "a"]
        await joined_later(one, CALLER, client, "agent-tool:c1")


@pytest.mark.promise("CF-97")
async def test_a_cancelled_run_of_a_living_turn_is_a_failed_tool_call_and_the_turn_goes_on() -> None:
    ours = ScriptedModel(call("helper", id="c1", message="x"), text("without it, then"))
    theirs = ScriptedModel(text("a long story", gate=asyncio.Event()))
    async with working(caller(ours, helper(theirs))) as (one, agent, _):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        await told_text(client, "agent-tool:c1", "a")

        assert await agent.stop("agent-tool:c1", "too long")
        turn = await sending

        assert turn.text == "without it, then"
        assert theirs.cancelled == 1
        told = str(ours.asked[1])
        assert '"status":"cancelled"' in told
        assert '"retryable":false' in told
        assert '"reason":"too long"' in told


async def test_a_person_who_stops_the_helper_itself_stops_the_run_and_nothing_above_it() -> None:
    ours = ScriptedModel(call("helper", id="c1", message="x"), text("without it, then"))
    theirs = ScriptedModel(text("a long story", gate=asyncio.Event()))
    async with working(caller(ours, helper(theirs))) as (one, agent, _):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        await told_text(client, "agent-tool:c1", "a")
        inside = await one.join(f"{CALLER}/sub/helper/agent-tool%3Ac1")

        await cancel(inside, "agent-tool:c1")
        turn = await sending

        assert turn.text == "without it, then"
        run = await over(agent, "agent-tool:c1")
        assert (run.status, run.reason) == ("cancelled", "cancelled")
        assert theirs.cancelled == 1


@pytest.mark.promise("A-123", "A-161", "A-195", "A-233")
async def test_a_run_cancelled_before_it_starts_never_starts_and_says_so() -> None:
    class Hasty(boss()):
        async def hurry(self) -> str:
            giving = asyncio.create_task(self.run_agent(Digger, "dig", run_id="r1"))
            await asyncio.sleep(0)
            assert self.runs.cancel("r1", "changed my mind")
            return (await giving).status

    async with working(type("Boss", (Hasty,), {})) as (one, agent, bench):
        client = await one.join(BOSS)

        assert await agent.hurry() == "cancelled"

        assert bench.log == []
        assert (await agent.one("r1")).reason == "changed my mind"
        await told_end(client, "r1")
        assert kinds(client, "r1") == ["started", "aborted"]
        check_sequence(frames(client, "r1"))
        assert (await agent.hooks())[-1] == ("finish", "r1", "cancelled")


@pytest.mark.promise("A-163")
async def test_a_cancel_while_the_helper_gets_to_its_feet_sends_no_request_to_its_model() -> None:
    gate, starting = asyncio.Event(), asyncio.Event()

    class Slow(ChatAgent):
        async def on_start(self) -> None:
            starting.set()
            await gate.wait()

    theirs = ScriptedModel(text("never"))
    async with working(caller(ScriptedModel(), helper(theirs, base=Slow))) as (_, agent, _):
        giving = asyncio.create_task(agent.give("x", run_id="r1"))
        await starting.wait()
        await agent.stop("r1", "no")
        gate.set()

        assert ((await giving).status, (await giving).reason) == ("cancelled", "no")
        assert theirs.asked == []


@pytest.mark.promise("A-163", "B-32")
async def test_a_cancel_before_the_model_is_asked_asks_it_never() -> None:
    gate, thinking = asyncio.Event(), asyncio.Event()

    class Thinking(ChatAgent):
        async def before_turn(self, turn: Any) -> None:
            thinking.set()
            await gate.wait()

    theirs = ScriptedModel(text("never"))
    async with working(caller(ScriptedModel(), helper(theirs, base=Thinking))) as (_, agent, _):
        giving = asyncio.create_task(agent.give("x", run_id="r1"))
        await thinking.wait()
        await agent.stop("r1", "no")
        gate.set()

        assert ((await giving).status, (await giving).reason) == ("cancelled", "no")
        assert theirs.asked == []


@pytest.mark.promise("A-161", "A-195")
async def test_a_turn_that_was_cancelled_starts_no_helper() -> None:
    class ComingLate(caller(None)):
        @tool
        async def late(self) -> str:
            """Come late."""
            await self.turns.cancel()
            try:
                await self.run_agent(Digger, "dig")
            except Exception as error:
                self.deps.log.append(type(error).__name__)
                raise
            return "done"

    ours = ScriptedModel(call("late", id="c1"), text("never"))
    async with working(caller(ours, base=ComingLate)) as (_, agent, bench):
        turn = await agent.send("go")

        assert turn.status == "cancelled"
        assert bench.log == ["Refused"]
        assert await agent.all_runs() == []


@pytest.mark.promise("A-262")
async def test_a_cancel_stops_the_run_of_this_agent_and_not_one_of_the_same_id_elsewhere() -> None:
    async with working(cls := boss()) as (one, agent, bench):
        others = [await one.world.get_agent(cls, "other"), await one.world.get_agent(cls, "third")]
        giving = [asyncio.create_task(one.give("wait", run_id="r1")) for one in (agent, *others)]
        await bench.seen("begun wait", 3)

        await agent.stop("r1", "enough")
        assert (await giving[0]).status == "cancelled"
        bench.go.set()

        assert [(await one).status for one in giving[1:]] == ["completed", "completed"]


async def test_a_client_that_disconnects_cancels_no_run_but_one_that_a_stream_to_it_waits_for() -> None:
    async def fetch(self: Any) -> None:
        await self.run_agent(Digger, "wait", run_id="fetched")

    async def stream(self: Any) -> AsyncIterator[str]:
        yield (await self.run_agent(Digger, "wait", run_id="streamed")).status

    async with working(boss(fetch=expose(fetch), stream=expose(stream))) as (one, agent, bench):
        client = await one.join(BOSS)
        for at, method in enumerate(("fetch", "stream")):
            await client.send({"type": "rpc", "id": str(at), "method": method, "args": []})
        await bench.seen("begun wait", 2)

        await client.close()
        streamed = await over(agent, "streamed")
        bench.go.set()

        assert (streamed.status, streamed.reason) == ("cancelled", "caller-cancelled")
        assert (await over(agent, "fetched")).status == "completed"


@pytest.mark.promise("CF-95")
async def test_a_late_cancel_changes_nothing() -> None:
    async with working(boss()) as (_, agent, _):
        run = await agent.give("dig", run_id="r1")
        failed = await agent.give("fail", run_id="r2")

        assert not await agent.stop("r1", "too late")
        assert not await agent.stop("r2", "too late")
        assert not await agent.stop("unknown", "nobody")

        assert (await agent.one("r1"), await agent.one("r2")) == (run, failed)


async def test_cancelling_twice_is_cancelling_once_and_the_first_reason_counts() -> None:
    async with working(boss()) as (_, agent, bench):
        giving = asyncio.create_task(agent.give("wait", run_id="r1"))
        await bench.seen("begun wait")

        await asyncio.gather(agent.stop("r1", "first"), agent.stop("r1", "second"))

        assert (await giving).reason == "first"
        assert bench.log.count("cut") == 1


@pytest.mark.promise("CF-95")
async def test_a_worker_that_goes_on_although_it_was_cancelled_is_aborted_all_the_same() -> None:
    class StubbornDigger(Digger):
        async def on_run(self, input: Any) -> Any:
            try:
                await super().on_run("wait")
            except asyncio.CancelledError:
                return "done all the same"

    async with working(boss(StubbornDigger)) as (_, agent, bench):
        giving = asyncio.create_task(agent.give("x", run_id="r1"))
        await bench.seen("begun wait")
        await agent.stop("r1", "enough")

        run = await giving
        assert (run.status, run.reason, run.output) == ("cancelled", "enough", None)


@pytest.mark.promise("A-162", "B-32")
async def test_a_worker_that_does_not_stop_is_stopped_hard() -> None:
    gate = asyncio.Event()

    class DeafDigger(Digger):
        async def on_run(self, input: Any) -> Any:
            self.deps.log.append("begun wait")
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    self.deps.log.append("deaf")

    async with working(boss(DeafDigger), timings=Timings(run_cancel_timeout=0.05)) as (_, agent, bench):
        giving = asyncio.create_task(agent.give("x", run_id="r1"))
        await bench.seen("begun wait")
        await agent.stop("r1", "enough")

        run = await giving
        gate.set()
        assert run.status == "cancelled"
        assert "enough" in (run.reason or "")
        assert "deaf" in bench.log


async def test_one_that_was_stopped_hard_can_be_opened_again() -> None:
    gate = asyncio.Event()

    class Mute(Digger):
        async def on_run(self, input: Any) -> Any:
            self.deps.log.append("begun wait")
            while not gate.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await gate.wait()

        async def says(self) -> str:
            return "here"

    async with working(cls := boss(Mute), timings=Timings(run_cancel_timeout=0.05)) as (one, agent, bench):
        giving = asyncio.create_task(agent.give("x", run_id="r1"))
        await bench.seen("begun wait")
        await agent.stop("r1", "enough")
        assert (await giving).status == "cancelled"
        gate.set()

        stopped = await one.world.get_agent(cls, "b", sub=((Mute, "r1"),))

        assert await stopped.says() == "here"


class MiddleAgent(Agent):
    """A plain agent whose run gives one below it."""

    deps: Any

    async def on_run(self, input: Any) -> Any:
        run = await self.run_agent(Digger, input, run_id="below")
        return run.output if run.ok else run.failure()

    async def one(self, id: str) -> Run | None:
        return self.runs.get(id)


@pytest.mark.promise("A-192")
async def test_stop_reaches_the_bottom_through_plain_agents() -> None:
    async with working(cls := boss(MiddleAgent)) as (one, agent, bench):
        giving = asyncio.create_task(agent.give("wait", run_id="r1"))
        await bench.seen("begun wait")

        await agent.stop("r1", "enough")
        run = await giving

        assert (run.status, run.reason) == ("cancelled", "enough")
        await bench.seen("cut")
        below = await over(await one.world.get_agent(cls, "b", sub=[(MiddleAgent, "r1")]), "below")
        assert below.status == "cancelled"


REASON = "the budget is spent"


class Reports:
    """Notes the reasons that its hooks are told, by level: the caller is level 0."""

    level = 0

    async def one(self: Any, id: str) -> Run | None:
        return self.runs.get(id)

    async def on_run_finish(self: Any, run: Run) -> None:
        self.deps.log.append(f"run {self.level + 1}: {run.reason}")

    async def after_turn(self: Any, turn: Turn) -> None:
        self.deps.log.append(f"turn {self.level}: {turn.reason}")


class ReportingAgent(Reports, Agent):
    """Hands its input down, to a run in which it waits."""

    below: Any = Digger

    async def on_run(self, input: Any) -> Any:
        return (await self.run_agent(self.below, input, run_id=RUN)).output


class ReportingHelper(Reports, ChatAgent):
    @tool(requires_approval=True)
    async def pay(self) -> str:
        """Pay."""
        return "paid"


class ReportingCaller(Reports, Giving, Talking): ...


RUN = "agent-tool:c1"
"""The run on each level below the caller."""


def below(kind: str, depth: int, last: Any) -> Any:
    """Return an agent as a tool, with this many levels from there on. The last one has this model."""
    cls: Any = Digger if kind == "agents" else helper(last, f"Level{depth}", base=ReportingHelper, level=depth)
    for level in range(depth - 1, 0, -1):
        if kind == "agents":
            cls = type(f"PlainLevel{level}", (ReportingAgent,), {"below": cls, "level": level})
        else:
            model, tools = ScriptedModel(DOWN, each=True), [agent_tool(cls, name="down")]
            cls = helper(model, f"Level{level}", base=ReportingHelper, level=level, tools=tools)
    return agent_tool(cls, name="down", description="Works.")


DOWN = call("down", id="c1", message="wait")


async def runs_of(one: Any, cls: Any, depth: int) -> list[Run]:
    """Return the run on each level below the caller, once it is over."""
    runs: list[Run] = []
    path: list[tuple[Any, str]] = []
    above = cls
    for _ in range(depth):
        runs.append(await over(await one.world.get_agent(cls, "c", sub=path), RUN))
        above = above.below if hasattr(above, "below") else above.tools[0].cls
        path.append((above, RUN))
    return runs


def held() -> Any:
    return ScriptedModel(text("a long story", gate=asyncio.Event()), each=True)


async def at_work(bench: Any, kind: str, model: Any) -> None:
    """Return when the last level is at work."""
    if kind == "agents":
        await bench.seen("begun wait")
        return
    async with asyncio.timeout(patience()):
        while not model.asked:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)


@pytest.mark.promise("A-194", "A-198")
@pytest.mark.parametrize("depth", [3, *slow([1, 2])])
@pytest.mark.parametrize("kind", ["helpers", "agents"])
async def test_the_reason_of_a_cancelled_turn_reaches_every_run_below_it(kind: str, depth: int) -> None:
    ours, theirs = ScriptedModel(DOWN, text("never")), held()
    cls = caller(ours, below(kind, depth, theirs), base=ReportingCaller)
    async with working(cls) as (one, agent, bench):
        client = await one.join(CALLER)
        await say(client, "r1", "go")
        await at_work(bench, kind, theirs)

        assert await agent.turns.cancel(reason=REASON)

        end = await told_end(client, RUN)
        assert end["event"] == {"kind": "aborted", "runId": RUN, "reason": REASON}
        runs = await runs_of(one, cls, depth)
        assert [(run.status, run.reason) for run in runs] == [("cancelled", REASON)] * depth
        for level in range(1, depth + 1):
            await bench.seen(f"run {level}: {REASON}")
        for level in range(depth + 1 if kind == "helpers" else 1):
            await bench.seen(f"turn {level}: {REASON}")
        assert not [line for line in bench.log if line.endswith(("interrupted", "cancelled", "None"))]
        assert ((await agent.turns.wait("r1")).status, (await agent.turns.wait("r1")).reason) == ("cancelled", REASON)


@pytest.mark.promise("A-194", "A-198")
@pytest.mark.parametrize("depth", [3, *slow([1, 2])])
@pytest.mark.parametrize("kind", ["helpers", "agents"])
async def test_the_reason_is_stored_with_the_tombstone_and_reaches_every_run_after_a_crash(
    kind: str, depth: int
) -> None:
    """The process dies right after the cancel was stored, before anything below has written anything."""
    ours, theirs = ScriptedModel(DOWN, text("never")), held()
    cls = caller(ours, below(kind, depth, theirs), base=ReportingCaller)
    async with working(cls) as (one, agent, bench):
        client = await one.join(CALLER)
        await say(client, "r1", "go")
        await at_work(bench, kind, theirs)
        await running(agent, RUN)
        await one.world.settled()

        one.world.crash_at("committed", 1)
        await asyncio.gather(agent.turns.cancel(reason=REASON), return_exceptions=True)
        await one.world.crash()
        await again(one, cls)

        runs = await runs_of(one, cls, depth)
        assert [(run.status, run.reason) for run in runs] == [("cancelled", REASON)] * depth


@pytest.mark.promise("A-194", "A-198")
@pytest.mark.parametrize("depth", [3, *slow([1, 2])])
async def test_the_reason_of_a_cancelled_run_reaches_every_run_below_it(depth: int) -> None:
    ours = ScriptedModel(DOWN, text("without it"))
    cls = caller(ours, below("agents", depth, None), base=ReportingCaller)
    async with working(cls) as (one, agent, bench):
        sending = asyncio.create_task(agent.send("go"))
        await bench.seen("begun wait")

        assert await agent.stop(RUN, REASON)

        assert (await sending).text == "without it"
        runs = await runs_of(one, cls, depth)
        assert [(run.status, run.reason) for run in runs] == [("cancelled", REASON)] * depth


@pytest.mark.promise("A-198")
@pytest.mark.parametrize("depth", [3, *slow([1, 2])])
async def test_the_reason_reaches_runs_that_wait_for_a_person(depth: int) -> None:
    ours, theirs = ScriptedModel(DOWN, text("never")), ScriptedModel(call("pay", id="p1"), each=True)
    cls = caller(ours, below("helpers", depth, theirs), base=ReportingCaller)
    async with working(cls) as (one, agent, _):
        client = await one.join(CALLER)
        await say(client, "r1", "go")
        await asked(agent)
        await one.world.settled()

        assert await agent.turns.cancel("r1", reason=REASON)

        runs = await runs_of(one, cls, depth)
        assert [(run.status, run.reason) for run in runs] == [("cancelled", REASON)] * depth


async def asked(agent: Any) -> None:
    """Return when a question waits for a person, here or below."""
    async with asyncio.timeout(patience()):
        while not await agent.questions.list():  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("x" * 10_000, "x" * 500), (7, "parent-interrupted"), *slow([(REASON, REASON), ("", "parent-interrupted")])],
)
async def test_a_client_may_give_a_reason_and_a_long_one_is_cut(reason: Any, shown: str) -> None:
    cls = caller(ScriptedModel(DOWN), below("helpers", 1, held()))
    async with working(cls) as (one, agent, _):
        client = await one.join(CALLER)
        await say(client, "r1", "go")
        await told_text(client, RUN, "a")

        await client.send({"type": "cf_agent_chat_request_cancel", "id": "r1", "reason": reason})

        run = await over(agent, RUN)
        assert (run.status, run.reason) == ("cancelled", shown)


@pytest.mark.slow
@pytest.mark.promise("A-191", "A-192", "A-196")
async def test_stop_reaches_every_request_of_the_subtree_in_one_pass() -> None:
    """Three levels, two below each: every model is cut off before anything of it is written."""
    leaf = helper(ScriptedModel(text("a long story", gate=asyncio.Event()), each=True), "Leaf")
    both = calls(call("leaf", id="l1", message="x"), call("leaf", id="l2", message="x"))
    middle = helper(ScriptedModel(both, each=True), "MiddleHelper", tools=[agent_tool(leaf)])
    two = calls(call("middle_helper", id="m1", message="x"), call("middle_helper", id="m2", message="x"))
    async with working(caller(ScriptedModel(two, text("never")), middle)) as (one, agent, _):
        client = await one.join(CALLER)
        await say(client, "r1", "go")
        async with asyncio.timeout(patience()):
            while len(leaf.model.asked) < 4:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.001)
        await running(agent, "agent-tool:m1")

        await cancel(client, "r1")
        for id in ("agent-tool:m1", "agent-tool:m2"):
            run = await over(agent, id)
            assert (run.status, run.reason) == ("cancelled", "parent-interrupted")

        assert leaf.model.cancelled == 4
        assert len(middle.model.asked) == 2


@pytest.mark.promise("A-191", "A-196")
async def test_a_stop_is_pushed_and_no_time_passes_before_every_model_is_cut_off() -> None:
    leaf = helper(ScriptedModel(text("a long story", gate=asyncio.Event()), each=True), "Leaf")
    middle = helper(ScriptedModel(call("leaf", id="l1", message="x")), "MiddleHelper", tools=[agent_tool(leaf)])
    async with working(caller(ScriptedModel(call("middle_helper", id="m1", message="x")), middle)) as (_, agent, _):
        sending = asyncio.create_task(agent.send("go"))
        await until(lambda: len(leaf.model.asked) == 1)
        loop = asyncio.get_running_loop()
        began = loop.time()

        await agent.turns.cancel()
        await until(lambda: leaf.model.cancelled == 1)

        if isinstance(loop, VirtualLoop):  # on a real one, how busy the machine is would be measured
            assert loop.time() - began < 0.05  # a poll would have let that pass
        await asyncio.gather(sending, return_exceptions=True)


async def test_whoever_stops_waiting_for_a_turn_stops_its_helpers() -> None:
    ours = ScriptedModel(call("helper", id="c1", message="x"), text("never"))
    theirs = ScriptedModel(text("a long story", gate=asyncio.Event()))
    async with working(caller(ours, helper(theirs))) as (one, agent, _):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        await told_text(client, "agent-tool:c1", "a")
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

        assert (await over(agent, "agent-tool:c1")).status == "cancelled"
        assert theirs.cancelled == 1


@pytest.mark.promise("A-118", "A-162", "B-32")
async def test_a_cancel_stops_what_a_helper_does_in_a_tool() -> None:
    class Tooled(ChatAgent):
        @tool
        async def hang(self) -> str:
            """Hang."""
            try:
                self.deps.log.append("hanging")
                await self.deps.go.wait()
            except asyncio.CancelledError:
                self.deps.log.append("cut")
                raise
            return ""

    theirs = helper(ScriptedModel(call("hang", id="h1"), text("never")), base=Tooled)
    async with working(caller(ScriptedModel(), theirs)) as (_, agent, bench):
        giving = asyncio.create_task(agent.give("x", run_id="r1"))
        await bench.seen("hanging")
        await agent.stop("r1", "enough")

        assert ((await giving).status, (await giving).reason) == ("cancelled", "enough")
        await bench.seen("cut")


@pytest.mark.promise("A-97", "B-34")
async def test_the_tombstone_survives_a_crash_and_nothing_below_it_goes_on(level: str) -> None:
    """The process dies right after the cancel was stored, before anybody below has written anything."""
    ours = ScriptedModel(call("helper", id="c1", message="x"), text("never"))
    theirs = ScriptedModel(text("a long story", gate=asyncio.Event()))
    async with working(cls := caller(ours, helper(theirs)), durability=level) as (one, agent, _):
        client = await one.join(CALLER)
        await say(client, "r1", "go")
        await told_text(client, "agent-tool:c1", "a")
        await running(agent, "agent-tool:c1")
        await one.world.settled()

        one.world.crash_at("committed", 1)
        await asyncio.gather(agent.turns.cancel("r1"), return_exceptions=True)
        await one.world.crash()
        agent = await again(one, cls)
        run = await over(agent, "agent-tool:c1")

        assert (run.status, run.reason) == ("cancelled", "parent-interrupted")
        assert (len(ours.asked), len(theirs.asked)) == (1, 1)


async def test_a_run_below_a_plain_agent_that_was_cancelled_does_not_go_on_after_a_crash(level: str) -> None:
    async with working(cls := boss(MiddleAgent), durability=level) as (one, agent, bench):
        giving = asyncio.create_task(agent.give("wait", run_id="r1"))
        await bench.seen("begun wait")
        await running(agent, "r1")
        await running(await one.world.get_agent(cls, "b", sub=[(MiddleAgent, "r1")]), "below")
        await one.world.settled()

        one.world.crash_at("committed", 1)
        await asyncio.gather(agent.stop("r1", "enough"), giving, return_exceptions=True)
        await one.world.crash()
        run = await over(await again(one, cls), "r1")
        await one.world.settled()

        assert (run.status, run.reason) == ("cancelled", "enough")
        assert bench.log.count("begun wait") == 1


@pytest.mark.promise("CF-96")
async def test_a_cancel_during_recovery_stops_it_and_the_run_stays_aborted() -> None:
    ours = ScriptedModel(call("helper", id="c1", message="x"), text("without it"))
    theirs = ScriptedModel(text("a long story", gate=asyncio.Event()))
    async with working(cls := caller(ours, helper(theirs))) as (one, agent, _):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        await told_text(client, "agent-tool:c1", "a")
        await one.world.crash()
        await asyncio.gather(sending, return_exceptions=True)
        agent = await again(one, cls)
        async with asyncio.timeout(patience()):
            while len(theirs.asked) < 2:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.001)

        assert await agent.stop("agent-tool:c1", "enough")
        run = await over(agent, "agent-tool:c1")
        await one.world.crash()
        await one.world.settled()

        assert (run.status, run.reason) == ("cancelled", "enough")
        assert (await (await again(one, cls)).one("agent-tool:c1")).status == "cancelled"
        assert len(theirs.asked) == 2


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.promise("A-160", "CF-87", "CF-94")
async def test_many_runs_leave_nothing_behind_that_listens_for_a_cancel() -> None:
    async with working(boss()) as (one, agent, _):
        await agent.give("dig", run_id="first")
        await one.world.settled()
        before, objects = len(asyncio.all_tasks()), objects_of_runs()
        for at in range(20):
            await agent.give("dig", run_id=f"r{at}")
        await agent.clear_them()
        await one.world.settled()

        assert len(asyncio.all_tasks()) < before + 5  # some of a node's own come and go

        def is_forgotten() -> bool:
            one.world.sleep()  # the sub-agents that did them
            return max((objects_of_runs() - objects).values(), default=0) < 20

        await happens(is_forgotten)


def objects_of_runs() -> Counter[str]:
    """Return how many objects there are in memory of each class that has to do with runs."""
    gc.collect()
    kinds = [type(one) for one in gc.get_objects()]
    return Counter(kind.__qualname__ for kind in kinds if str(kind.__module__).startswith("sapwood.runs."))


COUNT = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < ?) SELECT count(*) FROM c"


async def test_stop_interrupts_read_sql_and_reaches_those_beside_it() -> None:
    class Cruncher(Digger):
        """Crunches."""

        async def on_run(self, input: Any) -> Any:
            self.deps.log.append("begun crunch")
            try:
                await self.read_sql(COUNT, 1_000_000_000)
            except asyncio.CancelledError:
                self.deps.log.append("cut crunch")
                raise

    crunch, dig = agent_tool(Cruncher), agent_tool(Digger, description="Digs.")
    ours = ScriptedModel(
        calls(call("cruncher", id="c1", message="x"), call("digger", id="c2", message="wait")), text("never said")
    )
    async with working(caller(ours, crunch, dig)) as (_, agent, bench):
        sending = asyncio.create_task(agent.send("go"))
        await bench.seen("begun crunch")
        await bench.seen("begun wait")

        assert await agent.turns.cancel()

        assert (await sending).status == "cancelled"
        await bench.seen("cut")
        await bench.seen("cut crunch")
        assert {run.status for run in [await over(agent, f"agent-tool:c{n}") for n in (1, 2)]} == {"cancelled"}
