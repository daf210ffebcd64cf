"""Which hosts are public: a URL that a client chose must not lead into the network of the server."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from urllib.parse import urlsplit

from sapwood.errors import Refused, Unavailable

UNICAST, TRANSLATED, RELAYED = IPv6Network("2000::/3"), IPv6Network("64:ff9b::/96"), IPv6Network("2002::/16")
"""IPv6 addresses of hosts; and those that a router translates to IPv4 (NAT64), or wraps in it (6to4)."""
ISATAP = b"\x5e\xfe"
"""In an interface id: an IPv4 address follows."""
PROTOCOL_ASSIGNMENTS = IPv4Network("192.0.0.0/24")
"""Special addresses, one of them the metadata of a cloud. Python 3.11 takes most of them for global ones."""
AZURE_PLATFORM = IPv4Address("168.63.129.16")
"""Serves credentials to Azure's virtual machines at a public address."""
INTERNAL_DOMAINS = ("localhost", "local", "internal", "intranet", "lan", "home.arpa")
"""Domains that name machines of a private network, whatever they resolve to."""
HOST_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)+")
SHOWN = 80
"""Characters of a host that an error quotes."""
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class HostRules:
    """Which hosts may be called for a purpose, and what an error says about the others."""

    purpose: str
    """What is sent, such as "Push notifications"."""
    remedy: str
    """A sentence that says how an operator allows a host of a private network."""
    allowed: Container[str] = field(default=())
    """Hosts of private networks that may be called, in lower case."""
    allows_private: bool = False
    """Whether all hosts may be called: for URLs that code of the app names."""


async def address_of(url: str, rules: HostRules) -> str:
    """Return an address of the host of a URL. Raises `Refused` unless the host may be called.

    Raises `Unavailable` if the host cannot be found now.
    """
    host, port = host_of(url, rules)
    return (await addresses_of(host, port, rules))[0]


def host_of(url: str, rules: HostRules) -> tuple[str, int]:
    """Return the host and the port of a URL. Raises `Refused` unless it is a valid one with http or https."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError:
        host, parts, port = "", urlsplit(""), None
    if parts.scheme not in PORTS or not host:
        raise Refused(f"{rules.purpose} need a valid URL with http or https.")
    return host, port or PORTS[parts.scheme]


async def addresses_of(host: str, port: int, rules: HostRules) -> list[str]:
    """Return the addresses of a host. Raises `Refused` if one of them is not public and the host is not allowed."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        raise Unavailable(f"The host {host[:SHOWN]!r} cannot be found.") from None
    addresses = [str(one[4][0]) for one in found]
    if not rules.allows_private and host not in rules.allowed and not all(map(is_public_address, addresses)):
        raise Refused(
            f"{rules.purpose} are not sent to {host[:SHOWN]!r}, a host of a private network. {rules.remedy}".strip()
        )
    return addresses


def is_public_address(text: str) -> bool:
    """Return whether an address is that of one public host, in each of the forms in which it can be written."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        inner = IPv4Address(int(address) & 0xFFFFFFFF) if address in TRANSLATED else address.ipv4_mapped
        if inner is None:
            is_wrapped = address in RELAYED or address.packed[10:12] == ISATAP
            return address in UNICAST and not is_wrapped and address.is_global
        address = inner
    is_special = address.is_multicast or address == AZURE_PLATFORM or address in PROTOCOL_ASSIGNMENTS
    return address.is_global and not is_special


def is_public_host(host: str) -> bool:
    """Return whether a host is a public address, or a name outside of the domains of private networks.

    Nothing is resolved: such a name may still lead to a private address.
    """
    if ":" in host:
        return is_public_address(host)
    host = host.lower().removesuffix(".")
    with suppress(OSError):
        packed = socket.inet_aton(host)  # 127.1, 0x7f.1 and 2130706433 are addresses too
        return str(IPv4Address(packed)) == host and is_public_address(host)
    is_internal = any(host == name or host.endswith(f".{name}") for name in INTERNAL_DOMAINS)
    return HOST_NAME.fullmatch(host) is not None and not is_internal
