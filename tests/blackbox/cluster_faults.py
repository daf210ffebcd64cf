"""Faults of a real cluster under load: every promise that clients can see is kept.

Three NATS servers, moto as S3 and three `sapwood serve` processes, with TCP proxies between nodes and servers and
between the servers. A round has a cluster of its own.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import os
import random
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from tests.blackbox.cluster_app import BlackboxRoot
from tests.blackbox.rounds import Outcome, most_frequent
from tests.cluster.processes import NodeProcess
from tests.cluster.proxies import Proxy
from tests.cluster.servers import PASSWORDS, S3, Nats
from tests.machine import patience

from sapwood.client import connect
from sapwood.errors import SapwoodError

APP = f"{Path(__file__).with_name('cluster_app.py')}:app"
NODES = 3
KILLS = 2
"""Node kills among each ten faults."""
LISTS, FIBERS = 4, 8
"""Roots that clients append to, and roots in which they start fibers."""
BEYOND_LEASE = 20.0
WARM_UP = 3.0
TIMEOUT = 20.0
SETTLED = 90.0
"""Seconds in which all fibers have to end after the last fault."""


class ProxiedNats(Nats):
    """NATS servers whose routes to each other pass proxies."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, NODES, advertises=False)
        self.routes_between = {
            (near, far): Proxy(self.routes[far]) for near in range(NODES) for far in range(NODES) if near != far
        }

    def environment(self, n: int) -> dict[str, str]:
        ports = [self.routes_between[n, far].port for far in range(NODES) if far != n]
        routes = ", ".join(f'"nats://route:{PASSWORDS["route"]}@127.0.0.1:{port}"' for port in ports)
        return {**super().environment(n), "NATS_ROUTES": f"[{routes}]"}

    def of(self, n: int) -> list[Proxy]:
        """Return the proxies of all routes from and to a server."""
        return [proxy for ends, proxy in self.routes_between.items() if n in ends]


class Cluster:
    """The servers and nodes of one round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.side = folder / "side"
        self.nats = ProxiedNats(folder / "nats")
        self.s3 = S3(folder / "s3")
        self.proxies = [[Proxy(port) for port in self.nats.ports] for _ in range(NODES)]
        self.nodes: list[NodeProcess] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for proxy in (*self.nats.routes_between.values(), *(one for row in self.proxies for one in row)):
            await self._stack.enter_async_context(proxy)
        self._stack.callback(self._stop)
        self.nats.start()
        await asyncio.to_thread(self.nats.wait)
        await asyncio.to_thread(self.s3.start)
        self.nodes = list(await asyncio.gather(*(asyncio.to_thread(self._node, n) for n in range(NODES))))
        await asyncio.gather(*map(self.ready, self.nodes))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def _stop(self) -> None:
        for node in self.nodes:
            node.close()
        self.s3.stop()
        self.nats.stop()

    @property
    def environment(self) -> dict[str, str]:
        """What an operator has to tell a command."""
        return {**self.s3.environment, "SAPWOOD_NATS": self.nats.urls, "SAPWOOD_ARCHIVE": self.s3.url}

    def _node(self, n: int) -> NodeProcess:
        urls = ",".join(f"nats://node:{PASSWORDS['node']}@127.0.0.1:{proxy.port}" for proxy in self.proxies[n])
        told = {**self.environment, "SAPWOOD_NATS": urls, "BLACKBOX_SIDE": str(self.side), "SAPWOOD_SLEEP_AFTER": "3"}
        return NodeProcess(APP, self.folder, f"node-{n}", told)

    async def ready(self, node: NodeProcess) -> None:
        await asyncio.to_thread(node.until_ready)

    async def restart(self, node: NodeProcess) -> None:
        await asyncio.to_thread(node.start)
        await self.ready(node)

    async def verified(self) -> str:
        """Return what `sapwood cluster verify` found; "" if nothing."""
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sapwood",
            "cluster",
            "verify",
            env={**os.environ, **self.environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await program.communicate()
        return "" if program.returncode == 0 else said.decode()[-1000:]


class Faults:
    """What is done to a cluster. Each fault is over, and healed, when its method returns."""

    def __init__(self, cluster: Cluster, choice: random.Random) -> None:
        self._cluster = cluster
        self._choice = choice

    def _one(self) -> int:
        return self._choice.randrange(NODES)

    async def kill_node(self) -> None:
        """Kill a node, and start it again at once, before or after its lease."""
        node = self._cluster.nodes[self._one()]
        node.kill()
        await asyncio.sleep(self._choice.choice([0.2, 3.0, 16.0]))
        await self._cluster.restart(node)

    async def stop_node(self) -> None:
        """Shut a node down, and start it again."""
        node = self._cluster.nodes[self._one()]
        node.send(signal.SIGTERM)
        await asyncio.to_thread(node.until_ended)
        await self._cluster.restart(node)

    async def pause_node(self) -> None:
        """Suspend a node for less or for longer than its lease."""
        node = self._cluster.nodes[self._one()]
        node.send(signal.SIGSTOP)
        await asyncio.sleep(self._choice.choice([4.0, BEYOND_LEASE, BEYOND_LEASE]))
        node.send(signal.SIGCONT)
        await self._cluster.ready(node)

    async def _partition(self, *, requests: bool, answers: bool) -> None:
        n = self._one()
        for proxy in self._cluster.proxies[n]:
            proxy.withhold(requests=requests, answers=answers)
        await asyncio.sleep(self._choice.choice([6.0, BEYOND_LEASE, BEYOND_LEASE]))
        for proxy in self._cluster.proxies[n]:
            proxy.deliver()
        await self._cluster.ready(self._cluster.nodes[n])

    async def withhold_answers(self) -> None:
        """Deliver what a node sends to NATS, and withhold what NATS answers."""
        await self._partition(requests=False, answers=True)

    async def withhold_requests(self) -> None:
        """Withhold what a node sends to NATS, and deliver what NATS sends."""
        await self._partition(requests=True, answers=False)

    async def withhold_all(self) -> None:
        """Withhold everything between a node and NATS."""
        await self._partition(requests=True, answers=True)

    async def cut_connections(self) -> None:
        """Abort all connections of a node to NATS, several times."""
        n = self._one()
        for _ in range(5):
            for proxy in self._cluster.proxies[n]:
                proxy.cut()
            await asyncio.sleep(self._choice.random())

    async def kill_server(self) -> None:
        """Kill a NATS server, and start it again."""
        nats, n = self._cluster.nats, self._one()
        nats.kill(n)
        await asyncio.sleep(self._choice.choice([0.5, 8.0]))
        nats.start([n])
        await asyncio.to_thread(nats.wait)

    async def pause_server(self) -> None:
        """Suspend a NATS server."""
        nats, n = self._cluster.nats, self._one()
        await asyncio.to_thread(nats.pause, n)
        await asyncio.sleep(10.0)
        nats.go_on(n)
        await asyncio.to_thread(nats.wait)

    async def part_servers(self) -> None:
        """Cut a NATS server off the others, in both directions or in one."""
        nats, n = self._cluster.nats, self._one()
        one_way = self._choice.random() < 0.3
        for proxy in nats.of(n):
            proxy.withhold(requests=not one_way, answers=True)
        await asyncio.sleep(self._choice.choice([4.0, 15.0]))
        for proxy in nats.of(n):
            proxy.deliver()
        await asyncio.to_thread(nats.wait)


def kinds_of(chance: random.Random) -> Iterator[str]:
    """Yield kinds of faults without end: among each ten, `KILLS` node kills, and each other kind at most once."""
    others = [name for name in vars(Faults) if not name.startswith("_") and name != Faults.kill_node.__name__]
    while True:
        ten = [Faults.kill_node.__name__] * KILLS + chance.sample(others, 10 - KILLS)
        chance.shuffle(ten)
        yield from ten


class Load:
    """What clients do, and what they were answered."""

    def __init__(self, urls: list[str], choice: random.Random) -> None:
        self._urls = urls
        self._choice = choice
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False
        self.acked: dict[str, dict[str, int]] = {f"list-{n}": {} for n in range(LISTS)}
        """Items by root, each with the place that its client was told."""
        self.tried: dict[str, set[str]] = {root: set() for root in self.acked}
        self.fibers: dict[str, set[str]] = {f"fibers-{n}": set() for n in range(FIBERS)}
        """Fibers by root that were acknowledged."""
        self.answered = 0
        self.errors: collections.Counter[str] = collections.Counter()
        """What clients were told instead of an answer."""
        self.violations: list[str] = []

    def begin(self) -> None:
        works = [self._append(root) for root in self.acked for _ in range(2)]
        works += [self._read(root) for root in self.acked]
        works += [self._start_fibers(root) for root in self.fibers]
        self._tasks = [asyncio.create_task(work) for work in works]

    async def end(self) -> None:
        self._is_over = True
        done, hanging = await asyncio.wait(self._tasks, timeout=patience(120))
        for task in hanging:
            self.violations.append("a client hangs")
            task.cancel()
        for task in done:
            if (error := task.exception()) is not None:
                self.violations.append(f"a client failed: {error!r}")

    async def ask(self, root: str, act: Callable[[BlackboxRoot], Awaitable[Any]]) -> tuple[bool, Any]:
        """Return whether a call was answered, by any of the nodes, and the answer."""
        url = self._choice.choice(self._urls)
        try:
            async with connect(url, BlackboxRoot, root, timeout=TIMEOUT, delay=lambda _: 0.3) as remote:
                value = await act(remote.stub)
        except (SapwoodError, OSError) as error:
            self.errors[type(error).__name__] += 1
            await asyncio.sleep(0.3)
            return False, None
        self.answered += 1
        return True, value

    async def _append(self, root: str) -> None:
        while not self._is_over:
            item = uuid.uuid4().hex
            self.tried[root].add(item)
            was_answered, place = await self.ask(root, lambda stub, item=item: stub.append(item))
            if was_answered:
                self.acked[root][item] = place
            await asyncio.sleep(0.1)

    async def _read(self, root: str) -> None:
        """Read the length of a list: never less than was acknowledged before the read began."""
        while not self._is_over:
            known = max(self.acked[root].values(), default=0)
            was_answered, count = await self.ask(root, lambda stub: stub.count())
            if was_answered and count < known:
                self.violations.append(f"stale read of {root}: {count} items after {known} were acknowledged")
            await asyncio.sleep(0.15)

    async def _start_fibers(self, root: str) -> None:
        while not self._is_over:
            key = uuid.uuid4().hex[:12]
            steps = self._choice.randint(1, 5)
            was_answered, _ = await self.ask(root, lambda stub, key=key, steps=steps: stub.begin(key, steps))
            if was_answered:
                self.fibers[root].add(key)
            await asyncio.sleep(0.3)

    async def _until_answered(self, root: str, act: Callable[[BlackboxRoot], Awaitable[Any]]) -> Any:
        for _ in range(30):
            was_answered, value = await self.ask(root, act)
            if was_answered:
                return value
        raise AssertionError(f"{root} does not answer after all faults are healed")

    async def check(self, side: Path) -> None:
        """Compare what the agents hold, and what they did outside, with what clients were told."""
        for root, acked in self.acked.items():
            items = await self._until_answered(root, lambda stub: stub.items())
            places = {item: place for place, item in enumerate(items, start=1)}
            self.violations += [f"lost in {root}: {item}" for item in acked if item not in places]
            moved = [item for item, place in acked.items() if places.get(item, place) != place]
            self.violations += [f"another place in {root}: {item}" for item in moved]
            self.violations += [f"unknown in {root}: {item}" for item in items if item not in self.tried[root]]
        ended = {root: await self._ended(root) for root in self.fibers}
        acts = Acts(side)
        for root, results in ended.items():
            keys = self.fibers[root]
            self.violations += [f"lost fiber of {root}: {key}" for key in keys - results.keys()]
            for key, (status, tokens) in results.items():
                if status != "completed":
                    self.violations.append(f"fiber {key} of {root} is {status}")
                self.violations += acts.violations(key, tokens)

    async def _ended(self, root: str) -> dict[str, tuple[str, list[str]]]:
        end = time.monotonic() + patience(SETTLED)
        while True:
            results = await self._until_answered(root, lambda stub: stub.results())
            if all(status in ("completed", "failed") for status, _ in results.values()) or time.monotonic() > end:
                return results
            await asyncio.sleep(0.5)


class Acts:
    """What was done outside: when each attempt of a step began, and which ended."""

    def __init__(self, side: Path) -> None:
        self.begun: dict[tuple[str, int], list[tuple[str, str, str, str]]] = collections.defaultdict(list)
        self.ended: set[str] = set()
        for line in side.read_text().splitlines() if side.exists() else ():
            what, key, number, token, step_key, node, at = line.split()
            if what == "begin":
                self.begun[key, int(number)].append((token, step_key, node, at))
            else:
                self.ended.add(token)

    def violations(self, key: str, tokens: list[str]) -> list[str]:
        """Return what is wrong with the steps of a completed fiber."""
        found: list[str] = []
        for number, stored in enumerate(tokens):
            attempts = self.begun[key, number]
            last, _, node, at = attempts[-1] if attempts else ("", "", "", "")
            if last != stored:
                found.append(f"step {number} of fiber {key} began after it was finished: by {node} at {at}")
            if stored not in self.ended:
                found.append(f"step {number} of fiber {key} has the result of an attempt that did not end")
            if len({step_key for _, step_key, _, _ in attempts}) > 1:
                found.append(f"step {number} of fiber {key} had several idempotency keys")
        return found


async def play(folder: Path, seed: int, count: int) -> Outcome:
    """Cause this many faults, one after the other, and check after the last one."""
    chance = random.Random(seed)
    done: collections.Counter[str] = collections.Counter()
    async with Cluster(folder) as cluster:
        load = Load([node.url for node in cluster.nodes], chance)
        faults = Faults(cluster, random.Random(f"{seed} faults"))
        load.begin()
        await asyncio.sleep(WARM_UP)
        for kind in itertools.islice(kinds_of(random.Random(f"{seed} kinds")), count):
            done[kind] += 1
            try:
                await getattr(faults, kind)()
            except AssertionError as error:
                load.violations.append(f"after {kind}: {str(error)[-1000:]}")
            await asyncio.sleep(chance.random() * 2)
        await load.end()
        await load.check(cluster.side)
        if wrong := await cluster.verified():
            load.violations.append(f"cluster verify: {wrong}")
    return Outcome(dict(done), load.answered, load.violations, most_frequent(load.errors))
