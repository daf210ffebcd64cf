"""The process that copies files, durably: a program that imports nothing of sapwood, so that it starts at once.

It reads orders as lines of JSON, and answers each with a line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHUNK = 1024 * 1024
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
"""As those of `storage.files`."""


class _Unreadable(Exception):
    """A file cannot be read."""


def _copy(order: dict[str, Any]) -> int:
    _make_private_folder(Path(order["target"]))
    total = 0
    for part in order["parts"]:
        target = Path(order["target"], part["name"])
        _make_private_folder(target.parent)
        with open(target, "xb", opener=_open_private) as copy:
            copy.writelines(_chunks(Path(order["source"], part["name"]), part["length"]))
            total += copy.tell()
            copy.flush()
            if order["is_durable"]:
                os.fsync(copy.fileno())
    if not order["is_durable"]:
        return total
    for folder in {Path(order["target"], part["name"]).parent for part in order["parts"]} | {Path(order["target"])}:
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return total


def _make_private_folder(path: Path) -> None:
    if not path.parent.exists():
        _make_private_folder(path.parent)
    path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE_FILE)


def _chunks(path: Path, length: int | None) -> Iterator[bytes]:
    left = sys.maxsize if length is None else length
    try:
        with path.open("rb") as file:
            while left and (data := file.read(min(left, CHUNK))):
                yield data
                left -= len(data)
    except OSError as error:
        raise _Unreadable(f"The file {path.name} cannot be read: {error.strerror}.") from None


def _outcome(order: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"bytes": _copy(order)}
    except _Unreadable as error:
        return {"unreadable": str(error)}
    except OSError as error:
        return {"failed": str(error)}


def main() -> None:
    """Carry out the orders that are read, until there are no more."""
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(_outcome(json.loads(line))).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
