"""One node is struck where a mistake would show: clients stay with it, of lists that it owns, and others write there.

What is done by chance finds such a mistake too, sooner or later. This finds it at once, or it is not there.
"""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable

from tests.faults.cluster.cell import SERVERS, Cell
from tests.faults.cluster.clients import Place, Round

ROOTS = 32
LISTS = 6
"""How many lists of one node are asked for, half of them only read through it."""
BEFORE, AFTER = 2.0, 6.0
BEYOND = 24.0
"""Seconds that are longer than a lease, and leave time for another node to take over and be written to."""


async def strike(cell: Cell, one: Round, how: str) -> str:
    """Strike the node that owns most lists, under load; return what was done."""
    one.places = [Place(f"{one.mark}-{number}", 0) for number in range(ROOTS)]
    owned: dict[str, list[Place]] = defaultdict(list)
    for place in one.places:
        owned[await one.owner(place)].append(place)
    node = max(owned, key=lambda name: len(owned[name]))
    others = [name for name in one.urls() if name != node]
    clients: list[asyncio.Task[None]] = []
    for number, place in enumerate(owned[node][:LISTS]):
        # What is written at a node that is cut off waits, and every read of that list behind it.
        kinds = ["read"] if number % 2 else ["append", "append"]
        clients += [asyncio.create_task(one.stay(node, place, kind)) for kind in kinds]
        clients.append(asyncio.create_task(one.stay(others[number % len(others)], place, "append")))
    try:
        await asyncio.sleep(BEFORE)
        await BLOWS[how](cell, node)
        await asyncio.sleep(AFTER)
    finally:
        one.is_over = True
        await asyncio.gather(*clients)
    return f"{how}: {node} with {len(owned[node])} of {ROOTS} lists"


async def cut(cell: Cell, node: str) -> None:
    """The node does not reach the log any more, and clients reach the node."""
    cell.network.cut([node], SERVERS)
    await asyncio.sleep(BEYOND)
    cell.network.heal([node], SERVERS)


async def pause(cell: Cell, node: str) -> None:
    """The node stands still, and goes on with whatever came meanwhile."""
    cell.signal(node, signal.SIGSTOP)
    await asyncio.sleep(BEYOND)
    cell.signal(node, signal.SIGCONT)


async def kill(cell: Cell, node: str) -> None:
    """The log takes nothing, and the node dies: what it told anybody meanwhile is gone."""
    for server in SERVERS:
        cell.signal(server, signal.SIGSTOP)
    await asyncio.sleep(2.0)
    await cell.end_node(node, signal.SIGKILL)
    for server in SERVERS:
        cell.signal(server, signal.SIGCONT)
    await asyncio.gather(*(cell.is_well(server) for server in SERVERS))
    await cell.start_node(node)


BLOWS: dict[str, Callable[[Cell, str], Awaitable[None]]] = {"cut": cut, "pause": pause, "kill": kill}
