"""Workers killed at random while clients write: what was acknowledged is kept, what is due happens, others go on.

Clients append items to lists, of roots and of their children, and never repeat one: so an item is there once or not at
all, and it has to be there if anybody was told so. Some are written by way of a root of another worker. Each item also
asks for an alarm, which must ring even if its worker was dead at the time.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import websockets
from tests.e2e.command import PATIENCE, Server, serving
from tests.faults.running import LIVES

APP = """
import os
from datetime import timedelta

from sapwood import Agent, App, Settings, expose


class Page(Agent):
    migrations = (
        "CREATE TABLE items (number INTEGER PRIMARY KEY, item TEXT NOT NULL UNIQUE) STRICT",
        "CREATE TABLE rung (item TEXT PRIMARY KEY) STRICT",
    )
    made_by_url = True

    @expose
    async def append(self, item: str) -> int:
        self.sql("INSERT INTO items (item) VALUES (?)", item)
        self.schedule(timedelta(seconds=0.2), self.ring, item)
        return self.sql("SELECT count(*) FROM items").scalar(int)

    async def ring(self, item: str) -> None:
        self.sql("INSERT INTO rung VALUES (?) ON CONFLICT DO NOTHING", item)

    @expose
    async def all(self) -> tuple[list[str], list[str]]:
        items = [str(row["item"]) for row in self.sql("SELECT item FROM items ORDER BY number")]
        return items, [str(row["item"]) for row in self.sql("SELECT item FROM rung")]

    @expose
    async def process(self) -> int:
        return os.getpid()


class Book(Page):
    @expose
    async def append_to(self, name: str, item: str) -> int:
        return await (await self.get_agent(Book, name)).append(item)


app = App(agents=[Book], settings=Settings(durability="process"))
"""
BOOKS = 6
KILLS = max(LIVES // 2, 3)


@dataclass
class Writer:
    """Writes to one list until it is told to stop; comes back whenever its socket closes."""

    server: Server
    path: str
    through: str | None = None
    """The root that is asked to write to the list instead; then `path` is that of the root."""
    acknowledged: list[str] = field(default_factory=list[str])
    tried: set[str] = field(default_factory=set[str])
    closes: list[int | None] = field(default_factory=list["int | None"])
    done: bool = False

    async def run(self) -> None:
        while not self.done:
            try:
                await self._write()
            except (OSError, websockets.WebSocketException, TimeoutError):
                await asyncio.sleep(0.02)

    async def _write(self) -> None:
        async with websockets.connect(f"ws://127.0.0.1:{self.server.port}{self.path}", compression=None) as socket:
            try:
                while not self.done:
                    item = f"{self.path}-{self.through}-{len(self.tried)}"
                    self.tried.add(item)
                    method, args = ("append", [item]) if self.through is None else ("append_to", [self.through, item])
                    await socket.send(json.dumps({"type": "rpc", "id": item, "method": method, "args": args}))
                    if await self._acknowledged(socket, item):
                        self.acknowledged.append(item)
                    await asyncio.sleep(0.005)
            except websockets.ConnectionClosed:
                self.closes.append(socket.close_code)
                raise

    async def _acknowledged(self, socket: Any, item: str) -> bool:
        async with asyncio.timeout(PATIENCE):
            while True:
                frame = json.loads(await socket.recv())
                if frame.get("type") == "rpc" and frame["id"] == item:
                    return bool(frame["success"])


async def ask(server: Server, path: str, method: str) -> Any:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await ask_once(server, path, method)
            except (OSError, websockets.WebSocketException):
                await asyncio.sleep(0.1)  # it is being started


async def ask_once(server: Server, path: str, method: str) -> Any:
    url = f"ws://127.0.0.1:{server.port}{path}"
    async with websockets.connect(url, compression=None, open_timeout=PATIENCE) as socket:
        await socket.send(json.dumps({"type": "rpc", "id": "ask", "method": method, "args": []}))
        while True:
            frame = json.loads(await socket.recv())
            if frame.get("type") == "rpc":
                assert frame["success"], frame
                return frame["result"]


def book(number: int) -> str:
    return f"/agents/book/b{number}"


async def test_whichever_worker_is_killed_nothing_acknowledged_is_lost_and_every_alarm_rings(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    chance = random.Random(seed := random.randrange(1 << 30))
    with serving(tmp_path, "serve", "app:app", "--workers", "2") as server:
        processes = {await ask(server, book(number), "process") for number in range(BOOKS)}
        assert len(processes) == 2, "the books should not all have one worker"
        writers = [Writer(server, book(number)) for number in range(BOOKS)]
        writers += [Writer(server, f"{book(number)}/sub/page/p") for number in range(BOOKS)]
        writers += [Writer(server, book(number), through=f"b{(number + 1) % BOOKS}") for number in range(BOOKS)]
        tasks = [asyncio.create_task(writer.run()) for writer in writers]

        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0.1, 0.8))
            heard = len(server.said)
            os.kill(await ask(server, book(chance.randrange(BOOKS)), "process"), signal.SIGKILL)
            await asyncio.to_thread(server.wait_for, re.compile("it is started again"), heard)
        for writer in writers:
            writer.done = True
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
        await check(server, writers, seed)


async def check(server: Server, writers: list[Writer], seed: int) -> None:
    paths = [book(number) for number in range(BOOKS)] + [f"{book(number)}/sub/page/p" for number in range(BOOKS)]
    for path in paths:
        own = [one for one in writers if (one.path if one.through is None else f"/agents/book/{one.through}") == path]
        async with asyncio.timeout(PATIENCE):
            items, rung = await ask(server, path, "all")
            while set(items) - set(rung):
                await asyncio.sleep(0.1)
                items, rung = await ask(server, path, "all")
        acknowledged = [item for one in own for item in one.acknowledged]
        tried = {item for one in own for item in one.tried}
        assert set(acknowledged) <= set(items), f"seed {seed}: lost in {path}: {set(acknowledged) - set(items)}"
        assert set(items) <= tried, f"seed {seed}"
        for one in own:
            at = [items.index(item) for item in one.acknowledged]
            assert at == sorted(at), f"seed {seed}: out of order in {path}"
    assert all(one.acknowledged for one in writers), f"seed {seed}: somebody never got through"
    # A socket that another worker holds is told to come back; one whose own worker died just breaks.
    codes = {code for one in writers for code in one.closes}
    assert codes <= {1012, 1006, None}, f"seed {seed}: {codes}"
