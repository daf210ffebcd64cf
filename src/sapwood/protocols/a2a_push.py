"""Sends push notifications to URLs that clients gave, and to no host of a private network that they chose."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Container
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from sapwood.errors import Refused, Unavailable
from sapwood.protocols import a2a_wire as wire
from sapwood.protocols.a2a_wire import A2aError

TIMEOUT = 20.0
"""Seconds for one notification, with the search for its host."""
LONGEST_URL, LONGEST_ID, LONGEST_SECRET = 2048, 200, 8192
UNICAST, TRANSLATED, RELAYED = IPv6Network("2000::/3"), IPv6Network("64:ff9b::/96"), IPv6Network("2002::/16")
"""IPv6 addresses of hosts; and those that a router translates to IPv4 (NAT64), or wraps in it (6to4)."""
VISIBLE = re.compile(r"[!-~]+")
SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


async def check_config(config: wire.PushConfig, allowed: Container[str]) -> None:
    """Raise `A2aError` if notifications may not be sent as a client wants it."""
    if not config.url:
        raise A2aError(wire.INVALID_PARAMS, "The push notification configuration has no url.")
    if len(config.url) > LONGEST_URL or not VISIBLE.fullmatch(config.url):
        raise A2aError(wire.INVALID_PARAMS, f"The url must be ASCII, with at most {LONGEST_URL} characters.")
    if len(config.id) > LONGEST_ID:
        raise A2aError(wire.INVALID_PARAMS, f"The id of a configuration has at most {LONGEST_ID} characters.")
    asked = config.authentication
    secrets = (config.token, "" if asked is None else asked.credentials)
    if asked is not None and not SCHEME.fullmatch(asked.scheme):
        raise A2aError(wire.INVALID_PARAMS, "The scheme of the authentication must be a word, such as Bearer.")
    if any(len(one) > LONGEST_SECRET or not (one.isascii() and one.isprintable()) for one in secrets):
        raise A2aError(
            wire.INVALID_PARAMS,
            f"The token and the credentials must be printable ASCII, with at most {LONGEST_SECRET} characters.",
        )
    await refuse_private(config.url, allowed)


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
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError:
        host, parts, port = "", urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host:
        raise Refused("A push notification needs a valid URL with http or https.")
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port or (443 if parts.scheme == "https" else 80), type=socket.SOCK_STREAM)
    except OSError:
        raise Unavailable(f"The host {host[:80]!r} cannot be found.") from None
    addresses = [str(one[4][0]) for one in found]
    if host not in allowed and not all(map(_is_public, addresses)):
        raise Refused(
            f"Notifications are not sent to {host[:80]!r}, a host of a private network. An operator can "
            "allow it with A2a(push_hosts=…)."
        )
    return addresses[0]


def _is_public(text: str) -> bool:
    """Return whether an address is that of one public host."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:  # with the zone of a link
        return False
    if isinstance(address, IPv6Address):
        inner = IPv4Address(int(address) & 0xFFFFFFFF) if address in TRANSLATED else address.ipv4_mapped
        if inner is None:
            return address in UNICAST and address not in RELAYED and address.is_global
        address = inner
    return address.is_global and not address.is_multicast


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
    url = urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, ""))
    sent, name = msgspec.json.encode(body), {"sni_hostname": parts.hostname}
    try:
        async with (
            asyncio.timeout(TIMEOUT),
            httpx2.AsyncClient(timeout=TIMEOUT, follow_redirects=False) as client,
            client.stream("POST", url, content=sent, headers=headers, extensions=name) as response,
        ):
            status = response.status_code  # what it says is not read: it may never end
    except (httpx2.HTTPError, TimeoutError) as error:
        raise Unavailable(f"{parts.hostname} cannot be reached: {type(error).__name__}.") from None
    if status >= 300:
        raise Unavailable(f"{parts.hostname} answered {status}.")
