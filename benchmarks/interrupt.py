"""Stop: from a client's frame to the last provider's connection closed, below one child and below a thousand.

    python benchmarks/interrupt.py [--small] [metric …]

The models are a process of their own that speaks OpenAI's format over HTTP and notes, by
the clock that all processes share, when its connections close. Our server is another one.
What closing as many connections costs by itself is measured in turns with it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import served
import uvloop
from frame import Result, below, emit, say, scratch
from sockets import Client, connect

SMALL = "--small" in sys.argv
GREETING = 3
"""Frames a client is greeted with."""
PACE = 5.0
"""Seconds between two words of a model that says much."""
WIDE = 4 if SMALL else 10
"""How many agents each agent uses, over three levels: all of them wait, and the last ones listen to their models."""
BUCKET = "sapwood_interrupt_seconds_bucket"
ALLOWED = 0.3
"""Seconds a Stop of a thousand may take, beyond what closing their connections costs."""


class Line(asyncio.Protocol):
    """One connection to the provider."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._buffer = b""
        self._streams = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        size = int(sizes[0].partition(b":")[2]) if sizes else 0
        if len(rest) < size:
            return
        self._buffer = rest[size:]
        if head.startswith(b"GET"):
            body = json.dumps(self._provider.report()).encode()
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            return
        self._answer(json.loads(rest[:size]))

    def _answer(self, asked: dict[str, Any]) -> None:
        """Use each tool as often as the model's name says; without tools, say something for ever."""
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        self.say({"role": "assistant", "content": ""})
        if not asked.get("tools"):
            self._streams = True
            self._provider.lines.add(self)
            return
        name = asked["tools"][0]["function"]["name"]
        for at in range(int(asked["model"])):
            self._provider.calls += 1
            function = {"name": name, "arguments": '{"message":"go on"}'}
            call = {"index": at, "id": f"call-{self._provider.calls}", "type": "function", "function": function}
            self.say({"tool_calls": [call]})
        self.say({}, "tool_calls")
        self.write(b"data: [DONE]\n\n")
        self.transport.write(b"0\r\n\r\n")

    def say(self, delta: dict[str, Any], end: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": end}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        self.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def write(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%s\r\n" % (len(data), data))

    def eof_received(self) -> None:
        self._left()

    def connection_lost(self, exc: Exception | None) -> None:
        self._left()

    def _left(self) -> None:
        if self._streams:
            self._streams = False
            self._provider.closed.append(time.monotonic())
            self._provider.lines.discard(self)


class Provider:
    """All connections to the provider."""

    def __init__(self) -> None:
        self.lines: set[Line] = set()
        """Those on which something is said, for ever."""
        self.closed: list[float] = []
        """When those closed that have closed since somebody asked."""
        self.calls = 0

    def report(self) -> dict[str, Any]:
        closed, self.closed = self.closed, []
        return {"live": len(self.lines), "closed": closed}

    async def speak(self) -> None:
        """Say a word on every line in each round, not on all of them at once."""
        while True:
            lines = list(self.lines)
            for at, line in enumerate(lines):
                if line in self.lines:
                    line.say({"content": "word "})
                if at % 10 == 9:
                    await asyncio.sleep(PACE * 10 / len(lines))
            if len(lines) < 10:
                await asyncio.sleep(PACE)


async def provide(port: int) -> None:
    provider = Provider()
    await asyncio.get_running_loop().create_server(lambda: Line(provider), "127.0.0.1", port, backlog=4096)
    await provider.speak()


def serve(folder: str, port: int, provider: int) -> None:
    import httpx2
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from sapwood import App, ChatAgent, Settings, agent_tool

    client = httpx2.AsyncClient(limits=httpx2.Limits(max_connections=None), timeout=600)
    there = OpenAIProvider(base_url=f"http://127.0.0.1:{provider}/v1", api_key="k", http_client=client)

    class Leaf(ChatAgent):
        """Says much."""

        model = OpenAIChatModel("0", provider=there)

    class Twig(ChatAgent):
        """Uses leaves."""

        model = OpenAIChatModel(str(WIDE), provider=there)
        tools = (agent_tool(Leaf),)

    class Branch(ChatAgent):
        """Uses twigs."""

        model = OpenAIChatModel(str(WIDE), provider=there)
        tools = (agent_tool(Twig),)

    class Trunk(ChatAgent):
        """Uses branches."""

        model = OpenAIChatModel(str(WIDE), provider=there)
        tools = (agent_tool(Branch),)

    class Sapling(ChatAgent):
        """Uses one leaf."""

        model = OpenAIChatModel("1", provider=there)
        tools = (agent_tool(Leaf),)

    settings = Settings(data=folder, slow_after=60, model_requests_at_once=5000)
    served.serve(App(agents=[Trunk, Sapling], settings=settings), port)


class Listener(Client):
    """A client of a chat that hears when a turn is over."""

    is_over = False

    def heard(self, payload: bytes) -> None:
        super().heard(payload)
        if b'"done":true' in payload:
            self.is_over = True


class Site:
    """Our server and the provider, and what they are asked."""

    def __init__(self, port: int, provider: int) -> None:
        self._port = port
        self._provider = provider
        self._names = iter(range(1_000_000))

    async def get(self, port: int, path: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        body = await reader.readexactly(int(size.partition(b":")[2]))
        writer.close()
        return body

    async def report(self) -> dict[str, Any]:
        return json.loads(await self.get(self._provider, "/report"))

    async def live(self, n: int) -> None:
        """Wait until something is said on so many lines."""
        for _ in range(6000):
            if (await self.report())["live"] == n:
                return
            await asyncio.sleep(0.02)
        raise RuntimeError(f"not {n} requests: {await self.report()}")

    async def all_closed(self, n: int, since: float) -> float:
        """Return how long after this moment the last of so many connections closed, in milliseconds."""
        closed: list[float] = []
        for _ in range(6000):
            closed += (await self.report())["closed"]
            if len(closed) >= n:
                return (max(closed) - since) * 1e3
            await asyncio.sleep(0.02)
        raise RuntimeError(f"{len(closed)} of {n} connections have closed")

    async def stop(self, kind: str, n: int) -> float:
        """Have a conversation in which so many models speak, and stop it."""
        path = f"/agents/{kind}/t-{next(self._names)}"
        client = await connect(self._port, path, GREETING, Listener)
        message = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "go on"}]}
        body = json.dumps({"messages": [message], "trigger": "submit-message"})
        frame = {"id": "ask", "init": {"method": "POST", "body": body}, "type": "cf_agent_use_chat_request"}
        client.send(json.dumps(frame).encode())
        await self.live(n)
        await asyncio.sleep(1 if n > 1 else 0.05)
        await self.report()
        since = time.monotonic()
        client.send(b'{"id":"ask","type":"cf_agent_chat_request_cancel"}')
        taken = await self.all_closed(n, since)
        while not client.is_over:  # noqa: ASYNC110 - it is no matter when
            await asyncio.sleep(0.01)
        say(f"{n} stopped in {taken:.1f} ms, over after {(time.monotonic() - since) * 1e3:.0f} ms")
        client.transport.abort()
        return taken

    async def close_bare(self, n: int) -> float:
        """Have so many requests without any framework, and close their connections."""
        body = b'{"model":"0"}'
        request = b"POST /v1 HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        bare = [socket.create_connection(("127.0.0.1", self._provider)) for _ in range(n)]
        for one in bare:
            one.sendall(request)
        await self.live(n)
        await self.report()
        since = time.monotonic()
        for one in bare:
            one.close()
        return await self.all_closed(n, since)

    async def histogram(self) -> str:
        """Return what the server says itself of how long Stops took."""
        lines = (await self.get(self._port, "/metrics")).decode().splitlines()
        counts = [
            line.split('le="')[1].split('"} ') for line in lines if line.startswith("sapwood_interrupt_seconds_b")
        ]
        return ", ".join(f"{float(count):.0f} within {1e3 * float(bound):g} ms" for bound, count in counts)


@contextmanager
def site() -> Generator[Site, None, None]:
    flags = ["--small"] if SMALL else []
    with (
        served.process(__file__, "--provide", served.PORT, *flags) as provider,
        served.process(__file__, "--serve", str(scratch("interrupt")), served.PORT, str(provider), *flags) as port,
    ):
        yield Site(port, provider)


def p99(taken: list[float]) -> float:
    return sorted(taken)[min(len(taken) - 1, len(taken) * 99 // 100)]


async def tree() -> None:
    """Stop a root with a thousand children that listen to their models, three levels down."""
    n, repeats = WIDE**3, 3 if SMALL else 5
    ours: list[float] = []
    bare: list[float] = []
    histograms: list[str] = []
    for _ in range(repeats):
        with site() as one:  # what an earlier tree has left in memory would cost time
            ours.append(await one.stop("trunk", n))
            bare.append(await one.close_bare(n))
            histograms.append(await one.histogram())
    for histogram in histograms:
        say(f"the server itself: {histogram}")
    allowed = ALLOWED * 1e3 + p99(bare)
    text = f"of {repeats}: median {sorted(ours)[repeats // 2]:.0f} ms; closing them bare, p99 {p99(bare):.0f} ms"
    name = f"Stop with {n:,} models speaking three levels below, to the last connection closed, p99"
    ratio, bar = p99(ours) / allowed, f"<= {allowed:.0f} ms"
    emit(Result(name, p99(ours), allowed, ratio, "ms", n, bar, ratio <= 1, text))


async def child() -> None:
    """Stop a root with one child that listens to its model."""
    repeats = 20 if SMALL else 100
    with site() as one:
        await one.stop("sapling", 1)
        ours = [await one.stop("sapling", 1) for _ in range(repeats)]
        say(f"the server itself: {await one.histogram()}")
        text = f"of {repeats}: median {sorted(ours)[repeats // 2]:.1f} ms"
        below(
            "Stop with one model speaking below, to its connection closed, p99",
            p99(ours),
            20,
            unit="ms",
            n=1,
            note=text,
        )


METRICS = {metric.__name__: metric for metric in (tree, child)}


def main() -> None:
    if sys.argv[1:2] == ["--provide"]:
        uvloop.run(provide(int(sys.argv[2])))
        return
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return
    for name in [name for name in sys.argv[1:] if name != "--small"] or METRICS:
        say(f"-- {name}")
        uvloop.run(METRICS[name]())


if __name__ == "__main__":
    main()
