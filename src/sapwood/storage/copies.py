"""Copies the files of a tree as they were at one moment, while it runs on.

A write-ahead log only grows between two checkpoints. So the state of all databases at
one moment is: each file as it is, and the first so many bytes of each log, as long as
no task checkpoints or removes a file during it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Self

import msgspec

from sapwood.errors import StoredDataError, Unavailable
from sapwood.storage import copy_process


class FilePart(msgspec.Struct, frozen=True):
    """One file of a copy: its path below the source, and how much of it."""

    name: str
    length: int | None = None
    """None: all of it."""


class Order(msgspec.Struct, frozen=True):
    """What to copy where."""

    source: str
    target: str
    parts: list[FilePart]
    is_durable: bool = True
    """Whether the copies must survive a loss of power when the order is done."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of an order."""

    bytes: int = 0
    unreadable: str | None = None
    """Which file cannot be read, and why."""
    failed: str | None = None
    """Why a copy cannot be written."""


class Copier:
    """Copies in a separate process, durably, one order after the other.

    Not in this process: closing a database file would drop the locks that SQLite holds on it.
    """

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()

    async def copy(self, order: Order) -> int:
        """Copy files, and return how many bytes that were.

        `StoredDataError` if a file cannot be read, `Unavailable` if a copy cannot be written.
        """
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                copy_process.__file__,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=copy_process.CHUNK,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise Unavailable(f"Copying to {order.target!r} failed: the process that copies was killed.")
        outcome = msgspec.json.decode(line, type=Outcome)
        if outcome.unreadable is not None:
            raise StoredDataError(outcome.unreadable)
        if outcome.failed is not None:
            raise Unavailable(f"Copying to {order.target!r} failed: {outcome.failed}")
        return outcome.bytes


async def copy_elsewhere(order: Order, copier: Copier) -> int:
    """Copy the files of a tree; return how many bytes that were."""
    return await copier.copy(order)
