"""Copies the files of a tree as they were at one moment, while it runs on.

A write-ahead log only grows between two checkpoints. So the state of all databases at
one moment is: each file as it is, and the first so many bytes of each log, as long as
no task checkpoints or removes a file during it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import msgspec

from sapwood.errors import Unavailable
from sapwood.storage.files import make_private_folder, open_private

CHUNK = 1024 * 1024


class Part(msgspec.Struct, frozen=True):
    """One file of a copy: its name, and how much of it."""

    name: str
    length: int | None = None
    """None: all of it."""


class Order(msgspec.Struct, frozen=True):
    """What to copy where."""

    source: str
    target: str
    parts: list[Part]


async def copy_elsewhere(order: Order) -> int:
    """Copy in a process of its own, durably; return how many bytes that were.

    Not in this process: closing a database file would drop the locks that SQLite holds on it.
    """
    copier = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sapwood.storage.copies",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, trouble = await copier.communicate(msgspec.json.encode(order))
    except BaseException:
        copier.kill()
        raise
    if copier.returncode != 0:
        raise Unavailable(f"Copying to {order.target!r} failed: {trouble.decode().strip().splitlines()[-1]}")
    return int(out)


def _copy(order: Order) -> int:
    make_private_folder(Path(order.target))
    total = 0
    for part in order.parts:
        target = Path(order.target, part.name)
        with Path(order.source, part.name).open("rb") as original, open_private(target, "xb") as copy:
            if part.length is None:
                shutil.copyfileobj(original, copy, CHUNK)
            else:
                left = part.length
                while left and (data := original.read(min(left, CHUNK))):
                    copy.write(data)
                    left -= len(data)
            total += copy.tell()
            copy.flush()
            os.fsync(copy.fileno())
    descriptor = os.open(order.target, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return total


if __name__ == "__main__":
    sys.stdout.write(str(_copy(msgspec.json.decode(sys.stdin.buffer.read(), type=Order))))
