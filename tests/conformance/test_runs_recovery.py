"""Runs through crashes: re-attached, settled, given up only on silence, repaired, and never done twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sized
from typing import Any, cast

import apsw
import pytest
from tests.conformance.chats import Talking, check_history, check_transcript, said
from tests.conformance.errands import (
    BOSS,
    CALLER,
    Bench,
    Digger,
    Giving,
    again,
    boss,
    caller,
    check_sequence,
    frames,
    helper,
    kinds,
    over,
    running,
    status,
    told,
    told_end,
    told_text,
    without_replay,
    working,
)
from tests.conformance.served import served
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Refused, Run, Unavailable, agent_tool, tool
from sapwood.capabilities.children import Children
from sapwood.chat.store.record import ConversationRecord
from sapwood.kernel.node.node import Node
from sapwood.runs.execution.driver import DrivenWork, DriverPace, NodeDriver, OwnDriver, OwnPace
from sapwood.storage.database import Database
from sapwood.testing import ScriptedModel, call, calls, fails, text
from sapwood.timings import Timings
from sapwood.types import Address

pytestmark = pytest.mark.core("temporal")

SILENCE = 120.0


async def crashed(one: Any, cls: type, *waiting: asyncio.Task[Any]) -> Any:
    """Crash the world, and return the agent of the test as it is then."""
    await one.world.crash()
    await asyncio.gather(*waiting, return_exceptions=True)
    return await again(one, cls)


class Stepping(ChatAgent):
    """A helper with a tool that notes how often it runs."""

    deps: Bench

    @tool
    async def look(self) -> str:
        """Look."""
        self.deps.log.append("looked")
        return "seen"


@pytest.mark.slow
@pytest.mark.promise("A-256", "B-14", "B-33", "CF-101", "CF-112")
async def test_a_running_helper_is_attached_to_again_and_its_turn_is_not_run_again(
    level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sapwood")
    gate = asyncio.Event()
    theirs = ScriptedModel(call("look", id="k1"), text("it is there", gate=gate), text("it is there"))
    ours = ScriptedModel(call("helper", id="c1", message="look"), text("thanks"))
    async with working(cls := caller(ours, helper(theirs, base=Stepping)), durability=level) as (one, agent, bench):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        await told_text(client, "agent-tool:c1", "it")
        agent = await crashed(one, cls, sending)

        run = await over(agent, "agent-tool:c1")
        gate.set()

        assert (run.status, run.output) == ("completed", "it is there")
        assert bench.log == ["looked"]
        await status_of_turn(agent, "completed")
        assert len(await agent.all_runs()) == 1
        assert len(ours.asked) == 2
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if line.startswith("turn resumed after an interruption address=Caller:c turn=")]
    assert "waiting again for a run address=Caller:c run=agent-tool:c1 type=Helper" in lines
    child = "turn resumed after an interruption address=Caller:c/Helper:agent-tool%3Ac1 turn="
    assert [line for line in lines if line.startswith(child)]


async def test_a_run_that_code_gave_goes_on_also_if_others_have_a_class_of_that_name() -> None:
    """As in a program that imports two modules with a `Helper` in each: the one in `tools` is meant."""

    class Coded(Giving, Talking):
        @tool(idempotent=True)
        async def look_up(self) -> str:
            """Look it up."""
            return (await self.run_agent(self.worker, "look")).summary

    gate = asyncio.Event()
    ours = ScriptedModel(call("look_up", id="c1"), text("thanks"))
    mine = helper(ScriptedModel(text("it is there", gate=gate)), "Namesake")
    other = helper(ScriptedModel(text("who am I?")), "Namesake", __module__="elsewhere")
    async with working(cls := caller(ours, mine, base=Coded)) as (one, agent, _):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        await told_text(client, "agent-tool:c1:0", "it")
        agent = await crashed(one, cls, sending)
        gate.set()

        run = await over(agent, "agent-tool:c1:0")

        assert (run.status, run.output) == ("completed", "it is there")
        await status_of_turn(agent, "completed")
    assert other.__name__ == mine.__name__  # and both are still there


@pytest.mark.slow
async def test_of_agents_with_one_name_in_one_tree_each_caller_has_its_own() -> None:
    """Below a root that names none of them; also while both are used at once, and after a crash."""
    gate = asyncio.Event()

    def team(name: str, answer: str) -> Any:
        twin = helper(ScriptedModel(text(answer, gate=gate)), "Twin", __module__=name)

        class Asking(Talking):
            model = ScriptedModel(call("look_up", id="c1"), text("thanks"))
            tools = (agent_tool(twin),)

            @tool(idempotent=True)
            async def look_up(self) -> str:
                """Look it up."""
                return (await self.run_agent(twin, "where?")).summary

        return type(name, (Asking,), {})

    east, west = team("East", "the sun rises"), team("West", "the sun sets")

    class Compass(Agent):
        async def on_start(self) -> None:
            for side in (east, west):
                await self.sub_agent(side, "s")

    async with served(App(agents=[Compass])) as one:
        world = one.world
        await world.get_agent(Compass, "c")
        sides = [await world.get_agent(Compass, "c", sub=[(side, "s")]) for side in (east, west)]
        sending = [asyncio.create_task(side.send("go")) for side in sides]
        await until(lambda: world.node.trees[Address.root_of("Compass", "c")].actors, 5)
        await world.crash()
        await asyncio.gather(*sending, return_exceptions=True)
        gate.set()

        for side, answer in ((east, "the sun rises"), (west, "the sun sets")):
            agent = await world.get_agent(Compass, "c", sub=[(side, "s")])
            await status_of_turn(agent, "completed")
            (part,) = [
                part for part in (await agent.conversation.messages())[-1]["parts"] if part["type"] == "tool-look_up"
            ]
            assert part.get("output") == answer


async def until(found: Callable[[], Sized], number: int) -> None:
    """Wait until there are so many."""
    async with asyncio.timeout(patience()):
        while len(found()) < number:  # noqa: ASYNC110 - agents wake, and tell nobody
            await asyncio.sleep(0.001)


async def status_of_turn(agent: Any, wanted: str) -> None:
    """Wait until the last turn of a caller has ended so."""
    async with asyncio.timeout(patience()):
        while (ends := await agent.ends()) == [] or ends[-1][1] != wanted:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.005)


class Waiting(Giving, Talking):
    """One that tells for whom it waits."""

    async def calls(self) -> dict[str, tuple[str | None, bool]]:
        """Return whom each tool call of the first turn waits for, and whether that was answered."""
        calls = self._actor.of(ConversationRecord).turns.calls(1)
        return {call.id: (call.answerer, call.answer is not None) for call in calls}

    @tool
    async def weigh(self) -> str:
        """Weigh it."""
        return "heavy"


async def parts_after_a_crash(cls: type, *, when: dict[str, tuple[str, bool]], then: asyncio.Event) -> dict[str, Any]:
    """Crash as soon as the calls of a turn stand so; return the parts of its message when it is over."""
    only_when_flushed = Timings(chunk_flush_delay=3600.0)  # nothing is stored because it is time to
    async with working(cls, timings=only_when_flushed) as (one, agent, _):
        sending = asyncio.create_task(agent.send("go"))
        while not (await agent.calls()).items() >= when.items():  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0)
        agent = await crashed(one, cls, sending)
        then.set()
        await status_of_turn(agent, "completed")
        return {part.get("toolCallId"): part for part in (await agent.conversation.messages())[-1]["parts"]}


async def test_a_crash_just_after_a_helper_was_asked_takes_nothing_from_the_message() -> None:
    gate = asyncio.Event()
    asked = calls(call("helper", id="c1", message="look"), call("weigh", id="c2"))
    theirs = helper(ScriptedModel(text("it is there", gate=gate), text("it is there")))
    cls = caller(ScriptedModel(asked, text("thanks")), theirs, base=Waiting)

    parts = await parts_after_a_crash(cls, when={"c1": ("run", False)}, then=gate)

    assert (parts["c1"]["input"], parts["c1"]["output"]) == ({"message": "look"}, "it is there")
    assert (parts["c2"]["input"], parts["c2"]["output"]) == ({}, "heavy")


@pytest.mark.slow
async def test_a_crash_just_after_a_helper_failed_leaves_that_in_the_message() -> None:
    gate = asyncio.Event()
    asked = calls(call("loser", id="c1", message="look"), call("helper", id="c2", message="look"))
    loser = helper(ScriptedModel(fails(ValueError("it cannot be done"))), "Loser")
    other = helper(ScriptedModel(text("it is there", gate=gate), text("it is there")))
    cls = caller(ScriptedModel(asked, text("thanks")), loser, other, base=Waiting)

    parts = await parts_after_a_crash(cls, when={"c1": ("run", True), "c2": ("run", False)}, then=gate)

    assert (parts["c1"]["state"], parts["c2"]["state"]) == ("output-error", "output-available")


class RefusingDriver(OwnDriver):
    """Lets everything go on, but for what was interrupted in an agent without a parent."""

    path = "/_driver/"
    door: Any = None

    async def start(self, node: Node) -> None:
        node.shared(NodeDriver).driver = self

    async def stop(self) -> None:
        pass

    @contextlib.contextmanager
    def pacing(self, part: DrivenWork) -> Iterator[DriverPace]:
        yield OwnPace() if part.is_new or len(part.address.segments) > 1 else RefusingPace()


class RefusingPace(OwnPace):
    def asked(self) -> Any:
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused.set_exception(Refused("Somebody has ended it."))
        return refused


async def test_a_turn_that_fails_while_helpers_work_for_it_has_them_stop() -> None:
    theirs = ScriptedModel(text("it is there", gate=asyncio.Event()))
    cls = caller(ScriptedModel(call("helper", id="c1", message="look"), text("thanks")), helper(theirs))
    async with asyncio.timeout(patience()), served(App(agents=[cls], deps=Bench(), driver=RefusingDriver())) as one:
        client = await one.join(CALLER)
        sending = asyncio.create_task((await again(one, cls)).send("go"))
        await told_text(client, "agent-tool:c1", "it")
        agent = await crashed(one, cls, sending)

        await status_of_turn(agent, "failed")

        assert (await over(agent, "agent-tool:c1")).status == "cancelled"


@pytest.mark.promise("CF-114")
@pytest.mark.slow
async def test_rapid_restarts_do_not_make_a_helper_begin_again() -> None:
    gates = [asyncio.Event() for _ in range(4)]
    theirs = ScriptedModel(call("look", id="k1"), *(text("it is there", gate=gate) for gate in gates))
    ours = ScriptedModel(call("helper", id="c1", message="look"), text("thanks"))
    async with working(cls := caller(ours, helper(theirs, base=Stepping))) as (one, agent, bench):
        sending = asyncio.create_task(agent.send("go"))
        for at in range(3):
            async with asyncio.timeout(patience()):
                while len(theirs.asked) < at + 2:
                    await one.world.clock.advance(1)
            agent = await crashed(one, cls, sending)
        gates[-1].set()
        await one.world.clock.advance(60)

        assert (await over(agent, "agent-tool:c1")).output == "it is there"
        assert bench.log == ["looked"]
        await status_of_turn(agent, "completed")


@pytest.mark.slow
async def test_killed_at_any_commit_a_plain_run_ends_as_if_nothing_had_happened(level: str) -> None:
    class OnceDigger(Agent):
        deps: Bench

        async def on_run(self, input: str) -> str:
            await self.step("dig", self.dig)
            return "dug"

        async def dig(self) -> None:
            self.deps.log.append("dug")

    class Planner(boss(OnceDigger)):
        async def plan(self) -> None:
            self.start_fiber("plan", self.work)

        async def work(self) -> None:
            await self.run_agent(OnceDigger, "dig", run_id="r1")
            self.deps.log.append("planned")

    nth, passed = 0, True
    while passed:
        nth += 1
        async with working(cls := type("Boss", (Planner,), {}), durability=level) as (one, agent, bench):
            await agent.wake()
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                await agent.plan()
                await _dead_or(one, bench, "planned")
            passed = one.world.points.passed["committed"] >= before + nth
            if not passed:
                break
            agent = await crashed(one, cls)
            if (await agent.tables()).count("sapwood_fibers") == 0:
                await agent.plan()
            await bench.seen("planned")

            run = await over(agent, "r1")
            assert (run.status, run.output) == ("completed", "dug")
            assert bench.log.count("dug") in (1, 2)  # a step that had not been kept is done again
            assert [run.status for run in await agent.all_runs()] == ["completed"]


async def _dead_or(one: Any, bench: Bench, entry: str) -> None:
    async with asyncio.timeout(patience()):
        while entry not in bench.log and not one.world.points.ended:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.001)
        for _ in range(50):
            await asyncio.sleep(0)


@pytest.mark.nightly
@pytest.mark.promise("A-127", "B-33", "CF-113")
@pytest.mark.slow
async def test_killed_at_one_commit_or_another_a_turn_with_helpers_ends_as_if_nothing_had_happened() -> None:
    nth, passed = 0, True
    while passed:
        nth += 3  # every one of them is a matter of the fault tests
        theirs = ScriptedModel(call("look", id="k1"), text("it is there"), each=True)
        both = calls(call("helper", id="c1", message="look"), call("helper", id="c2", message="look too"))
        cls = caller(ScriptedModel(both, text("thanks"), each=True), helper(theirs, base=Stepping))
        async with working(cls) as (one, agent, _):
            client = await one.join(CALLER)
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                await agent.send("go")
            passed = one.world.points.passed["committed"] >= before + nth
            seen = frames(client)
            agent = await crashed(one, cls)
            if not await agent.conversation.messages():
                continue  # nothing of it was kept, and nobody was told that it was
            await status_of_turn(agent, "completed")

            runs = await agent.all_runs()
            assert {run.id: run.output for run in runs} == {
                "agent-tool:c1": "it is there",
                "agent-tool:c2": "it is there",
            }
            check_history(json.loads(await agent.seen_by_model()))
            check_transcript(await agent.conversation.messages())
            late = await one.join(CALLER)
            for run in runs:
                await told_end(late, run.id)
                replayed = without_replay(frames(late, run.id))
                check_sequence(replayed)
                live = [frame for frame in seen if frame["event"]["runId"] == run.id]
                assert replayed[: len(live)] == live


@pytest.mark.slow
@pytest.mark.promise("CF-100")
async def test_a_helper_that_ended_while_nobody_looked_is_settled_with_hooks_and_events() -> None:
    """The process dies right after the helper has stored its end, before the caller has."""
    nth = 0
    while True:
        nth += 1
        async with working(cls := boss()) as (one, agent, bench):
            giving = asyncio.create_task(agent.give("wait", run_id="r1"))
            await bench.seen("begun wait")
            await running(agent, "r1")
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            bench.go.set()
            await asyncio.gather(giving, return_exceptions=True)
            if one.world.points.passed["committed"] < before + nth:
                return
            agent = await crashed(one, cls)
            run = await over(agent, "r1")
            await one.world.settled()

            assert run.output == {"did": "wait"}
            assert bench.log.count("begun wait") <= 2
            assert ("finish", "r1", "completed") in await agent.hooks()
            client = await one.join(BOSS)
            assert (await told_end(client, "r1"))["event"]["kind"] == "finished"


@pytest.mark.promise("A-135", "CF-107")
async def test_a_run_that_had_not_begun_waits_for_whoever_gave_it_and_is_given_up_without_them() -> None:
    starting = asyncio.Event()

    class LateDigger(Digger):
        async def on_start(self) -> None:
            if not starting.is_set():
                starting.set()
                await asyncio.get_running_loop().create_future()

    async with working(cls := boss(LateDigger)) as (one, agent, bench):
        giving = asyncio.create_task(agent.give("dig", run_id="r1"))
        await starting.wait()
        agent = await crashed(one, cls, giving)
        while (await agent.one("r1")).status != "interrupted":
            await one.world.clock.advance(6)
        run = await agent.one("r1")

        assert (run.reason, run.retryable, run.still_running) == ("not-started", True, False)
        assert run.failure() == {
            "ok": False,
            "status": "interrupted",
            "error": run.error,
            "retryable": True,
            "reason": "not-started",
        }
        assert bench.log == []
        repaired = await agent.give("dig", run_id="r1")
        assert (repaired.status, repaired.output, repaired.reason) == ("completed", {"did": "dig"}, None)


class CountingAgent(Agent):
    """One that says something whenever the test lets it."""

    deps: Any

    async def on_run(self, input: Any) -> AsyncIterator[str]:
        self.deps.log.append("begun")
        yield "hello"
        while True:
            word = await self.deps.words.get()
            if word is None:
                return
            yield word


class Words(Bench):
    """A bench with words to say."""

    def __init__(self) -> None:
        super().__init__()
        self.words: asyncio.Queue[str | None] = asyncio.Queue()


@pytest.mark.promise("A-105", "A-135", "A-231", "A-256", "B-14", "CF-97", "CF-102", "CF-104", "CF-105", "CF-116")
async def test_silence_after_a_restart_gives_a_run_up_and_a_later_end_repairs_it(level: str) -> None:
    async with working(cls := boss(CountingAgent), bench=Words(), durability=level) as (one, agent, bench):
        giving = asyncio.create_task(agent.give(run_id="r1"))
        await bench.seen("begun")
        agent = await crashed(one, cls, giving)
        await bench.seen("begun", 2)
        client = await one.join(BOSS)
        await told_text(client, "r1", "hello")
        await one.world.clock.advance(SILENCE + 1)

        run = await status(agent, "r1", "interrupted")
        end = await told(client, "r1", "interrupted")
        assert (run.reason, run.retryable, run.still_running) == ("no-progress", True, True)
        assert run.failure()["childStillRunning"] is True
        assert end["event"]["reason"] == "no-progress"
        assert end["event"]["childStillRunning"] is True
        late = await one.join(BOSS)
        assert await told(late, "r1", "interrupted") == end | {"replay": True}
        assert ("finish", "r1", "interrupted") in await agent.hooks()

        bench.words.put_nowait(" again")
        bench.words.put_nowait(None)
        run = await over(agent, "r1")
        await told(client, "r1", "finished")
        assert (run.status, run.output, run.reason, run.error) == ("completed", "hello again", None, None)
        assert not run.still_running
        last = await one.join(BOSS)
        await told(last, "r1", "finished")
        assert kinds(last, "r1") == ["started", "chunk", "finished"]
        check_sequence(frames(last, "r1"))
        assert [hook for hook in await agent.hooks() if hook[0] == "finish"] == [
            ("finish", "r1", "interrupted"),
            ("finish", "r1", "completed"),
        ]


class SlowDriver:
    """A driver that says when to go on as soon as the test lets it."""

    path, door = "/_slow/", None

    def __init__(self) -> None:
        self.go: asyncio.Future[None] | None = None
        """What everybody waits for; None: nobody does."""

    async def start(self, node: Any) -> None:
        node.shared(NodeDriver).driver = self

    async def stop(self) -> None:
        pass

    @contextlib.contextmanager
    def pacing(self, part: DrivenWork) -> Generator[Any, None, None]:
        pace: Any = OwnPace()
        pace.asked = lambda: self.go
        yield pace

    async def over(self, part: DrivenWork, status: str, reason: str | None = None) -> None:
        pass


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("helps", ["method", "turn"])
async def test_a_run_whose_driver_does_not_say_when_to_go_on_is_not_taken_for_silent(helps: str) -> None:
    driver, bench = SlowDriver(), Words()
    worker = CountingAgent if helps == "method" else helper(ScriptedModel(text("hello", gate=asyncio.Event())))
    cls = boss(worker)
    app = App(agents=[cls], deps=bench, driver=cast("Any", driver))
    async with asyncio.timeout(patience()), served(app) as one:
        giving = asyncio.create_task((await again(one, cls)).give("x", run_id="r1"))
        await told_text(await one.join(BOSS), "r1", "hel")
        driver.go = asyncio.get_running_loop().create_future()
        agent = await crashed(one, cls, giving)
        await running(agent, "r1")

        for _ in range(3):
            await one.world.clock.advance(SILENCE + 1)

        assert (await agent.one("r1")).status == "running"
        driver.go.set_result(None)
        await told_text(await one.join(BOSS), "r1", "hellohel" if helps == "method" else "hel")
        await one.world.clock.advance(SILENCE + 1)
        assert (await status(agent, "r1", "interrupted")).reason == "no-progress"


@pytest.mark.promise("CF-107")
async def test_an_interrupted_run_that_goes_on_is_attached_to_by_asking_for_it_again() -> None:
    async with working(cls := boss(CountingAgent), bench=Words()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give(run_id="r1"))
        await bench.seen("begun")
        agent = await crashed(one, cls, giving)
        await bench.seen("begun", 2)
        await one.world.clock.advance(SILENCE + 1)
        await status(agent, "r1", "interrupted")

        again_ = asyncio.create_task(agent.give(run_id="r1"))
        await running(agent, "r1")
        bench.words.put_nowait(None)

        assert ((await again_).status, (await again_).output) == ("completed", "hello")
        assert bench.log == ["begun", "begun"]


async def test_a_run_that_was_asked_for_again_and_stays_silent_is_given_up_again() -> None:
    async with working(cls := boss(CountingAgent), bench=Words()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give(run_id="r1"))
        await bench.seen("begun")
        agent = await crashed(one, cls, giving)
        await bench.seen("begun", 2)
        await one.world.clock.advance(SILENCE + 1)
        await status(agent, "r1", "interrupted")

        again_ = asyncio.create_task(agent.give(run_id="r1"))
        await running(agent, "r1")
        await one.world.clock.advance(SILENCE + 1)

        assert ((await again_).status, (await again_).reason) == ("interrupted", "no-progress")


@pytest.mark.nightly
@pytest.mark.promise("B-14", "CF-104")
@pytest.mark.slow
async def test_a_run_that_says_something_now_and_then_is_followed_for_any_time() -> None:
    async with working(cls := boss(CountingAgent), bench=Words()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give(run_id="r1"))
        await bench.seen("begun")
        agent = await crashed(one, cls, giving)
        await bench.seen("begun", 2)
        client = await one.join(BOSS)
        for at in range(5):
            await one.world.clock.advance(SILENCE - 20)
            bench.words.put_nowait(f" {at}")
            await client.until(lambda frame, at=at: f" {at}" in str(frame))
        assert (await agent.one("r1")).status == "running"
        bench.words.put_nowait(None)

        assert (await over(agent, "r1")).ok


async def test_without_a_restart_a_run_may_be_silent_for_any_time() -> None:
    async with working(boss()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give("wait", run_id="r1"))
        await bench.seen("begun wait")
        await one.world.clock.advance(100_000)
        assert (await agent.one("r1")).status == "running"
        bench.go.set()

        assert (await giving).ok


@pytest.mark.promise("CF-102", "CF-103")
async def test_a_helper_that_never_gets_to_its_feet_costs_only_itself() -> None:
    stuck: list[str] = []

    class StuckDigger(Digger):
        async def on_start(self) -> None:
            if self.name in stuck:
                self.deps.log.append("stuck")
                await asyncio.get_running_loop().create_future()

    async with working(cls := boss(StuckDigger)) as (one, agent, bench):
        giving = [asyncio.create_task(agent.give("wait", run_id=id)) for id in ("r1", "r2", "r3")]
        await bench.seen("begun wait", 3)
        stuck.append("r2")
        agent = await crashed(one, cls, *giving)
        bench.go.set()

        assert (await over(agent, "r1")).ok
        assert (await over(agent, "r3")).ok
        await bench.seen("stuck")
        await one.world.clock.advance(SILENCE + 1)
        run = await status(agent, "r2", "interrupted")
        assert (run.reason, run.still_running) == ("inspect-timeout", True)


@pytest.mark.nightly
@pytest.mark.promise("CF-108")
@pytest.mark.slow
async def test_a_helper_that_cannot_be_inspected_is_given_up_with_hook_and_event() -> None:
    broken: list[bool] = []

    class BrokenDigger(Digger):
        async def on_start(self) -> None:
            if broken:
                self.deps.log.append("broken")
                raise Unavailable("the disk is away")

    async with working(cls := boss(BrokenDigger)) as (one, agent, bench):
        giving = asyncio.create_task(agent.give("wait", run_id="r1"))
        await bench.seen("begun wait")
        broken.append(True)
        agent = await crashed(one, cls, giving)
        client = await one.join(BOSS)
        await bench.seen("broken")
        await one.world.clock.advance(SILENCE + 1)

        run = await status(agent, "r1", "interrupted")
        assert (run.reason, run.still_running) == ("inspect-failed", True)
        await told(client, "r1", "interrupted")
        async with asyncio.timeout(patience()):
            while ("finish", "r1", "interrupted") not in await agent.hooks():  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.005)
        broken.clear()
        bench.go.set()
        assert (await agent.give("wait", run_id="r1")).ok


@pytest.mark.promise("CF-109", "CF-110")
async def test_a_caller_answers_while_its_runs_are_attached_to_and_hooks_wait_for_its_start() -> None:
    order: list[str] = []
    gate = asyncio.Event()

    class Slow(Giving, Agent):
        worker = Digger

        async def on_start(self) -> None:
            order.append("starting")
            await gate.wait()
            order.append("started")

        async def on_run_finish(self, run: Run) -> None:
            order.append(f"finish {run.id}")
            if run.id == "r1":
                raise ValueError("not now")

    cls = type("Boss", (Slow,), {})
    gate.set()
    async with working(cls) as (one, agent, bench):
        giving = [asyncio.create_task(agent.give("wait", run_id=id)) for id in ("r1", "r2")]
        await bench.seen("begun wait", 2)
        gate.clear()
        order.clear()
        await one.world.crash()
        await asyncio.gather(*giving, return_exceptions=True)
        bench.go.set()
        await asyncio.sleep(0.05)
        assert "started" not in order
        gate.set()
        agent = await again(one, cls)
        assert await agent.wake() == "awake"
        for id in ("r1", "r2"):
            assert (await over(agent, id)).ok
        async with asyncio.timeout(patience()):
            while len(order) < 4:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.005)

        assert order[:2] == ["starting", "started"]
        assert sorted(order[2:4]) == ["finish r1", "finish r2"]


@pytest.mark.promise("A-108", "A-110", "A-228", "CF-109")
async def test_what_had_ended_before_a_restart_is_left_alone_however_often(level: str) -> None:
    async with working(cls := boss(), durability=level) as (one, agent, bench):
        for input in ("dig", "fail"):
            await agent.give(input, run_id=input)
        giving = asyncio.create_task(agent.give("wait", run_id="stopped"))
        await bench.seen("begun wait")
        await agent.stop("stopped", "enough")
        await giving
        runs, hooks = await agent.all_runs(), await agent.hooks()
        children = await agent.child_names()

        for _ in range(3):
            agent = await crashed(one, cls)
            await one.world.settled()

        assert await agent.all_runs() == runs
        assert await agent.hooks() == hooks
        assert await agent.child_names() == children


@pytest.mark.promise("CF-119")
async def test_an_interrupted_run_takes_no_place_among_those_allowed() -> None:
    async with working(cls := boss(CountingAgent, max_concurrent_runs=1), bench=Words()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give(run_id="r1"))
        await bench.seen("begun")
        agent = await crashed(one, cls, giving)
        await bench.seen("begun", 2)
        assert (await agent.give(run_id="r2")).status == "failed"
        await one.world.clock.advance(SILENCE + 1)
        await status(agent, "r1", "interrupted")
        bench.words.put_nowait(None)
        bench.words.put_nowait(None)

        assert (await agent.give(run_id="r3")).ok


async def test_an_interrupted_run_can_be_cancelled_for_good() -> None:
    async with working(cls := boss(CountingAgent), bench=Words()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give(run_id="r1"))
        await bench.seen("begun")
        agent = await crashed(one, cls, giving)
        await bench.seen("begun", 2)
        await one.world.clock.advance(SILENCE + 1)
        await status(agent, "r1", "interrupted")

        assert await agent.stop("r1", "enough")

        run = await over(agent, "r1")
        assert (run.status, run.reason) == ("cancelled", "enough")


async def test_code_in_a_tool_finds_its_runs_again_after_a_crash(level: str) -> None:
    class Comparing(caller(None)):
        @tool(idempotent=True)
        async def compare(self) -> list[Any]:
            """Compare."""
            runs = [await self.run_agent(Digger, one) for one in ("a", "wait")]
            return [run.output for run in runs]

    ours = ScriptedModel(call("compare", id="c1"), text("compared"))
    async with working(cls := caller(ours, base=Comparing), durability=level) as (one, agent, bench):
        sending = asyncio.create_task(agent.send("go"))
        await bench.seen("begun wait")
        agent = await crashed(one, cls, sending)
        bench.go.set()
        await status_of_turn(agent, "completed")

        assert [(run.id, run.status) for run in await agent.all_runs()] == [
            ("agent-tool:c1:0", "completed"),
            ("agent-tool:c1:1", "completed"),
        ]
        assert bench.log.count("begun a") == 1


async def test_what_a_helper_said_before_a_crash_is_not_lost_to_those_who_watch() -> None:
    gate = asyncio.Event()
    theirs = ScriptedModel(text("once upon a time", gate=gate), text("once upon a time"))
    ours = ScriptedModel(call("helper", id="c1", message="x"), text("thanks"))
    async with working(cls := caller(ours, helper(theirs))) as (one, agent, _):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        await told_text(client, "agent-tool:c1", "once")
        agent = await crashed(one, cls, sending)
        await over(agent, "agent-tool:c1")
        late = await one.join(CALLER)
        await told_end(late, "agent-tool:c1")

        bodies = [json.loads(frame["event"]["body"]) for frame in frames(late) if frame["event"]["kind"] == "chunk"]
        assert said(bodies) == "onceonce upon a time"
        starts = [body["id"] for body in bodies if body["type"] == "text-start"]
        ends = [body["id"] for body in bodies if body["type"] == "text-end"]
        assert sorted(starts) == sorted(ends)


async def test_a_helper_that_falls_asleep_just_before_its_run_begins_is_woken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Filed(Digger):
        migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)

        async def on_start(self) -> None:
            self.sql("INSERT INTO notes VALUES ('awake')")

    get, slept = Children.get, list[Any]()
    async with working(boss(Filed)) as (one, agent, _):

        async def get_and_sleep(self: Children, cls: type, name: str, **options: Any) -> Any:
            child = await get(self, cls, name, **options)
            if not slept:
                slept.append(child)  # kept, as by whoever was about to use it
                one.world.sleep()
            return child

        monkeypatch.setattr(Children, "get", get_and_sleep)
        run = await agent.give("dig", run_id="r1")

        with pytest.raises(Unavailable):  # the file can be opened once, and that is not for who sleeps
            slept[0].database.execute("SELECT 1")
        assert (run.status, run.output) == ("completed", {"did": "dig"})


async def test_a_run_ends_though_nothing_of_its_helper_can_be_read_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Database._read_versions

    def unreadable(self: Database, connection: apsw.Connection) -> None:
        if self.path.name.endswith("-1.db"):
            raise apsw.CorruptError("database disk image is malformed")
        read(self, connection)

    async with working(cls := boss()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give("wait", run_id="r1"))
        await bench.seen("begun wait")
        await running(agent, "r1")
        monkeypatch.setattr(Database, "_read_versions", unreadable)
        agent = await crashed(one, cls, giving)

        run = await over(agent, "r1")

        assert run.status == "failed"
        assert "malformed" in (run.error or "")
        client = await one.join(BOSS)
        assert (await told_end(client, "r1"))["event"]["kind"] == "error"


async def test_a_run_given_up_for_its_silence_that_turns_out_never_to_have_begun_says_so() -> None:
    starting, gate = asyncio.Event(), asyncio.Event()

    class DiggerThatNeverBegan(Digger):
        async def on_start(self) -> None:
            if starting.is_set():
                await gate.wait()
            else:
                starting.set()
                await asyncio.get_running_loop().create_future()

    async with working(cls := boss(DiggerThatNeverBegan)) as (one, agent, bench):
        giving = asyncio.create_task(agent.give("dig", run_id="r1"))
        await starting.wait()
        agent = await crashed(one, cls, giving)
        await one.world.clock.advance(SILENCE + 1)
        run = await status(agent, "r1", "interrupted")
        assert (run.reason, run.still_running) == ("inspect-timeout", True)

        gate.set()
        async with asyncio.timeout(patience()):
            while (await agent.one("r1")).reason != "not-started":
                await one.world.clock.advance(6)

        run = await agent.one("r1")
        assert (run.status, run.still_running, bench.log) == ("interrupted", False, [])
        assert (await agent.give("dig", run_id="r1")).status == "completed"


async def test_whoever_comes_later_hears_that_a_run_was_given_up_after_all_it_has_said_since() -> None:
    async with working(cls := boss(CountingAgent), bench=Words()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give(run_id="r1"))
        await told_text(await one.join(BOSS), "r1", "hello")
        agent = await crashed(one, cls, giving)
        await told_text(await one.join(BOSS), "r1", "hellohello")
        await one.world.clock.advance(SILENCE + 1)
        await status(agent, "r1", "interrupted")
        client = await one.join(BOSS)
        bench.words.put_nowait(" again")
        await told_text(client, "r1", "hellohello again")

        late = await one.join(BOSS)
        await told(late, "r1", "interrupted")

        check_sequence(frames(late, "r1"))
        bench.words.put_nowait(None)
        await over(agent, "r1")


@pytest.mark.slow
async def test_a_run_that_had_ended_when_the_process_did_has_ended_so_though_it_is_stopped_now() -> None:
    class HeldDigger(Digger):
        hold: asyncio.Event | None = None

        async def on_start(self) -> None:
            if self.hold is not None:
                await self.hold.wait()

        async def own(self) -> list[str]:
            return [str(status) for (status,) in self._actor.database.execute("SELECT status FROM sapwood_served_runs")]

    nth = 0
    while True:
        nth += 1
        async with working(cls := boss(HeldDigger), timings=Timings(run_cancel_timeout=0.05)) as (one, agent, bench):
            giving = asyncio.create_task(agent.give("wait", run_id="r1"))
            await bench.seen("begun wait")
            await running(agent, "r1")
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            bench.go.set()
            await asyncio.gather(giving, return_exceptions=True)
            if one.world.points.passed["committed"] < before + nth:
                return
            HeldDigger.hold = asyncio.Event()
            agent = await crashed(one, cls)
            await agent.stop("r1", "enough")
            run = await over(agent, "r1")
            HeldDigger.hold.set()
            HeldDigger.hold = None

            child = await one.world.get_agent(cls, "b", sub=((HeldDigger, "r1"),))
            await one.world.settled()
            assert await child.own() == [run.status]
            assert run.output == ({"did": "wait"} if run.ok else None)


async def until_end(agent: Any, run: str) -> list[tuple[int, str]]:
    """Return the number and kind of all that is told of a run."""
    told: list[tuple[int, str]] = []
    async with contextlib.aclosing(agent.subscribe()) as events:
        async for event in events:
            if event.run_id == run:
                told.append((event.seq, event.kind))
                if event.kind == "cancelled":
                    break
    return told


async def test_what_a_helper_closes_after_its_run_was_stopped_is_not_told_after_the_end() -> None:
    class Late(ChatAgent):
        """Takes its time to wake after a crash."""

        model = ScriptedModel(call("dig", id="k1"), text("never"))
        hold: asyncio.Event | None = None
        deps: Bench

        async def on_start(self) -> None:
            if self.hold is not None:
                await self.hold.wait()

        @tool
        async def dig(self) -> str:
            """Dig."""
            self.deps.log.append("digs")
            await asyncio.Event().wait()
            return "dug"

    ours = ScriptedModel(call("late", id="c1", message="dig"), text("without it"))
    async with working(cls := caller(ours, Late)) as (one, agent, bench):
        sending = asyncio.create_task(agent.send("go"))
        await bench.seen("digs")
        Late.hold = asyncio.Event()
        agent = await crashed(one, cls, sending)
        live, listening = await one.join(CALLER), asyncio.create_task(until_end(agent, "agent-tool:c1"))
        await agent.stop("agent-tool:c1", "enough")
        run = await over(agent, "agent-tool:c1")
        await told_end(live, "agent-tool:c1")
        Late.hold.set()
        child = await one.world.get_agent(cls, "c", sub=((Late, "agent-tool:c1"),))
        turn = await child.turns.wait("agent-tool:c1")
        await one.world.settled()

        assert (run.status, turn.status) == ("cancelled", "cancelled")
        late = await one.join(CALLER)
        await told_end(late, "agent-tool:c1")
        for client in (live, late):
            check_sequence(frames(client, "agent-tool:c1"))
            assert kinds(client, "agent-tool:c1")[-1] == "aborted"
        assert await until_end(agent, "agent-tool:c1") == await listening
