"""The way to NATS."""

# nats-py says of little what it is.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
from math import inf
from typing import Any
from urllib.parse import unquote, urlsplit

from sapwood.errors import Unavailable, UsageError
from sapwood.kernel.aio import cancel_all
from sapwood.randomness import SYSTEM, Random
from sapwood.timings import DEFAULTS, Timings

log = logging.getLogger(__name__)

SCHEMES = ("nats", "tls", "ws", "wss")
REFUSED = "authorization violation"
DENIED = "permissions violation"
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
USER = re.compile(r"[A-Za-z0-9_-]+")
"""A user whose name can be a part of a subject."""
WRONG_SEQUENCE = 10071
STORE_FAILED = 10077
NO_RESOURCES = {10002, 10023, 10028, 10047}
LOOK = 0.25
"""Seconds between looks at whether anything comes at all."""


async def connect(
    servers: str, name: str, *, in_hurry: bool = False, timings: Timings = DEFAULTS, random: Random = SYSTEM
) -> Any:
    """Return a connection to any of these servers, which reconnects automatically however long they are gone.

    The first of them that names a user and a password names them for all: servers tell of each other without.
    `in_hurry`: a user waits for it, and gets an error message if it fails.
    """
    import nats.errors

    from sapwood.runtimes.cluster.base.nats_client import NatsClient

    urls = [server.strip() for server in servers.split(",")]
    for url in urls:
        if "://" in url and urlsplit(url).scheme not in SCHEMES:
            raise UsageError(
                f"The URL of a NATS server must be nats://host:4222, or use tls, ws or wss, got {_without_user(url)!r}."
            )
    user, password = _user_of(urls)
    where = ", ".join(map(_without_user, urls))

    told: dict[str, float] = {}
    is_new, last = True, ""

    async def trouble(error: Exception) -> None:
        nonlocal last
        text, now = reason_of(error), asyncio.get_running_loop().time()
        if is_new and REFUSED in text.lower():
            refused = f"refused the user {user!r}. Check the password." if user else "need a user and a password."
            raise UsageError(f"The NATS servers at {where} {refused}")
        if DENIED in text.lower():
            connection.denied = f"NATS denied this to the user {user or ''!r}: {text.removeprefix('nats: ')}."
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

    dialling = asyncio.ensure_future(
        connection.connect(
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
            inbox_prefix=inbox_prefix(user),
            pending_size=64 * 1024 * 1024,
        )
    )
    try:
        async with asyncio.timeout(timings.nats_interactive_timeout if in_hurry else timings.nats_connect_timeout):
            await asyncio.shield(dialling)
        is_new = False
        return connection
    except UsageError:
        await disconnect(connection)
        raise
    except (OSError, nats.errors.Error, TimeoutError) as error:
        reason = last or reason_of(error)
        raise Unavailable(f"No NATS server answers at {where}: {reason.removesuffix('.')}.") from None
    finally:
        await cancel_all([dialling])


def inbox_prefix(user: str | None) -> str:
    """Return where answers to a user are sent: each has a separate subject, which others may be forbidden to read."""
    return f"_INBOX_{user}" if user is not None and USER.fullmatch(user) else "_INBOX"


def reason_of(error: Exception) -> str:
    """Return in words why a server was not reached, or what it refused."""
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return "connection refused"
    said = getattr(error, "description", None) or str(error)
    return said or ("timeout" if isinstance(error, TimeoutError) else type(error).__name__)


def is_full(code: int, description: str) -> bool:
    """Return whether servers refused something because there is no room for it."""
    return code in NO_RESOURCES or (code == STORE_FAILED and "maximum" in description)


def check_allowed(connection: Any) -> None:
    """Raise `UsageError` if its user may not do what a node has to: the servers do not answer then."""
    if connection.denied is not None:
        raise UsageError(
            f"{connection.denied} A node needs a user with write access: 'node' in deploy/nats/server.conf."
        )


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
        await go_elsewhere(connection)
        await asyncio.sleep(AGAIN)


async def go_elsewhere(connection: Any) -> None:
    """Leave the server we are connected to for another one; without a connection, one is being looked for already."""
    if not connection.is_connected:
        return
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

    They arrive by the thousand, and are taken as they arrive. `TimeoutError` if none comes for as many seconds.
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
