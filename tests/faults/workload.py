"""What the agents do while they are killed: three levels, several clients, everything at once.

Numbers are taken from one counter at the moment of a write, so within a tree a higher
number was written later. Every client draws its acts from a seeded generator.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec
from tests.faults.journal import Journal

from sapwood import Agent, App
from sapwood.errors import Aborted, NotFound, SapwoodError, Unavailable
from sapwood.kernel.trees.deletion import child_stem

TREES = ("oak", "elm")
BRANCHES = ("north", "south", "east")
LEAVES = ("one", "two", "three")
CLIENTS = 5
EXPECTED = (Aborted, NotFound, Unavailable)
"""What clients may meet, because others abort, delete and put to sleep what they are using."""


class World:
    """What the agents of this process write their notes to. One for each process, hence global."""

    journal: Journal | None = None
    numbers: Iterator[int] = itertools.count(1)
    epochs: dict[str, int]

    def __init__(self) -> None:
        self.epochs = {}

    def note(self, *line: object) -> None:
        if self.journal is not None:
            self.journal.write(*line)


WORLD = World()


class Page(msgspec.Struct):
    """What an agent shows of itself."""

    epoch: int
    lineage: list[str]
    ids: list[int]
    state: int
    last_with_state: int
    children: list[tuple[str, str]]


class Grower(Agent[int]):
    """What all three levels can do."""

    migrations = ("CREATE TABLE log (id INTEGER PRIMARY KEY, kind TEXT NOT NULL) STRICT",)
    initial_state = 0

    @property
    def _tree(self) -> str:
        return self.address.segments[0].name

    @property
    def _epoch(self) -> int:
        return WORLD.epochs.get(self._tree, 0)

    @property
    def _lineage(self) -> list[str]:
        stems: list[str] = []
        actor = self._actor
        while actor is not None:
            stems.append(actor.stem)
            actor = actor.parent
        return stems[::-1]

    def _write(self, count: int = 1, *, state: bool = False) -> list[int]:
        ids = [next(WORLD.numbers) for _ in range(count)]
        WORLD.note("w", self._tree, self._epoch or ids[0], self._lineage, ids, state)
        self._insert(ids, "state" if state else "plain")
        if state:
            self.set_state(ids[-1])
        return ids

    def _insert(self, ids: list[int], kind: str) -> None:
        try:
            for id_ in ids:
                self.sql("INSERT INTO log VALUES (?, ?)", id_, kind)
        except BaseException:
            WORLD.note("n", ids)
            raise

    def _lineage_of(self, cls: type[Agent[Any]], name: str) -> list[str] | None:
        row = self._actor.registry.find((cls.__name__,), name)
        return None if row is None else [*self._lineage, child_stem(self._actor.stem, row.generation)]

    async def write(self, count: int, state: bool) -> list[int]:
        return self._write(count, state=state)

    async def write_twice(self) -> list[int]:
        """Two slices in one call."""
        first = self._write()
        await asyncio.sleep(0)
        return first + self._write(2)

    async def undo(self) -> list[int]:
        """Keep one write, and take another back."""
        kept = self._write()
        ids = [next(WORLD.numbers)]
        WORLD.note("u", ids)
        try:
            with self.transaction():
                self._insert(ids, "plain")
                raise KeyError
        except KeyError:
            pass
        return kept

    async def stream(self, count: int) -> AsyncGenerator[list[int], None]:
        for _ in range(count):
            yield self._write()

    async def page(self) -> Page:
        ids = [int(str(row["id"])) for row in self.sql("SELECT id FROM log ORDER BY id")]
        last = self.sql("SELECT coalesce(max(id), 0) FROM log WHERE kind = 'state'").scalar(int)
        children = [(child.type, child.name) for child in self.children.list()]
        return Page(self._epoch, self._lineage, ids, self.state, last, children)


class Leaf(Grower):
    async def write_up(self) -> list[int]:
        """Here, in the parent, and here again."""
        parent = await self.parent_agent(Branch)
        return self._write() + await parent.write(1, False) + self._write()

    async def leave(self) -> int:
        number = next(WORLD.numbers)
        WORLD.note("x", number, self._tree, self._epoch, self._lineage)
        await self.destroy()
        return number


class Parent(Grower):
    """What the two upper levels can do."""

    async def spawn(self, name: str) -> list[str] | None:
        await self.sub_agent(self._below(), name)
        return self._lineage_of(self._below(), name)

    async def write_below(self, name: str, count: int) -> list[int]:
        return await (await self.sub_agent(self._below(), name)).write(count, False)

    async def write_in_order(self, name: str) -> list[int]:
        """Here, in the child, and here again."""
        first = self._write()
        child = await self.sub_agent(self._below(), name)
        return first + await child.write(1, True) + self._write()

    async def write_to_all(self) -> list[int]:
        """In all children at once, each in two slices: while one waits, the next writes."""
        children = [await self.sub_agent(self._below(), child.name) for child in self.children.list()]
        replies = await asyncio.gather(*(child.write_twice() for child in children), return_exceptions=True)
        return [number for reply in replies if isinstance(reply, list) for number in reply]

    async def remove(self, name: str) -> int | None:
        lineage = self._lineage_of(self._below(), name)
        if lineage is None:
            return None
        number = next(WORLD.numbers)
        WORLD.note("x", number, self._tree, self._epoch, lineage)
        await self.children.delete(self._below(), name)
        return number

    async def replace(self, name: str) -> list[int]:
        """Delete a child and make it again."""
        number = await self.remove(name)
        return ([] if number is None else [number]) + await self.write_below(name, 1)

    async def stop(self, name: str) -> None:
        self.children.abort(self._below(), name, "on purpose")

    def _below(self) -> type[Any]:
        raise NotImplementedError


class Branch(Parent):
    def _below(self) -> type[Leaf]:
        return Leaf

    async def leave(self) -> int:
        number = next(WORLD.numbers)
        WORLD.note("x", number, self._tree, self._epoch, self._lineage)
        await self.destroy()
        return number


class Root(Parent):
    async def on_start(self) -> None:
        WORLD.epochs.pop(self.name, None)
        first = self.sql("SELECT coalesce(min(id), 0) FROM log").scalar(int)
        if first == 0 and WORLD.journal is not None:
            first = self._write()[0]
        WORLD.epochs[self.name] = first

    def _below(self) -> type[Branch]:
        return Branch

    async def write_deep(self, branch: str, leaf: str) -> list[int]:
        """Through all levels and back."""
        first = self._write()
        child = await self.sub_agent(Branch, branch)
        return first + await child.write_in_order(leaf) + self._write(2, state=True)

    async def write_leaf(self, branch: str, leaf: str) -> list[int]:
        return await (await self.sub_agent(Branch, branch)).write_below(leaf, 1)

    async def fell(self) -> int:
        number = next(WORLD.numbers)
        WORLD.note("d", number, self._tree, self._epoch)
        await self.destroy()
        return number


class Shared:
    """Many may use a tree at once, or one may have it alone: whoever destroys it."""

    def __init__(self) -> None:
        self._users: Counter[str] = Counter()
        self._alone: set[str] = set()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def use(self, tree: str, *, alone: bool) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: tree not in self._alone)
            if alone:
                self._alone.add(tree)
                await self._changed.wait_for(lambda: not self._users[tree])
            self._users[tree] += 1
        try:
            yield
        finally:
            async with self._changed:
                self._users[tree] -= 1
                if alone:
                    self._alone.discard(tree)
                self._changed.notify_all()


class Client:
    """One user of the trees: acts, and notes down what was acknowledged."""

    def __init__(self, app: App, random: Random, shared: Shared, favour: str | None) -> None:
        self._app = app
        self._random = random
        self._shared = shared
        self._tree = ""
        acts: dict[Callable[[], Awaitable[None]], int] = {
            self.write_root: 6,
            self.write_below: 10,
            self.write_outside: 8,
            self.write_everywhere: 8,
            self.in_order: 6,
            self.deep: 6,
            self.up: 4,
            self.undo: 2,
            self.stream: 5,
            self.spawn: 6,
            self.remove: 5,
            self.replace: 3,
            self.leave: 2,
            self.stop: 3,
            self.look: 6,
            self.sleep: 2,
            self.cancel: 4,
            self.fell: 1,
        }
        if favour is not None:
            acts[getattr(self, favour)] *= 12
        self._acts, self._weights = list(acts), list(acts.values())

    async def run(self) -> None:
        """Look at everything that is there, then act for ever."""
        for tree in self._random.sample(TREES, len(TREES)):
            self._tree = tree
            await self._try(self.look_at_all, alone=False)
        while True:
            self._tree = self._random.choice(TREES)
            (act,) = self._random.choices(self._acts, self._weights)
            await self._try(act, alone=act == self.fell)

    async def _try(self, act: Callable[[], Awaitable[None]], *, alone: bool) -> None:
        try:
            async with self._shared.use(self._tree, alone=alone):
                await act()
        except EXPECTED as error:
            if isinstance(error, Unavailable) and "sleep" not in str(error):
                WORLD.note("e", f"{act.__name__}: {error!r}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is to be reported
            text = getattr(error, "remote_traceback", "")
            WORLD.note("e", f"{act.__name__}: {error!r}{text}")

    def _branch(self) -> str:
        return self._random.choice(BRANCHES)

    def _leaf(self) -> str:
        return self._random.choice(LEAVES)

    async def _root(self) -> Root:
        return await self._app.get_agent(Root, self._tree)

    async def _parent(self) -> tuple[Parent, str]:
        """Return a root or a branch, and the name of a child it may have."""
        if self._random.random() < 0.5:
            return await self._root(), self._branch()
        return await self._app.get_agent(Root, self._tree, sub=[(Branch, self._branch())]), self._leaf()

    async def _child(self) -> Branch | Leaf:
        """Return a branch or a leaf that exists."""
        branch, leaf = self._branch(), self._leaf()
        if self._random.random() < 0.4:
            return await self._app.get_agent(Root, self._tree, sub=[(Branch, branch)])
        return await self._app.get_agent(Root, self._tree, sub=[(Branch, branch), (Leaf, leaf)])

    @staticmethod
    def _reply(numbers: list[int] | int | None) -> None:
        if numbers is not None:
            WORLD.note("a", numbers if isinstance(numbers, list) else [numbers])

    async def write_root(self) -> None:
        self._reply(await (await self._root()).write(self._random.randint(1, 3), self._random.random() < 0.3))

    async def write_below(self) -> None:
        parent, name = await self._parent()
        self._reply(await parent.write_below(name, self._random.randint(1, 3)))

    async def write_outside(self) -> None:
        """Write to a child without asking its parent."""
        child = await self._child()
        if self._random.random() < 0.5:
            self._reply(await child.write(2, self._random.random() < 0.3))
        else:
            self._reply(await child.write_twice())

    async def write_everywhere(self) -> None:
        parent, _ = await self._parent()
        self._reply(await parent.write_to_all())

    async def in_order(self) -> None:
        parent, name = await self._parent()
        self._reply(await parent.write_in_order(name))

    async def deep(self) -> None:
        root = await self._root()
        if self._random.random() < 0.5:
            self._reply(await root.write_deep(self._branch(), self._leaf()))
        else:
            self._reply(await root.write_leaf(self._branch(), self._leaf()))

    async def up(self) -> None:
        path = [(Branch, self._branch()), (Leaf, self._leaf())]
        leaf: Any = await self._app.get_agent(Root, self._tree, sub=path)
        self._reply(await leaf.write_up())

    async def undo(self) -> None:
        self._reply(await (await self._child()).undo())

    async def stream(self) -> None:
        agent: Grower = await self._root() if self._random.random() < 0.3 else await self._child()
        enough = self._random.randint(1, 8)
        stream = agent.stream(6)
        async for numbers in stream:
            self._reply(numbers)
            enough -= 1
            if not enough:
                await stream.aclose()
                break

    async def spawn(self) -> None:
        parent, name = await self._parent()
        lineage = await parent.spawn(name)
        if lineage is not None and (epoch := WORLD.epochs.get(self._tree)):
            WORLD.note("c", self._tree, epoch, lineage)

    async def remove(self) -> None:
        parent, name = await self._parent()
        self._reply(await parent.remove(name))

    async def replace(self) -> None:
        parent, name = await self._parent()
        self._reply(await parent.replace(name))

    async def leave(self) -> None:
        self._reply(await (await self._child()).leave())

    async def stop(self) -> None:
        parent, name = await self._parent()
        await parent.stop(name)

    async def look(self) -> None:
        agent: Grower = await self._root() if self._random.random() < 0.3 else await self._child()
        WORLD.note("s", (await agent.page()).ids)

    async def look_at_all(self) -> None:
        async for _, page in pages(self._app, self._tree):
            if isinstance(page, Page):
                WORLD.note("s", page.ids)

    async def sleep(self) -> None:
        self._app.node.sleep()

    async def cancel(self) -> None:
        """Ask for something, and change one's mind."""
        act = self._random.choice([self.write_below, self.deep, self.remove, self.replace, self.spawn, self.stream])
        task = asyncio.ensure_future(act())
        for _ in range(self._random.randint(0, 6)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def fell(self) -> None:
        self._reply(await (await self._root()).fell())


async def pages(app: App, tree: str) -> AsyncIterator[tuple[str, Page | SapwoodError]]:
    """Wake every agent of a tree, parents first, and return what each shows, or why it cannot."""
    classes = {"Branch": Branch, "Leaf": Leaf}
    left: list[list[tuple[str, str]]] = [[]]
    while left:
        path = left.pop()
        where = "/".join([tree, *(name for _, name in path)])
        try:
            agent: Any = await app.get_agent(Root, tree, sub=[(classes[type_], name) for type_, name in path])
            page: Page = await agent.page()
        except SapwoodError as error:
            yield where, error
            continue
        yield where, page
        left.extend([*path, child] for child in page.children)


async def work(app: App, random: Random, favour: str | None) -> None:
    """Run all clients, for ever."""
    shared = Shared()
    clients = [Client(app, Random(random.random()), shared, favour) for _ in range(CLIENTS)]
    await asyncio.gather(*(client.run() for client in clients))
