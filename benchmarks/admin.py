"""The admin API: what a look at many sleeping agents costs.

    python benchmarks/admin.py [--small]

The agents were made by copying the files of one tree, so that making them takes seconds. Nothing is woken. The figures
are medians of the CPU time of the process, so the load of the machine counts little.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
from frame import at_most, below, say, scratch, works

from sapwood import Agent, App, Settings
from sapwood.address import Address
from sapwood.admin.access import FULL
from sapwood.admin.admin import Admin
from sapwood.admin.endpoint import AdminCall
from sapwood.admin.endpoints import ENDPOINTS
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.node import Node
from sapwood.kernel.trees.tree_files import LABEL

SMALL = "--small" in sys.argv
ROOTS = 50 if SMALL else 1000
CHILDREN = 100
WIDE = 5_000 if SMALL else 100_000
"""Children of the one root that has many."""
SOME_ROOTS = 10 if SMALL else 80
"""Roots of the tree that is listed whole: with their children, 8,000 agents."""
REPEATS = 3 if SMALL else 9
PAGE = 500


class Leaf(Agent[dict[str, int]]):
    initial_state: dict[str, int] = {"n": 0}  # noqa: RUF012

    async def put(self) -> None:
        self.set_state({"n": 1})


class Stem(Agent):
    async def grow(self, count: int) -> None:
        for number in range(count):
            await (await self.sub_agent(Leaf, f"leaf-{number:06}")).put()

    async def widen(self, count: int) -> None:
        """Have so many children that have stored nothing: their rows, as `sub_agent` writes them."""
        for number in range(count):
            self._actor.registry.add("Leaf", f"wide-{number:06}", trace=None)
            if number % 1000 == 0:
                await self.flush()

    async def wonder(self) -> None:
        self.start_fiber("wonder", self.wondering)

    async def wondering(self) -> str:
        return await self.questions.ask("Which?", options=["a", "b"])


def app(data: Path) -> App:
    return App(agents=[Stem], settings=Settings(data=data, slow_after=60.0))


def node_of(one: App) -> Node:
    return one.node


async def grown(data: Path, children: int) -> Path:
    """Make one tree with a question and so many children; return its folder."""
    async with app(data) as one:
        stem = await one.get_agent(Stem, "seed")
        await stem.grow(children)
        await stem.wonder()
        while not await waits(one):  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.01)
    return tree_folder(data, Address.root_of("Stem", "seed"))


async def waits(one: App) -> bool:
    """Return whether the tree waits for an answer, and for nothing that has a time: then nothing wakes it."""
    fibers = (await ask(one, "agenda", address="Stem:seed"))["rows"]
    asked = (await ask(one, "questions", limit=1))["rows"]
    return bool(asked) and not (await ask(one, "agenda"))["rows"] and fibers[0]["due_at"] is None


def copied(seed: Path, data: Path, count: int) -> None:
    """Make so many trees of one."""
    for number in range(count):
        root = Address.root_of("Stem", f"tree-{number:06}")
        folder = tree_folder(data, root)
        shutil.copytree(seed, folder)
        (folder / LABEL).write_text(str(root))
    shutil.rmtree(seed)
    for index in data.glob("alarms*"):
        index.unlink()


async def indexed(data: Path) -> None:
    """Have the index of alarms made, which a node does once after its file was lost."""
    async with app(data) as one:
        while not node_of(one).alarms.is_whole:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.1)


async def ask(one: App, what: str, **params: Any) -> Any:
    """Return what an endpoint answers, without HTTP."""
    endpoint, node = ENDPOINTS[what], node_of(one)
    assert endpoint.answer is not None
    return await endpoint.answer(AdminCall(node, Admin(node), FULL), endpoint.read(params, FULL))


async def pages(one: App, what: str, **params: Any) -> int:
    """Read all pages; return how many rows they have."""
    count, after = 0, None
    while True:
        page = await ask(one, what, after=after, limit=PAGE, **params)
        count, after = count + len(page["rows"]), page["next"]
        if after is None:
            return count


async def seconds(act: Callable[[], Awaitable[Any]]) -> float:
    """Return the CPU time that something took."""
    start = time.process_time()
    await act()
    return time.process_time() - start


async def median(act: Callable[[], Awaitable[Any]], repeats: int = REPEATS) -> float:
    return statistics.median([await seconds(act) for _ in range(repeats)])


async def children(data: Path) -> None:
    """A page of the children of one agent, beside what `tree` reads of the same children."""
    async with app(data) as one:
        root = "Stem:tree-000000"

        async def page() -> None:
            found = await ask(one, "agents", address=root, limit=CHILDREN)
            assert len(found["rows"]) == CHILDREN

        async def tree() -> None:
            found = await ask(one, "tree", address=root, agents=CHILDREN + 1, children=CHILDREN)
            assert len(found["roots"][0]["below"]) == CHILDREN

        await page()
        await tree()
        ours, theirs = await median(page), await median(tree)
        note = "a page of 100; the reference is `tree`, which reads the database of each; all are open already"
        each = 1e6 / CHILDREN
        at_most("a child in a list", ours * each, theirs * each, times=0.33, unit="µs", n=CHILDREN, note=note)


async def whole(data: Path) -> None:
    """All agents of many trees by pages, beside `tree`. Both begin with files that were never opened."""
    count = SOME_ROOTS * (CHILDREN + 1)

    async def by_pages() -> None:
        async with app(data) as one:
            found = 0
            for number in range(SOME_ROOTS):
                found += 1 + await pages(one, "agents", address=f"Stem:tree-{number:06}")
            assert found == count

    async def at_once() -> None:
        async with app(data) as one:
            left = 0
            for number in range(SOME_ROOTS):
                address = f"Stem:tree-{number:06}"
                found = await ask(one, "tree", address=address, agents=CHILDREN + 1, children=CHILDREN)
                left += 1 + len(found["roots"][0]["below"])
            assert left == count

    ours, theirs = await seconds(by_pages), await seconds(at_once)
    at_most(f"a tree of {count:,} sleeping agents", ours, theirs, times=0.2, unit="s", n=1, note="reference: `tree`")


async def questions(data: Path) -> None:
    """The questions of all trees, beside a bare read of as many databases."""
    paths = [tree_folder(data, Address.root_of("Stem", f"tree-{number:06}")) / "root.db" for number in range(ROOTS)]

    async def bare() -> None:
        for path in paths:
            database = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
            found = list(database.execute("SELECT body FROM sapwood_own_questions WHERE answer IS NULL"))
            assert len(found) == 1
            database.close()

    await bare()
    theirs = await median(bare, 3)  # before the app holds the databases
    async with app(data) as one:

        async def asked() -> None:
            assert await pages(one, "questions") == ROOTS

        first = await seconds(asked)
        ours = await median(asked, 3)
        note = f"all pages of 500; the first time {first * 1e3:.0f} ms"
        name = f"questions of {ROOTS:,} trees"
        at_most(name, ours * 1e3, theirs * 1e3, times=10, unit="ms", n=ROOTS, note=note)


async def crowd(data: Path) -> None:
    """The first page, other pages and a search among all agents."""
    count = ROOTS * (CHILDREN + 1)
    async with app(data) as one:

        async def page() -> None:
            found = await ask(one, "agents", limit=100)
            assert (len(found["rows"]), found["total"]) == (min(100, ROOTS), ROOTS)

        first = await seconds(page)
        later = await median(page)
        of = f"of {count:,} sleeping agents"
        below(f"the first page of the roots {of}", first * 1e3, 1000, unit="ms", n=1, note="it reads all labels")
        below(f"a page of the roots {of}", later * 1e3, 50, unit="ms", n=REPEATS)

        async def search() -> None:
            endpoint, node = ENDPOINTS["find"], node_of(one)
            assert endpoint.stream is not None
            params = endpoint.read({"text": "leaf-000099", "limit": 500}, FULL)
            events = [event async for event in endpoint.stream(AdminCall(node, Admin(node), FULL), params)]
            assert sum(len(data["rows"]) for name, data in events if name == "rows") == min(ROOTS, 500)

        works(f"a search {of}", await seconds(search), unit="s", n=1, note="ends after 500 matches, half of all")


async def wide(data: Path) -> None:
    """Pages of one root with very many children."""
    async with app(data) as one:
        await (await one.get_agent(Stem, "tree-000000")).widen(WIDE)
        root = "Stem:tree-000000"
        found = await ask(one, "agents", address=root, limit=1)
        assert found["total"] == WIDE + CHILDREN

        async def last() -> None:
            page = await ask(one, "agents", address=root, limit=100, after=str(WIDE))
            assert len(page["rows"]) == 100

        async def early() -> None:
            assert len((await ask(one, "agents", address=root, limit=100))["rows"]) == 100

        ours, theirs = await median(last), await median(early)
        name = f"the last page of {WIDE:,} children"
        at_most(name, ours * 1e3, theirs * 1e3, times=3, unit="ms", n=REPEATS, note="reference: the first page")


async def main() -> None:
    data = scratch("admin")
    say(f"making {ROOTS} trees of {CHILDREN} children")
    copied(await grown(data, CHILDREN), data, ROOTS)
    await indexed(data)
    await crowd(data)
    await questions(data)
    await children(data)
    await whole(data)
    await wide(data)


if __name__ == "__main__":
    asyncio.run(main())
