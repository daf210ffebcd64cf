"""A tree of agents, driven at random through everything that can happen to it, always equals a simple model.

Calls are cancelled, agents aborted, deleted and destroyed, and the process crashes, at any number of steps of the
loop while calls and streams are in flight. What was acknowledged is there; what was not may be, but only from its
beginning on. SAPWOOD_EXAMPLES=5000 looks longer.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests import loops
from tests.machine import patience

from sapwood import Agent, App, NotFound, Unavailable
from sapwood.errors import Aborted
from sapwood.testing import World, running

T = TypeVar("T")
Path = tuple[str, ...]
NAMES = ("a", "b")
DEPTH = 2
ROOT = "root"

numbers = st.integers(0, 20)
several = st.lists(numbers, min_size=1, max_size=4)
steps = st.integers(0, 25)


class Twig(Agent[int]):
    """An agent that can do a little of everything."""

    initial_state = 0
    migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)

    async def put(self, text: str) -> None:
        self.sql("INSERT INTO notes VALUES (?)", text)

    async def put_slowly(self, texts: list[str], state: int) -> None:
        """Write one text in each of several slices, and with the last one the state."""
        for text in texts[:-1]:
            self.sql("INSERT INTO notes VALUES (?)", text)
            await asyncio.sleep(0)
        self.sql("INSERT INTO notes VALUES (?)", texts[-1])
        self.set_state(state)

    async def put_below(self, name: str, texts: list[str], state: int) -> None:
        child = await self.sub_agent(Twig, name)
        await child.put_slowly(texts, state)

    async def pour(self, texts: list[str]) -> AsyncIterator[str]:
        for text in texts:
            self.sql("INSERT INTO notes VALUES (?)", text)
            yield text

    async def read(self) -> tuple[list[str], int, list[str]]:
        texts = [str(row["text"]) for row in self.sql("SELECT text FROM notes ORDER BY rowid")]
        return texts, self.state, [child.name for child in self.children.list()]

    async def set_to(self, state: int) -> None:
        self.set_state(state)

    async def set_and_undo(self, state: int, text: str) -> int:
        try:
            with self.transaction():
                self.set_state(state)
                self.sql("INSERT INTO notes VALUES (?)", text)
                raise LookupError
        except LookupError:
            return self.state

    async def grow(self, name: str) -> None:
        await self.sub_agent(Twig, name)

    async def stop(self, name: str) -> None:
        self.children.abort(Twig, name, "stopped")

    async def cut(self, name: str) -> None:
        await self.children.delete(Twig, name)

    async def end(self) -> str:
        await self.destroy()
        return "ended"


@dataclass
class Work:
    """What one call in flight set out to write, in order."""

    texts: list[str]
    state: int | None = None
    sure: int = 0
    """How many of the texts were acknowledged."""


@dataclass
class Branch:
    """What the model knows of one agent."""

    texts: set[str] = field(default_factory=set[str])
    state: int = 0
    children: list[str] = field(default_factory=list[str])
    open: list[Work] = field(default_factory=list[Work])
    """Work whose outcome was not seen yet."""

    def settle(self, texts: list[str], state: int, where: str) -> None:
        """Compare what was read with what may be, and take it for the truth from now on."""
        left = list(texts)
        assert len(set(left)) == len(left), f"{where}: something was written twice: {left}"
        possible = {self.state}
        for work in self.open:
            found = [text for text in texts if text in work.texts]
            assert found == work.texts[: len(found)], f"{where}: {found} is not the beginning of {work.texts}"
            assert len(found) >= work.sure, f"{where}: {work.sure} of {work.texts} were acknowledged, {found} are there"
            if work.state is not None and len(found) == len(work.texts):
                possible.add(work.state)
                if len(self.open) == 1:
                    possible = {work.state}
            left = [text for text in left if text not in found]
        assert set(left) == self.texts, f"{where}: {sorted(left)} instead of {sorted(self.texts)}"
        assert state in possible, f"{where}: the state is {state}, and may be {possible}"
        self.texts, self.state, self.open = set(texts), state, []


class Tree(RuleBasedStateMachine):
    """One tree of three levels."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=loops.factory)
        self.stack = AsyncExitStack()
        self.world: World | None = None
        self.branches: dict[Path, Branch] = {(): Branch()}
        self.aborted: set[Path] = set()
        self.number = itertools.count(1)

    @initialize(level=st.sampled_from(["process", "disk"]))
    def begin(self, level: str) -> None:
        self.world = self.run(
            self.stack.enter_async_context(running(App(agents=[Twig]), durability=level, slow_slices="allow"))
        )

    def teardown(self) -> None:
        try:
            if self.world is not None:
                self.run(self._nothing_is_left_over())
                self.run(self.stack.aclose())
        finally:
            self.runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            return await asyncio.wait_for(work, patience())

        return self.runner.run(bounded())

    # What the model says

    def reachable(self, path: Path) -> bool:
        return path in self.branches and not any(path[:n] in self.aborted for n in range(len(path) + 1))

    def pick(self, number: int, *, inner: bool = False) -> Path:
        found = [path for path in sorted(self.branches) if self.reachable(path) and (not inner or len(path) < DEPTH)]
        return found[number % len(found)]

    def pick_child(self, number: int) -> Path | None:
        found = [path for path in sorted(self.branches) if path and self.reachable(path[:-1])]
        return found[number % len(found)] if found else None

    def below(self, path: Path) -> list[Path]:
        return [one for one in self.branches if one[: len(path)] == path]

    def made(self, path: Path) -> None:
        self.aborted.discard(path)
        if path not in self.branches:
            self.branches[path] = Branch()
            self.branches[path[:-1]].children.append(path[-1])

    def gone(self, path: Path) -> None:
        for one in self.below(path):
            del self.branches[one]
        self.aborted = {one for one in self.aborted if one[: len(path)] != path}
        if path:
            self.branches[path[:-1]].children.remove(path[-1])
        else:
            self.branches[()] = Branch()

    def text(self, path: Path) -> str:
        return f"{next(self.number)} in /{'/'.join(path)}"

    # What is there

    async def stub(self, path: Path) -> Twig:
        assert self.world is not None
        return await self.world.get_agent(Twig, ROOT, sub=[(Twig, name) for name in path])

    async def _nothing_is_left_over(self) -> None:
        """Every file belongs to an agent that exists, once deletions have ended."""
        assert self.world is not None
        await self.world.restart()
        for path in sorted(self.branches):  # awake, they go on with deletions that were cut short
            await self.stub(path)
        for _ in range(200):
            files = list((self.world.data / "trees").rglob("*.db"))
            if len(files) <= len(self.branches):
                break
            await asyncio.sleep(0.01)
        assert len(files) <= len(self.branches), f"{len(files)} files for {len(self.branches)} agents"
        assert not list(self.world.data.rglob("*.removed"))

    @precondition(lambda self: self.world is not None)
    @invariant()
    def the_tree_equals_the_model(self) -> None:
        async def compare() -> None:
            for path, branch in sorted(self.branches.items()):
                where = f"/{'/'.join(path)}"
                if not self.reachable(path):
                    with pytest.raises(Aborted, match="stopped"):
                        await self.stub(path)
                    continue
                texts, state, children = await (await self.stub(path)).read()
                branch.settle(texts, state, where)
                assert children == branch.children, where
                if len(path) < DEPTH:
                    for name in set(NAMES) - set(children):
                        with pytest.raises(NotFound):
                            await self.stub((*path, name))

        self.run(compare())

    # What can happen in peace

    @rule(number=numbers, name=st.sampled_from(NAMES))
    def grow(self, number: int, name: str) -> None:
        path = self.pick(number, inner=True)

        async def act() -> None:
            await (await self.stub(path)).grow(name)

        self.run(act())
        self.made((*path, name))

    @rule(number=numbers)
    def put(self, number: int) -> None:
        path = self.pick(number)
        text = self.text(path)

        async def act() -> None:
            await (await self.stub(path)).put(text)

        self.run(act())
        self.branches[path].texts.add(text)

    @rule(number=numbers)
    def set_state(self, number: int) -> None:
        path, state = self.pick(number), next(self.number)

        async def act() -> None:
            await (await self.stub(path)).set_to(state)

        self.run(act())
        self.branches[path].state = state

    @rule(number=numbers)
    def set_and_undo(self, number: int) -> None:
        path = self.pick(number)

        async def act() -> int:
            return await (await self.stub(path)).set_and_undo(next(self.number), self.text(path))

        assert self.run(act()) == self.branches[path].state

    @rule(number=numbers)
    def abort(self, number: int) -> None:
        path = self.pick_child(number)
        if path is None:
            return

        async def act() -> None:
            await (await self.stub(path[:-1])).stop(path[-1])

        self.run(act())
        self.aborted.add(path)

    @rule(number=numbers)
    def delete(self, number: int) -> None:
        path = self.pick_child(number)
        if path is None:
            return

        async def act() -> None:
            await (await self.stub(path[:-1])).cut(path[-1])

        self.run(act())
        self.gone(path)

    @rule(number=numbers)
    def destroy(self, number: int) -> None:
        path = self.pick(number)

        async def act() -> str:
            return await (await self.stub(path)).end()

        assert self.run(act()) == "ended"
        self.gone(path)

    @rule()
    def sleep(self) -> None:
        assert self.world is not None
        self.world.sleep()

    @rule()
    def restart(self) -> None:
        assert self.world is not None
        self.run(self.world.restart())
        self.aborted.clear()

    @rule()
    def crash(self) -> None:
        assert self.world is not None
        self.run(self.world.crash())
        self.aborted.clear()

    # What can happen in the midst of it

    async def _in_flight(self, numbers: list[int]) -> list[tuple[Path, Work, asyncio.Task[None]]]:
        """Begin a call or a stream in several agents at once."""
        begun: list[tuple[Path, Work, asyncio.Task[None]]] = []
        used: set[Path] = set()
        for number in numbers:
            path = self.pick(number)
            if path in used:
                continue
            used.add(path)
            texts = [self.text(path) for _ in range(1 + number % 5)]
            stub = await self.stub(path)
            if number % 3 == 0:
                work = Work(texts)
                task = asyncio.ensure_future(self._drink(stub, work))
            else:
                work = Work(texts, next(self.number))
                assert work.state is not None
                task = asyncio.ensure_future(self._answered(partial(stub.put_slowly, texts, work.state), work))
            self.branches[path].open.append(work)
            begun.append((path, work, task))
        return begun

    async def _drink(self, stub: Twig, work: Work) -> None:
        async for text in stub.pour(work.texts):
            assert text == work.texts[work.sure]
            work.sure += 1

    async def _answered(self, call: Callable[[], Awaitable[None]], work: Work) -> None:
        await call()
        work.sure = len(work.texts)

    async def _steps(self, steps: int) -> None:
        for _ in range(steps):
            await asyncio.sleep(0)

    async def _ended(self, tasks: list[asyncio.Task[None]], *expected: type[BaseException]) -> None:
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, expected), repr(outcome)

    @rule(numbers=several, steps=steps)
    def cancel_in_flight(self, numbers: list[int], steps: int) -> None:
        async def act() -> None:
            begun = await self._in_flight(numbers)
            await self._steps(steps)
            for _, _, task in begun:
                task.cancel()
            await self._ended([task for _, _, task in begun], asyncio.CancelledError)

        self.run(act())

    @rule(number=numbers, steps=steps)
    def cancel_a_call_that_makes_a_child(self, number: int, steps: int) -> None:
        path = self.pick(number, inner=True)
        child = (*path, NAMES[number % 2])
        work = Work([self.text(child), self.text(child)], next(self.number))

        async def act() -> None:
            assert work.state is not None
            stub = await self.stub(path)
            task = asyncio.ensure_future(
                self._answered(partial(stub.put_below, child[-1], work.texts, work.state), work)
            )
            await self._steps(steps)
            task.cancel()
            await self._ended([task], asyncio.CancelledError)
            _, _, children = await stub.read()
            if child[-1] in children:
                existed = child in self.branches
                if existed and child in self.aborted:
                    # Whether it was asked for again before the cancellation cannot be seen from outside: ask again.
                    await stub.grow(child[-1])
                self.made(child)
                self.branches[child].open.append(work)
            else:
                assert child not in self.branches
                assert work.sure == 0

        self.run(act())

    @rule(
        number=numbers,
        numbers=st.lists(st.integers(0, 20), min_size=1, max_size=4),
        steps=st.integers(0, 25),
    )
    def abort_in_flight(self, number: int, numbers: list[int], steps: int) -> None:
        path = self.pick_child(number)
        if path is None:
            return

        async def act() -> None:
            above = await self.stub(path[:-1])
            begun = await self._in_flight(numbers)
            await self._steps(steps)
            await above.stop(path[-1])
            for where, _, task in begun:
                await self._ended([task], *([Aborted] if where[: len(path)] == path else []))

        self.run(act())
        self.aborted.add(path)

    @rule(
        number=numbers,
        numbers=st.lists(st.integers(0, 20), min_size=1, max_size=4),
        steps=st.integers(0, 25),
    )
    def delete_in_flight(self, number: int, numbers: list[int], steps: int) -> None:
        path = self.pick_child(number)
        if path is None:
            return

        async def act() -> None:
            above = await self.stub(path[:-1])
            begun = await self._in_flight(numbers)
            await self._steps(steps)
            await above.cut(path[-1])
            for where, _, task in begun:
                await self._ended([task], *([NotFound] if where[: len(path)] == path else []))

        self.run(act())
        self.gone(path)

    @rule(
        number=numbers,
        numbers=st.lists(st.integers(0, 20), min_size=1, max_size=4),
        steps=st.integers(0, 25),
    )
    def destroy_in_flight(self, number: int, numbers: list[int], steps: int) -> None:
        path = self.pick(number)

        async def act() -> None:
            one = await self.stub(path)
            begun = await self._in_flight(numbers)
            await self._steps(steps)
            assert await one.end() == "ended"
            for where, _, task in begun:
                await self._ended([task], *([NotFound] if where[: len(path)] == path else []))

        self.run(act())
        self.gone(path)

    @rule(numbers=several, steps=steps, hard=st.booleans())
    def end_in_flight(self, numbers: list[int], steps: int, hard: bool) -> None:
        async def act() -> None:
            assert self.world is not None
            begun = await self._in_flight(numbers)
            await self._steps(steps)
            await (self.world.crash() if hard else self.world.restart())
            await self._ended([task for _, _, task in begun], Unavailable)

        self.run(act())
        self.aborted.clear()

    @rule(number=numbers, steps=st.integers(0, 12), hard=st.booleans())
    def end_in_the_midst_of_a_deletion(self, number: int, steps: int, hard: bool) -> None:
        path = self.pick_child(number)
        if path is None:
            return

        async def act() -> None:
            assert self.world is not None
            above = await self.stub(path[:-1])
            cutting = asyncio.ensure_future(above.cut(path[-1]))
            await self._steps(steps)
            await (self.world.crash() if hard else self.world.restart())
            outcome = (await asyncio.gather(cutting, return_exceptions=True))[0]
            assert outcome is None or isinstance(outcome, Unavailable), repr(outcome)
            _, _, children = await (await self.stub(path[:-1])).read()
            if path[-1] not in children:
                self.gone(path)
            else:
                assert outcome is not None, "the deletion was acknowledged"

        self.run(act())
        self.aborted.clear()


@pytest.mark.slow
def test_a_tree_equals_its_model_whatever_happens_to_it() -> None:
    run_state_machine_as_test(
        Tree,
        settings=settings(
            max_examples=int(os.environ.get("SAPWOOD_EXAMPLES", "60")),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
            print_blob=True,
        ),
    )
