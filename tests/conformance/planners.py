"""An agent that plans: it schedules and queues calls of itself, at any depth of a tree, and keeps notes of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.conformance.worlds import Probe

from sapwood import After, Agent, Cron, Every, Retry
from sapwood.testing import World
from sapwood.types import Address

NO_RETRY = Retry(max_attempts=1)
AT_ONCE = Retry(max_attempts=3, initial_delay=timedelta(0), max_delay=timedelta(0))
"""Tries again without waiting."""


class Planner(Agent):
    """Keeps notes, and may be the child of one like itself. Its deps are a probe."""

    migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)
    deps: Probe

    async def on_start(self) -> None:
        self.deps.log.append(f"start {self.name}")
        if f"{self.name} cannot start" in self.deps.log:
            raise RuntimeError("not today")

    async def grow(self, *names: str) -> None:
        """Make a child, a child of that child, and so on."""
        first, *below = names
        child = await self.sub_agent(Planner, first)
        if below:
            await child.grow(*below)

    async def stop(self, name: str) -> None:
        self.children.abort(Planner, name, "enough")

    async def cut(self, name: str) -> None:
        await self.children.delete(Planner, name)

    async def end(self) -> None:
        await self.destroy()

    async def note(self, text: str) -> None:
        self.sql("INSERT INTO notes VALUES (?)", text)
        self.deps.log.append(f"{self.name}: {text}")

    async def slowly(self, text: str) -> None:
        """Note something once the probe says go."""
        self.deps.log.append(f"{self.name} begins {text}")
        await self.deps.go.wait()
        self.sql("INSERT INTO notes VALUES (?)", text)
        self.deps.log.append(f"{self.name} ends {text}")

    async def fail(self, text: str) -> None:
        """Note something, and raise at once."""
        self.deps.log.append(f"{self.name} tries {text}")
        self.sql("INSERT INTO notes VALUES (?)", text)
        if f"{text} works" not in self.deps.log:
            raise RuntimeError(text)

    async def notes(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM notes ORDER BY rowid")]

    async def after(
        self, seconds: float, text: str, method: str = "note", key: str | None = None, retry: Retry = NO_RETRY
    ) -> str:
        wish = After(timedelta(seconds=seconds), key=key, retry=retry)
        return self.schedule(wish, getattr(self, method), text).id

    async def every(
        self, seconds: float, text: str, method: str = "note", key: str | None = None, retry: Retry = NO_RETRY
    ) -> str:
        wish = Every(timedelta(seconds=seconds), key=key, retry=retry)
        return self.schedule(wish, getattr(self, method), text).id

    async def cron(self, expression: str, text: str, tz: str = "UTC", method: str = "note") -> str:
        return self.schedule(Cron(expression, tz, retry=NO_RETRY), getattr(self, method), text).id

    async def put(self, text: str, queue: str = "", method: str = "note", retry: Retry = NO_RETRY) -> str:
        return self.queues[queue].with_retry(retry).add(getattr(self, method), text).id

    async def take_out(self, id: str) -> bool:
        return self.queues.remove(id)

    async def queued(self, queue: str | None = None) -> list[str]:
        return [call.arguments["text"] for call in (self.queues.list() if queue is None else self.queues[queue].list())]

    async def cancel(self, id: str) -> bool:
        return self.schedules.cancel(id)

    async def planned(self) -> list[str]:
        return [schedule.arguments["text"] for schedule in self.schedules.list()]

    async def due(self, id: str) -> datetime | None:
        schedule = self.schedules.get(id)
        return None if schedule is None else schedule.due_at

    async def failed(self, id: str) -> int:
        schedule = self.schedules.get(id)
        return 0 if schedule is None else schedule.failed

    async def dead(self) -> list[tuple[str, str, int, int]]:
        """Return what was given up: text, code, attempts, times."""
        letters = self.dead_letters.list()
        return [(letter.arguments["text"], letter.code, letter.attempts, letter.occurrences) for letter in letters]

    async def dead_ids(self) -> list[str]:
        return [letter.id for letter in self.dead_letters.list()]

    async def replay(self, id: str) -> bool:
        return self.dead_letters.replay(id)

    async def forget(self, id: str) -> bool:
        return self.dead_letters.delete(id)


NAMES = ("child", "grandchild", "great-grandchild")


async def planner(world: World, depth: int = 0, *, name: str = "root") -> Planner:
    """Return the planner at this depth, made if need be."""
    root = await world.get_agent(Planner, name)
    if depth:
        await root.grow(*NAMES[:depth])
    return await found(world, depth, name=name)


async def found(world: World, depth: int = 0, *, name: str = "root") -> Planner:
    """Return the planner at this depth, which is there already."""
    return await world.get_agent(Planner, name, sub=[(Planner, below) for below in NAMES[:depth]])


def address(depth: int = 0, *, name: str = "root") -> Address:
    """Return the address of the planner at this depth."""
    here = Address.root_of("Planner", name)
    for below in NAMES[:depth]:
        here = here.child("Planner", below)
    return here


def time_of(world: World, seconds: float = 0.0) -> datetime:
    """Return the time of the world's clock, so many seconds on."""
    return datetime.fromtimestamp(world.clock.now() + seconds, UTC)
