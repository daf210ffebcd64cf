"""Runs that nobody waits for are told of once each way, also after a crash: to a method, and to the conversation."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from tests.cases import slow
from tests.conformance.chats import NONE, Talking, check_history, check_transcript, idle, resume, text_of
from tests.conformance.chats import over as turns_over
from tests.conformance.errands import (
    BOSS,
    Bench,
    Digger,
    Giving,
    again,
    boss,
    caller,
    check_sequence,
    frames,
    helper,
    joined_later,
    over,
    told,
    working,
)
from tests.conformance.served import Served
from tests.machine import patience

from sapwood import Agent, ChatAgent, Limits, Run, agent_tool, deadline, tool
from sapwood.errors import InvalidArguments, Refused, TimedOut, Unavailable, UsageError
from sapwood.kernel.marshal.agent_class import known
from sapwood.testing import ScriptedModel, call, text
from sapwood.types import DeadLetter

HOUR = 3600.0


class Sending(Giving):
    """What agents have that send others off, and are called when they are done."""

    migrations = (*Giving.migrations, "CREATE TABLE news (run TEXT NOT NULL, status TEXT NOT NULL) STRICT")

    async def send_off(
        self: Any, input: Any, run_id: str | None = None, budget: float | None = 24 * HOUR, silence: float | None = HOUR
    ) -> Run:
        return await self.start_run(
            self.worker,
            input,
            run_id=run_id,
            on_finish=self.heard,
            max_duration=None if budget is None else timedelta(seconds=budget),
            idle_timeout=None if silence is None else timedelta(seconds=silence),
        )

    async def heard(self: Any, run: Run) -> None:
        self.sql("INSERT INTO news VALUES (?, ?)", run.id, run.status)
        if run.input == "cannot be told" and "told at last" not in self.deps.log:
            self.deps.log.append("refuses to hear")
            raise RuntimeError("not now")
        self.deps.log.append(f"heard {run.id} {run.status} {run.reason or run.error or run.output}")

    async def result_of(self: Any, run: Run | str, seconds: float | None = None) -> Run:
        found = self.runs.get(run) if isinstance(run, str) else run
        if seconds is None:
            return await found.result()
        with deadline(seconds):
            return await found.result()

    async def begin_work(self: Any) -> None:
        self.start_fiber("work", self.work)

    async def work(self: Any) -> None:
        run = await self.start_run(self.worker, "wait", run_id="r1")
        self.deps.log.append("waits")
        self.deps.log.append(f"got {(await run.result()).output}")

    async def stop_work(self: Any) -> bool:
        return self.fibers.cancel("work")

    async def news(self: Any) -> list[tuple[str, str]]:
        return [(str(row["run"]), str(row["status"])) for row in self.sql("SELECT * FROM news ORDER BY rowid")]

    async def dead(self: Any) -> list[DeadLetter]:
        return self.dead_letters.list()

    async def replay(self: Any, id: str) -> bool:
        return self.dead_letters.replay(id)


class SendingBoss(Sending, Agent):
    async def asked_below(self) -> list[str]:
        """Return what the helpers wait for."""
        helpers = [await self.sub_agent(self.worker, child.name) for child in self.children.list()]
        return [one.tool for helper in helpers for one in await helper.questions.list()]  # pyright: ignore[reportAttributeAccessIssue]


class SellingHelper(ChatAgent):
    """A helper that has to ask a person."""

    @tool(requires_approval=True)
    async def sell(self) -> str:
        """Sell."""
        return "sold"


def sender(worker: type = Digger, **settings: Any) -> Any:
    """Make a class of agents whose code sends others off."""
    return boss(worker, base=SendingBoss, **settings)


async def news(agent: Any, *wanted: tuple[str, str]) -> None:
    """Wait until an agent was called with just this news; nothing more of it comes."""
    async with asyncio.timeout(patience()):
        while len(await agent.news()) < len(wanted):  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    assert await agent.news() == list(wanted)


def finishes(hooks: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    return [(run, status) for hook, run, status in hooks if hook == "finish"]


@pytest.mark.promise("CF-121")
async def test_a_detached_run_returns_as_soon_as_it_has_begun_and_its_end_is_told_once(level: str) -> None:
    async with working(sender(), durability=level) as (_, agent, bench):
        run = await agent.send_off("wait", "r1")
        assert (run.id, run.status, run.is_over) == ("r1", "running", False)
        assert await agent.news() == []
        bench.go.set()

        await news(agent, ("r1", "completed"))

        assert bench.log == ["begun wait", "heard r1 completed {'did': 'wait'}"]
        assert finishes(await agent.hooks()) == [("r1", "completed")]


async def test_a_detached_run_that_fails_is_told_like_any_other() -> None:
    async with working(sender()) as (_, agent, bench):
        await agent.send_off("fail", "r1")

        await news(agent, ("r1", "failed"))
        assert any("it went wrong" in entry for entry in bench.log)


@pytest.mark.promise("CF-121")
async def test_asking_for_a_detached_run_again_tells_nothing_twice() -> None:
    async with working(sender()) as (_, agent, bench):
        first, second = await asyncio.gather(agent.send_off("wait", "r1"), agent.send_off("wait", "r1"))
        bench.go.set()
        await news(agent, ("r1", "completed"))
        third = await agent.send_off("wait", "r1")

        assert (first.status, second.status, third.status) == ("running", "running", "completed")
        await news(agent, ("r1", "completed"))
        assert bench.log.count("begun wait") == 1


async def killed(one: Served, nth: int, sent: Any, is_over: Any) -> bool:
    """Have the process die at its n-th commit from here on, if it is not over before; return whether it did."""
    one.world.crash_at("committed", nth)
    with contextlib.suppress(Unavailable):
        await sent
        async with asyncio.timeout(patience()):
            while not one.world.points.ended and not await is_over():  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.002)
        await one.world.settled()
    was_killed = one.world.points.ended
    await one.world.crash()
    return was_killed


@pytest.mark.promise("CF-121")
@pytest.mark.slow
async def test_killed_at_any_commit_a_detached_run_is_told_exactly_once() -> None:
    """The one who sends it off asks for it again under its id, as a fiber or a tool would."""
    for nth in range(1, 40):
        async with working(cls := sender()) as (one, agent, bench):
            bench.go.set()
            was_killed = await killed(one, nth, agent.send_off("wait", "r1"), agent.news)
            agent = await again(one, cls)
            await agent.send_off("wait", "r1")

            await news(agent, ("r1", "completed"))

            assert finishes(await agent.hooks()) == [("r1", "completed")]
            assert await agent.dead() == []
        if not was_killed:
            return
    raise AssertionError("it never got to the end")


@pytest.mark.promise("CF-121")
async def test_an_end_that_nobody_saw_is_told_after_the_crash_to_an_agent_that_nobody_asks_for() -> None:
    async with working(sender()) as (one, agent, bench):
        await agent.send_off("wait", "r1")
        bench.go.set()
        await one.world.crash()

        await bench.seen("heard r1 completed {'did': 'wait'}")  # by itself: the test has not asked for the agent


async def test_a_detached_run_goes_on_although_its_caller_was_cancelled() -> None:
    async with working(sender()) as (_, agent, bench):
        sending = asyncio.create_task(agent.send_off("wait", "r1"))
        await bench.seen("begun wait")
        sending.cancel()
        bench.go.set()

        await news(agent, ("r1", "completed"))


class SlowTalker(Agent):
    """Says something, waits, and says something more."""

    deps: Bench

    async def on_run(self, input: str) -> AsyncIterator[str]:
        self.deps.log.append(f"begun {input}")
        if input != "silent":
            yield "hello"
            self.deps.log.append("spoken")
        await self.deps.go.wait()
        yield " bye"


@pytest.mark.promise("CF-122", "CF-126")
async def test_a_run_that_takes_too_long_is_given_up_and_its_end_counts_all_the_same() -> None:
    async with working(sender()) as (one, agent, bench):
        client = await one.join(BOSS)
        await agent.send_off("wait", "r1", budget=10)
        await one.world.clock.advance(9)
        assert await agent.news() == []

        await one.world.clock.advance(2)
        await news(agent, ("r1", "interrupted"))
        run = await agent.one("r1")
        assert (run.status, run.reason, run.still_running, run.retryable) == (
            "interrupted",
            "budget-exceeded",
            True,
            True,
        )
        given_up = await told(client, "r1", "interrupted")
        assert given_up["event"]["reason"] == "budget-exceeded"
        await one.world.clock.advance(100)
        bench.go.set()

        await news(agent, ("r1", "interrupted"), ("r1", "completed"))

        assert finishes(await agent.hooks()) == [("r1", "interrupted"), ("r1", "completed")]
        assert (await agent.one("r1")).reason is None
        await told(client, "r1", "finished")


@pytest.mark.promise("CF-122")
async def test_a_give_up_is_told_once_however_often_the_process_ends_after_it() -> None:
    async with working(cls := sender()) as (one, agent, bench):
        await agent.send_off("wait", "r1", budget=10)
        await one.world.clock.advance(11)
        await news(agent, ("r1", "interrupted"))
        for _ in range(2):
            await one.world.crash()
            await one.world.clock.advance(2 * HOUR)
            agent = await again(one, cls)
        await news(agent, ("r1", "interrupted"))
        assert finishes(await agent.hooks()) == [("r1", "interrupted")]
        bench.go.set()

        await news(agent, ("r1", "interrupted"), ("r1", "completed"))


@pytest.mark.promise("CF-121", "CF-122")
async def test_a_run_that_is_asked_for_again_and_given_up_again_is_told_once() -> None:
    async with working(sender()) as (one, agent, bench):
        for _ in range(2):
            await agent.send_off("wait", "r1", budget=10)
            await one.world.clock.advance(11)
            await news(agent, ("r1", "interrupted"))
        bench.go.set()

        await news(agent, ("r1", "interrupted"), ("r1", "completed"))


@pytest.mark.promise("CF-123")
async def test_a_run_that_spoke_and_fell_silent_is_given_up_and_one_that_never_spoke_is_not() -> None:
    async with working(sender(SlowTalker)) as (one, agent, bench):
        await agent.send_off("talk", "r1", silence=60)
        await agent.send_off("silent", "r2", silence=60)
        await bench.seen("spoken")
        await one.world.clock.advance(59)
        assert await agent.news() == []

        await one.world.clock.advance(61)

        await news(agent, ("r1", "interrupted"))
        assert (await agent.one("r1")).reason == "no-progress"
        assert (await agent.one("r2")).status == "running"
        bench.go.set()
        async with asyncio.timeout(patience()):
            while len(await agent.news()) < 3:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.005)
        assert sorted(await agent.news()) == [("r1", "completed"), ("r1", "interrupted"), ("r2", "completed")]


@pytest.mark.promise("CF-123")
async def test_silence_counts_from_the_restart_for_a_run_that_had_spoken() -> None:
    async with working(cls := sender(SlowTalker)) as (one, agent, bench):
        await agent.send_off("talk", "r1", silence=60)
        await bench.seen("spoken")
        await one.world.clock.advance(50)
        await one.world.restart()
        agent = await again(one, cls)
        await bench.seen("spoken", 2)
        await one.world.clock.advance(50)
        assert await agent.news() == []

        await one.world.clock.advance(20)

        await news(agent, ("r1", "interrupted"))


class SlowReporter(Agent):
    """Says something whenever it is told to."""

    deps: Bench

    async def on_run(self, input: str) -> str:
        while "enough" not in self.deps.log:
            self.deps.log.append("reports")
            self.report_progress(message="still here")
            await self.deps.go.wait()
            self.deps.go.clear()
        return "done"


@pytest.mark.promise("CF-123")
async def test_progress_keeps_a_detached_run_from_being_given_up() -> None:
    async with working(sender(SlowReporter)) as (one, agent, bench):
        await agent.send_off("x", "r1", silence=60)
        for at in range(5):
            await bench.seen("reports", at + 1)
            await one.world.clock.advance(50)
            bench.go.set()
        await bench.seen("reports", 6)
        assert await agent.news() == []
        bench.log.append("enough")
        bench.go.set()

        await news(agent, ("r1", "completed"))


async def test_without_budget_and_silence_a_detached_run_may_take_for_ever() -> None:
    async with working(sender(SlowTalker)) as (one, agent, bench):
        await agent.send_off("talk", "r1", budget=None, silence=None)
        await bench.seen("spoken")
        await one.world.clock.advance(1000 * HOUR)
        assert (await agent.one("r1")).status == "running"
        bench.go.set()

        await news(agent, ("r1", "completed"))


async def test_a_run_that_waits_for_a_person_is_not_silent_but_its_budget_counts() -> None:
    theirs = ScriptedModel(call("sell", id="k1"), text("sold"))
    async with working(sender(helper(theirs, base=SellingHelper))) as (one, agent, _):
        await agent.send_off("go", "r1", budget=10 * HOUR, silence=HOUR)
        await asked(agent)
        await one.world.clock.advance(5 * HOUR)
        assert await agent.news() == []

        await one.world.clock.advance(5 * HOUR)

        await news(agent, ("r1", "interrupted"))
        assert (await agent.one("r1")).reason == "budget-exceeded"


async def asked(agent: Any) -> None:
    """Wait until a helper waits for somebody."""
    async with asyncio.timeout(patience()):
        while not await agent.asked_below():  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.005)


@pytest.mark.promise("CF-124")
async def test_a_callback_that_fails_is_tried_again_and_then_kept_as_a_dead_letter() -> None:
    async with working(sender()) as (one, agent, bench):
        await agent.send_off("cannot be told", "r1")
        await bench.seen("refuses to hear")
        for attempt in (2, 3):
            await one.world.clock.advance(10)
            await bench.seen("refuses to hear", attempt)
        await one.world.clock.advance(10)

        assert await agent.news() == []  # what it wrote was undone
        (letter,) = await agent.dead()
        assert (letter.method, letter.attempts) == ("heard", 3)
        assert letter.arguments["run"]["id"] == "r1"


@pytest.mark.promise("CF-124")
async def test_a_callback_that_fails_once_hears_it_the_second_time() -> None:
    async with working(sender()) as (one, agent, bench):
        await agent.send_off("cannot be told", "r1")
        await bench.seen("refuses to hear")
        bench.log.append("told at last")
        await one.world.clock.advance(10)

        await news(agent, ("r1", "completed"))


async def test_one_whose_callback_fails_keeps_no_other_from_being_told() -> None:
    async with working(sender()) as (_, agent, bench):
        await agent.send_off("cannot be told", "r1")
        await bench.seen("refuses to hear")
        await agent.send_off("fine", "r2")

        await news(agent, ("r2", "completed"))


@pytest.mark.promise("CF-124")
async def test_a_class_that_has_lost_the_method_finds_the_news_among_the_dead_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with working(cls := sender()) as (one, agent, bench):
        await agent.send_off("wait", "r1")
        with monkeypatch.context() as changed:
            kind = known(cls)
            changed.setattr(kind, "methods", {name: one for name, one in kind.methods.items() if name != "heard"})
            changed.delattr(Sending, "heard")
            await one.world.crash()
            bench.go.set()
            agent = await again(one, cls)
            await over(agent, "r1")
            letters = await dead(agent)
            assert [(letter.method, letter.code) for letter in letters] == [("heard", "signature_changed")]
            assert finishes(await agent.hooks()) == [("r1", "completed")]
        await one.world.restart()
        agent = await again(one, cls)

        await agent.replay(letters[0].id)

        await news(agent, ("r1", "completed"))


async def dead(agent: Any) -> list[DeadLetter]:
    """Wait until something is given up; return it."""
    async with asyncio.timeout(patience()):
        while not (letters := await agent.dead()):  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.005)
    return letters


async def test_what_is_larger_than_a_call_may_carry_is_told_all_the_same() -> None:
    class LongWriter(Agent):
        async def on_run(self, input: int) -> str:
            return "x" * input

    async with working(sender(LongWriter, limits=Limits(payload_bytes=50_000))) as (_, agent, _):
        await agent.send_off(200_000, "r1")

        await news(agent, ("r1", "completed"))


async def test_what_could_not_be_told_later_is_refused_at_once() -> None:
    class WrongSender(SendingBoss):
        worker = Digger

        async def other(self, number: int) -> None: ...

        async def none(self) -> None: ...

        async def wrongly(self, how: str) -> None:
            options: dict[str, dict[str, Any]] = {
                "text": {"on_finish": "heard"},
                "function": {"on_finish": print},
                "other": {"on_finish": self.other},
                "none": {"on_finish": self.none},
                "notify": {"notify": True},
                "max_duration": {"max_duration": 3},
                "idle_timeout": {"idle_timeout": timedelta(0)},
            }
            await self.start_run(Digger, "x", **options[how])

    async with working(type("Boss", (WrongSender,), {})) as (_, agent, bench):
        for how in ("text", "function", "notify", "max_duration", "idle_timeout"):
            with pytest.raises(UsageError):
                await agent.wrongly(how)
        for how in ("other", "none"):
            with pytest.raises(InvalidArguments):
                await agent.wrongly(how)
        assert await agent.all_runs() == []
        assert bench.log == []


@pytest.mark.promise("CF-126")
async def test_a_cancelled_detached_run_is_aborted_told_and_shown() -> None:
    async with working(sender()) as (one, agent, bench):
        client = await one.join(BOSS)
        await agent.send_off("wait", "r1")
        await bench.seen("begun wait")

        assert await agent.stop("r1", "enough")
        await news(agent, ("r1", "cancelled"))

        assert bench.log == ["begun wait", "cut", "heard r1 cancelled enough"]
        frame = await told(client, "r1", "aborted")
        assert frame["event"]["reason"] == "enough"
        check_sequence(frames(client, "r1"))
        await joined_later(one, BOSS, client, "r1")
        assert not await agent.stop("r1")
        await news(agent, ("r1", "cancelled"))


async def test_a_detached_run_that_was_given_up_can_be_cancelled() -> None:
    async with working(sender()) as (one, agent, bench):
        await agent.send_off("wait", "r1", budget=10)
        await one.world.clock.advance(11)
        await news(agent, ("r1", "interrupted"))

        assert await agent.stop("r1")

        await news(agent, ("r1", "interrupted"), ("r1", "cancelled"))
        assert "cut" in bench.log


async def test_a_cancel_is_kept_through_a_crash() -> None:
    async with working(cls := sender()) as (one, agent, bench):
        await agent.send_off("wait", "r1")
        await bench.seen("begun wait")
        await agent.stop("r1")
        await one.world.crash()
        agent = await again(one, cls)

        await news(agent, ("r1", "cancelled"))
        assert bench.log.count("begun wait") == 1


@pytest.mark.promise("CF-126")
async def test_a_run_that_is_awaited_calls_nobody_back() -> None:
    async with working(sender()) as (_, agent, bench):
        giving = asyncio.create_task(agent.give("wait", run_id="r1"))
        await bench.seen("begun wait")
        await agent.stop("r1")

        assert (await giving).status == "cancelled"
        await news(agent)


async def test_a_detached_run_that_is_refused_for_being_one_too_many_is_told_too() -> None:
    async with working(sender(max_concurrent_runs=1)) as (_, agent, bench):
        await agent.send_off("wait", "r1")
        refused = await agent.send_off("wait", "r2")

        assert refused.status == "failed"
        assert "max_concurrent_runs" in (refused.error or "")
        await news(agent, ("r2", "failed"))
        bench.go.set()
        await news(agent, ("r2", "failed"), ("r1", "completed"))


@pytest.mark.nightly
@pytest.mark.slow
async def test_more_than_fifty_detached_runs_at_once_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with working(sender()) as (_, agent, bench):
        for at in range(53):
            await agent.send_off("wait", f"r{at}")
        bench.go.set()

        told = [record.message for record in caplog.records if record.name == "sapwood.runs.dispatch.lifecycle"]
        assert told == ["many background runs address=Boss:b count=51"]
        for at in range(53):
            await over(agent, f"r{at}")


async def test_cleared_runs_call_nobody_back() -> None:
    async with working(sender()) as (_, agent, _):
        await agent.send_off("wait", "r1")

        assert await agent.clear_them() == 1

        assert await agent.child_names() == []
        await news(agent)


async def test_a_detached_run_of_a_fiber_is_the_same_run_when_the_fiber_is_begun_again() -> None:
    class FibrousSender(SendingBoss):
        worker = Digger

        async def launch(self) -> None:
            self.start_fiber("once", self.work)

        async def work(self) -> str:
            run = await self.start_run(Digger, "wait", on_finish=self.heard)
            self.deps.log.append(f"sent {run.id}")
            await self.deps.go.wait()
            return run.id

    async with working(cls := type("Boss", (FibrousSender,), {})) as (one, agent, bench):
        await agent.launch()
        async with asyncio.timeout(patience()):
            while not any(entry.startswith("sent") for entry in bench.log):  # noqa: ASYNC110 - agents write it
                await asyncio.sleep(0.002)
        await one.world.crash()
        agent = await again(one, cls)
        (run,) = await agent.all_runs()
        await bench.seen(f"sent {run.id}", 2)
        bench.go.set()

        await news(agent, (run.id, "completed"))


class Delegate(Sending, Talking):
    """A chat agent whose model sends helpers off by a tool."""

    @tool(idempotent=True)
    async def delegate(self, what: str) -> str:
        """Have a helper do something in the background."""
        run = await self.start_run(self.worker, what, on_finish=self.heard, notify=True)
        return f"{run.id} is {run.status}"

    async def send_one(self, what: str, run_id: str, budget: float = HOUR) -> str:
        duration = timedelta(seconds=budget)
        return (await self.start_run(self.worker, what, run_id=run_id, notify=True, max_duration=duration)).status

    @tool(requires_approval=True)
    async def sell(self) -> str:
        """Sell."""
        return "sold"


def delegate(model: Any, worker: type = Digger, **settings: Any) -> Any:
    """Make a class of chat agents that send helpers off."""
    return type("Delegating", (Delegate,), {"model": model, "worker": worker, **settings})


RUN = "agent-tool:c1:0"
DELEGATE = "/agents/delegating/d"
NOTICE = "[The background run r1 of Digger was completed: "


async def told_of(agent: Any) -> list[tuple[str, str]]:
    """Return who said what in the conversation, without notices' details; check that it is a sound one."""
    transcript = await agent.conversation.messages()
    check_transcript(transcript)
    check_history(json.loads(await agent.seen_by_model()))
    return [(message["role"], text_of(message)) for message in transcript]


def asked_in(model: Any) -> list[str]:
    """Return the last thing the user had said, each time the model was asked."""
    return [
        [part.content for message in messages for part in message.parts if part.part_kind == "user-prompt"][-1]
        for messages in model.asked
    ]


@pytest.mark.promise("CF-127")
async def test_a_tool_sends_a_helper_off_and_the_conversation_goes_on_with_its_end() -> None:
    gate = asyncio.Event()
    ours = ScriptedModel(call("delegate", id="c1", what="dig"), text("It is under way."), text("It is done!"))
    theirs = ScriptedModel(text("a hole", gate=gate))
    async with working(cls := delegate(ours, helper(theirs))) as (one, agent, bench):
        client = await one.join(DELEGATE)
        turn = await agent.send("have a hole dug")
        assert (turn.status, turn.text) == ("completed", "It is under way.")
        assert (await agent.one(RUN)).status == "running"
        gate.set()

        await one_more_turn(agent, 2)

        *_, (role, notice), (_, answer) = await told_of(agent)
        assert (role, notice) == ("user", f"[The background run {RUN} of Helper was completed: a hole]")
        assert answer == "It is done!"
        assert await agent.news() == [(RUN, "completed")]
        assert await agent.ends() == [(turn.id, "completed"), (f"notify-{RUN}-completed", "completed")]
        assert frames(client, RUN)[0]["parentToolCallId"] == "c1"
        notices = [message for message in await agent.conversation.messages() if "metadata" in message]
        assert [message["metadata"] for message in notices] == [{"source": "run", "run": RUN}]
        del cls, bench


async def one_more_turn(agent: Any, turns: int) -> None:
    """Wait until so many turns are over, and no other follows."""
    await turns_over(agent, turns)
    await asyncio.sleep(0.05)
    assert len(await agent.ends()) == turns


@pytest.mark.promise("CF-127")
@pytest.mark.parametrize("policy", ["queue", "drop", "interrupt", *slow(["latest", "merge", "debounce"])])
async def test_news_that_come_during_a_turn_wait_for_their_own_whatever_the_policy(policy: str) -> None:
    gate = asyncio.Event()
    ours = ScriptedModel(text("let me think", gate=gate), text("good news"))
    async with working(delegate(ours, concurrency=policy)) as (one, agent, bench):
        await agent.send_one("wait", "r1")
        sending = asyncio.create_task(agent.send("a question"))
        await one.world.clock.advance(5)
        await asked_so_often(ours, 1)
        bench.go.set()
        await over(agent, "r1")
        gate.set()

        assert (await sending).status == "completed"
        await one_more_turn(agent, 2)

        said = await told_of(agent)
        assert [text for _, text in said[:2]] == ["a question", "let me think"]
        assert said[2][1].startswith(NOTICE)
        assert said[3][1] == "good news"


async def asked_so_often(model: Any, times: int) -> None:
    async with asyncio.timeout(patience()):
        while len(model.asked) < times:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.002)


@pytest.mark.promise("CF-127")
async def test_news_do_not_end_a_turn_that_waits_for_a_person() -> None:
    ours = ScriptedModel(call("sell", id="k1"), text("sold it"), text("good news"))
    async with working(delegate(ours)) as (one, agent, bench):
        await agent.send_one("wait", "r1")
        assert (await agent.send("sell it")).status == "waiting"
        bench.go.set()
        await over(agent, "r1")
        client = await one.join(DELEGATE)
        assert (await resume(client))["type"] == NONE
        assert [one.id for one in await agent.questions.list()] == ["k1"]

        await agent.questions.approve("k1")
        await one_more_turn(agent, 2)

        said = await told_of(agent)
        assert [said[1][1], said[3][1]] == ["sold it", "good news"]
        assert said[2][1].startswith(NOTICE)


@pytest.mark.parametrize("policy", ["queue", "drop"])
async def test_what_is_said_instead_of_an_answer_is_heard_although_news_are_waiting(policy: str) -> None:
    ours = ScriptedModel(call("sell", id="k1"), text("good news"), text("as you like"))
    async with working(delegate(ours, concurrency=policy)) as (_, agent, bench):
        await agent.send_one("wait", "r1")
        assert (await agent.send("sell it")).status == "waiting"
        bench.go.set()
        await over(agent, "r1")

        turn = await agent.send("never mind")

        assert (turn.status, turn.text) == ("completed", "as you like")
        assert await agent.questions.list() == []
        assert len(await told_of(agent)) == 6


@pytest.mark.nightly
@pytest.mark.promise("CF-127")
@pytest.mark.slow
async def test_killed_at_any_commit_the_conversation_hears_of_a_run_exactly_once() -> None:
    for nth in range(1, 60):
        ours = ScriptedModel(text("good news"), each=True)
        async with working(cls := delegate(ours)) as (one, agent, bench):
            bench.go.set()
            was_killed = await killed(one, nth, agent.send_one("wait", "r1"), agent.ends)
            agent = await again(one, cls)
            await agent.send_one("wait", "r1")

            await turns_over(agent, 1)
            await idle(one, DELEGATE)

            said = await told_of(agent)
            assert [role for role, _ in said] == ["user", "assistant"]
            assert said[0][1].startswith(NOTICE)
            assert set(await agent.ends()) == {("notify-r1-completed", "completed")}
        if not was_killed:
            return
    raise AssertionError("it never got to the end")


@pytest.mark.promise("CF-127")
async def test_a_give_up_and_a_later_end_are_two_messages() -> None:
    ours = ScriptedModel(text("a pity"), text("good news"))
    async with working(delegate(ours)) as (one, agent, bench):
        await agent.send_one("wait", "r1", budget=10)
        await one.world.clock.advance(11)
        await turns_over(agent, 1)
        bench.go.set()
        await one_more_turn(agent, 2)

        said = await told_of(agent)
        assert said[0][1] == "[The background run r1 of Digger was interrupted: The run exceeded max_duration.]"
        assert said[2][1].startswith(NOTICE)
        assert [text for role, text in said if role == "assistant"] == ["a pity", "good news"]


async def test_a_cancelled_turn_does_not_stop_what_it_has_sent_off() -> None:
    gate = asyncio.Event()
    ours = ScriptedModel(call("delegate", id="c1", what="wait"), text("under way", gate=gate), text("good news"))
    async with working(delegate(ours)) as (_, agent, bench):
        sending = asyncio.create_task(agent.send("go"))
        await bench.seen("begun wait")
        await asked_so_often(ours, 2)
        await agent.turns.cancel()
        assert (await sending).status == "cancelled"
        assert (await agent.one(RUN)).status == "running"
        bench.go.set()

        await one_more_turn(agent, 2)

        assert (await told_of(agent))[-1] == ("assistant", "good news")


async def test_a_tool_that_is_called_again_after_a_crash_has_sent_one_helper_off() -> None:
    ours = ScriptedModel(call("delegate", id="c1", what="wait"), text("under way"), text("good news"), each=True)
    async with working(cls := delegate(ours)) as (one, agent, bench):
        sending = asyncio.create_task(agent.send("go"))
        await bench.seen("begun wait")
        await one.world.crash()
        await asyncio.gather(sending, return_exceptions=True)
        agent = await again(one, cls)
        await turns_over(agent, 1)
        bench.go.set()

        await one_more_turn(agent, 2)

        assert [run.id for run in await agent.all_runs()] == [RUN]
        assert await agent.news() == [(RUN, "completed")]


async def test_a_cleared_conversation_hears_nothing_of_what_it_had_sent_off() -> None:
    ours = ScriptedModel(text("good news"))
    async with working(delegate(ours)) as (_, agent, bench):
        await agent.send_one("wait", "r1")

        await agent.conversation.clear()
        bench.go.set()

        assert await agent.all_runs() == []
        assert await agent.conversation.messages() == []


async def test_a_helper_may_send_off_helpers_of_its_own_and_is_told_after_its_run_is_over() -> None:
    gate = asyncio.Event()
    below = helper(ScriptedModel(text("deep", gate=gate)), "Below")
    theirs = ScriptedModel(call("delegate", id="d1", what="dig"), text("sent somebody"), text("heard of it"))
    ours = ScriptedModel(call("middleman", id="c1", message="go"), text("thanks"))
    middle = type("Middleman", (Delegate,), {"model": theirs, "worker": below, "__doc__": "Helps."})
    async with working(caller(ours, agent_tool(middle), ask=asking_of(middle))) as (_, agent, _):
        turn = await agent.send("go")
        assert turn.text == "thanks"
        assert (await agent.one("agent-tool:c1")).output == "sent somebody"
        gate.set()

        async with asyncio.timeout(patience()):
            while (said := await agent.ask("agent-tool:c1"))[-1] != "heard of it":  # noqa: ASYNC110 - from outside
                await asyncio.sleep(0.005)

        assert said[-2] == "[The background run agent-tool:d1:0 of Below was completed: deep]"
        assert (await agent.one("agent-tool:c1")).output == "sent somebody"


def asking_of(cls: type[Any]) -> Any:
    async def ask(self: Any, name: str) -> list[str]:
        return [text_of(message) for message in await (await self.sub_agent(cls, name)).conversation.messages()]

    return ask


@pytest.mark.promise("A-172")
async def test_the_end_of_a_started_run_can_be_awaited_also_when_it_is_looked_up_later(level: str) -> None:
    async with working(sender(), durability=level) as (_, agent, bench):
        started = await agent.send_off("wait", run_id="r1")
        waiting = [asyncio.create_task(agent.result_of(one)) for one in (started, "r1")]
        await asyncio.sleep(0.02)
        assert not any(task.done() for task in waiting)
        bench.go.set()

        first, second = await asyncio.gather(*waiting)

        assert first == second
        assert (started.status, first.status, first.output) == ("running", "completed", {"did": "wait"})
        assert await agent.result_of(started) == first  # at once
        failed = await agent.result_of(await agent.send_off("fail", run_id="r2"))
        assert (failed.ok, failed.status) == (False, "failed")


@pytest.mark.promise("A-172")
async def test_the_end_of_a_started_run_can_be_awaited_after_a_crash(level: str) -> None:
    cls = sender()
    async with working(cls, durability=level) as (one, agent, bench):
        started = await agent.send_off("wait", run_id="r1")
        await bench.seen("begun wait")
        await one.world.crash()
        agent = await again(one, cls)
        waiting = [asyncio.create_task(agent.result_of(one)) for one in (started, "r1")]
        await bench.seen("begun wait", 2)
        bench.go.set()

        for run in await asyncio.gather(*waiting):
            assert (run.status, run.output) == ("completed", {"did": "wait"})


async def test_a_fiber_that_awaits_a_started_run_awaits_it_again_after_a_crash() -> None:
    cls = sender()
    async with working(cls) as (one, agent, bench):
        await agent.begin_work()
        await bench.seen("waits")
        await one.world.crash()
        await again(one, cls)
        await bench.seen("waits", 2)
        bench.go.set()
        await bench.seen("got {'did': 'wait'}")


@pytest.mark.promise("A-172")
async def test_whoever_awaits_a_started_run_may_stop_waiting_and_the_run_goes_on() -> None:
    async with working(sender()) as (_, agent, bench):
        await agent.begin_work()
        await bench.seen("waits")
        with pytest.raises(TimedOut, match="did not end before the deadline"):
            await agent.result_of("r1", 0.02)
        with pytest.raises(TimedOut), deadline(0.02):
            await agent.result_of("r1")
        assert await agent.stop_work()
        await asyncio.sleep(0.02)
        assert (await agent.one("r1")).status == "running"
        bench.go.set()

        assert (await agent.result_of("r1")).ok
        assert "cut" not in bench.log


@pytest.mark.promise("A-172")
async def test_awaiting_a_run_that_was_cleared_or_is_of_another_agent_is_refused() -> None:
    cls = sender()
    async with working(cls) as (one, agent, bench):
        run = await agent.send_off("wait", run_id="r1")
        waiting = asyncio.create_task(agent.result_of(run))
        await bench.seen("begun wait")
        other = await one.world.get_agent(cls, "other")
        with pytest.raises(Refused, match="another agent started it"):
            await other.result_of(run)
        await agent.clear_them()

        with pytest.raises(Refused, match="was cleared"):
            await waiting
        with pytest.raises(Refused, match="it was cleared"):
            await agent.result_of(run)
        with pytest.raises(UsageError, match="must be called in the agent that started the run"):
            await run.result()


async def test_awaiting_a_run_that_was_given_up_returns_it_as_interrupted() -> None:
    async with working(sender()) as (one, agent, bench):
        run = await agent.send_off("wait", run_id="r1", budget=60)
        waiting = asyncio.create_task(agent.result_of(run))
        await bench.seen("begun wait")
        await one.world.clock.advance(61)

        assert ((given_up := await waiting).status, given_up.reason) == ("interrupted", "budget-exceeded")
        bench.go.set()
        await over(agent, "r1")
        assert (await agent.result_of(given_up)).ok
