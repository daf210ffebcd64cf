"""What an in-tree call pays for, microsecond by microsecond, and a live agent, KiB by KiB.

    python benchmarks/costs.py [call | memory]

A call is built up from bare parts, one more at each step, so that the difference between two
lines is the price of what the second has and the first has not.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from asyncio import AbstractEventLoop, Future
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

import apsw
import msgspec
import uvloop
from frame import say, works
from tree import BIG, Running, rss

from sapwood.kernel.marshal.call import Call, current

ROUNDS, CALLS = 25, 2000
WAL_INDEX = 32 * 1024
"""What SQLite allocates for it at once; in memory, because no other process may have the file."""
VALUE: dict[str, object] = {"a": 1, "b": "two"}
pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(dict[str, Any]).decode

Step = Callable[[], Awaitable[object]]


async def echo(value: Any) -> Any:
    return value


async def copied() -> Any:
    return unpack(pack(await echo(unpack(pack(VALUE)))))


def steps(loop: AbstractEventLoop, actor: Any) -> dict[str, Step]:
    """Return ever longer ways to the same result, by what each adds to the one before."""
    home = copy_context()
    running: dict[Call, Any] = {}

    async def task() -> None:
        await loop.create_task(echo(VALUE))

    async def task_and_copies() -> None:
        await loop.create_task(copied())

    async def answer(reply: Future[Any], value: Any) -> None:
        reply.set_result(unpack(pack(await echo(value))))

    async def reply() -> None:
        waiting = loop.create_future()
        loop.create_task(answer(waiting, unpack(pack(VALUE))), context=home.copy())
        await waiting

    async def serve(call: Call, reply: Future[Any], value: Any) -> None:
        current.set(call)
        try:
            reply.set_result(unpack(pack(await echo(value))))
        finally:
            running.pop(call, None)

    async def deliver(call: Call, value: Any) -> None:
        waiting = loop.create_future()
        running[call] = loop.create_task(serve(call, waiting, value), context=home.copy())
        await waiting

    async def known() -> None:
        await deliver(Call(actor, "echo", None), unpack(pack(VALUE)))

    return {
        "an await": lambda: echo(VALUE),
        "a task of its own": task,
        "two copies": task_and_copies,
        "a context and a reply of its own: abort, isolation": reply,
        "a record of the call: who asked, until when, cancel": known,
    }


async def call() -> None:
    async with Running() as root:
        await root.echo(10)
        tree = next(iter(root.world.node.trees.values()))
        child = next(actor for actor in tree.actors.values() if actor.parent is not None)
        ladder = steps(asyncio.get_running_loop(), child)
        seen: dict[str, list[float]] = {name: [] for name in ladder}
        whole: list[float] = []
        for _ in range(ROUNDS):
            for name, step in ladder.items():
                start = time.perf_counter()
                for _ in range(CALLS):
                    await step()
                seen[name].append((time.perf_counter() - start) / CALLS * 1e6)
            whole.append(await root.echo(CALLS))
    seen["the stub, checked arguments, limits, the gate, the thread check"] = whole
    before = 0.0
    for name, figures in seen.items():
        total = statistics.median(figures)
        works(f"in-tree call: {name}", total - before, unit="µs", n=CALLS, bar="part", note=f"{total:.2f} µs so far")
        before = total


async def memory() -> None:
    n = 5000
    async with Running(limits=BIG) as root:
        await root.spawn(0, 500, False)
        before = rss()
        await root.spawn(500, n, False)
        closed = (rss() - before) / n
        tree = next(iter(root.world.node.trees.values()))
        actors = [actor for actor in tree.actors.values() if actor.parent is not None]
        part("the actor: its fields, children, calls, capabilities", [_own(a) for a in actors])
        part("the user's instance and its attributes", [_deep(a.agent) for a in actors])
        part("the address", [_deep(a.address) for a in actors])
        part("the closed database and the registry", [_own(a.database) + _own(a.registry) for a in actors])
        works("live agent, closed: all of it, as the process grew", closed / 1024, unit="KiB", n=n, bar="part")
    n = 2000
    async with Running(limits=BIG) as root:
        await root.spawn(0, 300, True)
        before = rss()
        await root.spawn(300, n, True)
        opened = (rss() - before) / n
        connections = apsw.connections()
        parts = 0.0
        for name, status in (
            ("page cache", apsw.SQLITE_DBSTATUS_CACHE_USED),
            ("schema", apsw.SQLITE_DBSTATUS_SCHEMA_USED),
            ("prepared statements", apsw.SQLITE_DBSTATUS_STMT_USED),
        ):
            parts += part(f"SQLite's {name}", [one.status(status)[0] for one in connections], "open")
        parts += part("SQLite's index of the log, one segment", [WAL_INDEX for _ in connections], "open")
        works("live agent, open: connection, cursors, the rest", opened / 1024 - parts, unit="KiB", n=n, bar="part")
        works("live agent, open: all of it, as the process grew", opened / 1024, unit="KiB", n=n, bar="part")


def part(name: str, sizes: list[int], state: str = "closed") -> float:
    kib = statistics.mean(sizes) / 1024
    works(f"live agent, {state}: {name}", kib, unit="KiB", n=len(sizes), bar="part")
    return kib


def _own(thing: Any) -> int:
    """Return the size of an object with the containers only it has; what they hold is somebody else's."""
    names = [name for base in type(thing).__mro__ for name in getattr(base, "__slots__", ())]
    fields = [getattr(thing, name, None) for name in names] + list(getattr(thing, "__dict__", {}).values())
    containers = [one for one in fields if isinstance(one, dict | list | set | tuple)]
    fields_dict = sys.getsizeof(thing.__dict__) if hasattr(thing, "__dict__") else 0
    return sys.getsizeof(thing) + fields_dict + sum(sys.getsizeof(one) for one in containers)


def _deep(thing: Any) -> int:
    """Return the size of an object with everything that only it refers to."""
    size = sys.getsizeof(thing) + (sys.getsizeof(thing.__dict__) if hasattr(thing, "__dict__") else 0)
    for inner in gc.get_referents(thing):
        if isinstance(inner, tuple | str):
            size += _deep(inner)
    return size


METRICS = {metric.__name__: metric for metric in (call, memory)}


def main() -> None:
    for name in sys.argv[1:] or METRICS:
        say(f"-- {name}")
        uvloop.run(METRICS[name]())


if __name__ == "__main__":
    main()
