"""A look at a whole cluster from outside: who is there, who owns what, and how well it is kept.

It needs no node. It asks NATS and the archive, changes nothing, and says in sentences what is not as it should be.
"""

# nats-py says of little what it is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import itertools
import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from sapwood.clock import Clock, SystemClock
from sapwood.errors import Unavailable, UsageError
from sapwood.kernel.ports.log import Archive
from sapwood.kernel.ports.shards import SHARDS
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.base.leases import LEASE, MARGIN, NodeLease
from sapwood.runtimes.cluster.base.placement import ShardOwner, decode
from sapwood.runtimes.cluster.base.segments import Segment, get_segment, segment_key

PATIENCE = 12.0
"""Seconds that servers have for an answer: an election takes 4 to 9."""
TRIES = 4
PAUSE = 0.2
MONITOR = 3.0
AT_ONCE = 1000
"""Subjects that one question may name; servers refuse more than 1024."""
NO_STREAM = 10059
LATE = 60.0
"""Seconds after which something that is stored should be in the archive: it is sent every ten."""
SILENT = 5_000_000_000
"""Nanoseconds without a word of a copy, after which it is gone: its leader hears of it every second."""
NEARLY = 0.75
"""How much of its room a stream or a server may use before an operator should act."""
LOOKS = 3
"""How often copies that differ are looked at again: while nodes write, they always do."""


class NodeStatus(msgspec.Struct, frozen=True):
    """One node, by its lease."""

    name: str
    renewed: float
    """Seconds since it said that it lives."""
    is_alive: bool
    is_leaving: bool
    shards: int
    version: str
    is_refused: bool = False
    """Whether the log had no room lately for what its agents wrote."""


class Copy(msgspec.Struct, frozen=True):
    """One copy of a stream, on one server."""

    server: str
    is_leader: bool
    is_current: bool
    is_offline: bool
    behind: int
    """Entries of the log between servers that it has not got yet."""
    messages: int | None = None
    first: int | None = None
    last: int | None = None
    """What it holds itself, if its server was asked."""


class StreamStatus(msgspec.Struct, frozen=True):
    """One stream of the log."""

    name: str
    messages: int
    bytes: int
    first: int
    last: int
    copies: list[Copy]
    archived: int | None = None
    """The last place that the archive has, or `None` if it was not queried, or has none."""
    unarchived: int | None = None
    """How many places come after it."""
    late: float | None = None
    """Seconds between what the archive has last and what was written last."""
    begun: float = 0.0
    written: float = 0.0
    """When the oldest and the newest of its messages were written."""
    room: int | None = None
    """How many bytes it may hold. `None` means as many as its servers."""


class ServerStatus(msgspec.Struct, frozen=True):
    """One NATS server, if it was asked."""

    name: str
    used: int
    room: int
    """Bytes that it holds of all streams, and may hold."""


class Seen(msgspec.Struct, frozen=True):
    """A cluster, as it was a moment ago."""

    cluster: str
    layout: Layout
    nodes: list[NodeStatus]
    unowned: int
    """Shards without an owner."""
    orphaned: int
    """Shards whose owner is gone, and that no node took yet."""
    streams: list[StreamStatus]
    servers: list[ServerStatus]
    troubles: list[str]
    """Problems that need attention."""


async def look(
    connection: Any,
    cluster: str,
    *,
    archive: Archive | None = None,
    monitors: Sequence[str] = (),
    expiry: float = LEASE + MARGIN,
    clock: Clock | None = None,
) -> Seen:
    """Look at a cluster; `monitors`: where its servers tell about themselves, if that may be asked.

    `expiry`: seconds after its last renewal at which a node counts as gone.
    """
    names = await names_of(connection, cluster)
    every = range(names.layout.streams * names.layout.cells)
    owners = {
        shard: owner
        for found in await asyncio.gather(*(owners_of(connection, names, number) for number in every))
        for shard, owner in found.items()
        if owner.node
    }
    shards = Counter(owner.node for owner in owners.values())
    leases, nodes = await _nodes(connection, names, shards, expiry, clock or SystemClock())
    streams, told = await _streams(connection, names, every, monitors)
    servers = [server for server in map(_server, told.values()) if server]
    if archive is not None:
        streams = [
            await _archived(connection, archive, number, stream) for number, stream in zip(every, streams, strict=True)
        ]
    alive = {(node.name, leases[node.name].life) for node in nodes if node.is_alive}
    orphaned = sum(1 for owner in owners.values() if (owner.node, owner.life) not in alive)
    seen = Seen(
        cluster=cluster,
        layout=names.layout,
        nodes=nodes,
        unowned=SHARDS - len(owners),
        orphaned=orphaned,
        streams=streams,
        servers=servers,
        troubles=[],
    )
    silent = [
        f"No answer from {url}: the data of its server was not compared." for url, said in told.items() if not said
    ]
    return msgspec.structs.replace(seen, troubles=[*_troubles(seen), *silent])


async def names_of(connection: Any, cluster: str) -> Names:
    """Return the layout of an existing cluster."""
    first = Names(cluster, Layout())
    info = await _info(connection, first.members)
    is_there = info.get("error", {}).get("err_code") != NO_STREAM
    setup = await last_of(connection, first.members, [first.setup]) if is_there else []
    if not setup:
        raise UsageError(f"The cluster {cluster!r} does not exist on these servers: no node has started yet.")
    return Names(cluster, msgspec.json.decode(setup[0].data, type=Layout))


async def owners_of(connection: Any, names: Names, stream: int) -> dict[int, ShardOwner]:
    """Return who owns the shards of a stream, of those that ever had an owner."""
    of = {names.owner(shard): shard for shard in range(SHARDS) if names.layout.stream_of(shard) == stream}
    found = await last_of(connection, names.stream(stream), list(of))
    return {of[message.headers["Nats-Subject"]]: decode(message.data) for message in found}


async def _nodes(
    connection: Any, names: Names, shards: Mapping[str, int], expiry: float, clock: Clock
) -> tuple[dict[str, NodeLease], list[NodeStatus]]:
    stored = await last_of(connection, names.members, [names.lease("*")], at_most=AT_ONCE)
    try:  # by the clock that the leases were stored by
        now = _time((await ask(connection, names.members))["ts"])
    except Unavailable:
        now = clock.now()
    leases: dict[str, NodeLease] = {}
    nodes: list[NodeStatus] = []
    for message in stored:
        lease = msgspec.msgpack.decode(message.data, type=NodeLease)
        leases[lease.node] = lease
        renewed = max(now - _time(message.headers["Nats-Time-Stamp"]), 0.0)
        alive, leaving = renewed < expiry and lease.state != "left", lease.state == "leaving"
        owned = shards.get(lease.node, 0)
        if alive or owned:  # one that left, or was gone for good, is no news
            refused = bool(lease.figures.get("full")) and alive
            nodes.append(NodeStatus(lease.node, round(renewed, 1), alive, leaving, owned, lease.version, refused))
    return leases, sorted(nodes, key=lambda node: node.name)


async def _streams(
    connection: Any, names: Names, every: Iterable[int], monitors: Sequence[str]
) -> tuple[list[StreamStatus], dict[str, dict[str, Any]]]:
    """Return the streams, and what the servers told about themselves, by where they did."""
    for look in itertools.count(1):
        told = await asyncio.gather(*(asyncio.to_thread(_told, url) for url in monitors))
        held = _held(told)
        streams = list(await asyncio.gather(*(_stream(connection, names.stream(number), held) for number in every)))
        if look == LOOKS or not any(differing(stream) for stream in streams):
            return streams, dict(zip(monitors, told, strict=True))
        await asyncio.sleep(1)
    raise AssertionError


async def _stream(connection: Any, name: str, held: Mapping[tuple[str, str], Mapping[str, Any]]) -> StreamStatus:
    try:
        info = await ask(connection, name)
    except Unavailable:  # a leader would answer
        return StreamStatus(name, 0, 0, 0, 0, [])
    state, group, room = info["state"], info.get("cluster") or {}, info["config"].get("max_bytes", -1)
    leader: dict[str, Any] = {"name": group.get("leader", ""), "current": True}
    copies: list[Copy] = []
    for server in [leader, *(group.get("replicas") or ())]:
        own = held.get((server["name"], name), {})
        copies.append(
            Copy(
                server=server["name"],
                is_leader=server is leader,
                is_current=server.get("current", False),
                # NATS calls a copy offline, and not current, only long after it was killed.
                is_offline=server.get("offline", False) or server.get("active", 0) > SILENT,
                behind=server.get("lag", 0),
                messages=own.get("messages"),
                first=own.get("first_seq"),
                last=own.get("last_seq"),
            )
        )
    return StreamStatus(
        name,
        state["messages"],
        state["bytes"],
        state["first_seq"],
        state["last_seq"],
        copies,
        begun=_time(state["first_ts"]) if state["messages"] else 0.0,
        written=_time(state["last_ts"]) if state["messages"] else 0.0,
        room=room if room > 0 else None,
    )


async def offline(connection: Any, names: Names) -> list[str]:
    """Return the servers that have copies of the log, and are not there."""
    every = range(names.layout.streams * names.layout.cells)
    streams = await asyncio.gather(*(_stream(connection, names.stream(number), {}) for number in every))
    return sorted({copy.server for stream in streams for copy in stream.copies if copy.is_offline})


def differing(stream: StreamStatus) -> list[Copy]:
    """Return the copies that hold something else than most others do, of those that are known."""
    known = [copy for copy in stream.copies if copy.messages is not None]
    if len({(copy.messages, copy.first, copy.last) for copy in known}) <= 1:
        return []
    usual, _ = Counter((copy.messages, copy.first, copy.last) for copy in known).most_common(1)[0]
    return [copy for copy in known if (copy.messages, copy.first, copy.last) != usual]


def _held(told: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what each server holds itself of each stream."""
    return {
        (server["name"], stream["name"]): stream["state"]
        for server in told
        for account in server.get("account_details") or ()
        for stream in account.get("stream_detail") or ()
    }


def _told(url: str) -> dict[str, Any]:
    where = url.rstrip("/")
    try:
        with urllib.request.urlopen(f"{where}/jsz?streams=true&accounts=true", timeout=MONITOR) as answer:
            told = msgspec.json.decode(answer.read())
        with urllib.request.urlopen(f"{where}/varz", timeout=MONITOR) as answer:
            told["name"] = msgspec.json.decode(answer.read())["server_name"]
    except (OSError, ValueError, KeyError):
        return {}  # its copies are seen as offline by the others
    return told


def _server(told: Mapping[str, Any]) -> ServerStatus | None:
    room = (told.get("config") or {}).get("max_storage", 0)
    return ServerStatus(told["name"], told.get("storage", 0), room) if told and room > 0 else None


async def _archived(connection: Any, archive: Archive, number: int, stream: StreamStatus) -> StreamStatus:
    newest = await _newest_segment(archive, number, stream.last)
    if newest is not None and newest.last > stream.last and stream.copies:  # both may have grown since it was asked
        stream = msgspec.structs.replace(stream, last=(await ask(connection, stream.name))["state"]["last_seq"])
    last = stream.first - 1 if newest is None else newest.last
    waiting = max(0, stream.last - last)
    late = stream.written - (stream.begun if newest is None else max(newest.ended, stream.begun)) if waiting else 0.0
    archived = None if newest is None else last
    return msgspec.structs.replace(stream, archived=archived, unarchived=waiting, late=round(max(late, 0.0), 1))


async def _newest_segment(archive: Archive, stream: int, last: int) -> Segment | None:
    prefix = segment_key(stream, 0).rpartition("/")[0]
    for back in (10_000, 1_000_000, last):  # there are thousands of segments, and the last one is wanted
        newest = ""
        async for key in archive.keys(f"{prefix}/", segment_key(stream, max(0, last - back))):
            newest = key
        if newest:
            return await get_segment(archive, newest)
    return None


def _troubles(seen: Seen) -> Iterable[str]:
    for node in seen.nodes:
        if not node.is_alive and node.shards:
            yield (
                f"Node {node.name} renewed its lease {node.renewed:.0f} seconds ago, and no other node has taken "
                "its shards yet."
            )
    if not any(node.is_alive for node in seen.nodes):
        yield "No node is alive: the agents do not run."
    elif seen.unowned:
        yield f"{seen.unowned} shards have no owner: their agents do not answer."
    yield from _lacking_room(seen)
    for stream in seen.streams:
        if not stream.copies or not stream.copies[0].server:
            yield f"Stream {stream.name} has no leader: it accepts no writes."
        elif len(stream.copies) < seen.layout.replicas:
            yield (
                f"Stream {stream.name} has {len(stream.copies)} of {seen.layout.replicas} replicas: a repair was "
                "interrupted. Run `sapwood cluster verify --repair`."
            )
        for copy in stream.copies:
            if copy.is_offline:
                yield f"Stream {stream.name}: server {copy.server} is offline."
            elif not copy.is_current:
                yield f"Stream {stream.name}: server {copy.server} is {copy.behind} entries behind."
        if (stream.archived or 0) > stream.last and stream.copies:
            yield (
                f"Stream {stream.name} ends at {stream.last}, but the archive has messages up to "
                f"{stream.archived}: another cluster writes to the archive, or the stream was created again. The "
                "stream is not being archived."
            )
        if (stream.late or 0.0) > LATE:
            yield f"Stream {stream.name}: the archive is {stream.late:.0f} seconds behind."
        for copy in differing(stream):
            yield (
                f"Stream {stream.name}: server {copy.server} holds {copy.messages} messages, {copy.first} to "
                f"{copy.last}, unlike the others. Its disk may be damaged: run `sapwood cluster verify`."
            )


def _lacking_room(seen: Seen) -> Iterable[str]:
    for node in seen.nodes:
        if node.is_refused:
            yield f"Node {node.name} cannot store the writes of its agents: the log is full."
    for server in seen.servers:
        if server.used > NEARLY * server.room:
            yield (
                f"Server {server.name} uses {server.used / server.room:.0%} of its storage. When it is full, it "
                "leads no stream, and nodes cannot renew their leases."
            )
    for stream in seen.streams:
        if stream.room is not None and stream.bytes > NEARLY * stream.room:
            yield (
                f"Stream {stream.name} uses {stream.bytes / stream.room:.0%} of its limit. When it is full, "
                "writes of agents are refused."
            )


async def ask(connection: Any, stream: str) -> dict[str, Any]:
    """Return what the servers say of a stream; they may be about to elect who answers."""
    for tries_left in reversed(range(TRIES)):
        info = await _info(connection, stream)
        if "error" not in info:
            return info
        if not tries_left:
            raise Unavailable(
                f"NATS returned no information about the stream {stream}: {info['error'].get('description')}"
            )
        await asyncio.sleep(PAUSE)
    raise AssertionError


async def _info(connection: Any, stream: str) -> dict[str, Any]:
    import nats.errors

    try:
        answer = await connection.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=PATIENCE / TRIES)
    except (nats.errors.Error, TimeoutError) as error:
        return {"error": {"description": str(error) or type(error).__name__}}
    return msgspec.json.decode(answer.data)


async def last_of(connection: Any, stream: str, subjects: Sequence[str], *, at_most: int | None = None) -> list[Any]:
    """Return the last message of each of these subjects, of those that have one; any copy may answer."""
    found: list[Any] = []
    for at in range(0, len(subjects), AT_ONCE):
        some = list(subjects[at : at + AT_ONCE])
        question = msgspec.json.encode({"multi_last": some, "batch": at_most or len(some)})
        for tries_left in reversed(range(TRIES)):
            try:
                found += await _last_of(connection, stream, question)
                break
            except Unavailable:
                if not tries_left:
                    raise
                await asyncio.sleep(PAUSE)
    return found


async def _last_of(connection: Any, stream: str, question: bytes) -> list[Any]:
    import nats.errors

    found: list[Any] = []
    inbox = connection.new_inbox()
    answers = await connection.subscribe(inbox)
    try:
        await connection.publish(f"$JS.API.DIRECT.GET.{stream}", question, reply=inbox)
        while True:
            message = await answers.next_msg(timeout=PATIENCE / TRIES)
            status = (message.headers or {}).get("Status")
            if status in ("204", "404"):  # that was all; there is none
                return found
            if status is not None:
                said = message.headers.get("Description") or "the stream does not exist or has no leader."
                raise Unavailable(f"NATS did not list the contents of {stream}: {said}")
            found.append(message)
    except (nats.errors.Error, TimeoutError) as error:
        raise Unavailable(f"NATS did not list the contents of {stream}: {error or type(error).__name__}") from None
    finally:
        await answers.unsubscribe()


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
