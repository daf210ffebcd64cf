"""What a node has, does and uses, and what waits in it: counted on request.

`sapwood top` and `/metrics` show the same figures. Counting wakes no agent, and
nothing that would take long is: how much waits in the database of an agent is asked only of
some trees, and only as long as it is little.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.kernel.node.node import Node
from sapwood.kernel.rpc.remote import Peers
from sapwood.kernel.trees.tree import Tree
from sapwood.settings import Settings

QUEUES = {
    "due": "trees with work that is due, including work in progress",
    "waking": "agents that are waking for that work",
    "disk": "replies and frames that wait for the disk to store earlier writes",
    "threads": "calls of `in_thread` and `read_sql` that wait for a thread",
    "clients": "bytes that clients have not read yet",
    "workers": "exchanges with other workers that wait for those to read",
}
"""What may wait in a node, and what of it is counted."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One node, as its operator sees it."""

    worker: str
    """Its name among those that share the folder; "": it has it alone."""
    pool: str
    process: int
    ready: bool
    unready: str
    """Why it is not ready; "": it is."""
    uptime: float
    """Seconds."""
    restarts: int
    cpu_seconds: float
    memory: int
    """Bytes; 0 if unknown."""
    trees: int
    """With an agent in memory, as all that follow."""
    agents: int
    calls: int
    """Under way."""
    calls_done: int
    """Those that ended, since the process began."""
    sockets: int
    databases: int
    """Those that are open."""
    waiting: dict[str, int]
    """How much waits, by the names in `QUEUES`."""


@dataclass(frozen=True, slots=True)
class SilentNode:
    """What the operating system knows of a node that does not answer."""

    worker: str
    pool: str
    process: int | None
    """`None` if there is none now, or it is unknown."""
    uptime: float
    cpu_seconds: float
    memory: int


@dataclass(frozen=True, slots=True)
class Busy:
    """One tree that does something, or has clients."""

    address: str
    worker: str
    agents: int
    calls: int
    """Under way."""
    per_second: float | None
    """Number of calls that finished since the last query, or `None` at the first query."""
    queued: int
    """Stored calls that are due or wait in a queue, of agents in memory."""
    more: bool
    """Whether there are more of those than were counted."""
    sockets: int


def counted(node: Node) -> Figures:
    """Count what a node has and does."""
    agents = [actor for tree in node.trees.values() for actor in tree.actors.values()]
    waiting = {
        "due": node.alarms.due(),
        "waking": node.waking.waiting,
        "disk": node.gate.waiting,
        "threads": node.offload.waiting,
        "clients": sum(socket.writer.unsent for socket in node.sockets.everyone()),
        "workers": 0 if node.far is None else node.far.transport.held_up,
    }
    return Figures(
        worker=name_of(node),
        pool=node.pool,
        process=os.getpid(),
        ready=node.is_ready,
        unready=node.unready or "",
        uptime=node.clock.now() - node.born,
        restarts=node.restarts,
        cpu_seconds=time.process_time(),
        memory=_memory(),
        trees=len(node.trees),
        agents=len(agents),
        calls=sum(len(actor.calls) for actor in agents),
        calls_done=node.calls_done,
        sockets=node.sockets.count,
        databases=sum(one.is_open for tree in node.trees.values() for one in tree.databases.values()),
        waiting=waiting,
    )


def silent(far: Peers, folder: Path, name: str) -> SilentNode:
    """Return what can be known of another node without asking it."""
    pool = far.directory.pool_of(name)
    try:
        process = int((folder / far.directory.lock_of(name)).read_text())
        # The name of the program may have spaces and brackets in it; what follows are numbers.
        told = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        memory = _memory(str(process))
        ticks = os.sysconf("SC_CLK_TCK")
        used, began = (int(told[11]) + int(told[12])) / ticks, int(told[19]) / ticks
    except (OSError, ValueError, IndexError):  # it is just being started, or this is no Linux
        return SilentNode(name, pool, None, 0.0, 0.0, 0)
    return SilentNode(name, pool, process, time.clock_gettime(time.CLOCK_BOOTTIME) - began, used, memory)


def name_of(node: Node) -> str:
    """Return what a node is called among those that share its folder; "": it has it alone."""
    return "" if node.far is None else node.far.directory.here


def busiest(node: Node, most: int) -> list[Busy]:
    """Return the trees that do most: by the calls under way, those that ended lately, and their clients."""
    calls = {root: sum(len(actor.calls) for actor in tree.actors.values()) for root, tree in node.trees.items()}
    done = {root: tree.calls_done for root, tree in node.trees.items()}
    pace = node.shared(CallRate).since_last(done)
    sockets = Counter(socket.address.root for socket in node.sockets.everyone())
    found = sorted(
        {*calls, *sockets},
        key=lambda root: (-calls.get(root, 0) - pace.get(root, 0.0), -sockets[root], -done.get(root, 0), str(root)),
    )
    left = [node.timings.counted_agents]
    shown: list[Busy] = []
    for root in found[:most]:
        tree = node.trees.get(root)
        queued, more = (0, False) if tree is None else _queued(node, tree, left)
        agents = 0 if tree is None else len(tree.actors)
        rate = pace.get(root)
        shown.append(Busy(str(root), name_of(node), agents, calls.get(root, 0), rate, queued, more, sockets[root]))
    return shown


@dataclass(slots=True)
class CallRate:
    """How many calls end in each tree, from one query to the next, whichever client asks."""

    settings: Settings
    clock: Clock
    _done: dict[Address, int] = field(default_factory=dict[Address, int])
    _at: float | None = None

    def since_last(self, done: dict[Address, int]) -> dict[Address, float]:
        """Return the calls a second that ended since the last look; nothing at the first."""
        now = time.monotonic()
        before, at = self._done, self._at
        self._done, self._at = done, now
        if at is None:
            return {}
        seconds = max(now - at, 1e-3)
        # One that slept in between has begun to count from zero.
        return {root: max(count - before.get(root, 0), 0) / seconds for root, count in done.items()}


def _queued(node: Node, tree: Tree, left: list[int]) -> tuple[int, bool]:
    """Return how many stored calls are due or wait in a queue, and whether that was all."""
    count, more, most = 0, False, node.timings.counted_calls
    for actor in tree.actors.values():
        if not actor.database.is_open:
            continue
        if left[0] <= 0:
            return count, True
        found = node.read_models.waiting_calls(actor.database, node.clock.now(), most)
        if found is None:
            continue
        left[0] -= 1
        count, more = count + found, more or found >= most
    return count, more


def _memory(process: str = "self") -> int:
    """Return how many bytes of memory a process has; 0 if that is unknown."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
