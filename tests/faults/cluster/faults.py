"""What is done to a cell, and undone: several things at once, and never to most of the log's servers."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from tests.faults.cluster.cell import SERVERS, STORE, Cell

SOME = (1.0, 3.0, 6.0)
"""Seconds that something is out of order for, which is shorter than a lease."""
PAUSES = (5.0, 6.0, 8.0, 13.0, 16.0, 20.0)
"""Seconds that a process stands still or is cut off: shorter than a lease, about as long, and longer."""
RESTS = (8.0, 12.0, 12.0, 16.0)
"""Seconds between two things that are done in each lane, at most: somebody has to get something done, too."""

Fault = Callable[[], Awaitable[str]]


@dataclass(slots=True)
class Blow:
    """Something that was done."""

    what: str
    begin: float
    end: float = 0.0
    told: str = ""
    beside: int = 0
    """How many others were under way."""


@dataclass
class Faults:
    """Breaks a cell in several lanes at once: nodes, servers of the log, S3."""

    cell: Cell
    random: Random
    only: Sequence[str] = ()
    """What is to be done; nothing: everything."""
    pauses: Sequence[float] = PAUSES
    least: int = 2
    """How many nodes nothing is done to, always."""
    blows: list[Blow] = field(default_factory=list[Blow])
    problems: list[str] = field(default_factory=list[str])
    _hurt: set[str] = field(default_factory=set[str])
    """The nodes that something is done to."""
    _under_way: int = 0

    @property
    def count(self) -> Counter[str]:
        return Counter(blow.what for blow in self.blows)

    async def go_on(self, count: int) -> None:
        """Do so many things, and undo them."""
        goal = len(self.blows) + count

        async def lane(faults: Mapping[Fault, float], rest: float) -> None:
            chosen = {fault: weight for fault, weight in faults.items() if not self.only or fault.__name__ in self.only}
            while chosen and len(self.blows) < goal:
                (fault,) = self.random.choices([*chosen], [*chosen.values()])
                await self.do(fault)
                if len(self.blows) < goal:
                    await asyncio.sleep(self.random.random() * rest)

        nodes, servers, store = self._on_nodes(), self._on_servers(), self._on_store()
        await asyncio.gather(*map(lane, (nodes, nodes, servers, store), RESTS))

    async def do(self, fault: Fault) -> None:
        """Do one thing, and undo it."""
        blow = Blow(fault.__name__, time.monotonic(), beside=self._under_way)
        self.blows.append(blow)
        self._under_way += 1
        try:
            blow.told = await fault()
        except TimeoutError as error:
            self.problems.append(f"after {blow.what}: {error}")
        finally:
            self._under_way -= 1
            blow.end = time.monotonic()

    def _some(self) -> float:
        return self.random.choice(SOME) * (0.5 + self.random.random())

    @asynccontextmanager
    async def _a_node(self) -> AsyncIterator[str]:
        """Choose a node that runs, and is left alone by others, so that enough are left."""
        while True:
            running = [name for name, node in self.cell.nodes.items() if node.is_wanted]
            free = [name for name in running if name not in self._hurt]
            if len(free) > self.least:
                break
            await asyncio.sleep(0.2)
        name = self.random.choice(free)
        self._hurt.add(name)
        try:
            yield name
        finally:
            self._hurt.discard(name)

    # Nodes

    def _on_nodes(self) -> dict[Fault, float]:
        return {
            self.kill_node: 4,
            self.lose_machine: 2,
            self.pause_node: 4,
            self.cut_node_off_the_log: 3,
            self.cut_node_off_the_log_one_way: 3,
            self.cut_node_off_one_server: 1,
            self.cut_node_off_all: 1,
            self.cut_node_off_s3: 1,
            self.flicker_node: 1,
            self.slow_node_down: 1,
            self.fill_node_s_disk: 1,
            self.restart_node: 2,
            self.join_and_leave: 2,
        }

    async def kill_node(self) -> str:
        async with self._a_node() as name:
            await self.cell.end_node(name, signal.SIGKILL)
            await asyncio.sleep(self._some() if self.random.random() < 0.7 else 15.0)
            await self.cell.start_node(name)
            return name

    async def lose_machine(self) -> str:
        """Kill a node, and start it with an empty disk."""
        async with self._a_node() as name:
            await self.cell.end_node(name, signal.SIGKILL)
            self.cell.disks[name].wipe()
            await asyncio.sleep(self._some())
            await self.cell.start_node(name)
            return name

    async def pause_node(self) -> str:
        async with self._a_node() as name:
            return f"{name} {await self._pause(name):.0f} s"

    async def _pause(self, *names: str, seconds: float = 0.0) -> float:
        seconds = seconds or self.random.choice(self.pauses)
        for name in names:
            self.cell.signal(name, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        for name in names:
            self.cell.signal(name, signal.SIGCONT)
        return seconds

    async def cut_node_off_the_log(self) -> str:
        async with self._a_node() as name:
            return f"{name} {await self._cut([name], SERVERS):.0f} s"

    async def cut_node_off_the_log_one_way(self) -> str:
        async with self._a_node() as name:
            ways: list[tuple[Sequence[str], Sequence[str]]] = [([name], SERVERS), (SERVERS, [name])]
            return f"{name} {await self._cut(*self.random.choice(ways), back=False):.0f} s"

    async def cut_node_off_one_server(self) -> str:
        async with self._a_node() as name:
            server = self.random.choice(SERVERS)
            return f"{name} from {server} {await self._cut([name], [server]):.0f} s"

    async def cut_node_off_all(self) -> str:
        """Cut a node off everything but its clients."""
        async with self._a_node() as name:
            return f"{name} {await self._cut([name], [*SERVERS, STORE, *self.cell.nodes]):.0f} s"

    async def cut_node_off_s3(self) -> str:
        async with self._a_node() as name:
            return f"{name} {await self._cut([name], [STORE]):.0f} s"

    async def _cut(
        self, ones: Sequence[str], others: Sequence[str], *, back: bool = True, seconds: float = 0.0
    ) -> float:
        seconds = seconds or self.random.choice(self.pauses)
        self.cell.network.cut(ones, others, back=back)
        await asyncio.sleep(seconds)
        self.cell.network.heal(ones, others)
        return seconds

    async def flicker_node(self) -> str:
        async with self._a_node() as name:
            await self._flicker(name, [*SERVERS, STORE, *self.cell.nodes])
            return name

    async def _flicker(self, one: str, others: Sequence[str]) -> None:
        """Lose what is on the way, again and again."""
        for _ in range(self.random.randint(5, 15)):
            await self._cut([one], others, seconds=0.05 + self.random.random() * 0.3)
            await asyncio.sleep(self.random.random() * 0.5)

    async def slow_node_down(self) -> str:
        async with self._a_node() as name:
            return f"{name} to {await self._slow_down(name)} kbit/s"

    async def _slow_down(self, place: str) -> int:
        rate = self.random.choice((128, 512, 2048))
        self.cell.network.slow_down(place, rate)
        await asyncio.sleep(5 + self._some())
        self.cell.network.hasten(place)
        return rate

    async def fill_node_s_disk(self) -> str:
        async with self._a_node() as name:
            self.cell.disks[name].fill()
            await asyncio.sleep(self._some())
            self.cell.disks[name].clear()
            return name

    async def restart_node(self) -> str:
        """Stop a node in good order, and start it again."""
        async with self._a_node() as name:
            took = await self._leave(name)
            await self.cell.start_node(name)
            return f"{name} left in {took:.2f} s"

    async def join_and_leave(self) -> str:
        """Start one more node, and stop it later in good order."""
        spare = [name for name, node in self.cell.nodes.items() if not node.is_wanted and name not in self._hurt]
        if not spare:
            return await self.restart_node()
        name = self.random.choice(spare)
        self._hurt.add(name)
        try:
            await self.cell.start_node(name)
            await asyncio.sleep(self.random.choice(self.pauses))
            return f"{name} left in {await self._leave(name):.2f} s"
        finally:
            self._hurt.discard(name)

    async def _leave(self, name: str) -> float:
        began = time.monotonic()
        code = await self.cell.end_node(name, signal.SIGTERM)
        if code not in (0, -signal.SIGTERM):
            self.problems.append(f"{name} was told to end, and ended with {code}")
        return time.monotonic() - began

    # Servers of the log

    def _on_servers(self) -> dict[Fault, float]:
        return {
            self.kill_server: 2,
            self.kill_leader: 2,
            self.pause_server: 2,
            self.pause_leader: 2,
            self.pause_all_servers: 1,
            self.cut_server_off_the_others: 2,
            self.cut_server_off_the_others_one_way: 1,
            self.cut_server_off_all: 1,
            self.flicker_server: 1,
            self.slow_server_down: 1,
            self.fill_server_s_disk: 1,
            self.restart_server: 1,
            self.pause_log_and_kill_node: 1,
        }

    async def kill_server(self) -> str:
        return await self._kill(self.random.choice(SERVERS))

    async def kill_leader(self) -> str:
        return await self._kill(self._leader())

    def _leader(self) -> str:
        """Return the server that leads most streams."""
        leaders = Counter(leader for leader in self.cell.leaders().values() if leader in SERVERS)
        return leaders.most_common(1)[0][0] if leaders else self.random.choice(SERVERS)

    async def _kill(self, server: str) -> str:
        await self.cell.restart_server(server, signal.SIGKILL, self._some())
        await self.cell.is_well(server)
        return server

    async def restart_server(self) -> str:
        server = self.random.choice(SERVERS)
        await self.cell.restart_server(server, signal.SIGTERM, 0.2)
        await self.cell.is_well(server)
        return server

    async def pause_server(self) -> str:
        return await self._pause_server(self.random.choice(SERVERS))

    async def pause_leader(self) -> str:
        return await self._pause_server(self._leader())

    async def _pause_server(self, server: str) -> str:
        seconds = await self._pause(server)
        await self.cell.is_well(server)
        return f"{server} {seconds:.0f} s"

    async def pause_all_servers(self) -> str:
        seconds = await self._pause(*SERVERS, seconds=self.random.choice((3.0, 5.0, 8.0)))
        await self._all_well()
        return f"{seconds:.0f} s"

    async def pause_log_and_kill_node(self) -> str:
        """Kill a node while the log takes nothing: whoever was told anything meanwhile was told too much."""
        async with self._a_node() as name:
            for server in SERVERS:
                self.cell.signal(server, signal.SIGSTOP)
            await asyncio.sleep(1 + self._some() / 3)
            await self.cell.end_node(name, signal.SIGKILL)
            for server in SERVERS:
                self.cell.signal(server, signal.SIGCONT)
            await self.cell.start_node(name)
        await self._all_well()
        return name

    async def _all_well(self) -> None:
        await asyncio.gather(*(self.cell.is_well(server) for server in SERVERS))

    async def cut_server_off_the_others(self) -> str:
        """Cut a server off the others; nodes still reach it."""
        return await self._cut_server(SERVERS)

    async def cut_server_off_the_others_one_way(self) -> str:
        return await self._cut_server(SERVERS, back=False)

    async def cut_server_off_all(self) -> str:
        return await self._cut_server([*SERVERS, *self.cell.nodes])

    async def _cut_server(self, others: Sequence[str], *, back: bool = True) -> str:
        server = self.random.choice(SERVERS)
        seconds = await self._cut([server], others, back=back)
        await self._all_well()
        return f"{server} {seconds:.0f} s"

    async def flicker_server(self) -> str:
        server = self.random.choice(SERVERS)
        await self._flicker(server, [*SERVERS, *self.cell.nodes])
        await self._all_well()
        return server

    async def slow_server_down(self) -> str:
        server = self.random.choice(SERVERS)
        rate = await self._slow_down(server)
        await self._all_well()
        return f"{server} to {rate} kbit/s"

    async def fill_server_s_disk(self) -> str:
        """Fill the disk of a server; later there is room, and it is started again, as an operator does."""
        server = self.random.choice(SERVERS)
        self.cell.disks[server].fill()
        await asyncio.sleep(self._some())
        self.cell.disks[server].clear()
        await self.cell.restart_server(server, signal.SIGTERM, 0.1)
        await self.cell.is_well(server)
        return server

    # S3

    def _on_store(self) -> dict[Fault, float]:
        return {self.s3_fails: 2, self.s3_is_gone: 1, self.s3_is_cut_off: 1, self.s3_is_slow: 1}

    async def s3_fails(self) -> str:
        rate = self.random.choice((0.3, 1.0))
        self.cell.order_store(f"errors {rate}")
        await asyncio.sleep(3 + self._some())
        self.cell.order_store("")
        return f"{rate:.0%} of all requests"

    async def s3_is_slow(self) -> str:
        self.cell.order_store("slow 3")
        await asyncio.sleep(5 + self._some())
        self.cell.order_store("")
        return ""

    async def s3_is_gone(self) -> str:
        """Have S3 say nothing at all."""
        self.cell.signal(STORE, signal.SIGSTOP)
        await asyncio.sleep(3 + self._some())
        self.cell.signal(STORE, signal.SIGCONT)
        return ""

    async def s3_is_cut_off(self) -> str:
        return f"{await self._cut([STORE], [*self.cell.nodes]):.0f} s"
