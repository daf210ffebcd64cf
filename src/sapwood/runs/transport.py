"""Asks another server to do a run, over HTTP: start, status, stream, cancel.

What a server answers is sorted by who acts. One that cannot be reached, or is overloaded, is
`Unavailable`: the same is asked again later. What is refused would be refused again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import msgspec

from sapwood import tracing
from sapwood.errors import ProtocolMismatch, RemoteLost, RemoteRefused, RemoteUnauthorized, Unavailable, UsageError
from sapwood.wire import frames
from sapwood.wire import remote as wire

if TYPE_CHECKING:
    import httpx2

CONNECT = 10.0
"""Seconds to wait for a connection."""
SILENCE = 45.0
"""Seconds after which a server that sends nothing, not even a sign of life, is taken for gone."""
LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
"""What a server answers that may answer otherwise later."""
NOT_LET_IN = frozenset({401, 403})
NOT_THERE = frozenset({400, 404})
"""With what a server answers that knows no such agent."""
UPGRADE = 426
UNSAID = ""
"""The code of an answer that has none: it is none of an agent."""
LONGEST_TROUBLE = 64 * 1024
"""Bytes of a refusal that are read."""
SHOWN = 500
"""Characters of an answer that are repeated in an error."""


class Transport:
    """One run of an agent of another server."""

    def __init__(self, url: str, session: str, token: Callable[[], str | Awaitable[str | None] | None]) -> None:
        self._url = url.rstrip("/")
        self._base = f"{self._url}/{quote(session, safe='')}"
        self._token = token
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            import httpx2
        except ImportError:
            raise UsageError("Agents of other servers need httpx2. Install sapwood[remote].") from None
        limits = httpx2.Timeout(SILENCE, connect=CONNECT)
        trusted = await asyncio.to_thread(_trusted)  # it takes a while, the first time
        self._client = await self._open.enter_async_context(httpx2.AsyncClient(verify=trusted, timeout=limits))
        self._broken = httpx2.TransportError
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._open.aclose()

    async def start(self, input: bytes) -> wire.State:
        """Have it begin; one that is known goes on, or is what it became."""
        return await self._state("POST", wire.PATH, wire.encoded(wire.Start(msgspec.Raw(input))))

    async def status(self) -> wire.State:
        """Return how it stands; `RemoteLost` if nothing is known of it."""
        return await self._state("GET", wire.PATH)

    async def cancel(self, reason: str) -> wire.State:
        """Stop it; what has not begun never will."""
        return await self._state("POST", wire.CANCEL, wire.encoded(wire.Cancel(reason)))

    async def stream(self, from_seq: int, milestones: int) -> AsyncGenerator[list[wire.Told], None]:
        """Yield what happens in it, as much as arrives at once, until it or the connection ends."""
        path, reader = f"{wire.STREAM}?from_seq={from_seq}&milestones={milestones}", wire.Reader()
        async with self._answer("GET", path, accept=wire.SSE) as response:
            async for data in response.aiter_bytes():
                try:
                    yield reader.read(data)
                except ValueError as error:
                    raise RemoteRefused(f"{self._url} sends what cannot be read: {error}.") from None

    async def _state(self, method: str, path: str, body: bytes | None = None) -> wire.State:
        async with self._answer(method, path, body) as response:
            try:
                return frames.read_json(await _body(response, wire.LONGEST), wire.State)
            except (msgspec.MsgspecError, ValueError) as error:
                raise RemoteRefused(f"{self._url} answers what cannot be read: {error}.") from None

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> AsyncGenerator[httpx2.Response, None]:
        """Send a request; whatever goes wrong while its answer is read is one of our own errors."""
        headers[wire.HEADER] = str(wire.VERSION)
        token = self._token()
        if isawaitable(token):
            token = await token
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        if (trace := tracing.text()) is not None:
            headers["traceparent"] = trace
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            async with self._client.stream(method, self._base + path, headers=headers, content=body) as response:
                await self._check(response)
                yield response
        except self._broken as error:
            why = str(error) or type(error).__name__
            raise Unavailable(f"{self._url} cannot be reached: {why}") from error

    async def _check(self, response: httpx2.Response) -> None:
        """Raise unless the answer is one of a server that does what we ask, and as we understand it."""
        status, speaks = response.status_code, response.headers.get(wire.HEADER)
        if status == UPGRADE or (response.is_success and speaks != str(wire.VERSION)):
            raise ProtocolMismatch(
                f"{self._url} speaks version {speaks or 'none'} of the protocol of remote runs, and this program "
                f"version {wire.VERSION}. Use the same release of sapwood on both sides."
            )
        if response.is_success:
            return
        trouble = _trouble(await _body(response, LONGEST_TROUBLE, cut=True))
        told = f"{self._url} answers {status}: {trouble.error}"
        if status in LATER:
            raise Unavailable(told)
        if status in NOT_LET_IN and trouble.code == UNSAID:  # else the agent itself refuses
            raise RemoteUnauthorized(f"{told} Look at the token, and at whom that server lets in.")
        if trouble.code == RemoteLost.code:
            raise RemoteLost(told)
        if status in NOT_THERE and trouble.code == UNSAID:
            told = f"{told} The url is that of a class, …/agents/researcher, which says run_by_url = True there."
        raise RemoteRefused(told)


async def _body(response: httpx2.Response, longest: int, *, cut: bool = False) -> bytes:
    """Return the body of a response; `ValueError` if it is longer than that, or only so much of it if `cut`."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > longest:
            if not cut:
                raise ValueError(f"it has more than {longest} bytes")
            break
    return b"".join(parts)[:longest]


def _trouble(body: bytes) -> wire.Trouble:
    """Return why a server refuses; what is not of a sapwood server's own is repeated, as far as it is short."""
    try:
        return frames.read_json(body, wire.Trouble)
    except msgspec.MsgspecError:
        text = body.decode(errors="replace")[:SHOWN].strip()
        return wire.Trouble(UNSAID, f"{text}." if text else "It does not say why.")


@functools.cache
def _trusted() -> Any:
    """Return whom TLS trusts; made once, since reading all certificates takes a while."""
    import httpx2

    return httpx2.create_ssl_context()
