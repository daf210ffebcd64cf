"""Damaged or unmigratable data: clients get a final error, and writes are refused until the tree is restored."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from starlette.responses import PlainTextResponse
from tests.conformance.served import Served, served

from sapwood import Agent, App, expose
from sapwood.client import connect
from sapwood.errors import MigrationFailed, StoredDataError
from sapwood.storage.engine import CHECKED
from sapwood.testing import World, running

pytestmark = pytest.mark.storage

STORED = re.compile(r"Stored data cannot be read \(reference ([0-9a-f]{8})\)\.")
ROWS = 200
ITEMS = "CREATE TABLE items (n INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT"


class Ledger(Agent):
    migrations = (ITEMS,)

    @expose
    async def fill(self) -> None:
        for _ in range(ROWS):
            self.sql("INSERT INTO items (text) VALUES (?)", "x" * 500)

    @expose
    async def add(self) -> int:
        return self.sql("INSERT INTO items (text) VALUES ('new') RETURNING n").scalar(int)

    @expose
    async def read(self) -> int:
        return len(self.sql("SELECT * FROM items WHERE text <> ''"))

    @expose
    async def query(self) -> int:
        return len(await self.read_sql("SELECT * FROM items WHERE text <> ''"))

    @expose
    async def add_and_read(self) -> int:
        await self.add()
        return await self.read()

    @expose
    async def down(self, depth: int, method: str) -> Any:
        if depth == 0:
            return await getattr(self, method)()
        return await (await self.sub_agent(Ledger, "below")).down(depth - 1, method)

    async def on_request(self, request: Any) -> Any:
        return PlainTextResponse(str(await self.read()))


def tree_of(world: World, name: str) -> Path:
    (tree,) = [one for one in (world.data / "trees").iterdir() if (one / "address").read_text() == f"Ledger:{name}"]
    return tree


async def asleep(world: World) -> None:
    """Put all agents to sleep: their files are closed."""
    while world.node.trees:
        world.sleep()
        await asyncio.sleep(0.01)


async def damage_items(world: World, name: str, depth: int = 0) -> None:
    """Overwrite a page in the middle of a table: what is at its end can still be read and written."""
    await asleep(world)
    stem = "root" if depth == 0 else max((one.stem for one in tree_of(world, name).glob("*.db")), key=len)
    path = tree_of(world, name) / f"{stem}.db"
    with apsw.Connection(str(path), vfs=CHECKED) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        ((page_size,),) = connection.execute("PRAGMA page_size")
        ((page,),) = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = 'items' AND pagetype = 'leaf' ORDER BY path LIMIT 1 OFFSET 5"
        )
    connection.close()
    (tree_of(world, name) / "marks").unlink()  # it says that there is a log
    with path.open("r+b") as file:
        file.seek((int(page) - 1) * int(page_size))
        file.write(b"\xff" * int(page_size))


async def damaged(world: World, name: str = "bad", depth: int = 0) -> None:
    for one in (name, "good"):
        await (await world.get_agent(Ledger, one)).down(depth, "fill")
    await damage_items(world, name, depth)


def lines(caplog: pytest.LogCaptureFixture, pattern: str) -> Sequence[logging.LogRecord]:
    return [record for record in caplog.records if re.search(pattern, record.getMessage())]


async def test_once_damage_is_met_the_agent_refuses_writes_too(caplog: pytest.LogCaptureFixture) -> None:
    async with running(App(agents=[Ledger])) as world:
        await damaged(world)
        agent = await world.get_agent(Ledger, "bad")
        assert await agent.add() == ROWS + 1

        with pytest.raises(StoredDataError, match=r"root\.db of Ledger:bad is damaged"):
            await agent.read()

        with pytest.raises(StoredDataError, match="damaged"):
            await (await world.get_agent(Ledger, "bad")).add()
        world.sleep()
        with pytest.raises(StoredDataError, match="damaged"):
            await (await world.get_agent(Ledger, "bad")).add()
        assert await (await world.get_agent(Ledger, "good")).add_and_read() == ROWS + 1


async def test_a_slice_that_meets_damage_writes_nothing() -> None:
    async with running(App(agents=[Ledger])) as world:
        await damaged(world)
        with pytest.raises(StoredDataError):
            await (await world.get_agent(Ledger, "bad")).add_and_read()

        await asleep(world)
        with apsw.Connection(str(tree_of(world, "bad") / "root.db"), vfs=CHECKED) as connection:
            assert connection.execute("SELECT max(n) FROM items").get == ROWS
        connection.close()


async def test_a_long_query_that_meets_damage_ends_the_agent_too() -> None:
    async with running(App(agents=[Ledger])) as world:
        await damaged(world)
        agent = await world.get_agent(Ledger, "bad")

        with pytest.raises(StoredDataError, match="damaged"):
            await agent.query()

        with pytest.raises(StoredDataError, match="damaged"):
            await (await world.get_agent(Ledger, "bad")).add()


async def test_a_damaged_agent_three_levels_down_harms_no_agent_above_it() -> None:
    async with running(App(agents=[Ledger])) as world:
        await damaged(world, depth=3)
        root = await world.get_agent(Ledger, "bad")

        with pytest.raises(StoredDataError, match="damaged"):
            await root.down(3, "read")
        with pytest.raises(StoredDataError, match="damaged"):
            await root.down(3, "add")

        assert await root.down(2, "add") == 1
        assert await root.add() == 1


async def test_a_restored_tree_accepts_writes_again(tmp_path: Path) -> None:
    async with running(App(agents=[Ledger])) as world:
        await (await world.get_agent(Ledger, "bad")).fill()
        await world.app.backup(tmp_path / "copy")
        await damaged(world, "bad")
        with pytest.raises(StoredDataError):
            await (await world.get_agent(Ledger, "bad")).read()

        await world.app.restore(tmp_path / "copy", Ledger, "bad")

        assert await (await world.get_agent(Ledger, "bad")).add_and_read() == ROWS + 1


async def test_clients_of_a_damaged_agent_get_a_final_error_with_its_code(caplog: pytest.LogCaptureFixture) -> None:
    async with served(App(agents=[Ledger])) as one:
        await damaged(one.world)
        client = await one.join("/agents/ledger/bad")
        await client.send({"type": "rpc", "id": "1", "method": "read", "args": []})
        closed = await client.ended()

        refused = await one.site.http("/agents/ledger/bad")
        assert (refused.status, refused.headers["sapwood-error"]) == (500, "stored_data")
        assert "retry-after" not in refused.headers
        assert STORED.fullmatch(refused.text)
        code, reason = await (await one.connect("/agents/ledger/bad")).ended()
        assert code == 4500
        assert STORED.fullmatch(reason.removeprefix("stored_data: "))

        assert closed[0] == 4500
        for told in (closed[1], refused.text, reason):
            found = STORED.search(told)
            assert found is not None
            assert len(lines(caplog, found[1])) == 1
        assert lines(caplog, "request to /agents/ledger/bad failed agent=Ledger:bad")
        assert lines(caplog, "connection to /agents/ledger/bad failed agent=Ledger:bad")
        assert [record.getMessage() for record in caplog.records if record.exc_info] == []


async def test_the_client_of_a_healthy_parent_gets_the_code_with_the_answer() -> None:
    async with served(App(agents=[Ledger])) as one:
        await damaged(one.world, depth=1)
        client = await one.join("/agents/ledger/bad")

        for method in ("read", "add"):
            answer = await client.call("down", 1, method)
            assert answer["code"] == "stored_data"
            assert STORED.fullmatch(answer["error"])
        assert (await client.call("add"))["result"] == 1


async def test_repeated_connections_to_a_damaged_agent_are_one_line_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(App(agents=[Ledger])) as one:
        await damaged(one.world)
        with pytest.raises(StoredDataError):
            await (await one.world.get_agent(Ledger, "bad")).read()
        caplog.clear()

        for _ in range(20):
            assert (await (await one.connect("/agents/ledger/bad")).ended())[0] == 4500
        one.world.node.failures.flush(all=True)

        assert len(lines(caplog, "agent failed to start: Ledger:bad")) == 2
        assert len(lines(caplog, "connection to /agents/ledger/bad failed")) == 2
        assert len(lines(caplog, "failure repeated count=19 .*connection to /agents/ledger/bad")) == 1
        assert [record for record in caplog.records if record.exc_info] == []  # a damaged file is no mistake in code


class Unmigratable(Ledger):
    migrations = (ITEMS, "CREATE TABLE broken (")


async def remotely(one: Served, cls: type[Ledger], name: str) -> None:
    async with connect(f"http://127.0.0.1:{one.site.port}", cls, name, options={"proxy": None}) as agent:
        await agent.stub.read()


async def test_the_python_client_raises_the_error_at_once() -> None:
    async with served(App(agents=[Ledger])) as one:
        await damaged(one.world)
        with pytest.raises(StoredDataError, match=STORED):  # the call
            await remotely(one, Ledger, "bad")
        with pytest.raises(StoredDataError, match=STORED):  # the connection
            await remotely(one, Ledger, "bad")


async def test_clients_of_a_tree_that_cannot_be_migrated_get_a_final_error_too() -> None:
    async with served(App(agents=[Unmigratable])) as one:
        text = r"Stored data could not be migrated \(reference [0-9a-f]{8}\)\."
        with pytest.raises(MigrationFailed, match=text):
            await remotely(one, Unmigratable, "new")

        refused = await one.site.http("/agents/unmigratable/new")
        assert (refused.status, refused.headers["sapwood-error"]) == (500, "migration_failed")
        assert re.fullmatch(text, refused.text)
