"""How far each database of a tree was written: the file `marks` in the folder of the tree.

A database that is behind its mark has lost something that was there, and a missing file that has a mark was there once.
Marks are written when a database is closed and every few seconds while it is written, never before the commits that
they name. So a database may be ahead of its mark.

A mark counts in the boot of the machine in which it was written. A mark that was written after a sync counts for good:
what it names survives a loss of power. Other marks of an earlier boot say only what was there before.

The file is a hash table of fixed slots, each with a checksum. A file or a slot that cannot be read is as if it was not
there.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple, Self

from sapwood.storage.engine import checksum
from sapwood.storage.files import Files
from sapwood.storage.image import FRAME_HEADER, PAGE_SIZE, WAL_HEADER, wal_bytes

log = logging.getLogger(__name__)

MARKS = "marks"
"""The name of the file."""
SMALLEST = 16
"""Slots of a new file. The first one is the header."""
AHEAD = 64
"""Frames behind the end of a write-ahead log that are searched for commits."""
NEXT = 4
"""The same for a log that ends where its mark says: mostly it was closed there."""
CLEARED_AT_ONCE = 1024 * 1024
"""Bytes of a log that are overwritten at once."""
SLOT = 32
FREE = bytes(SLOT)
MAGIC = b"sapmarks"
DURABLE, REMOVED = 1, 2

_slot = struct.Struct("<8s5I")
"""The key, then the fields of a mark. The header: the magic bytes, how many slots are used, how many there are."""
_frame = struct.Struct(">I").unpack_from


class Mark(NamedTuple):
    """How far a database was written."""

    generation: int
    """How often its write-ahead log began from the start."""
    frames: int
    """Frames of the log that the file lacks."""
    pages: int
    """Pages of the file. It never shrinks."""
    version: int
    """How often the log was copied into the file, as its header says."""
    boot: int
    """The boot of the machine in which this was written."""
    is_durable: bool
    """Whether it was written after a sync."""

    def counts(self, boot: int) -> bool:
        """Return whether the database must still be as far in this boot of the machine."""
        return self.is_durable or self.boot == boot


def stored_version(path: Path) -> int:
    """Return how often the log was copied into a file. SQLite may not have it open: its locks would be dropped."""
    return int.from_bytes(_read(path, 60, 4), "big")


def position(path: Path, frames: int, version: int, boot: int, *, is_durable: bool) -> Mark:
    """Return how far a database is written whose file lacks so many frames of its log."""
    generation = generation_of(path, frames) or 0
    return Mark(generation, frames, path.stat().st_size // PAGE_SIZE, version, boot, is_durable)


def loss(mark: Mark, path: Path, generation: int | None, frames: int, version: int, boot: int) -> str | None:
    """Return what a database lacks of what its mark names, or `None` if it lacks nothing.

    `generation`: that of its log, if there is one. `frames`: how many of its frames SQLite finds intact.
    """
    pages = path.stat().st_size // PAGE_SIZE
    if pages < mark.pages:
        return f"the file has {pages} pages and had {mark.pages}"
    if version < mark.version:
        return "the file is an older copy"
    if generation is None:
        return f"its write-ahead log with {mark.frames} frames is missing or damaged" if mark.frames else None
    if (generation, frames) < (mark.generation, mark.frames):
        if generation == mark.generation:
            return f"its write-ahead log has {frames} intact frames and had {mark.frames}"
        return "its write-ahead log is an older copy, or damaged"
    ahead = AHEAD if frames != mark.frames else NEXT
    if mark.boot == boot and _has_commit_after(_wal(path), frames, ahead):
        return f"its write-ahead log is damaged at frame {frames + 1}, and intact commits follow"
    return None


def _wal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def generation_of(path: Path, frames: int) -> int | None:
    """Return how often the log of a database began from the start, or `None` if it has none with an intact header.

    `frames`: how many of its frames SQLite finds intact.
    """
    try:
        header = _read(_wal(path), 0, WAL_HEADER)
    except FileNotFoundError:
        return None
    if len(header) < WAL_HEADER:
        return None
    if frames:
        return int.from_bytes(header[12:16], "big")  # with a damaged header SQLite finds none
    return int.from_bytes(header[12:16], "big") if _checksum(header, header[:24]) == header[24:] else None


def _checksum(header: bytes, content: bytes, before: bytes = bytes(8)) -> bytes:
    """Return the checksum of a part of a log that follows one with this checksum, as SQLite computes it."""
    order = ">" if header[3] & 1 else "<"
    pairs = struct.iter_unpack(f"{order}2I", content)
    return struct.pack(">2I", *checksum(pairs, struct.unpack(">2I", before)))


def clear_log_after(path: Path, frames: int, files: Files) -> None:
    """Overwrite what a power loss left behind the end of a log: it is not damage, and would look like it later."""
    log, begin = _wal(path), wal_bytes(frames) or WAL_HEADER
    size = log.stat().st_size if log.exists() else 0
    for place in range(begin, size, CLEARED_AT_ONCE):
        files.write_at(log, place, bytes(min(CLEARED_AT_ONCE, size - place)))


def _has_commit_after(wal: Path, frames: int, ahead: int) -> bool:
    """Return whether intact commits of the same generation are among the frames behind the end of a log."""
    # Without a loss of power a log is torn at its end at most. What is left there of earlier generations has other
    # salts, and what was rolled back has no frame that ends a commit. A process that is killed may leave the header of
    # such a frame without its page, also behind shorter commits that were written later: its checksum fits nothing.
    begin, size = wal_bytes(frames) or WAL_HEADER, FRAME_HEADER + PAGE_SIZE
    if wal.stat().st_size <= begin:
        return False
    header, found = _read(wal, 0, WAL_HEADER), _read(wal, begin, ahead * size)
    salts = header[16:24]
    behind = [found[at : at + size] for at in range(0, len(found) - size + 1, size)]
    last = header[24:] if frames == 0 else _read(wal, begin - size + 16, 8)
    stored = [last, *(one[16:24] for one in behind)]  # the checksum before each frame

    def after(one: bytes, before: bytes) -> bytes:
        """Return the checksum of a frame that follows one with this checksum."""
        return _checksum(header, one[:8] + one[FRAME_HEADER:], before)

    for at, one in enumerate(behind):
        if one[8:16] != salts or not _frame(one, 4)[0]:
            continue
        if at:  # of the frame before, perhaps only its checksum is damaged, or all but that
            whole = after(behind[at - 1], stored[at - 1])
            if one[16:24] in (after(one, stored[at]), after(one, whole)):
                return True
        following = behind[at + 1] if at + 1 < len(behind) else b""
        if following[8:16] == salts and following[16:24] == after(following, one[16:24]):
            return True
    return False


def _read(path: Path, place: int, length: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, length, place)
    finally:
        os.close(descriptor)


class Marks:
    """The marks of one tree, or of a node's index."""

    __slots__ = ("_files", "_path", "_reported")

    def __init__(self, folder: Path, files: Files, name: str = MARKS) -> None:
        self._path = folder / name
        self._files = files
        self._reported = False

    def find(self, stem: str) -> Mark | None:
        """Return the mark of a database, or `None` if it has none."""
        try:
            with _Table(self._path) as table:
                _, content = table.find(_key(stem))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._report(error)
            return None
        if content == FREE:
            return None
        if not _is_whole(content):
            self._report("a mark does not match its checksum")
            return None
        return None if _slot.unpack_from(content)[5] & REMOVED else _mark(content)

    def write(self, stem: str, mark: Mark) -> None:
        """Store the mark of a database. If that fails it is logged: a database may be ahead of its mark."""
        key, flags = _key(stem), mark.boot << 2 | (DURABLE if mark.is_durable else 0)
        self._put(key, _sealed(key, mark.generation, mark.frames, mark.pages, mark.version, flags))

    def sync(self) -> None:
        """Return when the marks are on the disk."""
        try:
            self._files.sync_file(self._path)
        except OSError as error:
            self._report(error)

    def remove(self, stem: str) -> None:
        """Forget a database whose file is about to be removed."""
        if self.find(stem) is not None:
            self._put(_key(stem), _sealed(_key(stem), 0, 0, 0, 0, REMOVED))

    def _put(self, key: bytes, content: bytes) -> None:
        try:
            try:
                with _Table(self._path) as table:
                    place, there = table.find(key)
                    used = table.used + (there == FREE)
                    others = table.all() if used > table.slots // 2 else None
            except (FileNotFoundError, ValueError) as error:
                if isinstance(error, ValueError):
                    self._report(error)
                self._make([content])
                return
            if others is not None:
                self._make([*others, content])
                return
            self._files.write_at(self._path, place * SLOT, content)
            if there == FREE:
                self._files.write_at(self._path, 0, _sealed(MAGIC, used, table.slots))
        except OSError as error:
            self._report(error)

    def _make(self, contents: list[bytes]) -> None:
        """Write a new table with room for more."""
        slots = SMALLEST
        while slots < 4 * len(contents):
            slots *= 2
        table = [FREE] * slots
        table[0] = _sealed(MAGIC, len(contents), slots)
        for content in contents:
            place = _home(content[:8], slots)
            while table[place] != FREE:
                place = place % (slots - 1) + 1
            table[place] = content
        if not self._path.exists():
            self._files.close(self._files.create(self._path, b"".join(table)))
            return
        half = self._path.with_name(f"{self._path.name}.new")
        self._files.remove(half)
        self._files.close(self._files.create(half, b"".join(table)))
        self._files.rename(half, self._path)

    def _report(self, why: object) -> None:
        if not self._reported:
            log.warning("marks unreadable, losses since then are not noticed path=%s error=%s", self._path, why)
            self._reported = True


class _Table:
    """The file, open to be read."""

    __slots__ = ("_descriptor", "_first", "slots", "used")

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._first = os.pread(self._descriptor, SMALLEST * SLOT, 0)
        header = self._first[:SLOT]
        if not _is_whole(header) or not header.startswith(MAGIC):
            os.close(self._descriptor)
            raise ValueError("it has no valid header")
        _, self.used, self.slots, *_ = _slot.unpack_from(header)
        size = len(self._first) if self.slots == SMALLEST else os.fstat(self._descriptor).st_size
        if size != self.slots * SLOT:
            os.close(self._descriptor)
            raise ValueError(f"it has {size} bytes and had {self.slots * SLOT}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._descriptor)

    def find(self, key: bytes) -> tuple[int, bytes]:
        """Return the place of a key and what is there; if the key is missing, the free place for it."""
        place = _home(key, self.slots)
        for _ in range(self.slots):
            if place < SMALLEST:
                content = self._first[place * SLOT : (place + 1) * SLOT]
            else:
                content = os.pread(self._descriptor, SLOT, place * SLOT)
            if content[:8] == key or content == FREE:
                return place, content
            place = place % (self.slots - 1) + 1
        raise ValueError("it is full")

    def all(self) -> list[bytes]:
        """Return every slot that holds a mark."""
        whole = os.pread(self._descriptor, self.slots * SLOT, 0)
        found = [whole[at : at + SLOT] for at in range(SLOT, len(whole), SLOT)]
        return [one for one in found if one != FREE and _is_whole(one) and not _slot.unpack_from(one)[5] & REMOVED]


def _mark(content: bytes) -> Mark:
    _, generation, frames, pages, version, flags = _slot.unpack_from(content)
    return Mark(generation, frames, pages, version, flags >> 2, bool(flags & DURABLE))


def _key(stem: str) -> bytes:
    return hashlib.blake2b(stem.encode(), digest_size=8).digest()


def _home(key: bytes, slots: int) -> int:
    return int.from_bytes(key, "little") % (slots - 1) + 1


def _sealed(key: bytes, *fields: int) -> bytes:
    content = _slot.pack(key, *fields, *[0] * (5 - len(fields)))
    return content + zlib.crc32(content).to_bytes(4, "little")


def _is_whole(content: bytes) -> bool:
    return len(content) == SLOT and zlib.crc32(content[:-4]).to_bytes(4, "little") == content[-4:]
