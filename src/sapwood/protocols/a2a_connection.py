"""Requests to one A2A server: its card is read first, and nothing is sent to another server than that of the URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from sapwood import tracing
from sapwood.client.public_hosts import HostRules
from sapwood.clock import Clock
from sapwood.errors import (
    InvalidResult,
    Refused,
    RemoteLost,
    RemoteRefused,
    RemoteUnauthorized,
    Unavailable,
    UsageError,
)
from sapwood.protocols import a2a_wire as wire
from sapwood.protocols.a2a_replies import JSON_RPC, Card, Interface, Reply, RpcError, read, result_of
from sapwood.settings import Settings

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
Headers = Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
CARD = "/.well-known/agent-card.json"
CONNECT, SILENCE = 10.0, 45.0
"""Seconds to wait for a connection, and for the next bytes."""
LONGEST = 8 * 1024 * 1024
"""Bytes of one answer, or of one event of a stream."""
CARD_KEPT = 300.0
"""Seconds for which a card is used."""
MOST_CARDS = 1000
LATER = frozenset({408, 425, 429})
"""Statuses below 500 of servers that may answer otherwise later."""
NEVER = frozenset({501, 505})
"""Statuses from 500 of servers that will not."""
TOO_MANY, TOO_BUSY = 429, 503
NOT_LET_IN = frozenset({401, 403})


class NotSent(Unavailable):
    """A request has not reached its server, or the server has not looked at it."""


class TooBusy(Unavailable):
    """A server says that it is too busy. Most likely it has not looked at a request; proxies say so afterwards too."""


class NotTaken(RemoteRefused):
    """A request was not sent, or its server has refused it without looking at it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests to an agent are sent, as its card says."""

    url: str
    tenant: str | None
    streams: bool
    schemes: tuple[str, ...]
    """The names of what the server takes as authentication."""


class AgentCards:
    """The endpoints of the cards that this process has read."""

    def __init__(self, _: Settings, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, Endpoint]] = {}

    def get(self, url: str) -> Endpoint | None:
        """Return what is known of an agent, if its card was read a short while ago."""
        until, endpoint = self._known.get(url, (0.0, None))
        return endpoint if until > self._clock.now() else None

    def put(self, url: str, endpoint: Endpoint) -> None:
        """Store what a card says."""
        if len(self._known) >= MOST_CARDS:
            self._known.clear()
        self._known[url] = (self._clock.now() + CARD_KEPT, endpoint)

    def forget(self, url: str) -> None:
        """Read the card again before the next request."""
        self._known.pop(url, None)


class A2aConnection:
    """A client of one agent of an A2A server."""

    def __init__(self, url: str, headers: Headers, cards: AgentCards, *, allow_private: bool) -> None:
        self._url = url.removesuffix(CARD).rstrip("/")
        self._headers, self._cards = headers, cards
        host = urlsplit(url).hostname or ""
        remedy = "The URL of an A2aAgent may name one; a URL from elsewhere may not."
        self._rules = HostRules("A2A requests", remedy, frozenset({host} if allow_private else ()))
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            import httpx2
        except ImportError:
            raise UsageError("A2A agents require httpx2. Run: pip install 'sapwood[remote]'.") from None
        from sapwood.client.checked_transport import CheckedTransport, ResponseLimits, trusted

        known = await asyncio.to_thread(trusted)
        transport = CheckedTransport(self._rules, ResponseLimits(LONGEST, None), verify=known)
        limits = httpx2.Timeout(SILENCE, connect=CONNECT)
        self._client = await self._open.enter_async_context(httpx2.AsyncClient(transport=transport, timeout=limits))
        self._not_sent: tuple[type[Exception], ...] = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
        self._broken: tuple[type[Exception], ...] = (httpx2.RequestError,)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._open.aclose()

    async def endpoint(self) -> Endpoint:
        """Return where the agent is called, as its card says."""
        if (known := self._cards.get(self._url)) is None:
            async with self._response("GET", f"{self._url}{CARD}", None, "application/json") as response:
                card = read(await response.aread(), Card, self._url)
            known = self._endpoint_of(card)
            self._cards.put(self._url, known)
        return known

    async def call(self, method: str, params: Mapping[str, Any], kind: type[T]) -> T:
        """Return the result of a request. Raises `RpcError`, or another `RemoteRefused`, or `Unavailable`."""
        async with self._request(method, params, "application/json") as response:
            return self._result(await response.aread(), kind)

    async def stream(self, method: str, params: Mapping[str, Any]) -> AsyncGenerator[Reply | None, None]:
        """Yield the events of a stream, and `None` as a sign of life, until the server ends it."""
        async with self._request(method, params, "text/event-stream") as response:
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                yield self._result(await response.aread(), Reply)  # an error, or a server that does not stream
                return
            rest, data = bytearray(), list[bytes]()
            async for part in response.aiter_bytes():
                rest += part
                if b"\n" not in part:
                    continue  # a long line may come in very many parts
                *lines, end = bytes(rest).split(b"\n")
                rest = bytearray(end)
                for line in lines:
                    line = line.removesuffix(b"\r")
                    if line.startswith(b"data:"):
                        data.append(line[5:].removeprefix(b" "))
                    elif not line and data:
                        yield self._result(b"\n".join(data), Reply)
                        data = []
                    elif line.startswith(b":"):
                        yield None

    def _result(self, body: bytes, kind: type[T]) -> T:
        try:
            return result_of(body, kind, self._url)
        except RpcError as error:
            if error.rpc_code == wire.NO_TASK.code:
                raise RemoteLost(f"{self._url} does not know the task any more.") from None
            raise

    @asynccontextmanager
    async def _request(
        self, method: str, params: Mapping[str, Any], accept: str
    ) -> AsyncGenerator[httpx2.Response, None]:
        endpoint = await self.endpoint()
        tenant = {} if endpoint.tenant is None else {"tenant": endpoint.tenant}
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, **tenant}}
        async with self._response("POST", endpoint.url, msgspec.json.encode(call), accept) as response:
            yield response

    @asynccontextmanager
    async def _response(
        self, method: str, url: str, body: bytes | None, accept: str
    ) -> AsyncGenerator[httpx2.Response, None]:
        """Send a request; whatever goes wrong while its answer is read is one of our own errors."""
        given = self._headers()
        headers = dict(await given if isawaitable(given) else given)
        headers |= {"accept": accept, wire.VERSION_HEADER: wire.VERSION}
        if body is not None:
            headers["content-type"] = "application/json"
        if (trace := tracing.text()) is not None:
            headers["traceparent"] = trace
        try:
            async with self._client.stream(method, url, headers=headers, content=body) as response:
                await self._check(response)
                yield response
        except self._not_sent as error:
            self._cards.forget(self._url)
            raise NotSent(f"{self._url} cannot be reached: {_said(error)}") from error
        except self._broken as error:
            raise Unavailable(f"{self._url} cannot be reached: {_said(error)}") from error
        except RemoteRefused:
            raise
        except InvalidResult as error:
            raise RemoteRefused(str(error)) from None
        except Refused as error:  # its host may not be called
            raise NotTaken(str(error)) from None

    async def _check(self, response: httpx2.Response) -> None:
        """Raise unless a response is one that can be read."""
        status, where = response.status_code, f"{self._url} responded with {response.status_code}"
        if response.is_success:
            return
        if status in LATER or (status >= 500 and status not in NEVER):
            raise (NotSent if status == TOO_MANY else TooBusy if status == TOO_BUSY else Unavailable)(f"{where}.")
        known = self._cards.get(self._url)
        self._cards.forget(self._url)
        if status in NOT_LET_IN:
            schemes = f" Its card names: {', '.join(known.schemes)}." if known and known.schemes else ""
            raise RemoteUnauthorized(f"{where}: check token() or headers() of the class.{schemes}")
        if response.is_redirect:
            raise NotTaken(f"{where}, a redirect, which is not followed. Set `url` to where it leads.")
        raise NotTaken(f"{where}. `url` must name an A2A agent, whose card is at {self._url}{CARD}.")

    def _endpoint_of(self, card: Card) -> Endpoint:
        """Return where an agent is called. Raises `RemoteRefused` if it is not by what this client speaks."""
        found = next((one for one in card.supported_interfaces if _is_spoken(one)), None)
        if found is None:
            offered = ", ".join(f"{one.protocol_binding} {one.protocol_version}" for one in card.supported_interfaces)
            raise RemoteRefused(
                f"The card of {self._url} has no interface with {JSON_RPC} {wire.VERSION}, but: {offered or 'none'}."
            )
        if _origin(found.url) != _origin(self._url):
            raise RemoteRefused(
                f"The card of {self._url} names {found.url[:200]}, on another server, which would be sent the "
                "credentials. If that is right, set `url` to an address on that server."
            )
        schemes = tuple(card.security_schemes or {})
        return Endpoint(found.url, found.tenant or None, bool(card.capabilities.streaming), schemes)


def _is_spoken(interface: Interface) -> bool:
    version = interface.protocol_version.partition(".")[0]
    return interface.protocol_binding == JSON_RPC and version == wire.VERSION.partition(".")[0]


def _origin(url: str) -> tuple[str, str | None, int | None] | None:
    """Return the server of a URL; `None` if it has none."""
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")
        return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
