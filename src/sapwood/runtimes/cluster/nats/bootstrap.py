"""The streams of a cluster, and how it is cut: created by the first node."""

# nats-py says of little what it is.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from sapwood.errors import Unavailable, UsageError
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.nats.nats_connection import (
    ELECTION,
    NO_RESOURCES,
    WRONG_SEQUENCE,
    check_allowed,
    go_elsewhere,
    reason_of,
)
from sapwood.timings import DEFAULTS, Timings

log = logging.getLogger(__name__)

DUPLICATES = 120
"""Seconds during which the same message is stored once. No client may retry for longer."""
NO_PLACE = 10005
TOO_MANY_STREAMS = 10026
ROOM_TAKEN = 0.9
"""How much of its room a stream may have taken that had no limit until now."""


async def found(connection: Any, cluster: str, wished: Layout, *, timings: Timings = DEFAULTS) -> Names:
    """Return how the cluster is cut; create it with this layout if it does not exist, with its streams."""
    from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

    streams = connection.jetstream(timeout=timings.nats_answer_timeout)
    first = Names(cluster, wished)
    members = StreamConfig(
        name=first.members,
        subjects=[f"{cluster}.nodes.>"],
        num_replicas=wished.replicas,
        storage=StorageType.FILE,
        max_msgs_per_subject=1,
        allow_direct=True,
        allow_msg_ttl=True,
    )
    trouble = _Trouble(connection, timings)
    await _make(streams, members, trouble)
    layout = await said_first(connection, first.members, first.setup, msgspec.json.encode(wished), timings)
    names = Names(cluster, msgspec.json.decode(layout, type=Layout))
    room = await _room(connection)
    logs = [
        StreamConfig(
            name=names.stream(number),
            subjects=[names.subjects(number)],
            retention=RetentionPolicy.LIMITS,
            discard=DiscardPolicy.NEW,
            num_replicas=names.layout.replicas,
            storage=StorageType.FILE,
            max_bytes=room,
            allow_direct=True,
            allow_rollup_hdrs=True,
            allow_atomic=True,
            deny_delete=False,
            deny_purge=False,
            duplicate_window=DUPLICATES,
        )
        for number in range(names.layout.streams * names.layout.cells)
    ]
    await asyncio.gather(*(_make(streams, stream, trouble) for stream in logs))
    return names


async def _room(connection: Any) -> int:
    """Return how many bytes a stream of the log may hold, as the servers' configuration says; -1: it does not."""
    import nats.errors

    try:
        answer = await connection.request("$JS.API.INFO", b"", timeout=10)
        room = msgspec.json.decode(answer.data).get("limits", {}).get("storage_max_stream_bytes", -1)
    except (nats.errors.Error, TimeoutError, msgspec.DecodeError) as error:
        log.warning("the size limit of a stream is unknown: %s", error)
        return -1
    return room if room > 0 else -1


async def _widen(streams: Any, found: Any, room: int) -> None:
    """Have a stream that was made before hold as much as the configuration says now; never less than it did."""
    import nats.errors

    config = found.config
    has = config.max_bytes or -1
    if room <= 0 or has >= room or (has < 0 and found.state.bytes > room * ROOM_TAKEN):
        return
    config.max_bytes = room
    try:
        await streams.update_stream(config)
    except (nats.errors.Error, TimeoutError) as error:
        log.warning("stream %s keeps its limit of %d bytes instead of %d: %s", config.name, has, room, error)


class _Trouble:
    """What servers say that make no stream. All streams meet the same: it is told once."""

    def __init__(self, connection: Any, timings: Timings) -> None:
        self.connection = connection
        self._timings = timings
        self._told: set[str] = set()
        self._since: float | None = None
        self._met = asyncio.get_running_loop().time()
        """Since when we are at the server that we are at."""

    async def leave(self) -> None:
        """Go to another server: the one we met takes questions, and does not answer them."""
        now = asyncio.get_running_loop().time()
        if self.connection.is_connected and now > self._met + self._timings.nats_answer_timeout:
            self._met = now
            await go_elsewhere(self.connection)

    def is_hopeless(self, error: Exception) -> bool:
        """Take note of a refusal; return whether to give up: there is no room, and waiting does not help."""
        now, text = asyncio.get_running_loop().time(), reason_of(error)
        if not is_room(error):
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        if (hint := _hint(error)) not in self._told:  # not the text: it names peers that come and go
            self._told.add(hint)
            log.warning("NATS has no room for the streams of the cluster: %s. %s", text, hint)
        return now - self._since > self._timings.nats_no_room_timeout


def is_room(error: Exception) -> bool:
    """Return whether servers made no stream as they have no room for it, by their configuration."""
    code, text = getattr(error, "err_code", None) or 0, str(error).lower()
    return code in {*NO_RESOURCES, TOO_MANY_STREAMS} or (code == NO_PLACE and "storage" in text)


def _hint(error: Exception) -> str:
    if getattr(error, "err_code", None) == TOO_MANY_STREAMS:
        return "Each cluster has 9 streams: raise max_streams in the configuration of the servers."
    return (
        "Each cluster on these servers reserves 8 x NATS_STREAM_SIZE of NATS_STORE_SIZE: raise NATS_STORE_SIZE, "
        "or lower NATS_STREAM_SIZE before a cluster is created."
    )


async def _make(streams: Any, config: Any, trouble: _Trouble) -> None:
    """Make a stream, or find it; wait while the servers elect a leader."""
    import nats.errors
    import nats.js.errors

    end = asyncio.get_running_loop().time() + ELECTION
    while True:
        try:
            await _widen(streams, await streams.stream_info(config.name), config.max_bytes or -1)
            return
        except nats.js.errors.NotFoundError:
            pass
        except (nats.errors.Error, TimeoutError) as error:
            if asyncio.get_running_loop().time() > end:
                raise Unavailable(f"The stream {config.name!r} cannot be inspected: {error}") from None
            if isinstance(error, TimeoutError):
                await trouble.leave()
            await asyncio.sleep(0.2)
            continue
        try:
            await streams.add_stream(config)
            return
        except (nats.errors.Error, TimeoutError) as error:
            check_allowed(trouble.connection)
            if trouble.is_hopeless(error) or asyncio.get_running_loop().time() > end:
                hint = (
                    _hint(error)
                    if is_room(error)
                    else f"A cluster needs {config.num_replicas} NATS servers with JetStream, 2.15 or newer."
                )
                raise UsageError(f"The stream {config.name!r} cannot be created: {reason_of(error)}. {hint}") from None
            await asyncio.sleep(0.2)


async def said_first(connection: Any, stream: str, subject: str, wished: bytes, timings: Timings = DEFAULTS) -> bytes:
    """Store a value unless there is one; return the first one."""
    import nats.errors
    import nats.js.errors

    streams = connection.jetstream(timeout=timings.nats_answer_timeout)
    end = asyncio.get_running_loop().time() + ELECTION
    while True:
        try:
            try:
                await streams.publish(subject, wished, headers={"Nats-Expected-Last-Subject-Sequence": "0"})
            except nats.js.errors.APIError as error:
                if error.err_code != WRONG_SEQUENCE:
                    raise
            return (await streams.get_last_msg(stream, subject)).data
        except (nats.errors.Error, TimeoutError) as error:  # a stream that was just made has no leader yet
            check_allowed(connection)
            if asyncio.get_running_loop().time() > end:
                raise Unavailable(f"The configuration of the cluster could not be stored: {error}") from None
            await asyncio.sleep(0.2)
