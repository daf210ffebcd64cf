"""What agents wish for later while they are killed: four levels, several clients, every way of saying when.

Every wish has a number, taken from one counter and handed to the method that is called, so
what is called says which wish it answers. A method notes down that it begins, and writes
what happened into its agent's table.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec
from tests.faults.journal import Journal
from tests.faults.workload import EXPECTED, Shared

from sapwood import Agent, App
from sapwood.capabilities.fiber_rows import Fiber
from sapwood.clock import Timer
from sapwood.errors import FiberFailed, SapwoodError, Unavailable
from sapwood.kernel.trees.deletion import child_stem
from sapwood.when import After, At, Cron, Every, Retry

TREES = ("oak", "elm", "yew")
NAMES = ("north", "south")
DEPTH = 3
LANES = ("", "post", "parcels")
KEYS = ("tea", "bread")
CLIENTS = 4
RETRY = Retry(max_attempts=3, initial_delay=timedelta(milliseconds=4), max_delay=timedelta(milliseconds=10))
ONCE = ("plain", "hop")
"""Methods without awaits, which happen exactly once."""
FAILING = ("broken", "poor_fiber")
FIBERS = ("fiber_work", "poor_fiber", "long_fiber", "run")
REPEATING = ("beat", "slow_beat", "cron")


class WallClock:
    """A wall clock that was set to some time, and may go faster than others."""

    def __init__(self, now: float, rate: float) -> None:
        self._set_to = now
        self._set_at = time.monotonic()
        self._rate = rate

    def now(self) -> float:
        return self._set_to + (time.monotonic() - self._set_at) * self._rate

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        wait = min(max((when - self.now()) / self._rate, 0.0), 1.0)
        return asyncio.get_running_loop().call_later(wait, callback)


class World:
    """What the agents of this process write their notes to. One for each process, hence global."""

    journal: Journal | None = None
    numbers: Iterator[int] = itertools.count(1)
    clock = WallClock(0.0, 1.0)
    calm = False
    """Whether everything is to run out."""

    def __init__(self) -> None:
        self.random = Random(0)
        self.settled: set[int] = set()
        """The wishes that were answered in this life, or failed as they should."""
        self.attempts: Counter[int] = Counter()

    def note(self, *line: object) -> None:
        if self.journal is not None:
            self.journal.write(*line)


WORLD = World()


class Page(msgspec.Struct):
    """What an agent shows of itself."""

    pending: list[int]
    done: list[int]
    children: list[str]


class Keeper(Agent):
    """What all levels can do."""

    migrations = (
        """
        CREATE TABLE happened (
            id INTEGER PRIMARY KEY, number INTEGER NOT NULL, what TEXT NOT NULL, at REAL NOT NULL, made INTEGER
        ) STRICT
        """,
    )

    @property
    def _tree(self) -> str:
        return self.address.segments[0].name

    @property
    def _lineage(self) -> list[str]:
        stems: list[str] = []
        actor = self._actor
        while actor is not None:
            stems.append(actor.stem)
            actor = actor.parent
        return stems[::-1]

    def _happened(self, number: int, what: str = "done", made: int | None = None) -> None:
        self.sql("INSERT INTO happened (number, what, at, made) VALUES (?, ?, ?, ?)", number, what, now(), made)

    def _wished(self, number: int, kind: str, due: float, **more: object) -> None:
        WORLD.note("w", number, kind, self._tree, self._lineage, due, more)

    def _begun(self, number: int, **more: object) -> None:
        WORLD.note("b", number, now(), more)

    def _ended(self, number: int) -> None:
        WORLD.note("z", number)

    async def plain(self, number: int) -> None:
        self._begun(number)
        self._happened(number)
        self._ended(number)
        WORLD.settled.add(number)

    async def slow(self, number: int) -> None:
        self._begun(number)
        try:
            self._happened(number, "begun")
            await asyncio.sleep(WORLD.random.random() * 0.01)
            self._happened(number)
            WORLD.settled.add(number)
        finally:
            self._ended(number)

    async def broken(self, number: int) -> None:
        """Raises, always: what it wrote must not stay."""
        self._begun(number)
        self._happened(number)
        self._ended(number)
        WORLD.attempts[number] += 1
        WORLD.settled.add(number)
        raise ValueError(number)

    async def shaky(self, number: int) -> None:
        """Raises at first."""
        self._begun(number)
        self._happened(number)
        self._ended(number)
        WORLD.attempts[number] += 1
        WORLD.settled.add(number)
        if WORLD.attempts[number] <= number % 3:
            raise ValueError(number)

    async def hop(self, number: int, left: int) -> None:
        """Wishes for the next one in the slice it happens in."""
        self._begun(number)
        made = None
        if left:
            made = next(WORLD.numbers)
            delay = WORLD.random.random() * 0.03
            self._wished(made, "hop", now() + delay, key=None)
            self.schedule(After(timedelta(seconds=delay), retry=RETRY), self.hop, made, left - 1)
        self._happened(number, made=made)
        self._ended(number)
        WORLD.settled.add(number)

    async def beat(self, number: int) -> None:
        self._begun(number)
        self._happened(number)
        self._ended(number)
        WORLD.settled.add(number)

    async def slow_beat(self, number: int) -> None:
        self._begun(number)
        try:
            await asyncio.sleep(WORLD.random.random() * 0.02)
            self._happened(number)
            WORLD.settled.add(number)
        finally:
            self._ended(number)

    async def cron(self, number: int) -> None:
        self._begun(number)
        self._happened(number)
        self._ended(number)
        WORLD.settled.add(number)

    async def fiber_work(self, number: int) -> int:
        """Two steps, a checkpoint, a sleep, and one more step."""
        checkpoint = self.fibers.current.checkpoint
        self._begun(number, checkpoint=checkpoint)
        first = await self._step(number, "first", self._sync_step)
        await self.checkpoint(first)
        WORLD.note("h", number, first)
        second = await self._step(number, "second", self._async_step)
        wake_at = now() + WORLD.random.random() * 0.02
        await self.sleep_until(datetime.fromtimestamp(wake_at, UTC))
        third = await self._step(number, "third", self._sync_step)
        if not first < second < third:
            WORLD.note("e", f"the steps of {number} returned {first}, {second}, {third}")
        self._happened(number)
        WORLD.settled.add(number)
        return third

    async def poor_fiber(self, number: int) -> None:
        self._begun(number, checkpoint=None)
        await self._step(number, "only", self._sync_step)
        WORLD.settled.add(number)
        raise ValueError(number)

    async def long_fiber(self, number: int) -> None:
        """Sleeps so long that it is parked meanwhile."""
        self._begun(number, checkpoint=None)
        await self._step(number, "first", self._sync_step)
        wake_at = await self._step(number, "when", self._in_two_minutes)
        await self.sleep_until(datetime.fromtimestamp(wake_at, UTC))
        if now() < wake_at:
            WORLD.note("e", f"the fiber {number} was to sleep until {wake_at}, and woke at {now()}")
        self._happened(number)
        WORLD.settled.add(number)

    async def _step(self, number: int, name: str, function: Callable[[int, str], Any]) -> Any:
        value = await self.step(name, function, number, name)
        WORLD.note("g", number, name, value)
        return value

    def _sync_step(self, number: int, name: str) -> int:
        value = next(WORLD.numbers)
        WORLD.note("f", number, name)
        self._happened(number, f"step {name}", value)
        return value

    async def _async_step(self, number: int, name: str) -> int:
        WORLD.note("f", number, name)
        await asyncio.sleep(WORLD.random.random() * 0.005)
        self._happened(number, f"step {name}")
        return next(WORLD.numbers)

    def _in_two_minutes(self, number: int, name: str) -> float:
        WORLD.note("f", number, name)
        return now() + 120.0

    async def on_fiber_recovered(self, fiber: Fiber) -> None:
        if WORLD.random.random() < 0.1 and not WORLD.calm:
            raise ValueError("not today")

    async def wish(self, kind: str, how: str, delay: float, key: str | None) -> int:
        """Wish for one call."""
        number = next(WORLD.numbers)
        method = getattr(self, kind)
        more = (WORLD.random.randint(0, 3),) if kind == "hop" else ()
        if how == "queue":
            lane = WORLD.random.choice(LANES)
            self._wished(number, kind, now(), lane=lane)
            self.queues[lane].with_retry(RETRY).add(method, number, *more)
            return number
        span = timedelta(seconds=delay)
        if key is not None and (old := self.schedules.get(key)) is not None:
            WORLD.note("c", next(WORLD.numbers), old.arguments["number"])
        began = now()
        if kind == "cron":
            self._wished(number, kind, (began // 60 + 1) * 60, interval=60.0)
            self.schedule(Cron("* * * * *", key=key, retry=RETRY), method, number)
        elif kind in REPEATING:
            self._wished(number, kind, began + delay, interval=delay)
            made = self.schedule(Every(span, key=key, retry=RETRY), method, number)
            WORLD.note("k", number, made.due_at.timestamp())
        elif how == "at":
            time = datetime.fromtimestamp(began + delay, UTC)
            self._wished(number, kind, time.timestamp(), key=key)
            self.schedule(At(time, key=key, retry=RETRY), method, number, *more)
        else:
            self._wished(number, kind, began + delay, key=key)
            self.schedule(After(span, key=key, retry=RETRY), method, number, *more)
        return number

    async def wish_many(self, wishes: list[tuple[str, str, float]]) -> list[int]:
        """Wish for several in one slice."""
        return [await self.wish(kind, how, delay, None) for kind, how, delay in wishes]

    async def wish_again(self, key: str) -> list[int]:
        """Wish for the same under the same key: nothing changes, and what is there was promised."""
        found = self.schedules.get(key)
        if found is None or getattr(self, found.method) == self.hop:
            return []
        same = self.schedule(found.when, getattr(self, found.method), found.arguments["number"])
        if same.id != found.id:  # it is being called already: the wish is for one more
            WORLD.note("r", same.arguments["number"])
        return [same.arguments["number"]]

    async def start(self, kind: str) -> int:
        number = next(WORLD.numbers)
        self._wished(number, kind, now())
        self.start_fiber(f"f {number}", getattr(self, kind), number)
        return number

    async def run(self) -> int:
        number = next(WORLD.numbers)
        self._wished(number, "run", now())
        await self.fibers.run(f"r {number}", self.fiber_work, number)
        return number

    async def cancel(self) -> int | None:
        """Cancel one of whatever there is."""
        number = next(WORLD.numbers)
        ways: list[tuple[int, Callable[[str], bool], str]] = [
            *((found.arguments["number"], self.schedules.cancel, found.id) for found in self.schedules.list()),
            *((found.arguments["number"], self.queues.remove, found.id) for found in self.queues.list()),
            *((int(found.name[2:]), self.fibers.cancel, found.id) for found in self.fibers.list("running")),
        ]
        if not ways:
            return None
        wish, way, id_ = WORLD.random.choice(ways)
        WORLD.note("c", number, wish)
        return number if way(id_) else None

    async def replay(self) -> None:
        letters = self.dead_letters.list()
        if letters:
            letter = WORLD.random.choice(letters)
            WORLD.note("r", letter.arguments["number"])
            self.dead_letters.replay(letter.id)

    async def drop_letter(self) -> None:
        letters = self.dead_letters.list()
        if letters:
            letter = WORLD.random.choice(letters)
            WORLD.note("c", next(WORLD.numbers), letter.arguments["number"])
            self.dead_letters.delete(letter.id)

    async def page(self) -> Page:
        pending = [found.arguments["number"] for found in (*self.schedules.list(), *self.queues.list())]
        pending += [int(found.name[2:]) for found in self.fibers.list() if not found.is_over]
        done = [int(str(row["number"])) for row in self.sql("SELECT number FROM happened WHERE what = 'done'")]
        return Page(pending, done, [child.name for child in self.children.list()])

    async def hush(self) -> int:
        """Cancel what repeats; return how much is left."""
        for found in self.schedules.list():
            if isinstance(found.when, Every | Cron):
                self.schedules.cancel(found.id)
        fibers = [found for found in self.fibers.list() if not found.is_over]
        return len(self.schedules.list()) + len(self.queues.list()) + len(fibers)

    async def spawn(self, name: str) -> None:
        await self.sub_agent(Limb, name)

    async def remove(self, name: str) -> int | None:
        row = self._actor.registry.find(("Limb",), name)
        if row is None:
            return None
        number = next(WORLD.numbers)
        WORLD.note("x", number, self._tree, [*self._lineage, child_stem(self._actor.stem, row.generation)])
        await self.children.delete(Limb, name)
        return number

    async def replace(self, name: str, kind: str, delay: float) -> list[int]:
        """Delete a child, make it again, and have it wish."""
        number = await self.remove(name)
        child = await self.sub_agent(Limb, name)
        return ([] if number is None else [number]) + [await child.wish(kind, "after", delay, None)]

    async def stop(self, name: str) -> None:
        self.children.abort(Limb, name, "on purpose")

    async def leave(self) -> int:
        """Delete itself."""
        number = next(WORLD.numbers)
        WORLD.note("x", number, self._tree, self._lineage)
        await self.destroy()
        if WORLD.random.random() < 0.5:
            await asyncio.sleep(WORLD.random.random() * 0.005)
        return number


class Limb(Keeper):
    pass


class Trunk(Keeper):
    pass


def now() -> float:
    return WORLD.clock.now()


class Client:
    """One user of the trees: wishes, and notes down what was acknowledged."""

    def __init__(self, app: App, random: Random, shared: Shared, favour: str | None) -> None:
        self._app = app
        self._random = random
        self._shared = shared
        self._tree = ""
        acts: dict[Callable[[], Awaitable[None]], int] = {
            self.wish: 16,
            self.wish_many: 5,
            self.wish_keyed: 5,
            self.wish_again: 4,
            self.repeat: 3,
            self.start: 6,
            self.run_here: 2,
            self.cancel: 4,
            self.letters: 2,
            self.spawn: 7,
            self.remove: 2,
            self.replace: 2,
            self.leave: 2,
            self.stop: 1,
            self.look: 4,
            self.sleep: 3,
            self.pause: 6,
            self.fell: 1,
        }
        if favour is not None:
            acts[getattr(self, favour)] *= 12
        self._acts, self._weights = list(acts), list(acts.values())

    async def run(self) -> None:
        while True:
            self._tree = self._random.choice(TREES)
            (act,) = self._random.choices(self._acts, self._weights)
            await self._try(act, alone=act == self.fell)

    async def _try(self, act: Callable[[], Awaitable[None]], *, alone: bool) -> None:
        try:
            async with self._shared.use(self._tree, alone=alone):
                await act()
        except (*EXPECTED, FiberFailed) as error:
            if isinstance(error, Unavailable) and "sleep" not in str(error):
                WORLD.note("e", f"{act.__name__}: {error!r}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is to be reported
            text = getattr(error, "remote_traceback", "")
            WORLD.note("e", f"{act.__name__}: {error!r}{text}")

    async def _agent(self, deepest: int = DEPTH) -> Keeper:
        path = [(Limb, self._random.choice(NAMES)) for _ in range(self._random.randint(0, deepest))]
        if not path:
            return await self._app.get_agent(Trunk, self._tree)
        return await self._app.get_agent(Trunk, self._tree, sub=path)

    def _delay(self) -> float:
        return self._random.choice((0.0, 0.002, 0.01, 0.04, 0.2, 0.5)) * self._random.random()

    def _kind(self) -> str:
        return self._random.choice(("plain", "plain", "slow", "broken", "shaky", "hop"))

    def _how(self) -> str:
        return self._random.choice(("after", "after", "at", "queue", "queue"))

    @staticmethod
    def _reply(numbers: list[int] | int | None) -> None:
        if numbers is not None and numbers != []:
            WORLD.note("a", numbers if isinstance(numbers, list) else [numbers])

    async def wish(self) -> None:
        self._reply(await (await self._agent()).wish(self._kind(), self._how(), self._delay(), None))

    async def wish_many(self) -> None:
        wishes = [(self._kind(), self._how(), self._delay()) for _ in range(self._random.randint(2, 6))]
        self._reply(await (await self._agent()).wish_many(wishes))

    async def wish_keyed(self) -> None:
        kind = self._random.choice(("plain", "slow", "broken"))
        agent = await self._agent()
        self._reply(await agent.wish(kind, "after", 0.01 + self._delay(), self._random.choice(KEYS)))

    async def wish_again(self) -> None:
        self._reply(await (await self._agent()).wish_again(self._random.choice(KEYS)))

    async def repeat(self) -> None:
        kind = self._random.choice(REPEATING)
        interval = self._random.choice((0.007, 0.02, 0.3, 5.0))
        self._reply(await (await self._agent()).wish(kind, "after", interval, None))

    async def start(self) -> None:
        kind = self._random.choice(("fiber_work", "fiber_work", "fiber_work", "poor_fiber", "long_fiber"))
        self._reply(await (await self._agent()).start(kind))

    async def run_here(self) -> None:
        self._reply(await (await self._agent()).run())

    async def cancel(self) -> None:
        self._reply(await (await self._agent()).cancel())

    async def letters(self) -> None:
        agent = await self._agent()
        await (agent.replay() if self._random.random() < 0.7 else agent.drop_letter())

    async def spawn(self) -> None:
        await (await self._agent(DEPTH - 1)).spawn(self._random.choice(NAMES))

    async def remove(self) -> None:
        self._reply(await (await self._agent(DEPTH - 1)).remove(self._random.choice(NAMES)))

    async def replace(self) -> None:
        agent = await self._agent(DEPTH - 1)
        self._reply(await agent.replace(self._random.choice(NAMES), self._kind(), self._delay()))

    async def leave(self) -> None:
        """Have a child delete itself, and make it again at once."""
        path = [(Limb, self._random.choice(NAMES)) for _ in range(self._random.randint(1, DEPTH))]
        child = await self._app.get_agent(Trunk, self._tree, sub=path)
        above = path[:-1]
        parent: Any = (
            await self._app.get_agent(Trunk, self._tree, sub=above)
            if above
            else await self._app.get_agent(Trunk, self._tree)
        )
        leaving = asyncio.ensure_future(child.leave())
        for _ in range(self._random.randint(0, 4)):
            await asyncio.sleep(0)
        if self._random.random() < 0.5:
            await parent.spawn(path[-1][1])
            again = await self._app.get_agent(Trunk, self._tree, sub=path)
            self._reply(await again.wish(self._kind(), "after", 0.05 + self._delay(), None))
        self._reply(await leaving)

    async def stop(self) -> None:
        """Abort a child, and ask for it again."""
        parent, name = await self._agent(DEPTH - 1), self._random.choice(NAMES)
        await parent.stop(name)
        await asyncio.sleep(self._random.random() * 0.01)
        await parent.spawn(name)

    async def look(self) -> None:
        page = await (await self._agent()).page()
        WORLD.note("s", page.pending, page.done)

    async def sleep(self) -> None:
        self._app.node.sleep()

    async def pause(self) -> None:
        """Let somebody else do what is due."""
        await asyncio.sleep(self._random.random() * 0.01)

    async def fell(self) -> None:
        root = await self._app.get_agent(Trunk, self._tree)
        self._reply(await root.leave())


async def everybody(app: App, tree: str) -> AsyncIterator[Any]:
    """Wake every agent of a tree, parents first, and return each."""
    left: list[list[tuple[type[Limb], str]]] = [[]]
    while left:
        path = left.pop()
        try:
            agent: Any = await app.get_agent(Trunk, tree, sub=path) if path else await app.get_agent(Trunk, tree)
            children = (await agent.page()).children
        except SapwoodError as error:
            WORLD.note("e", f"{tree}/{path} does not answer: {error!r}")
            continue
        yield agent
        left.extend([*path, (Limb, name)] for name in children)


async def work(app: App, random: Random, favour: str | None) -> None:
    """Run all clients, for ever."""
    shared = Shared()
    clients = [Client(app, Random(random.random()), shared, favour) for _ in range(CLIENTS)]
    await asyncio.gather(*(client.run() for client in clients))
