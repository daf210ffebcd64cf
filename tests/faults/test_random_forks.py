"""Forks at random moments of a tree at work: no fork does anything to the world, whatever was unfinished in it."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from sapwood import Agent, App, ChatAgent, Every, agent_tool, tool
from sapwood.forks import unfinished_work
from sapwood.forks.unfinished_work import AgentHold, ForkedWork
from sapwood.kernel.forks.forked_tree import Due
from sapwood.kernel.node.tree_check import check_folder
from sapwood.testing import ScriptedModel, World, call, running, text
from sapwood.types import Address

pytestmark = pytest.mark.anyio


class Effects(Agent):
    """Does things to the world by itself: by the clock, in queues, in fibers, in runs."""

    done: ClassVar[list[str]] = []

    def _do(self, what: str) -> None:
        Effects.done.append(f"{self.address} {what}")

    async def ring(self) -> None:
        self._do("ring")

    async def plan(self, seconds: int) -> None:
        self.schedule(timedelta(seconds=seconds), self.ring)

    async def repeat(self, seconds: int) -> None:
        self.schedule(Every(timedelta(seconds=seconds)), self.ring)

    async def queue(self, count: int) -> None:
        for _ in range(count):
            self.queues["work"].add(self.slow, 3)

    async def slow(self, seconds: float) -> None:
        await self.sleep_until(datetime.fromtimestamp(self._actor.host.clock.now() + seconds, UTC))
        self._do("slow")

    async def begin(self, key: str, seconds: float) -> None:
        self.start_fiber(key, self.steps, seconds)

    async def steps(self, seconds: float) -> None:
        for number in range(3):
            await self.step(f"step {number}", lambda: self._do("step"))
            await self.sleep_until(datetime.fromtimestamp(self._actor.host.clock.now() + seconds, UTC))

    async def ask(self, key: str) -> None:
        self.start_fiber(key, self.asks)

    async def asks(self) -> None:
        await self.questions.ask("May I?", options=["yes"])
        self._do("asked")

    async def on_run(self, input: str) -> str:
        await self.slow(5)
        return "done"

    async def give(self, run: str) -> None:
        await self.start_run(Effects, "work", run_id=run)

    async def on_run_finish(self, run: Any) -> None:
        self._do("finished")

    async def child(self, path: list[str], method: str, arguments: list[Any]) -> None:
        agent: Any = self
        if path:
            child = await self.sub_agent(Effects, path[0])
            await child.child(path[1:], method, arguments)
        else:
            await getattr(agent, method)(*arguments)


class Talk(ChatAgent):
    """Talks."""

    model = ScriptedModel(call("act"), call("guarded"), text("done"), each=True)

    @tool
    async def act(self) -> str:
        """Act."""
        Effects.done.append(f"{self.address} act")
        return "acted"

    @tool(requires_approval=True)
    async def guarded(self) -> str:
        """Act after an approval."""
        Effects.done.append(f"{self.address} guarded")
        return "acted"

    async def after_turn(self, turn: Any) -> None:
        Effects.done.append(f"{self.address} {turn.status}")


class Desk(Talk):
    model = ScriptedModel(call("act"), call("talk", message="go"), text("done"), each=True)
    tools = (agent_tool(Talk),)


async def act(world: World, dice: random.Random, number: int) -> None:
    """Do one random thing in the original trees."""
    if dice.random() < 0.3:
        desk = await world.get_agent(Desk, "main")
        await desk.turns.start(f"go {number}", id=f"t{number}")
        return
    effects = await world.get_agent(Effects, "main")
    path = [dice.choice("ab") for _ in range(dice.randrange(3))]
    method, arguments = dice.choice(
        [
            ("plan", [dice.randrange(1, 50)]),
            ("repeat", [dice.randrange(20, 90)]),
            ("queue", [dice.randrange(1, 4)]),
            ("begin", [f"f{number}", dice.randrange(1, 20)]),
            ("ask", [f"q{number}"]),
            ("give", [f"r{number}"]),
        ]
    )
    await effects.child(path, method, arguments)


async def forked(seed: int, forks: int) -> tuple[int, list[str]]:
    """Fork trees at work; return how much they did, and what their forks did."""
    Effects.done.clear()
    dice = random.Random(seed)
    async with running(App(agents=[Effects, Desk])) as world:
        await act(world, dice, -1)
        await (await world.get_agent(Desk, "main")).turns.start("first", id="first")
        for number in range(forks):
            for _ in range(dice.randrange(3)):
                await act(world, dice, number * 3 + _)
            for _ in range(dice.randrange(5)):
                await asyncio.sleep(0)
            if dice.random() < 0.5:
                await world.clock.advance(dice.randrange(1, 8))
            await fork(world, dice, f"fork{number}")
        await world.clock.advance(300)
        await world.restart()  # what a fork has to do by itself is found by the index
        await world.clock.advance(300)
        assert list((world.data / "trees").glob("*.copying")) == []
        by_forks = [line for line in Effects.done if ":fork" in line]
        return len(Effects.done) - len(by_forks), by_forks


async def fork(world: World, dice: random.Random, name: str) -> None:
    """Fork one of the trees, or begin to: then there is a whole fork, or none."""
    cls = dice.choice((Effects, Desk))
    if not await world.node.loader.exists(Address.root_of(cls.__name__, "main")):
        return
    making = asyncio.create_task(world.app.fork(cls, "main", to=name))
    if dice.random() < 0.25:
        for _ in range(dice.randrange(400)):
            await asyncio.sleep(0)
        making.cancel()
    with suppress(asyncio.CancelledError):
        await making
    root = Address.root_of(cls.__name__, name)
    if not making.cancelled() or await world.node.loader.exists(root):
        assert check_folder(world.data, root).is_whole


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
async def test_no_fork_of_a_tree_at_work_does_anything(seed: int) -> None:
    done, by_forks = await forked(seed, 12)

    assert done > 20
    assert by_forks == []


@pytest.mark.nightly
async def test_a_thousand_forks_of_trees_at_work_do_nothing() -> None:
    count = int(os.environ.get("SAPWOOD_FORKS", "1000"))
    for seed in range(10, 10 + count // 50):
        done, by_forks = await forked(seed, 50)
        assert (done > 50, by_forks) == (True, []), seed


def calls_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AgentHold, "_hold_calls", lambda self: None)


def fibers_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AgentHold, "_settle_fibers", lambda self: None)
    monkeypatch.setattr(AgentHold, "due", lambda self: Due(0.0, has_dead_letters=False))


def turns_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished_work, "end_turn", lambda *_: None)
    fibers_left(monkeypatch)


def nothing_held(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = ForkedWork.settle
    monkeypatch.setattr(ForkedWork, "settle", lambda self, tree: settle(self, replaced(tree)))


def replaced(tree: Any) -> Any:
    from dataclasses import replace

    return replace(tree, work="run")


@pytest.mark.slow
@pytest.mark.parametrize("broken", [calls_left, fibers_left, turns_left, nothing_held])
async def test_forks_that_do_not_hold_their_work_are_noticed(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)

    _, by_forks = await forked(1, 12)

    assert by_forks != []
