"""The options of `serve` and `dev`, and the address that they listen on."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sapwood.errors import UsageError
from sapwood.timings import DEFAULTS, Timings

LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of `serve` and `dev`. They are passed to another process, so they are plain values."""

    target: str
    host: str
    port: int
    insecure: bool = False
    dev: bool = False
    studio: bool = False
    data: str | None = None
    access_log: bool = False
    log: LogFormat = "text"
    log_level: str = "info"
    grace: float = 10.0
    workers: int | None = None
    pools: Mapping[str, int] = field(default_factory=dict[str, int])
    cluster: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings of a node of a cluster."""
    timings: Timings = DEFAULTS


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _reachable(host: str) -> str:
    """Return a host that this machine reaches itself by."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return host if address.version == 4 else f"[{host}]"


def url_of(options: ServeOptions, listening: socket.socket) -> str:
    return f"http://{_reachable(options.host)}:{listening.getsockname()[1]}"


def listen(options: ServeOptions) -> socket.socket:
    if not 0 <= options.port <= 65535:
        raise UsageError(f"--port must be a number from 0 to 65535, got {options.port}.")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
    except OSError as error:
        raise UsageError(
            f"Cannot listen on {options.host} port {options.port}: {error.strerror}. Choose another port with --port."
        ) from None
    return listening
