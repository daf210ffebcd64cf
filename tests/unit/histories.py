"""Agents whose trees have a past, and what a tree holds, row by row."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apsw

from sapwood import Agent
from sapwood.storage.engine import CHECKED
from sapwood.testing import World
from sapwood.types import Address

Rows = dict[str, list[str]]
"""By file of a tree: its tables and rows, as SQL."""


class Node(Agent):
    """An agent that holds rows and has agents below it."""

    migrations = ("CREATE TABLE item (n INTEGER PRIMARY KEY, value TEXT NOT NULL)",)

    async def add(self, value: str, mark: str = "") -> None:
        """Write a row, and name the moment after it."""
        self.sql("INSERT INTO item (value) VALUES (?)", value)
        if mark:
            self.history.mark(mark)

    async def run(self, sql: str) -> None:
        """Execute any SQL."""
        self.sql(sql)

    async def values(self) -> list[str]:
        return [str(row["value"]) for row in self.sql("SELECT value FROM item ORDER BY n")]

    async def grow(self, name: str) -> None:
        """Create an agent below this one."""
        child = await self.sub_agent(Node, name)
        await child.add(f"born {name}")

    async def prune(self, name: str) -> None:
        """Delete an agent below this one."""
        await self.children.delete(Node, name)

    async def flush_now(self) -> None:
        """Commit what is open."""
        await self.flush()

    async def below(self) -> list[str]:
        return [child.name for child in self.children.list(Node)]

    async def mark(self, name: str) -> None:
        """Name this moment."""
        self.history.mark(name)


def rows_in(folder: Path) -> Rows:
    """Return what the files of a folder hold, which no process has open."""
    found: Rows = {}
    for path in sorted(folder.glob("*.db")):
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=CHECKED)
        try:
            found[path.stem] = _dumped(connection)
        finally:
            connection.close()
    return found


def rows_of(files: Mapping[str, bytes | bytearray]) -> Rows:
    """Return what these databases hold."""
    found: Rows = {}
    for stem, content in sorted(files.items()):
        image = bytearray(content)
        image[18] = image[19] = 1  # no write-ahead log: there is no file
        connection = apsw.Connection(":memory:")
        connection.deserialize("main", bytes(image))
        found[stem] = _dumped(connection)
        connection.close()
    return found


def rows_now(world: World, root: Address) -> Rows:
    """Return what the files of a tree hold at this moment, in which every file of it is open or closed for good."""
    tree = world.node.trees[root]
    found: Rows = {}
    for path in sorted(tree.folder.glob("*.db")):
        database = tree.database(path.stem, tree.limits)
        database.execute("SELECT 1")
        found[path.stem] = _dumped(database._connection)  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    return found


def _dumped(connection: apsw.Connection) -> list[str]:
    lines: list[str] = []
    tables = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").fetchall()
    for name, sql in tables:
        lines.append(str(sql))
        if str(sql).startswith("CREATE TABLE"):
            rows: list[Any] = connection.execute(f'SELECT * FROM "{name}"').fetchall()
            lines += sorted(map(repr, rows))
    return lines


class Gardener:
    """Changes a tree at random: rows, tables, agents at any depth."""

    def __init__(self, world: World, name: str, seed: int, *, agents: int) -> None:
        self._world = world
        self._name = name
        self._random = random.Random(seed)
        self._agents = agents
        self._paths: list[tuple[str, ...]] = [()]
        self._count = 0

    async def find(self) -> None:
        """Continue with the agents that there are."""
        waiting: list[tuple[str, ...]] = [()]
        self._paths = []
        while waiting:
            path = waiting.pop()
            self._paths.append(path)
            waiting += [(*path, name) for name in await (await self.agent(path)).below()]

    async def agent(self, path: tuple[str, ...]) -> Node:
        return await self._world.get_agent(Node, self._name, sub=[(Node, name) for name in path])

    async def change(self) -> None:
        """Do one thing."""
        self._count += 1
        path = self._random.choice(self._paths)
        agent = await self.agent(path)
        what = self._random.random()
        if what < 0.25 and len(path) < 4 and len(self._paths) < self._agents:
            name = f"c{self._random.randrange(6)}"  # a name may be used again after a deletion
            if (*path, name) not in self._paths:
                await agent.grow(name)
                self._paths.append((*path, name))
        elif what < 0.33 and path:
            above = await self.agent(path[:-1])
            await above.prune(path[-1])
            self._paths = [one for one in self._paths if one[: len(path)] != path]
        elif what < 0.38:
            await agent.run(f"CREATE TABLE t{self._count} AS SELECT * FROM item")
        elif what < 0.43:
            await agent.run("DELETE FROM item WHERE n % 3 = 1")
        elif what < 0.48:
            await agent.run("UPDATE item SET value = value || '+'")
        else:
            await agent.add(f"{self._count} " + "x" * self._random.choice((5, 50, 3000)))
