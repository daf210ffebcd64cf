"""Steps of `scripts/try_releases.py` that run in the environment of one release, as a program."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

import apsw
import pytest
from tests.compat import fixture_data
from tests.compat.fixture_recorder import play
from tests.compat.office_app import CompatOffice, Shelf, app
from tests.compat.test_stored_data import use_chats, use_office, use_runs
from tests.releases import served_office  # noqa: F401 - with it, interrupted turns come to an end

from sapwood.client import connect
from sapwood.storage.engine import CHECKED
from sapwood.testing import running


async def chats(data: str) -> None:
    """Finish the conversations of a folder."""
    async with running(app, data=data, slow_slices="allow") as world:
        await use_chats(world)


async def rest(data: str) -> None:
    """Finish the runs and the plain agents of a folder whose conversations another release has finished."""
    async with running(app, data=data, slow_slices="allow") as world:
        await use_runs(world)
        await use_office(world)


async def client(url: str) -> None:
    """Use an agent of a server, and use it again when the server was replaced: a line from stdin says so."""
    async with connect(url, CompatOffice, "main") as office, connect(url, CompatOffice, "main") as other:
        before = len(await office.stub.notes())
        await office.stub.note("by a client")
        assert len(await office.stub.notes()) == before + 1
        assert [number async for number in office.stub.count(300)] == list(range(300))
        await follow(office, other, Shelf(8))
        with pytest.raises(Exception, match="not callable"):
            await office.stub.shelf()

        print("connected", flush=True)
        assert await asyncio.to_thread(sys.stdin.readline)
        async with asyncio.timeout(60):
            assert (await office.stub.notes())[before] == "by a client"
            assert office.state == Shelf(8)
            assert [number async for number in office.stub.count(300)] == list(range(300))
            await follow(other, office, Shelf(9))


async def follow(office: object, other: object, shelf: Shelf) -> None:
    """Store a state through one client; another one receives it."""
    await office.set_state(shelf)  # pyright: ignore[reportAttributeAccessIssue]
    async with asyncio.timeout(60):
        async for state in other.states():  # pyright: ignore[reportAttributeAccessIssue]
            if state == shelf:
                return


def rows(data: Path) -> dict[str, dict[str, list[str]]]:
    """Return the rows of each table of each database of the trees, as text. The folder must be a copy: it changes."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted(data.glob("trees/*/*.db")):
        with contextlib.closing(apsw.Connection(str(path), vfs=CHECKED)) as connection:
            listed = connection.execute(
                "SELECT name FROM pragma_table_list WHERE type = 'table' AND name NOT LIKE 'sqlite_%schema'"
            ).fetchall()
            found[str(path.relative_to(data))] = {
                str(name): [repr(row) for row in connection.execute(f'SELECT * FROM "{name}"')] for (name,) in listed
            }
    return found


def main() -> None:
    step, *arguments = sys.argv[1:]
    match step, arguments:
        case "unpack", [release, name, to]:
            fixture_data.unpack(release, name, Path(to))
        case "chats", [data]:
            play(chats(data))
        case "rest", [data]:
            play(rest(data))
        case "dump", [data]:
            print(json.dumps(rows(Path(data))))
        case "client", [url]:
            asyncio.run(client(url))
        case _:
            sys.exit(f"unknown step: {' '.join(sys.argv[1:])}")


if __name__ == "__main__":
    main()
