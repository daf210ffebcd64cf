"""Makes the log whole again: replicas of a stream are copied again from an intact one, owners repair trees.

A server that lacks something does not know it, and cannot be told to fetch it. But a stream can be cut down to the
copy of its leader, and be given the others again: those begin empty, and fetch everything. During that, for some
seconds, there is one copy; so the archive gets all of it first.
"""

# nats-py says of little what it is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from sapwood.errors import Unavailable
from sapwood.kernel.ports.log import Archive
from sapwood.runtimes.cluster.base.cluster_status import SILENT, ask, last_of
from sapwood.runtimes.cluster.base.layout import Names
from sapwood.runtimes.cluster.base.placement import decode
from sapwood.runtimes.cluster.copies.log_shipper import Shipper

log = logging.getLogger(__name__)

PATIENCE = 300.0
"""Seconds in which copies fetch what they lack."""
WAIT = 10.0
"""Seconds that servers have for an answer."""
MENDING = 60.0
"""Seconds that a node has to mend a tree."""
LOOK = 0.2


async def refill(connection: Any, names: Names, archive: Archive, stream: int) -> None:
    """Copy all replicas of a stream again from its leader's. `Unavailable` if that cannot be done now."""
    name, wanted = names.stream(stream), names.layout.replicas
    group = await _group(connection, name)
    if len(group.copies) < wanted or not all(group.copies.values()):
        raise Unavailable(f"Replicas of {name} are offline. Start all servers first, then repair.")
    await Shipper(connection, names, stream, archive).ship()
    try:
        await _scale(connection, name, 1)
        await _until(connection, name, 1)
    finally:
        # Also if the operator cancels: one copy is too few.
        await asyncio.shield(give_copies(connection, names, stream))


async def give_copies(connection: Any, names: Names, stream: int) -> None:
    """Have a stream have as many copies as it should; return when all have everything."""
    name, wanted = names.stream(stream), names.layout.replicas
    end = asyncio.get_running_loop().time() + PATIENCE
    while True:
        try:
            await _scale(connection, name, wanted)
            break
        except Unavailable as error:
            if asyncio.get_running_loop().time() > end:
                raise
            log.warning("restoring the replicas of %s failed, retrying: %s", name, error)
            await asyncio.sleep(1)
    await _until(connection, name, wanted)


async def lacks_copies(connection: Any, names: Names, stream: int) -> bool:
    """Return whether a stream has fewer copies than it should."""
    return len((await _group(connection, names.stream(stream))).copies) < names.layout.replicas


class _Group(msgspec.Struct):
    """The copies of a stream: whether each server's is there and has everything."""

    copies: dict[str, bool]


async def _group(connection: Any, name: str) -> _Group:
    group = (await ask(connection, name)).get("cluster") or {}
    if not group.get("leader"):
        raise Unavailable(f"The stream {name} has no leader now.")
    return _Group({group["leader"]: True, **{one["name"]: _is_well(one) for one in group.get("replicas") or ()}})


def _is_well(copy: dict[str, Any]) -> bool:
    # NATS calls a copy offline, and not current, only long after it was killed.
    is_there = not copy.get("offline") and copy.get("active", 0) < SILENT
    return is_there and bool(copy.get("current")) and not copy.get("lag")


async def _info(connection: Any, name: str) -> Any:
    import nats.errors

    try:
        return await connection.jetstream(timeout=WAIT).stream_info(name)
    except (nats.errors.Error, TimeoutError) as error:
        raise Unavailable(f"NATS returned no information about the stream {name}: {error}") from None


async def _scale(connection: Any, name: str, replicas: int) -> None:
    import nats.errors

    info = await _info(connection, name)
    if info.config.num_replicas == replicas:
        return
    info.config.num_replicas = replicas
    try:
        await connection.jetstream(timeout=WAIT).update_stream(info.config)
    except (nats.errors.Error, TimeoutError) as error:
        raise Unavailable(f"The stream {name} did not get {replicas} replicas: {error}") from None


async def _until(connection: Any, name: str, replicas: int) -> None:
    """Return when a stream has so many copies, and each has everything."""
    why = ""
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    copies = (await _group(connection, name)).copies
                    if len(copies) == replicas and all(copies.values()):
                        return
                    why = f"it has {sum(copies.values())} of {replicas}"
                except Unavailable as error:
                    why = str(error)
                await asyncio.sleep(LOOK)
    except TimeoutError:
        raise Unavailable(f"The replicas of {name} are not complete after {PATIENCE:.0f} seconds: {why}") from None


async def ask_to_mend(connection: Any, names: Names, shard: int, root: str) -> bool:
    """Let the owner of a tree store it again, from all replicas and the archive. Returns `False` if none did."""
    import nats.errors

    owners = await last_of(connection, names.stream(names.layout.stream_of(shard)), [names.owner(shard)])
    try:
        owner = decode(owners[0].data).node if owners else ""
    except msgspec.ValidationError:
        owner = ""
    if not owner:
        return False
    try:
        answer = await connection.request(names.mend(owner), root.encode(), timeout=MENDING)
        return answer.data == b"mended"
    except (nats.errors.Error, TimeoutError):
        return False


async def answer_mending(connection: Any, names: Names, node: str, mend: Callable[[str], Awaitable[None]]) -> Any:
    """Let a node repair trees on request; return what to end it with."""
    tasks: set[asyncio.Task[None]] = set()

    async def work(message: Any) -> None:
        try:
            await mend(message.data.decode())
            await message.respond(b"mended")
        except Exception as error:  # noqa: BLE001 - the caller gets an answer; the tree is tried again when it is opened
            log.warning("repairing a tree failed: %s", error)
            await message.respond(b"not mended")

    async def asked(message: Any) -> None:
        task = asyncio.create_task(work(message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return await connection.subscribe(names.mend(node), cb=asked)
