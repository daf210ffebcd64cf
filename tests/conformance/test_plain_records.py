"""What an agent without a conversation did in a run is told as a timeline: steps, waits, attempts, runs and its end."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.conformance.runtimes import open_questions, operator, running
from tests.machine import patience

from sapwood import Agent, App
from sapwood.errors import NotFound
from sapwood.testing import World
from sapwood.testing import running as running_here

Row = tuple[str, str, int, str]
"""Kind, name, attempt and status of a span."""


def double(value: int) -> int:
    return value * 2


class ToldAsker(Agent):
    async def on_run(self, input: str) -> str:
        return await self.questions.ask(f"May I {input}?", options=["yes", "no"])


class ToldDigger(Agent):
    """Executes runs by its own code."""

    gate = asyncio.Event()
    waits = False

    async def on_run(self, input: Any) -> Any:
        await self.step("first", double, 1)
        self.report_progress(0.5, milestone="half")
        if input == "wait":
            await self.gate.wait()
        if input == "fail":
            raise ValueError("a secret text")
        if input == "delegate":
            return (await self.run_agent(ToldAsker, "dig")).output
        await self.step("second", double, 2)
        return input


class ToldForeman(Agent):
    async def order(self, input: Any) -> str:
        return (await self.run_agent(ToldDigger, input, run_id="r1")).status

    async def order_behind(self, input: Any) -> None:
        await self.start_run(ToldDigger, input, run_id="r1")


async def told(world: World, address: str, run: str | None = None) -> list[dict[str, Any]]:
    return (await operator(world, address).explain(address, run))["spans"]


def rows(spans: list[dict[str, Any]]) -> list[Row]:
    return [(one["kind"], one["name"], one["attempt"], one["status"]) for one in spans]


DIGGER = "ToldForeman:f/ToldDigger:r1"


async def test_the_steps_and_milestones_of_a_run_are_told_after_its_end() -> None:
    async with running(App(agents=[ToldForeman])) as world:
        foreman = await world.get_agent(ToldForeman, "f")
        assert await foreman.order("x") == "completed"
        await world.restart()

        (work,) = await told(world, DIGGER)
        spans = await told(world, DIGGER, "r1")

        assert rows(spans)[0] == ("fiber", "on_run", 1, "completed")
        assert sorted(rows(spans)[1:]) == [
            ("function", "first", 1, "completed"),
            ("function", "second", 1, "completed"),
            ("milestone", "half", 1, "completed"),
        ]
        assert (work["number"], work["facts"]) == (spans[0]["number"], spans[0]["facts"])
        assert {one["parent"] for one in spans[1:]} == {spans[0]["number"]}
        assert all(spans[0]["began_at"] <= one["began_at"] <= spans[0]["ended_at"] for one in spans)
        assert spans[0]["facts"]["run"] == "r1"


async def test_a_run_that_fails_is_told_with_its_error() -> None:
    async with running(App(agents=[ToldForeman])) as world:
        foreman = await world.get_agent(ToldForeman, "f")
        assert await foreman.order("fail") == "failed"

        root, *parts = await told(world, DIGGER, "r1")

        assert (root["status"], root["attempt"], root["ended_at"] is not None) == ("failed", 1, True)
        assert [one["facts"]["fraction"] for one in parts if one["kind"] == "milestone"] == [0.5]
        assert "secret" not in str(root["facts"].get("error"))


async def test_a_run_that_a_crash_interrupts_has_two_attempts_and_each_step_once() -> None:
    ToldDigger.gate = asyncio.Event()
    async with running(App(agents=[ToldForeman])) as world:
        foreman = await world.get_agent(ToldForeman, "f")
        await foreman.order_behind("wait")
        async with asyncio.timeout(patience()):
            while len(await told_if_there(world)) < 3:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)
        assert rows(await told(world, DIGGER, "r1"))[0] == ("fiber", "on_run", 1, "running")
        await world.clock.advance(5)
        await world.crash()
        ToldDigger.gate.set()
        foreman = await world.get_agent(ToldForeman, "f")
        assert await foreman.order("wait") == "completed"

        spans = await told(world, DIGGER, "r1")

        assert rows(spans)[0] == ("fiber", "on_run", 1, "completed")
        attempts = [one for one in spans if one["kind"] == "attempt"]
        assert [(one["attempt"], one["status"]) for one in attempts] == [(1, "interrupted"), (2, "completed")]
        first, second = (one["number"] for one in attempts)
        parents = {one["name"]: one["parent"] for one in spans if one["kind"] == "function"}
        assert parents == {"first": first, "second": second}
        assert attempts[0]["incarnation"] < attempts[1]["incarnation"]


async def told_if_there(world: World) -> list[dict[str, Any]]:
    try:
        return await told(world, DIGGER, "r1")
    except NotFound:
        return []


async def test_a_run_that_waits_for_a_person_below_is_told_on_every_level() -> None:
    async with running(App(agents=[ToldForeman])) as world:
        foreman = await world.get_agent(ToldForeman, "f")
        await foreman.order_behind("delegate")
        questions = await open_questions(foreman)
        (run,) = [one for one in await told(world, DIGGER, "r1") if one["kind"] == "run"]
        below = f"{DIGGER}/ToldAsker:{run['facts']['child']}"

        root, wait = await told(world, below, run["facts"]["key"])
        assert (root["status"], rows([wait])) == ("waiting", [("wait", "question", 1, "running")])
        await foreman.questions.answer(questions[0], "yes")
        assert await foreman.order("delegate") == "completed"

        root, wait = await told(world, below, run["facts"]["key"])
        assert (root["status"], wait["status"], wait["facts"]["decision"]) == ("completed", "completed", "answered")
        spans = await told(world, DIGGER, "r1")
        assert [one["parent"] for one in spans if one["kind"] == "run"] == [spans[0]["number"]]
        assert len(await told(world, DIGGER)) == 1


async def test_a_class_without_records_has_no_timeline_of_its_runs() -> None:
    class ToldSilent(Agent):
        record_retention = None

        async def on_run(self, input: str) -> str:
            return await self.step("one", str, input)

    class ToldCaller(Agent):
        async def order(self) -> str:
            return (await self.run_agent(ToldSilent, "x", run_id="r1")).status

    async with running(App(agents=[ToldCaller])) as world:
        caller = await world.get_agent(ToldCaller, "c")
        await caller.order()

        assert await told(world, "ToldCaller:c/ToldSilent:r1") == []


async def test_a_fiber_that_got_further_between_two_crashes_has_three_attempts() -> None:
    class ToldWalker(Agent):
        async def begin(self) -> None:
            self.start_fiber("walk", self.walk)

        async def walk(self) -> None:
            for number in range(2):
                await self.step(f"step {number}", double, number)
                await gates[number].wait()

        async def steps(self) -> int:
            return len(self._actor.database.execute("SELECT 1 FROM sapwood_steps"))

    gates = [asyncio.Event(), asyncio.Event()]

    async with running_here(App(agents=[ToldWalker])) as world:
        await (await world.get_agent(ToldWalker, "w")).begin()
        for at in (1, 2):
            await world.clock.advance(600)
            assert await (await world.get_agent(ToldWalker, "w")).steps() == at
            await world.crash()
            gates[at - 1].set()
        await world.get_agent(ToldWalker, "w")
        await world.clock.advance(600)
        await world.settled()

        spans = await told(world, "ToldWalker:w")
        assert [(one["attempt"], one["status"]) for one in reversed(spans)] == [
            (1, "interrupted"),
            (2, "interrupted"),
            (3, "completed"),
        ]
