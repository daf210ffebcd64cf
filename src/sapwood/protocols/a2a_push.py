"""Sends push notifications to URLs that clients gave, and to no host of a private network that they chose."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Container
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from sapwood.errors import Refused, Unavailable
from sapwood.protocols import a2a_wire as wire
from sapwood.protocols.a2a_wire import A2aError

TIMEOUT = 20.0


async def refuse_private(url: str, allowed: Container[str]) -> None:
    """Raise `A2aError` if notifications may not be sent to a URL. A host that cannot be found now may be later."""
    try:
        await _address_of(url, allowed)
    except Refused as error:
        raise A2aError(wire.INVALID_PARAMS, str(error)) from None
    except Unavailable:
        pass


async def _address_of(url: str, allowed: Container[str]) -> str:
    """Return the address of the host of a URL, of which every address must be public."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused("A push notification needs a URL with http or https.")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        raise Unavailable(f"The host {parts.hostname[:80]!r} cannot be found.") from None
    addresses = [str(one[4][0]) for one in found]
    if parts.hostname not in allowed and not all(ipaddress.ip_address(one).is_global for one in addresses):
        raise Refused(
            f"Notifications are not sent to {parts.hostname[:80]!r}, a host of a private network. An operator can "
            "allow it with A2a(push_hosts=…)."
        )
    return addresses[0]


async def deliver(config: wire.PushConfig, body: Any, allowed: Container[str]) -> None:
    """Send a notification; raise if it was not accepted, so that it is sent again."""
    import httpx2

    parts = urlsplit(config.url)
    assert parts.hostname is not None
    address = await _address_of(config.url, allowed)
    # The address that was checked is the one that is called: its name may lead elsewhere by now.
    host = f"[{address}]" if ":" in address else address
    netloc = host if parts.port is None else f"{host}:{parts.port}"
    headers = {"content-type": "application/json", "host": parts.netloc.rpartition("@")[2]}
    if config.token:
        headers[wire.TOKEN_HEADER] = config.token
    if config.authentication is not None:
        headers["authorization"] = f"{config.authentication.scheme} {config.authentication.credentials}".strip()
    async with httpx2.AsyncClient(timeout=TIMEOUT, follow_redirects=False) as client:
        try:
            response = await client.post(
                urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, "")),
                content=msgspec.json.encode(body),
                headers=headers,
                extensions={"sni_hostname": parts.hostname},
            )
        except httpx2.HTTPError as error:
            raise Unavailable(f"{parts.hostname} cannot be reached: {type(error).__name__}.") from None
    if response.status_code >= 300:
        raise Unavailable(f"{parts.hostname} answered {response.status_code}.")
