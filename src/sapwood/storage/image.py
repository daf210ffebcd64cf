"""What a database file is before anything was written to it, and what a loss of power may leave of that."""

# apsw's own stubs name a type that Python has only from 3.12, so to 3.11 its values are unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
from pathlib import Path

import apsw

from sapwood.storage.engine import CHECKSUM, page_checksum

PAGE_SIZE = 2048
WAL_HEADER, FRAME_HEADER = 32, 24
SECTOR = 512


def wal_bytes(frames: int) -> int:
    """Return how long a write-ahead log of so many frames is."""
    return WAL_HEADER + frames * (FRAME_HEADER + PAGE_SIZE) if frames else 0


@functools.cache
def empty_image() -> bytes:
    """Return a new database as bytes: WAL mode, our page size, page checksums, the one table every file has."""
    memory = apsw.Connection(":memory:")
    memory.reserve_bytes(reserve=CHECKSUM)
    memory.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    memory.execute((Path(__file__).parent / "base.sql").read_text())
    image = bytearray(memory.serialize("main"))
    memory.close()
    image[18] = image[19] = 2  # the header's mark of WAL mode
    for end in range(PAGE_SIZE, len(image) + 1, PAGE_SIZE):
        image[end - CHECKSUM : end] = page_checksum(image[end - PAGE_SIZE : end])
    return bytes(image)


def is_cut(content: bytes) -> bool:
    """Return whether a file is the empty image with sectors missing."""
    image = empty_image()
    sectors = [(content[at : at + SECTOR], image[at : at + SECTOR]) for at in range(0, len(image), SECTOR)]
    return content != image and all(whole.startswith(left) or not any(left) for left, whole in sectors)
