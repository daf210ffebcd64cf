"""A server under a crowd: idle sockets, talking clients, one that never reads, many that come back, and a restart.

    python benchmarks/load.py [--small] [--facts]

Server and crowd are two processes. At full size the crowd is 10,000 idle sockets and 1,000
talking clients. `--facts` prints what was seen as one JSON object, for the tests.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import served
import uvloop
from frame import Result, below, emit, say, scratch
from sockets import Client, Lost, connect, handshake

GREETING = 2
"""Frames a client is greeted with."""
AT_ONCE = 64
"""Clients that connect at the same time, where that is not what is measured."""
MIB = 1024 * 1024
FRAME = 64 * 1024
ESTABLISHED = "01"


@dataclass(frozen=True)
class Size:
    """How large a crowd is."""

    idle: int
    talking: int
    returning: int
    trees: int
    members: int
    """Sub-agents of each tree."""
    warm_up: float
    seconds: float
    """How long it is listened to."""
    shouts: int
    """Frames that whoever never reads is sent."""
    hurry: float
    """Seconds within which everybody comes back after a restart."""
    every: float = 1.0
    """Seconds between two calls of one client."""


FULL = Size(idle=10_000, talking=1000, returning=500, trees=20, members=4, warm_up=2, seconds=15, shouts=400, hurry=2)
SMALL = Size(idle=1000, talking=100, returning=50, trees=5, members=3, warm_up=1, seconds=2, shouts=240, hurry=0.5)


@dataclass
class Facts:
    """What was seen."""

    idle_kib: float = 0
    """Memory of an idle socket, its agent asleep."""
    awake: int = -1
    calm_ms: tuple[float, float] = (0, 0)
    """Round trips of the talking clients, p50 and p99: while nothing else goes on, and so forth."""
    hung_ms: tuple[float, float] = (0, 0)
    hung_grown_mib: float = 0
    """How far the server's memory grew while one client did not read."""
    hung_heard: int = 0
    """Of the clients of the same agent, how many heard everything."""
    hung_listeners: int = 0
    hung_closed_s: float = -1
    """From the first frame to the end of the TCP connection; -1: it never ended."""
    returning_s: float = 0
    returning_ms: tuple[float, float] = (0, 0)
    dropped: int = 0
    """Clients that lost their socket, though nobody asked them to."""
    codes: dict[str, int] = field(default_factory=dict[str, int])
    """What sockets were closed with at SIGTERM."""
    exit_s: float = 0
    exit_code: int = -1
    back_s: float = 0
    """From the start of the next server until every client was greeted again."""
    acknowledged: int = 0
    missing: int = 0
    """Acknowledged writes that the next server did not have."""


class Server:
    """`sapwood serve`, in a process of its own, on one port and folder for all its lives."""

    def __init__(self) -> None:
        self.port = served.free_port()
        self._folder = scratch("load")
        self.start()

    def start(self) -> None:
        command = ("-m", "sapwood", "serve", "crowd:app", "--log-level", "warning")
        self._process = subprocess.Popen(
            [sys.executable, *command, "--port", str(self.port), "--data", str(self._folder)],
            cwd=Path(__file__).parent,
            stdout=sys.stderr,
        )
        served.until_listening(self.port)

    def rss(self) -> int:
        return served.memory_of(self._process.pid)

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    async def ended(self) -> int:
        return await asyncio.to_thread(self._process.wait, 60)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Visitor:
    """A client that comes back whenever it loses its socket."""

    def __init__(self, port: int, path: str) -> None:
        self._port = port
        self.path = path
        self.client: Client | None = None
        self._calls = 0

    @property
    def is_in(self) -> bool:
        return self.client is not None and self.client.code is None

    async def come(self) -> None:
        self.client = await connect(self._port, self.path, GREETING)

    async def come_again(self, within: float) -> None:
        """Come as soon as there is somebody to come to, though not all in one moment."""
        while not self.is_in:
            await asyncio.sleep(random.uniform(0, within))
            try:
                await self.come()
            except (OSError, Lost):
                continue

    async def call(self, method: str, *args: object) -> Any:
        client = self.client
        assert client is not None
        self._calls += 1
        before = client.frames
        client.send(json.dumps({"type": "rpc", "id": str(self._calls), "method": method, "args": args}).encode())
        await client.until(before + 1)
        answer = json.loads(client.last)
        if not answer.get("success"):
            raise RuntimeError(answer)
        return answer["result"]


class Talker(Visitor):
    """A client that calls at a steady rate, and writes down what was acknowledged."""

    def __init__(self, port: int, path: str, name: str, every: float) -> None:
        super().__init__(port, path)
        self._name = name
        self._every = every
        self.taken: list[float] = []
        self.acknowledged: list[str] = []

    async def talk(self) -> None:
        """Talk until the socket is lost."""
        loop = asyncio.get_running_loop()
        due = loop.time() + random.uniform(0, self._every)
        number = 0
        while True:
            await asyncio.sleep(due - loop.time())
            number += 1
            try:
                if number % 4:
                    await self.call("echo", {"a": 1, "b": "two"})
                else:
                    self.acknowledged.append(await self.call("keep", f"{self._name}:{number}"))
            except Lost:
                return
            # From when it was due: a client that had to wait for its turn has waited too.
            self.taken.append(loop.time() - due)
            due = max(due + self._every, loop.time())


class Crowd:
    """Everybody who is connected to one server."""

    def __init__(self, server: Server, size: Size) -> None:
        self.server = server
        self.size = size
        trees = [f"/agents/head/{number}" for number in range(size.trees)]
        self.paths = [
            *trees,
            *(f"{tree}/sub/member/{number}" for tree in trees for number in range(size.members)),
        ]
        self.idle = [Visitor(server.port, self.paths[n % len(self.paths)]) for n in range(size.idle)]
        self.talkers = [
            Talker(server.port, self._busy(n % len(self.paths)), str(n), size.every) for n in range(size.talking)
        ]
        self.observer = Visitor(server.port, "/agents/observer/o")
        self._talks: list[asyncio.Task[None]] = []

    def _busy(self, n: int) -> str:
        """Return an agent that only talking clients have, so that the others' can sleep."""
        return self.paths[n].replace("/head/", "/head/busy-", 1)

    @property
    def everybody(self) -> list[Visitor]:
        return [*self.idle, *self.talkers, self.observer]

    @property
    def missing(self) -> int:
        return sum(not one.is_in for one in self.everybody)

    async def look(self) -> dict[str, int]:
        return await self.observer.call("look")

    def talk(self) -> None:
        self._talks = [asyncio.create_task(talker.talk()) for talker in self.talkers]

    async def silence(self) -> None:
        await asyncio.gather(*self._talks)

    def listen(self) -> None:
        """Begin to measure anew."""
        for talker in self.talkers:
            talker.taken = []

    def heard(self) -> tuple[float, float]:
        """Return p50 and p99 of the calls since then, in milliseconds."""
        taken = sorted(one for talker in self.talkers for one in talker.taken)
        return taken[len(taken) // 2] * 1e3, taken[len(taken) * 99 // 100] * 1e3


async def in_turns(acts: Iterable[Callable[[], Awaitable[None]]], at_once: int = AT_ONCE) -> None:
    """Do everything, so much of it at the same time."""
    left = iter(acts)

    async def some() -> None:
        for act in left:
            await act()

    await asyncio.gather(*(some() for _ in range(at_once)))


async def idle(crowd: Crowd, facts: Facts) -> None:
    """Connect the idle ones, and let their agents fall asleep."""
    await crowd.observer.come()
    first = [Visitor(crowd.server.port, path) for path in crowd.paths]
    await in_turns(one.come for one in first)
    await asleep(crowd)
    before = crowd.server.rss()
    await in_turns(one.come for one in crowd.idle)
    facts.awake = await asleep(crowd)
    facts.idle_kib = (crowd.server.rss() - before) / len(crowd.idle) / 1024
    for one in first:
        assert one.client is not None
        one.client.transport.close()


async def asleep(crowd: Crowd) -> int:
    """Wait until everybody sleeps; return how many do not."""
    awake = 0
    for _ in range(100):
        awake = (await crowd.look())["awake"]
        if not awake:
            break
        await asyncio.sleep(0.1)
    return awake


async def talking(crowd: Crowd, facts: Facts) -> None:
    await in_turns(one.come for one in crowd.talkers)
    crowd.talk()
    await asyncio.sleep(crowd.size.warm_up)  # every agent was woken once
    crowd.listen()
    await asyncio.sleep(crowd.size.seconds)
    facts.calm_ms = crowd.heard()


async def hung(crowd: Crowd, facts: Facts) -> Callable[[], Awaitable[None]]:
    """Connect one that never reads, and shout; return what waits for its end."""
    port, path = crowd.server.port, "/agents/head/loud/sub/member/loudest"
    listeners = [Visitor(port, path) for _ in range(10)]
    await in_turns(one.come for one in listeners)
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect(("127.0.0.1", port))
    deaf.sendall(handshake(port, path))
    await asyncio.sleep(0.2)
    before, peak, began = crowd.server.rss(), 0, time.monotonic()
    shouter = Visitor(port, path)
    await shouter.come()
    assert shouter.client is not None
    seen = {one.client: one.client.frames for one in listeners if one.client is not None}
    crowd.listen()
    shouting = {"type": "rpc", "id": "1", "method": "shout", "args": [crowd.size.shouts, FRAME, 0.01]}
    shouter.client.send(json.dumps(shouting).encode())
    facts.hung_listeners = len(listeners)
    while facts.hung_heard < len(listeners) and time.monotonic() - began < 60:
        await asyncio.sleep(0.05)
        peak = max(peak, crowd.server.rss())
        facts.hung_heard = sum(one.frames - before == crowd.size.shouts for one, before in seen.items())
    facts.hung_ms = crowd.heard()
    facts.hung_grown_mib = (peak - before) / MIB
    for one in (*listeners, shouter):
        assert one.client is not None
        one.client.transport.close()

    async def end() -> None:
        while time.monotonic() - began < 40:
            if not is_established(port, deaf.getsockname()[1]):
                facts.hung_closed_s = time.monotonic() - began
                break
            await asyncio.sleep(0.1)
        deaf.close()

    return end


def is_established(port: int, remote: int) -> bool:
    """Return whether the server still has this TCP connection."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, mine, theirs, state, *_ = line.split()
        if (int(mine.split(":")[1], 16), int(theirs.split(":")[1], 16)) == (port, remote):
            return state == ESTABLISHED
    return False


async def returning(crowd: Crowd, facts: Facts) -> None:
    """Let many lose their sockets in one moment, and come back in the next."""
    some = random.sample(crowd.idle, crowd.size.returning)
    for one in some:
        assert one.client is not None
        one.client.transport.abort()
    await asyncio.sleep(0)
    crowd.listen()
    began = time.monotonic()
    await asyncio.gather(*(one.come() for one in some))
    facts.returning_s = time.monotonic() - began
    await asyncio.sleep(crowd.size.every)  # everybody has called once
    facts.returning_ms = crowd.heard()


async def restart(crowd: Crowd, facts: Facts) -> None:
    facts.dropped = crowd.missing
    began = time.monotonic()
    crowd.server.terminate()
    facts.exit_code = await crowd.server.ended()
    facts.exit_s = time.monotonic() - began
    await crowd.silence()
    facts.codes = dict(Counter(str(one.client.code) for one in crowd.everybody if one.client is not None))
    crowd.server.start()
    began = time.monotonic()
    await asyncio.gather(*(one.come_again(crowd.size.hurry) for one in crowd.everybody))
    facts.back_s = time.monotonic() - began
    told = {(talker.path, what) for talker in crowd.talkers for what in talker.acknowledged}
    facts.acknowledged = len(told)
    asked = {talker.path: talker for talker in crowd.talkers}
    there = {(path, what) for path, talker in asked.items() for what in await talker.call("kept")}
    facts.missing = len(told - there)


async def run(size: Size) -> Facts:
    """Put a server under load, and return what was seen."""
    facts = Facts()
    server = Server()
    crowd = Crowd(server, size)
    try:
        say("-- idle")
        await idle(crowd, facts)
        say("-- talking")
        await talking(crowd, facts)
        say("-- hung")
        its_end = await hung(crowd, facts)
        say("-- returning")
        await returning(crowd, facts)
        await its_end()
        say("-- restart")
        await restart(crowd, facts)
    finally:
        server.kill()
    return facts


def tell(size: Size, facts: Facts) -> None:
    """Print what was seen as lines of the benchmarks."""
    idle, talking = f"{size.idle:,} idle sockets", f"{size.talking:,} talking clients"
    below(f"memory of each of {idle}, agents asleep", facts.idle_kib, 30, unit="KiB", n=size.idle)
    for what, (p50, p99), limit in (
        ("", facts.calm_ms, 50),
        (", one client does not read", facts.hung_ms, 250),
        (f", {size.returning} reconnect", facts.returning_ms, 1000),
    ):
        below(f"call by {talking} beside {idle}{what}, p50", p50, limit, unit="ms", n=size.talking)
        below(f"call by {talking} beside {idle}{what}, p99", p99, limit, unit="ms", n=size.talking)
    below("memory for a client that does not read", facts.hung_grown_mib, 16, unit="MiB", n=1)
    below(
        "time until a client that does not read is cut off",
        facts.hung_closed_s if facts.hung_closed_s >= 0 else 1e9,
        30,
        unit="s",
        n=1,
    )
    below(f"{size.returning} clients back at once", facts.returning_s, 5, unit="s", n=size.returning)
    nobody("clients dropped meanwhile", facts.dropped, size.idle + size.talking)
    below("SIGTERM to exit under that load", facts.exit_s, 12, unit="s", n=1)
    everybody = size.idle + size.talking
    below(f"{everybody:,} clients back after a restart", facts.back_s, 60, unit="s", n=everybody)
    nobody("acknowledged writes missing after a restart", facts.missing, facts.acknowledged)


def nobody(name: str, ours: int, n: int) -> None:
    emit(Result(name, ours, 0, None, "", n, "none", ours == 0))


def main() -> None:
    size = SMALL if "--small" in sys.argv else FULL
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    facts = uvloop.run(run(size))
    if "--facts" in sys.argv:
        print(json.dumps(asdict(facts)))
    else:
        tell(size, facts)


if __name__ == "__main__":
    main()
