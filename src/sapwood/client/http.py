"""Requests of the client that need no socket."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

import msgspec

from sapwood.address import Address
from sapwood.errors import InvalidResult, MovedAway, NotFound, Refused, Unavailable, UsageError
from sapwood.wire import final_errors
from sapwood.wire.methods import ExposedMethod, MethodList

LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of servers that may answer otherwise later."""
NOT_FOUND = 404


async def get_methods(
    url: str, address: Address, headers: Mapping[str, str], timeout: float | None, options: Mapping[str, Any]
) -> list[ExposedMethod]:
    """Return the exposed methods of an agent. `options` are those of `connect`: `ssl` and `proxy` count."""
    try:
        import httpx2
    except ImportError:
        raise UsageError("Listing methods requires httpx2. Run: pip install 'sapwood[remote]'.") from None
    given, proxy = options.get("ssl"), options.get("proxy", True)
    trusted = given if isinstance(given, ssl.SSLContext) else await asyncio.to_thread(httpx2.create_ssl_context)
    how: dict[str, Any] = {"proxy": proxy if isinstance(proxy, str) else None, "trust_env": proxy is True}
    try:
        async with httpx2.AsyncClient(verify=trusted, timeout=timeout, **how) as client:
            response = await client.get(url, headers=dict(headers))
    except httpx2.RequestError as error:
        raise Unavailable(f"{address} cannot be reached: {str(error) or type(error).__name__}.") from error
    if not response.is_success:
        text = f"The server does not list the methods of {address}: it answers {response.status_code}."
        if (final := final_errors.KINDS.get(response.headers.get(final_errors.HEADER, ""))) is not None:
            raise final(response.text)
        if response.headers.get(final_errors.HEADER) == MovedAway.code:
            raise final_errors.moved_away(response.headers.get("location", ""))
        if response.status_code == NOT_FOUND:
            raise NotFound(text, path=address.segments)
        raise (Unavailable if response.status_code in LATER else Refused)(text)
    try:
        return msgspec.json.decode(response.content, type=MethodList).methods
    except msgspec.DecodeError as error:
        raise InvalidResult(f"The server does not list the methods of {address}: {error}.") from None
