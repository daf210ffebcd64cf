"""Ports for servers of tests."""

from __future__ import annotations

import contextlib
import random
import socket

_random = random.Random()  # a test may have told the usual one where to begin


def free_ports(count: int) -> list[int]:
    """Return ports in a row that nobody uses now.

    They are below those that are given to whoever connects: nobody takes one while its server is ended and started
    again.
    """
    while True:
        first = _random.randrange(16_000, 32_000)
        ports = list(range(first, first + count))
        with contextlib.suppress(OSError):
            for port in ports:
                socket.create_server(("127.0.0.1", port)).close()
            return ports


def free_port() -> int:
    return free_ports(1)[0]
