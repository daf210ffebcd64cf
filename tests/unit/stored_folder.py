"""A data folder with three trees, each with agents to depth three, and ways to damage it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from tests import loops

from sapwood import Agent, App, Settings
from sapwood.address import Address
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.storage.engine import CHECKED

NAMES = ("bad", "good", "other")
DEPTH = 3


class StoredBox(Agent):
    """Has rows of its own, and boxes in it."""

    migrations = ("CREATE TABLE things (number INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT",)

    async def put(self, depth: int = DEPTH) -> None:
        for number in range(20):
            self.sql("INSERT INTO things (text) VALUES (?)", f"thing {number} " * 20)
        if depth:
            await (await self.sub_agent(StoredBox, "in")).put(depth - 1)

    async def count(self) -> int:
        return self.sql("SELECT count(*) FROM things").scalar(int)

    async def deep_count(self, depth: int = DEPTH) -> int:
        below = 0 if not depth else await (await self.sub_agent(StoredBox, "in")).deep_count(depth - 1)
        return below + await self.count()


app = App(agents=[StoredBox])


def address(name: str) -> Address:
    return Address.root_of("StoredBox", name)


def folder_of(data: Path, name: str) -> Path:
    return tree_folder(data, address(name))


def deepest(folder: Path) -> Path:
    """Return the database of the agent furthest down."""
    (found,) = [path for path in folder.glob("*.db") if path.name != "root.db" and is_leaf(path)]
    return found


def is_leaf(path: Path) -> bool:
    import apsw

    connection = apsw.Connection(str(path), vfs=CHECKED)
    try:
        tables = connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'sapwood_children'")
        return tables.fetchone() == (0,)
    finally:
        connection.close(True)


def fold(data: Path) -> None:
    """Have all databases hold what their logs have: damage to a file is then damage to what it holds."""
    import apsw

    for path in data.rglob("*.db"):
        connection = apsw.Connection(str(path), vfs=CHECKED)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close(True)
        for left in ("-wal", "-shm"):
            path.with_name(path.name + left).unlink(missing_ok=True)


def make_folder(data: Path) -> None:
    """Fill a data folder, as a server that was stopped left it."""

    async def work() -> None:
        async with App(agents=[StoredBox], settings=Settings(data=data)) as running:
            for name in NAMES:
                await (await running.get_agent(StoredBox, name)).put()

    with asyncio.Runner(loop_factory=loops.factory) as runner:
        runner.run(work())


def copy_of(data: Path, to: Path) -> Path:
    shutil.copytree(data, to)
    return to
