"""HTTP to URLs that clients chose: only to addresses that were checked, with a limit of size and time.

The check is part of connecting, so the address that was checked is the one that is connected to, and each redirect
that a client follows is checked like the first URL. Certificates and the `Host` header are those of the name.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import cast

import httpcore2
import httpx2

from sapwood.client.public_hosts import HostRules, addresses_of
from sapwood.errors import InvalidResult, Refused, Unavailable

EVENTS = "text/event-stream"
BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""What ends an event of a stream."""
CONNECTIONS, IDLE = 100, 5.0
"""Connections of one transport at most, and seconds for which one is kept without use."""

SocketOptions = Iterable[tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]]


@dataclass(frozen=True)
class ResponseLimits:
    """How long a response may be, and how long it may take."""

    bytes: int = 4 * 1024 * 1024
    """Of a body; in a stream of events, of each event."""
    seconds: float | None = 60.0
    """From the request to the end of the response. A stream of events has it for its first byte only."""


class CheckedTransport(httpx2.AsyncHTTPTransport):
    """A transport of httpx2 that connects to no host that the rules refuse.

    It uses no proxy. `secrets` are headers that are sent only to `origin`, never to a host that it redirects to.
    """

    def __init__(
        self,
        rules: HostRules,
        limits: ResponseLimits,
        *,
        origin: str = "",
        secrets: Mapping[str, str] | None = None,
        verify: ssl.SSLContext | None = None,
    ) -> None:
        context = trusted() if verify is None else verify
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(
            context, max_connections=CONNECTIONS, keepalive_expiry=IDLE, network_backend=CheckedNetwork(rules)
        )
        self._limits = limits
        self._origin = _origin(httpx2.URL(origin)) if origin else None
        self._secrets = dict(secrets or {})

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. Raises `Refused` if its host may not be called."""
        headers = request.headers.copy()  # a redirect copies those of the request
        headers["accept-encoding"] = "identity"  # what is counted is what is read
        if _origin(request.url) == self._origin:
            headers.update(self._secrets)
        sent = httpx2.Request(
            request.method, request.url, headers=headers, stream=request.stream, extensions=request.extensions
        )
        loop = asyncio.get_running_loop()
        until = None if self._limits.seconds is None else loop.time() + self._limits.seconds
        async with _until(until, request):
            response = await super().handle_async_request(sent)
        if response.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            await response.aclose()
            raise InvalidResult(f"{request.url.host} sent a compressed response, which was not requested.")
        stream = cast("httpx2.AsyncByteStream", response.stream)
        is_events = response.headers.get("content-type", "").lower().startswith(EVENTS)
        response.stream = LimitedStream(stream, self._limits.bytes, None if is_events else until, request, is_events)
        return response


class CheckedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects to hosts that the rules allow, at an address that was checked."""

    def __init__(self, rules: HostRules) -> None:
        self._rules = rules
        self._network = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: SocketOptions | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failed: Exception | None = None
        try:
            async with asyncio.timeout(timeout):
                addresses = await addresses_of(host, port, self._rules)
        except (Unavailable, TimeoutError) as error:
            raise httpcore2.ConnectError(str(error) or f"The host {host!r} cannot be found.") from None
        for address in dict.fromkeys(addresses):
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        assert failed is not None  # a host that is found has an address
        raise failed

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: SocketOptions | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise Refused("Only hosts can be called.")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


class LimitedStream(httpx2.AsyncByteStream):
    """The body of a response, up to its limits."""

    def __init__(
        self,
        stream: httpx2.AsyncByteStream,
        most: int,
        until: float | None,
        request: httpx2.Request,
        is_events: bool,
    ) -> None:
        self._stream = stream
        self._most = most
        self._until = until
        self._request = request
        self._is_events = is_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, end = 0, b""
        parts = aiter(self._stream)
        while True:
            async with _until(self._until, self._request):
                part = await anext(parts, None)
            if part is None:
                return
            size += len(part)
            if self._is_events:
                size, end = _since_blank_line(size, end + part), (end + part)[-3:]
            if size > self._most:
                what = "An event" if self._is_events else "The response"
                raise InvalidResult(f"{what} of {self._request.url.host} is longer than {self._most:,} bytes.")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


@cache
def trusted() -> ssl.SSLContext:
    """Return the certificates that are trusted. The first call takes a while: make it in a thread."""
    return httpx2.create_ssl_context()


def _since_blank_line(size: int, read: bytes) -> int:
    """Return how many bytes of the event that is being read have arrived."""
    found = max(read.rfind(line) + len(line) if line in read else -1 for line in BLANK_LINES)
    return size if found < 0 else len(read) - found


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


@asynccontextmanager
async def _until(moment: float | None, request: httpx2.Request) -> AsyncGenerator[None]:
    """Raise what httpx2 raises for a timeout if a block is not left before a moment."""
    try:
        async with asyncio.timeout_at(moment):
            yield
    except TimeoutError:
        raise httpx2.ReadTimeout(f"{request.url.host} takes too long.", request=request) from None
