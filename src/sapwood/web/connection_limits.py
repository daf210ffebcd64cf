"""Limits on open connections, for the process and for each remote address, that hold before authentication.

A connection that waits for a request, or for a client that does not answer the end of its WebSocket, costs a
descriptor and does nothing. At a limit, the connection that has waited longest is closed, and the new one takes its
place: clients that send their request at once are answered while others hold connections open. Where no connection
waits, the new one is refused.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable, Container
from functools import lru_cache
from typing import Protocol

log = logging.getLogger("sapwood.server")

IPV6_PREFIX = 64
"""Bits of an IPv6 address that count: one customer of a provider has at least all addresses behind them."""
PROCESS, ADDRESS = "process", "address"


class IdleConnection(Protocol):
    """A connection that can be closed while it waits for its client."""

    def close_waiting(self) -> None:
        """Close it."""
        ...


class ConnectionLimits:
    """Counts the connections of one process. `trusted` addresses have no limit of their own: proxies, this machine."""

    def __init__(
        self,
        total: int,
        per_address: int,
        trusted: Container[str] = (),
        *,
        log_interval: float = 10.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = {PROCESS: total, ADDRESS: per_address}
        self._trusted = trusted
        self._log_interval = log_interval
        self._now = now
        self._total = 0
        self._counts: Counter[str] = Counter()
        self._waiting: dict[str, dict[IdleConnection, None]] = {}
        """By address, those that have waited longest first."""
        self._all_waiting: dict[IdleConnection, str] = {}
        """The same of all addresses, with the address."""
        self._hits = {PROCESS: Counter[str](), ADDRESS: Counter[str]()}
        """What happened at each limit since the last log line."""
        self._log_after = {PROCESS: 0.0, ADDRESS: 0.0}

    def enter(self, host: str) -> tuple[str | None, str]:
        """Count a new connection. Returns its key, `None` if it is refused, and the limit that refuses it."""
        key = address_key(host)
        is_full = self._counts[key] >= self._limits[ADDRESS] and self._is_limited(host)
        if is_full and not self._close_longest(self._waiting.get(key), ADDRESS, host):
            return None, ADDRESS
        if self._total >= self._limits[PROCESS] and not self._close_longest(self._all_waiting, PROCESS, host):
            return None, PROCESS
        self._total += 1
        self._counts[key] += 1
        return key, ""

    def leave(self, connection: IdleConnection, key: str) -> None:
        """Count a connection no more: it was closed."""
        self.busy(connection)
        self._total -= 1
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]

    def wait(self, connection: IdleConnection, key: str) -> None:
        """Note that a connection waits for a request from now on."""
        if connection not in self._all_waiting:
            self._all_waiting[connection] = key
            self._waiting.setdefault(key, {})[connection] = None

    def busy(self, connection: IdleConnection) -> None:
        """Note that a connection has sent a request, or is gone."""
        key = self._all_waiting.pop(connection, None)
        if key is not None:
            of_address = self._waiting[key]
            del of_address[connection]
            if not of_address:
                del self._waiting[key]

    def _is_limited(self, host: str) -> bool:
        return bool(host) and not is_loopback_address(host) and host not in self._trusted

    def _close_longest(
        self, waiting: dict[IdleConnection, None] | dict[IdleConnection, str] | None, limit: str, host: str
    ) -> bool:
        """Close the connection that has waited longest. Returns `False` if none waits."""
        longest = next(iter(waiting), None) if waiting else None
        self._hits[limit]["refused" if longest is None else "closed"] += 1
        self._report(limit, host)
        if longest is None:
            return False
        self.busy(longest)
        longest.close_waiting()
        return True

    def _report(self, limit: str, host: str) -> None:
        now, hits = self._now(), self._hits[limit]
        if now < self._log_after[limit]:
            return
        log.warning(
            "connection limit reached scope=%s limit=%d refused=%d closed_waiting=%d last_address=%s",
            limit,
            self._limits[limit],
            hits["refused"],
            hits["closed"],
            host,
        )
        hits.clear()
        self._log_after[limit] = now + self._log_interval


@lru_cache(maxsize=4096)
def address_key(host: str) -> str:
    """Return what connections and requests of one remote address are counted under."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return str(ipaddress.ip_network((address, IPV6_PREFIX), strict=False))


@lru_cache(maxsize=4096)
def is_loopback_address(host: str) -> bool:
    """Return whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
