"""Workers: what it costs to call an agent of another one, to have a supervisor, and what a second core brings.

python benchmarks/workers.py [metric …]
"""

from __future__ import annotations

import asyncio
import http.client
import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import served
import uvloop
from frame import alternately, at_least, at_most, scratch, works
from sockets import connect
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from sapwood import Address, Agent, App, Settings, expose
from sapwood.runtimes.local import LocalRuntime
from sapwood.runtimes.workers.placement import Part, Sharing
from sapwood.runtimes.workers.share import WorkerShare

VALUE = {"a": 1, "b": "two"}
ECHO = b'{"type":"rpc","id":"1","method":"echo","args":[{"a":1,"b":"two"}]}'
CALLS = 300
ROOTS = 8
INCREMENTS = 2000


class Tally(Agent[int]):
    initial_state = 0

    async def add(self) -> int:
        self.set_state(self.state + 1)
        return self.state


class Echo(Agent[int]):
    initial_state = 0

    @expose
    async def echo(self, value: dict[str, object]) -> dict[str, object]:
        return value

    async def on_request(self, request: Request) -> Response:
        """Have a child count: each a call, a commit and a reply that waited for it."""
        tally = await self.sub_agent(Tally, "t")
        for _ in range(int(request.query_params["n"])):
            await tally.add()
        return PlainTextResponse("done")


app = App(agents=[Echo], settings=Settings(slow_slice=10))


def apart(number: int) -> str:
    """Return the name of a root that this one of two workers runs."""
    part = Part(number, Sharing(2))
    return next(f"n{at}" for at in range(100) if part.is_here(Address.root_of("Echo", f"n{at}")))


class Bare(asyncio.Protocol):
    """The least that a message between two processes takes: a length, msgpack, and back."""

    def __init__(self) -> None:
        self._rest = b""
        self.answer: asyncio.Future[Any] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        length = int.from_bytes(data[:4], "big")
        if len(data) < 4 + length:
            self._rest = data
            return
        self._rest = data[4 + length :]
        value = msgspec.msgpack.decode(data[4 : 4 + length])
        if self.answer is None:
            self.send(value)
        else:
            self.answer.set_result(value)

    def send(self, value: Any) -> None:
        packed = msgspec.msgpack.encode(value)
        self.transport.write(len(packed).to_bytes(4, "big") + packed)

    async def ask(self, value: Any) -> Any:
        self.answer = asyncio.get_running_loop().create_future()
        self.send(value)
        return await self.answer


def worker(number: int, folder: Path) -> App:
    """Return an app that is one of two workers."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / str(number)))
    listening.listen()
    sockets = {str(one): folder / str(one) for one in range(2)}
    settings = Settings(data=str(folder / "data"))
    share = WorkerShare(Part(number, Sharing(2)), sockets, listening, "secret", listening.fileno())
    return App(agents=[Echo], settings=settings, runtime=LocalRuntime(settings, share=share))


def answer(folder: Path) -> None:
    """Be the other worker, and the other end of the bare exchange."""

    async def run() -> None:
        async with worker(1, folder):
            _server = await asyncio.get_running_loop().create_unix_server(Bare, str(folder / "bare"))
            await asyncio.Event().wait()

    uvloop.run(run())


async def timed(function: Callable[[Any], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        await function(VALUE)
    return (time.perf_counter() - began) / CALLS * 1e6


async def call() -> None:
    folder = scratch("w")
    other = multiprocessing.get_context("spawn").Process(target=answer, args=(folder,))
    other.start()
    try:
        async with worker(0, folder) as one:
            far, near = [await one.get_agent(Echo, apart(number)) for number in (1, 0)]
            while not (folder / "bare").exists():  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.01)
            _, bare = await asyncio.get_running_loop().create_unix_connection(Bare, str(folder / "bare"))
            ours, reference = await alternately(lambda: timed(far.echo), lambda: timed(bare.ask), 15)
            here = await timed(near.echo)
    finally:
        other.kill()
    at_most("call to an agent of another worker, beside a bare exchange", ours, reference, times=2, unit="us", n=CALLS)
    works("the same call within a worker", here, unit="us", n=CALLS)


@contextmanager
def server(*arguments: str) -> Generator[int, None, None]:
    """Run `sapwood serve`; yield its port."""
    port, folder = served.free_port(), scratch("served")
    target = f"{Path(__file__).resolve()}:app"
    command = [sys.executable, "-m", "sapwood", "serve", target, "--port", str(port), "--data", str(folder)]
    with subprocess.Popen([*command, *arguments], stderr=subprocess.DEVNULL) as process:
        try:
            while not (folder / "operator.json").exists():
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()
            process.wait(60)


async def overhead() -> None:
    with server() as alone, server("--workers", "1") as supervised:
        clients = [await connect(port, f"/agents/echo/{apart(0)}", 3) for port in (supervised, alone)]

        async def rpc(client: Any) -> float:
            began = time.perf_counter()
            for _ in range(CALLS):
                client.send(ECHO)
                await client.until(client.frames + 1)
            return (time.perf_counter() - began) / CALLS * 1e6

        ours, reference = await alternately(lambda: rpc(clients[0]), lambda: rpc(clients[1]), 15)
    at_most("a call over a socket with one worker, beside none", ours, reference, times=1.05, unit="us", n=CALLS)


def count(port: int) -> float:
    """Have several roots count at once; return the seconds for one increment."""

    def ask(name: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", f"/agents/echo/{name}?n={INCREMENTS}")
        assert connection.getresponse().status == 200
        connection.close()

    names = [f"n{at}" for at in range(100)]
    even = [name for name in names if Part(0, Sharing(2)).is_here(Address.root_of("Echo", name))][: ROOTS // 2]
    odd = [name for name in names if Part(1, Sharing(2)).is_here(Address.root_of("Echo", name))][: ROOTS // 2]
    began = time.perf_counter()
    with ThreadPoolExecutor(ROOTS) as pool:
        list(pool.map(ask, even + odd))
    return (time.perf_counter() - began) / (ROOTS * INCREMENTS) * 1e6


async def throughput() -> None:
    with server("--workers", "1") as one, server("--workers", "2") as two:

        async def ours() -> float:
            return await asyncio.to_thread(count, two)

        async def reference() -> float:
            return await asyncio.to_thread(count, one)

        fast, slow = await alternately(ours, reference, 5)
    at_least("durable increments with two workers, beside one", fast, slow, times=1.6, unit="us", n=ROOTS * INCREMENTS)


METRICS = {metric.__name__: metric for metric in (call, overhead, throughput)}


def main() -> None:
    for name in sys.argv[1:] or METRICS:
        uvloop.run(METRICS[name]())


if __name__ == "__main__":
    main()
