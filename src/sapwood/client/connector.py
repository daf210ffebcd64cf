"""From a URL, a class and a name to an agent that can be called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypedDict, TypeVar, Unpack, overload
from urllib.parse import urlencode, urlsplit, urlunsplit
from uuid import uuid4

from sapwood.address import Address
from sapwood.client.conversation import Conversation
from sapwood.client.http import get_methods
from sapwood.client.link import Socket, backoff
from sapwood.client.remote import RemoteAgent
from sapwood.errors import Unavailable, UsageError
from sapwood.kernel.marshal.agent_class import known
from sapwood.wire.methods import PATH, ExposedMethod
from sapwood.wire.routing import path_to

A = TypeVar("A")
Token = str | Callable[[], str | Awaitable[str]]

SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class How(TypedDict, total=False):
    """Further arguments of `connect`; see there."""

    query: Mapping[str, str]
    headers: Mapping[str, str]
    token: Token | None
    timeout: float | None
    prefix: str
    delay: Callable[[int], float]
    options: Mapping[str, Any]


@overload
def connect(
    url: str,
    cls: type[A],
    name: str,
    **how: Unpack[How],
) -> AbstractAsyncContextManager[RemoteAgent[A]]: ...
@overload
def connect(
    url: str,
    cls: type[Any],
    name: str,
    *,
    sub: tuple[*tuple[tuple[type[Any], str], ...], tuple[type[A], str]],
    **how: Unpack[How],
) -> AbstractAsyncContextManager[RemoteAgent[A]]: ...
@overload
def connect(
    url: str,
    cls: type[Any],
    name: str,
    *,
    sub: Sequence[tuple[type[A], str]],
    **how: Unpack[How],
) -> AbstractAsyncContextManager[RemoteAgent[A]]: ...
@asynccontextmanager
async def connect(
    url: str,
    cls: type[Any],
    name: str,
    *,
    sub: Sequence[tuple[type[Any], str]] = (),
    query: Mapping[str, str] = {},
    headers: Mapping[str, str] = {},
    token: Token | None = None,
    timeout: float | None = 30.0,
    prefix: str = "agents",
    delay: Callable[[int], float] = backoff,
    options: Mapping[str, Any] = {},
) -> AsyncGenerator[RemoteAgent[Any], None]:
    """Connect to an agent on a server for an ``async with`` block; with `sub`, to a descendant of that root.

    `url` is the URL of the app, such as ``http://127.0.0.1:8000``. `token` is sent as ``Authorization: Bearer``. It is
    a string, or a function that is called for each connection. `query` and `headers` are sent as they are. `timeout`
    applies to connecting and to each call that does not stream, in seconds. `None` means no timeout.

    After a lost connection, the client reconnects after `delay(n)` seconds; n is the number of the attempt. `prefix`
    is that of the app's settings. `options` are passed to the `websockets` library: `ssl`, `proxy` and others.

    Raises `NotFound` or `Refused` if the server refuses the connection, `StoredDataError` or `MigrationFailed` if the
    agent's data cannot be used until an operator acts, and `Unavailable` if the server cannot be reached in time.
    """
    path = [(known(cls), name), *((known(child), child_name) for child, child_name in sub)]
    address = Address.root_of(path[0][0].type, name)
    for kind, child_name in path[1:]:
        address = address.child(kind.type, child_name)
    own_id = uuid4().hex
    uri = uri_of(url, path_to(address, prefix=prefix), {"_pk": own_id, **query})

    async def dial() -> Socket:
        from sapwood.client.socket import open_socket  # the library behind it is an extra

        return await open_socket(uri, {**headers, **await authorization(token)}, options)

    async def methods() -> list[ExposedMethod]:
        ws = uri_of(url, path_to(address, prefix=prefix) + PATH, query)
        given = {**headers, **await authorization(token)}
        return await get_methods("http" + ws.removeprefix("ws"), address, given, timeout, options)

    talk = Conversation(path[-1][0], address, dial, id=own_id, timeout=timeout, delay=delay)
    link = talk.link
    link.start()
    try:
        try:
            async with asyncio.timeout(timeout):
                await link.ready()
        except TimeoutError:
            raise Unavailable(f"{address} on {url} could not be reached within {timeout} s: {link.problem}") from None
        yield RemoteAgent(talk, methods)
    finally:
        await link.close()


def uri_of(url: str, path: str, query: Mapping[str, str]) -> str:
    """Return where the socket of an agent is."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.netloc or parts.query or parts.fragment:
        raise UsageError(f"url={url!r}: expected the URL of an app, such as 'https://example.com'.")
    return urlunsplit((SCHEMES[parts.scheme], parts.netloc, parts.path.rstrip("/") + path, urlencode(query), ""))


async def authorization(token: Token | None) -> dict[str, str]:
    """Return the header that carries a token."""
    if token is None:
        return {}
    given = token() if callable(token) else token
    return {"authorization": f"Bearer {await given if inspect.isawaitable(given) else given}"}
