"""What the tests of this folder share: an agent that can do a little of everything, and a probe to watch with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from tests.machine import patience

from sapwood import Agent, NotFound, Unavailable
from sapwood.testing import World
from sapwood.testing.loop import VirtualLoop
from sapwood.testing.loop import until as loop_until
from sapwood.types import PathSegment

Run = Callable[..., AbstractAsyncContextManager[World]]
"""Runs an app: ``async with run(Root, deps=…, **settings) as world``."""


@dataclass
class Probe:
    """Seen by the test and by its agents alike: deps are handed over as they are, not copied."""

    log: list[str] = field(default_factory=list[str])
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def seen(self, entry: str) -> None:
        """Return when an agent has written this entry."""
        await until(lambda: entry in self.log)


async def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds; fail if it does not come to hold."""
    await loop_until(condition, patience())


async def happens(condition: Callable[[], bool]) -> None:
    """Return when the condition holds; for what takes real time. The caller bounds it."""
    while not condition():  # noqa: ASYNC110 - nobody can tell us: it is seen from outside
        await asyncio.sleep(0.01)


async def asleep(world: World) -> None:
    """Return when nothing is in memory; fail if something stays. Whoever drives turns may have a last word to say."""

    def sleeps() -> bool:
        world.sleep()
        return not world.node.trees

    async with asyncio.timeout(patience()):
        await happens(sleeps)


async def crash_everywhere(
    run: Run,
    point: str,
    *,
    prepare: Callable[[World], Awaitable[object]],
    act: Callable[[World], Awaitable[object]],
    check: Callable[[World], Awaitable[object]],
    **settings: object,
) -> None:
    """Crash when `act` passes the point for the first time, in a new world for the second time, and so on.

    After each crash the world is started again and checked.
    """
    nth, passed = 0, True
    while passed:
        nth += 1
        async with run(Branch, **settings) as world:
            await prepare(world)
            before = world.points.passed[point]
            world.crash_at(point, nth)
            with contextlib.suppress(Unavailable, NotFound):
                await act(world)
            passed = world.points.passed[point] >= before + nth
            await world.crash()
            if passed:
                await check(world)


def below(*names: str) -> list[tuple[type[Branch], str]]:
    """Return the way from a root to a branch below it."""
    return [(Branch, name) for name in names]


async def a_while() -> None:
    """Let work in the background go on, until only time or others are waited for."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop) and not loop.has_files:
        await loop.idle(1.0)
        return
    for _ in range(500):
        await asyncio.sleep(0)


class Branch(Agent):
    """An agent that keeps notes, and can be the child of one like itself."""

    migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)

    async def note(self, text: str) -> int:
        self.sql("INSERT INTO notes VALUES (?)", text)
        return self.sql("SELECT count(*) FROM notes").scalar(int)

    async def notes(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM notes")]

    async def grow(self, *names: str) -> None:
        """Make a child, a child of that child, and so on."""
        first, *below = names
        child = await self.sub_agent(Branch, first)
        if below:
            await child.grow(*below)

    async def note_below(self, name: str, text: str) -> int:
        child = await self.sub_agent(Branch, name)
        return await child.note(text)

    async def has(self, name: str) -> bool:
        return self.children.has(Branch, name)

    async def child_names(self) -> list[str]:
        return [child.name for child in self.children.list()]

    async def generations(self) -> list[int]:
        return [child.generation for child in self.children.list()]

    async def stop(self, name: str, reason: str | None = None) -> None:
        self.children.abort(Branch, name, reason)

    async def cut(self, name: str) -> None:
        await self.children.delete(Branch, name)

    async def end(self) -> str:
        await self.destroy()
        return "ended"

    async def hang(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def where(self) -> tuple[str, tuple[PathSegment, ...], tuple[PathSegment, ...]]:
        return self.name, self.address.segments, self.address.segments[:-1]
