"""The way to NATS, and the streams of a cluster, made by whoever comes first."""

# nats-py says of little what it is.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import random
from math import inf
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from sapwood.errors import Unavailable, UsageError
from sapwood.runtimes.cluster.cells import Layout, Names

log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds in which one of the servers is reached."""
HURRY = 5.0
"""The same, if somebody waits for it at a terminal."""
SCHEMES = ("nats", "tls", "ws", "wss")
REFUSED = "authorization violation"
ELECTION = 120.0
"""Seconds that servers which were reached are waited for while they elect: one takes 4 to 9, several come at once."""
REACHED = 2
"""Seconds that a server is given to greet."""
PONG = 1.0
"""Seconds that a server is given to answer a ping, once it is in doubt."""
AGAIN = 0.05
"""Seconds between two attempts to reach a server."""
TELL_AGAIN = 10.0
"""Seconds after which the same trouble is told once more."""
DUPLICATES = 120
"""Seconds during which the same message is stored once. Nobody may try for longer."""
WRONG_SEQUENCE = 10071
STORE_FAILED = 10077
NO_RESOURCES = {10002, 10023, 10028, 10047}
NO_PLACE = 10005
TOO_MANY_STREAMS = 10026
NO_ROOM = 15.0
"""Seconds for which servers may say that they have no room for a stream: it does not come by waiting."""
LOOK = 0.25
"""Seconds between looks at whether anything comes at all."""
ROOM_TAKEN = 0.9
"""How much of its room a stream may have taken that had no limit until now."""


async def connect(servers: str, name: str, *, in_hurry: bool = False) -> Any:
    """Return a connection to any of these servers, which comes back by itself however long they are gone.

    The first of them that names a user and a password names them for all: servers tell of each other without.
    `in_hurry`: somebody waits for it, and wants one sentence if it cannot be had.
    """
    import nats.errors

    from sapwood.runtimes.cluster.nats_client import NatsClient

    urls = [server.strip() for server in servers.split(",")]
    for url in urls:
        if "://" in url and urlsplit(url).scheme not in SCHEMES:
            raise UsageError(f"A NATS server is nats://host:4222, or tls, ws or wss, not {_without_user(url)!r}.")
    user, password = _user_of(urls)
    where = ", ".join(map(_without_user, urls))

    told: dict[str, float] = {}
    is_new, last = True, ""

    async def trouble(error: Exception) -> None:
        nonlocal last
        text, now = _reason(error), asyncio.get_running_loop().time()
        if is_new and REFUSED in text.lower():
            refused = f"refuse the user {user!r}: is the password right?" if user else "want a user and a password."
            raise UsageError(f"The NATS servers at {where} {refused}")
        last = text
        if now - told.get(text, -inf) > TELL_AGAIN:  # it is tried again twenty times a second
            told[text] = now
            if not (is_new and in_hurry):
                log.warning("NATS: %s", text)

    connection: Any = NatsClient()

    def choose(servers: list[Any], _: object) -> tuple[Any, float]:
        """Take the next server, not the one that was just left: it may stand still, and take connections."""
        left = getattr(connection, "_current_server").uri  # noqa: B009
        # One server may be there twice, once as the others tell of it.
        places = [
            place for place, one in enumerate(servers) if (one.uri.hostname, one.uri.port) == (left.hostname, left.port)
        ]
        order = [*range(places[-1] + 1, len(servers)), *range(len(servers))] if places else [0]
        return servers[next((place for place in order if place not in places), 0)], AGAIN

    async def lost() -> None:
        connection.fail_waiting()

    try:
        async with asyncio.timeout(HURRY if in_hurry else PATIENCE):
            await connection.connect(
                random.sample(urls, len(urls)),
                name=name,
                user=user,
                password=password,
                connect_timeout=REACHED,
                dont_randomize=True,
                reconnect_to_server_handler=choose,
                disconnected_cb=lost,
                max_reconnect_attempts=-1,
                reconnect_time_wait=AGAIN,
                ping_interval=5,
                max_outstanding_pings=2,
                error_cb=trouble,
                pending_size=64 * 1024 * 1024,
            )
        is_new = False
        return connection
    except UsageError:
        await disconnect(connection)
        raise
    except (OSError, nats.errors.Error, TimeoutError) as error:
        reason = last or _reason(error)
        raise Unavailable(f"No NATS server answers at {where}: {reason.removesuffix('.')}.") from None


def _reason(error: Exception) -> str:
    """Return in words why a server was not reached, or what it refused."""
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return "connection refused"
    said = getattr(error, "description", None) or str(error)
    return said or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)


def is_full(code: int, description: str) -> bool:
    """Return whether servers refused something because there is no room for it."""
    return code in NO_RESOURCES or (code == STORE_FAILED and "maximum" in description)


async def answers(connection: Any) -> bool:
    """Return whether the server we are connected to is there."""
    import nats.errors

    try:
        await connection.flush(timeout=PONG)
    except (nats.errors.Error, TimeoutError, OSError):
        return False
    return connection.is_connected


async def heard(connection: Any) -> None:
    """Return when a server has heard everything that was sent to it; leave those that stand still."""
    end = asyncio.get_running_loop().time() + ELECTION
    while not await answers(connection):
        if asyncio.get_running_loop().time() > end:
            raise Unavailable("NATS does not answer.")
        if connection.is_connected:
            await go_elsewhere(connection)
        await asyncio.sleep(AGAIN)


async def go_elsewhere(connection: Any) -> None:
    """Leave the server we are connected to for another one."""
    # What was not sent is not waited for: a server that stands still never takes it.
    with contextlib.suppress(AttributeError):
        getattr(connection, "_transport")._io_writer.transport.abort()  # noqa: B009
    await connection.force_reconnect()


async def disconnect(connection: Any) -> None:
    """End a connection, also one whose servers are gone."""
    import nats.errors

    with contextlib.suppress(OSError, RuntimeError, nats.errors.Error):  # uvloop's, of what is closed already
        await connection.close()


def _user_of(urls: list[str]) -> tuple[str | None, str | None]:
    for url in urls:
        parts = urlsplit(url)
        if parts.username and parts.password:
            return unquote(parts.username), unquote(parts.password)
    return None, None


def _without_user(url: str) -> str:
    """Return where a server is, and not how to get in: it is read in logs."""
    head, _, rest = url.rpartition("@")
    return f"{head.partition('://')[0]}://{rest}" if head else url


async def all_answers(connection: Any, subject: str, question: bytes, patience: float) -> list[Any]:
    """Return the messages that a question is answered with: the last is the one with a status.

    They come by the thousand, and are taken as they come. `TimeoutError` if none comes for as many seconds.
    """
    import nats.errors

    answers: list[Any] = []
    ended = asyncio.get_running_loop().create_future()

    async def heard(message: Any) -> None:
        answers.append(message)
        if "Status" in (message.headers or {}) and not ended.done():
            ended.set_result(None)

    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox, cb=heard, pending_bytes_limit=1 << 30)
    try:
        await connection.publish(subject, question, reply=inbox)
        known, silent = 0, 0.0
        while not ended.done():
            await asyncio.wait({ended}, timeout=LOOK)
            silent = silent + LOOK if len(answers) == known else 0.0
            known = len(answers)
            if connection.is_closed and not ended.done():
                raise nats.errors.ConnectionClosedError
            if silent >= patience and not ended.done():
                raise TimeoutError("no answer")
        return answers
    finally:
        if not connection.is_closed:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()


async def found(connection: Any, cluster: str, wished: Layout) -> Names:
    """Return how the cluster is cut; found it as wished if nobody has, and make its streams."""
    from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

    streams = connection.jetstream(timeout=10)
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
    trouble = _Trouble()
    await _make(streams, members, trouble)
    layout = await said_first(streams, first.members, first.setup, msgspec.json.encode(wished))
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
        log.warning("how much a stream may hold is not known: %s", error)
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
        log.warning("the stream %s still may hold %d bytes, and not %d: %s", config.name, has, room, error)


class _Trouble:
    """What servers say that make no stream. All streams meet the same: it is told once."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._since: float | None = None

    def is_hopeless(self, error: Exception) -> bool:
        """Take note of a refusal; return whether to give up: there is no room, and none comes by waiting."""
        now, text = asyncio.get_running_loop().time(), _reason(error)
        if not is_room(error):
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        if text not in self._told:
            self._told.add(text)
            log.warning("NATS has no room for the streams of the cluster: %s. %s", text, _hint(error))
        return now - self._since > NO_ROOM


def is_room(error: Exception) -> bool:
    """Return whether servers made no stream as they have no room for it, by their configuration."""
    code, text = getattr(error, "err_code", None) or 0, str(error).lower()
    return code in {*NO_RESOURCES, TOO_MANY_STREAMS} or (code == NO_PLACE and "storage" in text)


def _hint(error: Exception) -> str:
    if getattr(error, "err_code", None) == TOO_MANY_STREAMS:
        return "Each cluster has 9 streams: raise max_streams in the configuration of the servers."
    return (
        "Each cluster at these servers reserves 8 x NATS_STREAM_SIZE of NATS_STORE_SIZE: raise the second, or lower "
        "the first before a cluster is founded."
    )


async def _make(streams: Any, config: Any, trouble: _Trouble) -> None:
    """Make a stream, or find it; wait while the servers elect whoever decides."""
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
                raise Unavailable(f"The stream {config.name!r} cannot be looked at: {error}") from None
            await asyncio.sleep(0.2)
            continue
        try:
            await streams.add_stream(config)
            return
        except (nats.errors.Error, TimeoutError) as error:
            if trouble.is_hopeless(error) or asyncio.get_running_loop().time() > end:
                hint = (
                    _hint(error)
                    if is_room(error)
                    else f"A cluster needs {config.num_replicas} NATS servers with JetStream, 2.15 or newer."
                )
                raise UsageError(f"The stream {config.name!r} cannot be made: {_reason(error)}. {hint}") from None
            await asyncio.sleep(0.2)


async def said_first(streams: Any, stream: str, subject: str, wished: bytes) -> bytes:
    """Say something unless somebody has; return what was said first."""
    import nats.errors
    import nats.js.errors

    end = asyncio.get_running_loop().time() + ELECTION
    while True:
        try:
            try:
                await streams.publish(subject, wished, headers={"Nats-Expected-Last-Subject-Sequence": "0"})
            except nats.js.errors.APIError as error:
                if error.err_code != WRONG_SEQUENCE:
                    raise
            return (await streams.get_last_msg(stream, subject)).data
        except (nats.errors.Error, TimeoutError) as error:  # a stream that was just made has nobody to lead it yet
            if asyncio.get_running_loop().time() > end:
                raise Unavailable(f"Nobody could be told what the cluster is to be like: {error}") from None
            await asyncio.sleep(0.2)
