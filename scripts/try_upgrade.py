"""Upgrade a running server from this release to the next one, under load, and go back.

`python scripts/try_upgrade.py [--seconds 10]`. Both releases are wheels in environments of their own, and a symbolic
link names the current one. The next release has migrations of its own, and so has the new app. Clients send 200 calls a
second and keep 100 sockets open. Each line is JSON; a restart in the same run is the reference. Exits with 1 if a call
failed, was lost or was done twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import websockets

sys.path.insert(0, str(Path(__file__).parent))
import releases
from releases import FIRST, NEXT, Release

APP = """
from sapwood import Agent, App
from starlette.responses import PlainTextResponse

class Counter(Agent):
    migrations = ("CREATE TABLE hits (n INTEGER NOT NULL) STRICT",)

    async def on_request(self, request):
        self.sql("INSERT INTO hits (n) VALUES (1)")
        return PlainTextResponse(f"first {self.sql('SELECT count(*) FROM hits').scalar(int)}")

app = App(agents=[Counter])
"""
NEXT_APP = APP.replace("first", "second").replace(
    '") STRICT",)', '") STRICT", "ALTER TABLE hits ADD COLUMN who TEXT NOT NULL DEFAULT \'nobody\'")'
)
BROKEN_APP = NEXT_APP + "\nraise RuntimeError('this release is broken')\n"
CALLS, CALLERS, SOCKETS, AGENTS = 200, 40, 100, 20
PATIENCE = 60.0


@dataclass
class Load:
    """What clients saw."""

    answered: int = 0
    failed: list[str] = field(default_factory=list[str])
    longest: float = 0.0
    releases: Counter[str] = field(default_factory=Counter[str])
    closed: Counter[int | None] = field(default_factory=Counter[int | None])
    """The close codes of sockets."""
    sockets: int = 0
    """The sockets that are open."""


class Clients:
    """Clients in processes' place: each caller sends at a steady rate, whatever the answers take, and never retries."""

    def __init__(self, port: int, *, retries: bool = False) -> None:
        self._port = port
        self._retries = retries
        self._stop = asyncio.Event()
        self.load = Load()
        callers = [self._call(number) for number in range(CALLERS)]
        self._tasks = [asyncio.ensure_future(work) for work in (*callers, *map(self._watch, range(SOCKETS)))]

    async def until_open(self) -> None:
        """Return when all sockets are open, and calls are answered."""
        async with asyncio.timeout(PATIENCE):
            while self.load.sockets < SOCKETS or self.load.answered < CALLS:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.05)

    async def end(self) -> Load:
        self._stop.set()
        await asyncio.gather(*self._tasks)
        return self.load

    async def _call(self, number: int) -> None:
        interval = CALLERS / CALLS
        loop = asyncio.get_running_loop()
        due = loop.time() + interval * number / CALLERS
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while not self._stop.is_set():
            await asyncio.sleep(due - loop.time())
            while True:
                try:
                    connection = connection or await asyncio.open_connection("127.0.0.1", self._port)
                    is_kept = await self._ask(number, *connection)
                    if not is_kept or number % 4 == 0:  # a quarter of the clients connects for each call
                        connection[1].close()
                        connection = None
                    break
                except (OSError, EOFError, asyncio.IncompleteReadError, AssertionError) as error:
                    connection = None
                    if not self._retries:
                        self.load.failed.append(repr(error))
                        break
                    await asyncio.sleep(0.01)
            self.load.longest = max(self.load.longest, loop.time() - due)
            due = max(due + interval, loop.time())

    async def _ask(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(f"POST {path(number)} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        (length,) = (int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length"))
        body = (await reader.readexactly(length)).decode()
        assert " 200 " in head.splitlines()[0], f"{head.splitlines()[0]} {body}"
        self.load.answered += 1
        self.load.releases[body.split()[0]] += 1
        return "connection: close" not in head

    async def _watch(self, number: int) -> None:
        url = f"ws://127.0.0.1:{self._port}{path(number)}"
        while not self._stop.is_set():
            try:
                async with websockets.connect(url, compression=None) as connection:
                    self.load.sockets += 1
                    try:
                        await self._listen(connection)
                    finally:
                        self.load.sockets -= 1
            except websockets.ConnectionClosed as error:
                self.load.closed[None if error.rcvd is None else error.rcvd.code] += 1
            except (OSError, websockets.InvalidHandshake) as error:
                if not self._retries:
                    self.load.failed.append(f"socket: {error!r}")
                await asyncio.sleep(0.05)

    async def _listen(self, connection: Any) -> None:
        ending = asyncio.ensure_future(self._stop.wait())
        try:
            while not ending.done():
                coming = asyncio.ensure_future(connection.recv())
                await asyncio.wait({coming, ending}, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    coming.result()
                coming.cancel()
        finally:
            ending.cancel()


def path(number: int) -> str:
    return f"/agents/counter/a{number % AGENTS}"


class Site:
    """A folder with releases of an app, a link to the current one, and the data."""

    def __init__(self, folder: Path, options: list[str]) -> None:
        self.folder = folder
        self.current = folder / "current"
        self.data = folder / "data"
        self._options = options
        self.process: subprocess.Popen[str] | None = None

    def add(self, name: str, release: Release, app: str) -> None:
        (self.folder / name).mkdir()
        (self.folder / name / "app.py").write_text(app)
        (self.folder / name / ".venv").symlink_to(release.python.parent.parent)

    def choose(self, name: str) -> None:
        link = self.folder / "new"
        link.symlink_to(self.folder / name)
        link.rename(self.current)

    @property
    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SAPWOOD", "PYTHON"))}
        return {**kept, "PWD": str(self.current), "SAPWOOD_DATA": str(self.data), "SAPWOOD_PORT": "0"}

    def start(self, port: int = 0) -> int:
        """Start the server; return its port once it serves."""
        (self.data / "operator.json").unlink(missing_ok=True)
        command = [str(self.current / ".venv/bin/sapwood"), "serve", "app:app", "--port", str(port), *self._options]
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(command, cwd=self.current, env=self._environment, stderr=log, text=True)
        until((self.data / "operator.json").exists)
        return int(json.loads((self.data / "operator.json").read_text())["url"].rpartition(":")[2])

    def server(self) -> int:
        """Return the process that serves."""
        return json.loads((self.data / "operator.json").read_text())["pid"]

    def stop(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(PATIENCE)

    def sapwood(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.current / ".venv/bin/sapwood"), *arguments]
        return subprocess.run(
            command,
            cwd=self.current,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def hits(self) -> int:
        """Return how many calls all agents have counted."""
        found = 0
        for number in range(AGENTS):
            done = self.sapwood("sql", f"Counter:a{number}", "SELECT count(*) AS n FROM hits", "--json")
            assert done.returncode == 0, done.stderr
            found += json.loads(done.stdout)[0]["n"]
        return found


@contextmanager
def site(folder: Path, built: dict[str, Release], options: list[str]) -> Iterator[Site]:
    made = Site(folder, options)
    made.add("first", built[FIRST], APP)
    made.add("second", built[NEXT], NEXT_APP)
    made.add("broken", built[NEXT], BROKEN_APP)
    made.choose("first")
    try:
        yield made
    finally:
        made.stop()


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def show(name: str, ours: float, reference: float | None, unit: str, n: int, *, bar: str, holds: bool) -> bool:
    ratio = None if not reference else round(ours / reference, 3)
    line = {"name": name, "ours": ours, "reference": reference, "ratio": ratio, "unit": unit, "n": n}
    print(json.dumps({**line, "bar": bar, "holds": holds}), flush=True)
    return holds


async def measured(folder: Path, built: dict[str, Release], options: list[str], seconds: float) -> bool:
    name = f"upgrade of {' '.join(options) or 'one process'}"
    with site(folder, built, options) as one:
        port = one.start()
        restarting = Clients(port, retries=True)
        await restarting.until_open()
        await asyncio.to_thread(one.stop)
        await asyncio.to_thread(one.start, port)
        await restarting.until_open()
        restart = await restarting.end()
        pid = one.server()
        before = await asyncio.to_thread(one.hits)
        one.choose("broken")
        clients = Clients(port)
        await clients.until_open()
        refused = await asyncio.to_thread(one.sapwood, "upgrade")
        backup = await asyncio.to_thread(one.sapwood, "backup", str(folder / "before"))
        one.choose("second")
        await asyncio.sleep(seconds / 2)
        done = await asyncio.to_thread(one.sapwood, "upgrade")
        await asyncio.sleep(seconds / 2)
        load = await clients.end()
        counted = await asyncio.to_thread(one.hits) - before
        serves = one.server() != pid

        good = [
            show(
                "failed calls", len(load.failed), None, f"calls, {name}", load.answered, bar="0", holds=not load.failed
            ),
            show(
                "calls that are counted once",
                counted,
                load.answered,
                f"calls, {name}",
                load.answered,
                bar="1",
                holds=counted == load.answered,
            ),
            show(
                "longest wait for an answer, beside a restart",
                round(1000 * load.longest),
                round(1000 * restart.longest),
                f"ms, {name}",
                load.answered,
                bar="none",
                holds=True,
            ),
            show(
                "sockets closed to connect again",
                load.closed[1012],
                SOCKETS,
                f"sockets, {name}",
                SOCKETS,
                bar="1",
                holds=load.closed.total() == load.closed[1012] == SOCKETS,
            ),
        ]
        assert refused.returncode == 1, refused
        assert "this release is broken" in refused.stderr, refused.stderr
        assert done.returncode == 0, done.stderr
        assert backup.returncode == 0, backup.stderr
        assert serves
        assert load.releases["first"] > CALLS, load.releases
        assert load.releases["second"] > CALLS, load.releases
        assert NEXT in done.stdout, done.stdout
        for failure in load.failed[:5]:
            print(failure, file=sys.stderr)

        # Back to the old release, with the data from before.
        one.stop()
        one.choose("first")
        one.data.rename(folder / "newer")
        shutil.copytree(folder / "before", one.data, symlinks=True)
        check = await asyncio.to_thread(one.sapwood, "upgrade-check", "app:app")
        port = one.start()
        again = Clients(port)
        await again.until_open()
        back = await again.end()
        good.append(
            show(
                "calls after going back",
                len(back.failed),
                None,
                f"failed, {name}",
                back.answered,
                bar="0",
                holds=not back.failed,
            )
        )
        assert check.returncode == 0, check.stdout
        assert set(back.releases) == {"first"}, back.releases
        return all(good)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of load around the upgrade")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        built = releases.build(folder / "releases", (FIRST, NEXT))
        good = True
        for number, options in enumerate(([], ["--workers", "2"])):
            (folder / str(number)).mkdir()
            good = asyncio.run(measured(folder / str(number), built, options, arguments.seconds)) and good
    if not good:
        sys.exit(1)


if __name__ == "__main__":
    main()
