"""Ports for servers of tests."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

FIRST, LAST = 16_000, 32_000
"""They are below those that the system gives to clients: no client takes one while its server restarts."""
BLOCK = 40

_random = random.Random()  # a test may have seeded the usual one
_left: list[int] = []
_locks: list[IO[str]] = []
"""The locks of the blocks that this process has taken; they are released when it ends."""


def free_ports(count: int) -> list[int]:
    """Return ports in a row that no other process of any test run uses or is about to use."""
    assert count <= BLOCK
    while True:
        while len(_left) < count:
            _left[:] = _take_block()
        ports = [_left.pop(0) for _ in range(count)]
        with contextlib.suppress(OSError):
            for port in ports:
                socket.create_server(("127.0.0.1", port)).close()
            return ports


def free_port() -> int:
    """Return one such port."""
    return free_ports(1)[0]


def _take_block() -> list[int]:
    """Return the ports of a block that no other process has taken."""
    folder = Path(tempfile.gettempdir()) / f"sapwood-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    while True:
        first = _random.randrange(FIRST, LAST, BLOCK)
        lock = (folder / str(first)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
        else:
            _locks.append(lock)
            return list(range(first, first + BLOCK))
