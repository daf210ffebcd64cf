"""The options of `serve` and `dev`, and the address that they listen on."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sapwood.errors import UsageError
from sapwood.timings import DEFAULTS, Timings

FIRST_FILE = 3
"""The first open file that systemd passes to a service."""
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


def activated_socket() -> socket.socket | None:
    """Return the listening socket that systemd has opened for this process. `None` if it has not."""
    variables = {name: os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    if variables["LISTEN_PID"] != str(os.getpid()):
        return None
    if variables["LISTEN_FDS"] != "1":
        raise UsageError(
            f"The socket unit must have one ListenStream with an address and a port, got {variables['LISTEN_FDS']}."
        )
    listening = socket.socket(fileno=FIRST_FILE)
    listening.set_inheritable(False)
    if listening.family not in (socket.AF_INET, socket.AF_INET6):
        raise UsageError("The socket unit must have a ListenStream with an address and a port.")
    return listening


def at_address_of(listening: socket.socket, options: ServeOptions) -> ServeOptions:
    """Return the options with the address that a socket really listens on, whatever the command line says."""
    host, port = listening.getsockname()[:2]
    return replace(options, host=host, port=port)


def listen(options: ServeOptions) -> socket.socket:
    """Return a socket that is bound to the address of the options."""
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
