"""Copies the files of a tree as they were at one moment, while it runs on.

A write-ahead log only grows between two checkpoints. So the state of all databases at
one moment is: each file as it is, and the first so many bytes of each log, as long as
no task checkpoints or removes a file during it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from sapwood.errors import StoredDataError, Unavailable
from sapwood.storage.files import make_private_folder, open_private

CHUNK = 1024 * 1024


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


class Outcome(msgspec.Struct, frozen=True):
    """What became of an order."""

    bytes: int = 0
    unreadable: str | None = None
    """Which file cannot be read, and why."""
    failed: str | None = None
    """Why a copy cannot be written."""


class Copier:
    """Copies in a separate process, durably, one order after the other.

    Not in this process: closing a database file would drop the locks that SQLite holds on it. It takes long to start,
    so there is one for many trees.
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
                "-c",
                "from sapwood.storage.copies import main; main()",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=CHUNK,
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


class _Unreadable(Exception):
    """A file cannot be read."""


def _copy(order: Order) -> int:
    make_private_folder(Path(order.target))
    total = 0
    for part in order.parts:
        target = Path(order.target, part.name)
        make_private_folder(target.parent)
        with open_private(target, "xb") as copy:
            for data in _chunks(Path(order.source, part.name), part.length):
                copy.write(data)
            total += copy.tell()
            copy.flush()
            os.fsync(copy.fileno())
    for folder in {Path(order.target, part.name).parent for part in order.parts} | {Path(order.target)}:
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return total


def _chunks(path: Path, length: int | None) -> Iterator[bytes]:
    left = sys.maxsize if length is None else length
    try:
        with path.open("rb") as file:
            while left and (data := file.read(min(left, CHUNK))):
                yield data
                left -= len(data)
    except OSError as error:
        raise _Unreadable(f"The file {path.name} cannot be read: {error.strerror}.") from None


def _outcome(order: Order) -> Outcome:
    try:
        return Outcome(_copy(order))
    except _Unreadable as error:
        return Outcome(unreadable=str(error))
    except OSError as error:
        return Outcome(failed=str(error))


def main() -> None:
    """Carry out the orders that are read, until there are no more."""
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(_outcome(msgspec.json.decode(line, type=Order))) + b"\n")
        sys.stdout.buffer.flush()
