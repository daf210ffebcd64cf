"""A root moves between two real servers under load, and one of them is killed: one of them has it, and all of it."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from tests.e2e.command import PATIENCE, Server, TwoWorkers, sapwood
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

pytestmark = pytest.mark.nightly

APP = """
import asyncio
from datetime import timedelta
from sapwood import After, Agent, App, expose

class Page(Agent):
    migrations = ("CREATE TABLE t (x BLOB)",)

    async def fill(self, size: int) -> None:
        self.sql("INSERT INTO t VALUES (randomblob(?))", size)

class Desk(Agent):
    migrations = ("CREATE TABLE notes (n INTEGER PRIMARY KEY, times INTEGER NOT NULL DEFAULT 1)",)

    @expose
    async def note(self, n: int) -> int:
        self.sql("INSERT INTO notes (n) VALUES (?) ON CONFLICT (n) DO UPDATE SET times = times + 1", n)
        await asyncio.sleep(0)
        return n

    @expose
    async def notes(self) -> list[list[int]]:
        return [[row["n"], row["times"]] for row in self.sql("SELECT n, times FROM notes ORDER BY n")]

    @expose
    async def grow(self, pages: int, size: int) -> None:
        for number in range(pages):
            await (await self.sub_agent(Page, str(number))).fill(size)

app = App(agents=[Desk])
"""
CALLS, SOCKETS = 50, 100
"""Calls a second, and clients that only listen."""
KILLS = 12


@contextmanager
def two(folder: Path, kind: type[Server] = Server, *arguments: str) -> Iterator[list[Server]]:
    servers: list[Server] = []
    try:
        for name in ("here", "there"):
            (folder / name).mkdir()
            (folder / name / "app.py").write_text(APP)
            servers.append(started(folder / name, kind, *arguments))
        yield servers
    finally:
        for server in servers:
            end(server)


def started(folder: Path, kind: type[Server] = Server, *arguments: str) -> Server:
    return kind(folder, *(arguments or ("serve", "app:app")))


def end(server: Server) -> None:
    if server.process.poll() is None:
        server.process.kill()
        server.process.wait(PATIENCE)


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def call(client: ClientConnection, method: str, *args: object) -> object:
    client.send(json.dumps({"type": "rpc", "id": "1", "method": method, "args": args}))
    while (frame := json.loads(client.recv(PATIENCE))).get("type") != "rpc":
        pass
    if not frame["success"]:
        raise RuntimeError(frame["error"])
    return frame.get("result")


class Load:
    """A client that calls all the time, and follows the root to the other server."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.done: set[int] = set()
        self.unknown: set[int] = set()
        self.longest = 0.0
        """Seconds between two answers."""
        self._n, self._last = 0, time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with connect(f"{self.base.replace('http', 'ws')}/agents/desk/main", open_timeout=PATIENCE) as client:
                    self._call(client)
            except WebSocketException as error:
                reason = getattr(getattr(error, "rcvd", None), "reason", "")
                if reason.startswith("moved_away: "):
                    self.base = reason.removeprefix("moved_away: ").partition("/agents")[0]
            except (OSError, TimeoutError, RuntimeError):
                self._stopped.wait(0.01)

    def _call(self, client: ClientConnection) -> None:
        while not self._stopped.wait(1 / CALLS):
            self._n += 1
            self.unknown.add(self._n)
            call(client, "note", self._n)
            self.unknown.discard(self._n)
            self.done.add(self._n)
            now = time.monotonic()
            self.longest, self._last = max(self.longest, now - self._last), now

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE)


@pytest.mark.parametrize("kind", [Server, TwoWorkers], ids=["one process", "two workers"])
def test_a_root_moves_under_load(tmp_path: Path, kind: type[Server]) -> None:
    arguments = ("60", "5") if kind is TwoWorkers else ()
    with two(tmp_path, kind, *arguments) as (here, there), ExitStack() as stack:
        with here.connect("/agents/desk/main") as client:
            call(client, "grow", 20, 100_000)
        listening = [stack.enter_context(here.connect("/agents/desk/main")) for _ in range(SOCKETS)]
        load = Load(url(here))
        time.sleep(1)
        began = time.monotonic()
        status, answer = here.post("move", address="Desk:main", to=url(there), token=there.token)
        took = time.monotonic() - began
        assert status == 200, answer
        time.sleep(1)
        load.stop()
        print(json.dumps({"took": round(took, 3), "longest": round(load.longest, 3), "done": len(load.done)}))
        assert load.base == url(there)
        for client in listening:
            with suppress(WebSocketException):
                while True:
                    client.recv(PATIENCE)
            assert client.close_code == 1012
        with there.connect("/agents/desk/main") as client:
            notes = dict(call(client, "notes"))  # pyright: ignore[reportArgumentType, reportCallIssue]
        assert load.done <= set(notes) <= load.done | load.unknown
        assert set(notes.values()) == {1}
        assert len(load.unknown) < 20
        status, _ = here.get("/agents/desk/main?x=1")
        assert status == 308


def test_by_command(tmp_path: Path) -> None:
    with two(tmp_path) as (here, there):
        with here.connect("/agents/desk/main") as client:
            call(client, "note", 1)
        (tmp_path / "token").write_text(there.token)
        moved = sapwood(tmp_path / "here", "move", "Desk:main", url(there), "--token-file", str(tmp_path / "token"))
        assert moved.stdout == f"Moved Desk:main to {url(there)}.\n", moved.stderr
        with there.connect("/agents/desk/main") as client:
            assert call(client, "notes") == [[1, 1]]
        assert there.token not in (tmp_path / "here/sapwood-data/operator.jsonl").read_text()


@pytest.mark.parametrize("victim", ["here", "there"])
def test_one_server_has_the_root_whichever_is_killed_when(tmp_path: Path, victim: str) -> None:
    dice = random.Random(victim)
    with two(tmp_path) as servers:
        with servers[0].connect("/agents/desk/main") as client:
            call(client, "grow", 30, 200_000)
            call(client, "note", 0)
        owner, known = 0, 1
        at = {"here": 0, "there": 1}[victim]
        for _ in range(KILLS):
            source, target = servers[owner], servers[1 - owner]
            moving = threading.Thread(
                target=lambda source=source, target=target: _try(source, target),  # type: ignore[misc]
            )
            moving.start()
            time.sleep(dice.random() * 1.5)
            dying = servers[at]
            dying.process.kill()
            dying.process.wait(PATIENCE)
            port = dying.port
            servers[at] = started(dying.folder, Server, "serve", "app:app", "--port", str(port))
            moving.join(PATIENCE)
            owner = _owner(servers)
            with servers[owner].connect("/agents/desk/main") as client:
                notes = call(client, "notes")
                assert notes == [[n, 1] for n in range(known)], notes
                call(client, "note", known)
                known += 1


def _try(source: Server, target: Server) -> None:
    with suppress(OSError, ValueError):
        source.post("move", address="Desk:main", to=url(target), token=target.token)


def _owner(servers: list[Server]) -> int:
    """Return which server has the root, once it is decided."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found: list[int] = []
        for at, server in enumerate(servers):
            status, answer = server.post("agents")
            assert status == 200, answer
            if any(row["address"] == "Desk:main" for row in json.loads(answer)["rows"]):
                found.append(at)
        assert len(found) <= 1, found
        if found:
            with (
                suppress(WebSocketException, OSError, RuntimeError),
                servers[found[0]].connect("/agents/desk/main") as client,
            ):
                call(client, "notes")
                return found[0]
        time.sleep(0.05)
    raise AssertionError("Neither server has it.")
