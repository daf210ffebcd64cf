"""The door beside workerd and beside a bare uvicorn: calls over sockets, state for many clients, idle sockets.

    python benchmarks/door.py [metric …]

Server and client are two processes, on both sides the same client: frames in, frames out, no library.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import served
import uvloop
from frame import at_least, at_most, below, say, scratch
from sockets import Client, connect

from sapwood import Agent, App, Settings, expose

CHILD = "/agents/parent/p/sub/child/c"
PARENT = "/agents/parent/p"
ECHO = b'{"type":"rpc","id":"1","method":"rpcEcho","args":[{"a":1,"b":"two"}]}'


@dataclass(frozen=True)
class Number:
    n: int = 0


class Child(Agent[Number]):
    initial_state = Number()
    create_from_url = True

    @expose
    async def rpcEcho(self, value: dict[str, object]) -> dict[str, object]:  # noqa: N802 - as the original's
        return value

    @expose
    async def bump(self, times: int) -> int:
        for _ in range(times):
            self.set_state(Number(self.state.n + 1))
        return self.state.n


class Parent(Agent[Number]):
    initial_state = Number()

    @expose
    async def rpcEcho(self, value: dict[str, object]) -> dict[str, object]:  # noqa: N802
        return value


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """The least an ASGI application can do with a socket."""
    if scope["type"] != "websocket":
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


def serve(what: str, folder: str, port: int) -> None:
    settings = Settings(data=folder, slow_after=10, sleep_after=2)
    app: Any = bare if what == "bare" else App(agents=[Parent], settings=settings)
    served.serve(app, port, lifespan="off" if what == "bare" else "on")


class Server:
    """One of our servers, in a process of its own."""

    def __init__(self, what: str) -> None:
        self.port = served.free_port()
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", what, str(scratch(what)), str(self.port)]
        )
        served.until_listening(self.port)

    def rss(self) -> int:
        return served.memory_of(self._process.pid)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(20)


async def round_trips(client: Client, n: int) -> float:
    """Return the median of so many calls one after the other, in microseconds."""
    taken: list[float] = []
    for _ in range(n):
        start = time.perf_counter()
        before = client.frames
        client.send(ECHO)
        await client.until(before + 1)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e6


async def pipelined(client: Client, n: int, in_flight: int = 64) -> float:
    """Return microseconds for each of so many calls, 64 in flight."""
    first = client.frames
    start = time.perf_counter()
    for sent in range(n):
        if sent >= in_flight:
            await client.until(first + sent - in_flight + 1)
        client.send(ECHO)
    await client.until(first + n)
    return (time.perf_counter() - start) / n * 1e6


@asynccontextmanager
async def both(path: str) -> AsyncGenerator[tuple[Client, Client], None]:
    """Connect to ours and to the original."""
    from anchor import Original, install  # not above: it brings other agents of the same names

    ours, original = Server("ours"), Original(install())
    try:
        yield await connect(ours.port, path, 3), await connect(original.port, path, 3)
    finally:
        ours.stop()
        original.close()


async def medians(*figures: Callable[[], Awaitable[float]], repeats: int = 5) -> list[float]:
    seen: list[list[float]] = [[] for _ in figures]
    for turn in range(repeats + 1):
        for figure, kept in zip(figures, seen, strict=True):
            value = await figure()
            if turn:
                kept.append(value)
    return [statistics.median(kept) for kept in seen]


async def rpc() -> None:
    async with both(CHILD) as (ours, original):
        mine, theirs = await medians(lambda: round_trips(ours, 1000), lambda: round_trips(original, 1000))
        at_least("call over a socket to a sub-agent, p50", mine, theirs, times=4, unit="µs", n=1000)
        mine, theirs = await medians(lambda: pipelined(ours, 5000), lambda: pipelined(original, 2000))
        at_least("call over a socket to a sub-agent, 64 in flight", mine, theirs, times=10, unit="µs", n=5000)
    async with both(PARENT) as (ours, original):
        mine, theirs = await medians(lambda: round_trips(ours, 1000), lambda: round_trips(original, 1000))
        at_least("call over a socket to a root, p50", mine, theirs, times=1, unit="µs", n=1000)


async def state() -> None:
    from anchor import Original, install

    figures: list[list[float]] = []
    ours, original = Server("ours"), Original(install())
    try:
        for port in (ours.port, original.port):
            clients = [await connect(port, CHILD, 3) for _ in range(1000)]
            taken: list[float] = []
            for turn in range(4):
                before = [client.frames for client in clients]
                start = time.perf_counter()
                clients[0].send(b'{"type":"rpc","id":"1","method":"bump","args":[20]}')
                for client, seen in zip(clients, before, strict=True):
                    await client.until(seen + 20)
                if turn:
                    taken.append((time.perf_counter() - start) / 20_000 * 1e6)
                await asyncio.sleep(0.2)
            figures.append(taken)
            for client in clients:
                client.transport.close()
    finally:
        ours.stop()
        original.close()
    mine, theirs = (statistics.median(taken) for taken in figures)
    at_least("set_state to 1,000 clients of a sub-agent, per message", mine, theirs, times=2.5, unit="µs", n=20_000)


async def overhead() -> None:
    ours, plain = Server("ours"), Server("bare")
    try:
        first, second = await connect(ours.port, PARENT, 3), await connect(plain.port, "/", 0)
        await asyncio.sleep(0.1)
        mine, theirs = await medians(lambda: round_trips(first, 2000), lambda: round_trips(second, 2000), repeats=9)
    finally:
        ours.stop()
        plain.stop()
    at_most("call over a socket, beside a bare uvicorn echo", mine, theirs, times=1.6, unit="µs", n=2000)


async def idle() -> None:
    n = 4000
    ours = Server("ours")
    try:
        await connect(ours.port, CHILD, 3)
        await asyncio.sleep(3)
        before = ours.rss()
        clients = [await connect(ours.port, CHILD, 3) for _ in range(n)]
        await asyncio.sleep(5)  # the agent falls asleep
        below(
            "memory of an idle socket, agent asleep", (ours.rss() - before) / n / 1024, 30, unit="KiB", n=len(clients)
        )
    finally:
        ours.stop()


METRICS = {metric.__name__: metric for metric in (rpc, overhead, state, idle)}


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    for name in sys.argv[1:] or METRICS:
        say(f"-- {name}")
        uvloop.run(METRICS[name]())


if __name__ == "__main__":
    main()
