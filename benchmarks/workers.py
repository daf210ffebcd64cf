"""Workers: what it costs to call an agent of another one, to have a supervisor, and what a second core brings.

    python benchmarks/workers.py [metric …]

Meant for a machine with two cores that does nothing else: with two workers both are busy, and whoever else wants one
takes it from them. Rounds with one worker and with two take turns, and of each the best counts. What counts increments
and says tokens runs in the workers; clients outside of them only wait, or cost next to nothing beside what they ask
for, and the note of a line says how much.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import served
import uvloop
from frame import at_most, more, scratch, works
from pydantic_ai.models.function import FunctionModel
from sockets import Client, connect
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from sapwood import Agent, App, ChatAgent, Settings, expose
from sapwood.runtimes.local import LocalRuntime
from sapwood.runtimes.workers.placement import ShardPlan, WorkerPart
from sapwood.runtimes.workers.share import WorkerShare
from sapwood.types import Address

VALUE = {"a": 1, "b": "two"}
MESSAGE = [1, "call", ["Echo", "n0", "benchmarks.workers", "Echo", "echo"], [VALUE], None, None, "0", None]
"""What the bare exchange carries: as much as a call says."""
ECHO = b'{"type":"rpc","id":"1","method":"echo","args":[{"a":1,"b":"two"}]}'
GREETING = 3
"""Frames a client is greeted with."""
CALLS = 300
TREES = 8
"""Roots that are busy at once; each of two workers runs half of them."""
INCREMENTS = 1000
TOKENS = 1000
BATCH = 8
"""Calls that a client has under way on one socket."""
BATCHES = 30
ROUNDS = 5


async def say_tokens(messages: Any, info: Any) -> AsyncIterator[str]:
    for _ in range(TOKENS):
        await asyncio.sleep(0)
        yield "tok "


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
        for _ in range(INCREMENTS):
            await tally.add()
        return PlainTextResponse("done")


class Talker(ChatAgent):
    model = FunctionModel(stream_function=say_tokens)


app = App(agents=[Echo, Talker], settings=Settings(slow_after=10))
synced = App(agents=[Echo], settings=Settings(slow_after=10, durability="disk"))


def apart(number: int, count: int = 1) -> list[str]:
    """Return names of roots that this one of two workers runs."""
    part = WorkerPart(number, ShardPlan(2))
    names = [f"n{at}" for at in range(100)]
    return [name for name in names if part.is_here(Address.root_of("Echo", name))][:count]


def shared() -> list[str]:
    """Return names of roots of which two workers run half each."""
    return [*apart(0, TREES // 2), *apart(1, TREES // 2)]


async def best(
    ours: Callable[[], Awaitable[float]], reference: Callable[[], Awaitable[float]], rounds: int = ROUNDS
) -> tuple[float, float]:
    """Return the least of both, measured in turns after one round to warm up."""
    await ours()
    await reference()
    both = [(await ours(), await reference()) for _ in range(rounds)]
    return min(mine for mine, _ in both), min(theirs for _, theirs in both)


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
        self.heard(msgspec.msgpack.decode(data[4 : 4 + length]))

    def heard(self, value: Any) -> None:
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


class BareTask(Bare):
    """The same, with a task for each answer: what is asked at once may be done at once."""

    def heard(self, value: Any) -> None:
        self.task = asyncio.get_running_loop().create_task(self.work(value))

    async def work(self, value: Any) -> None:
        self.send(value)


def worker(number: int, folder: Path) -> App:
    """Return an app that is one of two workers."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / str(number)))
    listening.listen()
    sockets = {str(one): folder / str(one) for one in range(2)}
    settings = Settings(data=str(folder / "data"))
    share = WorkerShare(WorkerPart(number, ShardPlan(2)), sockets, listening, "secret", listening.fileno())
    return App(agents=[Echo], settings=settings, runtime=LocalRuntime(settings, share=share))


def answer(folder: Path) -> None:
    """Be the other worker, and the other end of the bare exchanges."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with worker(1, folder):
            servers = [
                await loop.create_unix_server(kind, str(folder / kind.__name__), start_serving=True)
                for kind in (Bare, BareTask)
            ]
            (folder / "ready").touch()
            await asyncio.Event().wait()
            del servers

    uvloop.run(run())


async def timed(function: Callable[[Any], Awaitable[Any]], value: Any) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        await function(value)
    return (time.perf_counter() - began) / CALLS * 1e6


async def call() -> None:
    folder = scratch("w")
    other = multiprocessing.get_context("spawn").Process(target=answer, args=(folder,))
    other.start()
    try:
        async with worker(0, folder) as one:
            near, far = [await one.get_agent(Echo, *apart(number)) for number in (0, 1)]
            while not (folder / "ready").exists():  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.01)
            loop = asyncio.get_running_loop()
            bare, tasks = [
                (await loop.create_unix_connection(Bare, str(folder / kind.__name__)))[1] for kind in (Bare, BareTask)
            ]
            ours, reference = await best(lambda: timed(far.echo, VALUE), lambda: timed(bare.ask, MESSAGE), 30)
            here, with_tasks = await best(lambda: timed(near.echo, VALUE), lambda: timed(tasks.ask, MESSAGE), 30)
            at_once = min([await pipelined(far.echo) for _ in range(15)])
    finally:
        other.kill()
    at_most("call to an agent of another worker, beside a bare exchange", ours, reference, times=2, unit="us", n=CALLS)
    works("a bare exchange whose answers are tasks", with_tasks, unit="us", n=CALLS)
    works("call to an agent of another worker, of many at once", at_once, unit="us", n=CALLS)
    works("the same call within a worker", here, unit="us", n=CALLS)


async def pipelined(function: Callable[[Any], Awaitable[Any]]) -> float:
    """Return what one of many calls takes that are under way at once."""
    began = time.perf_counter()
    await asyncio.gather(*(function(VALUE) for _ in range(CALLS)))
    return (time.perf_counter() - began) / CALLS * 1e6


@contextmanager
def server(*arguments: str, app: str = "app") -> Generator[int, None, None]:
    """Run `sapwood serve`; yield its port."""
    port, folder = served.free_port(), scratch("served")
    target = f"{Path(__file__).resolve()}:{app}"
    command = [sys.executable, "-m", "sapwood", "serve", target, "--port", str(port), "--data", str(folder)]
    with served.started(*command, *arguments, stderr=subprocess.DEVNULL):
        while not (folder / "operator.json").exists():
            time.sleep(0.05)
        served.until_listening(port)
        yield port


async def overhead() -> None:
    with server() as alone, server("--workers", "1") as supervised:
        clients = [await connect(port, f"/agents/echo/{apart(0)[0]}", GREETING) for port in (supervised, alone)]

        async def rpc(client: Client) -> float:
            began = time.perf_counter()
            for _ in range(CALLS):
                client.send(ECHO)
                await client.until(client.frames + 1)
            return (time.perf_counter() - began) / CALLS * 1e6

        ours, reference = await best(lambda: rpc(clients[0]), lambda: rpc(clients[1]), 30)
    at_most("a call over a socket with one worker, beside none", ours, reference, times=1.05, unit="us", n=CALLS)


def count(port: int) -> float:
    """Have several roots count at once; return the seconds it took."""

    def ask(name: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", f"/agents/echo/{name}")
        assert connection.getresponse().status == 200
        connection.close()

    began = time.perf_counter()
    with ThreadPoolExecutor(TREES) as pool:
        list(pool.map(ask, shared()))
    return time.perf_counter() - began


async def increments() -> None:
    for level, target in (("process", "app"), ("disk", "synced")):
        with server("--workers", "1", app=target) as one, server("--workers", "2", app=target) as two:
            rounds = ROUNDS if level == "process" else 3
            fast, slow = await best(
                lambda: asyncio.to_thread(count, two), lambda: asyncio.to_thread(count, one), rounds
            )
        n = TREES * INCREMENTS
        name = "durable increments with two workers, beside one"
        if level == "process":
            more(name, n / fast, n / slow, times=1.6, unit="/s", n=n, note="durability process, the default")
        else:
            works(f"{name}, durability disk", slow / fast, unit="x", n=n)


class Listener(Client):
    """A client of a chat, who knows when an answer is whole."""

    def __init__(self) -> None:
        super().__init__()
        self._whole: asyncio.Future[None] | None = None

    def heard(self, payload: bytes) -> None:
        super().heard(payload)
        if self._whole is not None and b'"done":true' in payload:
            self._whole.set_result(None)
            self._whole = None

    async def ask(self, id: str) -> None:
        message = {"id": f"user-{id}", "role": "user", "parts": [{"type": "text", "text": "Speak"}]}
        body = json.dumps({"messages": [message], "trigger": "submit-message"})
        self._whole = asyncio.get_running_loop().create_future()
        self.send(
            json.dumps(
                {"id": id, "init": {"method": "POST", "body": body}, "type": "cf_agent_use_chat_request"}
            ).encode()
        )
        await self._whole


class Shares:
    """Measures one thing with one worker and with two, and what the clients took of the cores meanwhile."""

    def __init__(self) -> None:
        self._used: list[float] = []

    async def seconds(self, work: Sequence[Awaitable[Any]]) -> float:
        used, began = time.process_time(), time.perf_counter()
        await asyncio.gather(*work)
        took = time.perf_counter() - began
        self._used.append((time.process_time() - used) / took)
        return took

    @property
    def note(self) -> str:
        return f"the clients took {max(self._used):.0%} of a core"


async def tokens() -> None:
    shares, asked = Shares(), iter(range(1_000_000))
    with server("--workers", "1") as one, server("--workers", "2") as two:

        async def answers(port: int) -> float:
            # New conversations each time: what is said in long ones costs more.
            talk = next(asked)
            paths = [f"/agents/talker/{name}" for name in talks(talk)]
            listeners = [await connect(port, path, GREETING, Listener) for path in paths]
            took = await shares.seconds([listener.ask("ask") for listener in listeners])
            for listener in listeners:
                listener.transport.close()
            return took

        fast, slow = await best(lambda: answers(two), lambda: answers(one), 5)
    n = TREES * TOKENS
    name = "tokens of chats with two workers, beside one"
    more(name, n / fast, n / slow, times=1.6, unit="/s", n=n, note=shares.note)


def talks(round: int) -> list[str]:
    """Return names of conversations of which two workers run half each."""
    found: list[list[str]] = [[], []]
    for at in range(100):
        name = f"talk-{round}-{at}"
        found[WorkerPart(1, ShardPlan(2)).is_here(Address.root_of("Talker", name))].append(name)
    return [*found[0][: TREES // 2], *found[1][: TREES // 2]]


class Caller(asyncio.Protocol):
    """A client that asks the same again and again, many at a time, and only counts the bytes of the answers."""

    def __init__(self) -> None:
        self._left = 0
        self._size = 0
        self._came = 0
        self.done: asyncio.Future[None] | None = None

    def begin(self, transport: Any, request: bytes, size: int) -> None:
        self._transport, self._request, self._size = transport, request * BATCH, size * BATCH

    def ask(self, batches: int) -> asyncio.Future[None]:
        self.done = asyncio.get_running_loop().create_future()
        self._left = batches
        self._came = 0
        self._transport.write(self._request)
        return self.done

    def data_received(self, data: bytes) -> None:
        self._came += len(data)
        if self._came < self._size:
            return
        self._came -= self._size
        self._left -= 1
        if self._left:
            self._transport.write(self._request)
        elif self.done is not None:
            self.done.set_result(None)


async def caller(port: int, path: str) -> Caller:
    """Return a client of an agent."""
    client = await connect(port, path, GREETING)
    client.send(ECHO)
    await client.until(client.frames + 1)
    answered = 2 + len(client.last) if len(client.last) < 126 else 4 + len(client.last)
    made = Caller()
    mask = b"\x81" + bytes([0x80 | len(ECHO)]) + b"\0\0\0\0" + ECHO
    made.begin(client.transport, mask, answered)
    client.transport.set_protocol(made)
    return made


async def calls() -> None:
    shares = Shares()
    with server("--workers", "1") as one, server("--workers", "2") as two:
        callers = {
            port: [await caller(port, f"/agents/echo/{name}") for name in shared() for _ in range(8)]
            for port in (one, two)
        }

        async def rpc(port: int) -> float:
            return await shares.seconds([client.ask(BATCHES) for client in callers[port]])

        fast, slow = await best(lambda: rpc(two), lambda: rpc(one))
    n = len(callers[one]) * BATCHES * BATCH
    name = "calls over sockets with two workers, beside one"
    more(name, n / fast, n / slow, times=1.6, unit="/s", n=n, note=shares.note)


METRICS = {metric.__name__: metric for metric in (call, overhead, increments, tokens, calls)}


def main() -> None:
    for name in sys.argv[1:] or METRICS:
        uvloop.run(METRICS[name]())


if __name__ == "__main__":
    main()
