"""Writes the past of one tree: on the thread of the history, one job after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from sapwood.kernel.history.deltas import PageImages
from sapwood.kernel.history.images import DatabaseImage
from sapwood.kernel.history.removed_files import sweep_removed
from sapwood.kernel.history.segments import (
    CLOSED_SIZE,
    MAGIC,
    MOMENT,
    PAGES,
    PART,
    ClosedState,
    MomentName,
    begun_at,
    encode_closed,
    encode_line,
    encode_name,
    number_of,
    reopen,
    segment_path,
    segments_in,
)
from sapwood.kernel.log.records import Change, Message, program, seal
from sapwood.kernel.log.writer import Batch
from sapwood.storage.files import Files, make_private_folder
from sapwood.storage.image import PAGE_SIZE

LABEL = "address"
"""The file in the folder that says whose past it is."""
MESSAGE_PAGES = 1024
"""Pages in one message."""
NAMES = 1000
"""Removed files in one message."""
BASE_FACTOR = 16
"""How many times the size of its base a segment may have before there is a new base."""
SMALLEST_BASE = 64 * 1024
"""Bytes that a smaller base counts as."""


class Retention(NamedTuple):
    """How much of the past is kept."""

    seconds: float
    max_bytes: int
    base_interval: float
    """Seconds after which there is a new base."""


class Chain:
    """The segments of one tree, as they are appended to."""

    def __init__(self, folder: Path, root: str, files: Files, images: PageImages) -> None:
        self.folder = folder
        self.root = root
        self._images = images
        self._key = object()
        """Stands for the segment among the images."""
        self._files = files
        self._lock = threading.Lock()
        self._placing = threading.Lock()
        """Held while one piece is written, and while it changes where to. The loop may wait for it."""
        self._is_relocated = False
        """Whether the tree has another address now: what is in the queue is written, and no base begins."""
        self._segment: Path | None = None
        self._sequence = 0
        self._digest = b""
        self._base_size = 0
        self._size = 0
        self._begun = 0.0
        self._may_close = False
        """Whether nothing was committed since the last job was put into the queue."""
        self.is_closed = False
        """Whether the last segment ends with the line that says so."""
        self.is_over = False
        """Whether nothing may be written any more: the tree was destroyed."""
        self.has_failed = False
        """Whether something was not written, so that nothing that follows it can be."""

    def continue_from(self, segment: Path, state: ClosedState) -> None:
        """Continue a segment, on the loop: until it is closed again, a crash shows."""
        reopen(segment)
        self._segment, self._sequence, self._digest = segment, state.sequence, state.digest
        self._base_size, self._size = state.base_size, segment.stat().st_size
        begun = begun_at(segment)
        self._begun = state.at if begun is None else begun

    def reopened(self) -> None:
        """The tree is in use again; on the loop."""
        with self._lock:
            self._may_close = False
            if self.is_closed and self._segment is not None:
                reopen(self._segment)
                self._size -= CLOSED_SIZE
            self.is_closed = False

    def allow_close(self) -> None:
        """The tree is not in use; on the loop."""
        with self._lock:
            self._may_close = True

    def close(self, files: bytes, at: float) -> None:
        """Say that everything was recorded, unless the tree is in use again."""
        with self._lock:
            if self.is_over or self.has_failed or self._segment is None or not self._may_close or self.is_closed:
                return
            line = encode_closed(ClosedState(self._sequence, at, self._digest, files, self._base_size))
            self._files.append(self._segment, line)
            self._size += len(line)
            self.is_closed = True

    def add(self, batch: Batch, at: float, names: Sequence[MomentName], now: float, retention: Retention) -> bool:
        """Append what was committed, and the names of the moment after it. Returns whether a new base is due."""
        return not (self.is_over or self.has_failed) and self._add(batch, at, names, now, retention)

    def _add(self, batch: Batch, at: float, names: Sequence[MomentName], now: float, retention: Retention) -> bool:
        if self._segment is None:
            self._begin(1)
        lines: list[bytes] = []
        sequence, digest = self._sequence, self._digest
        if batch.files or batch.removed:
            removed = sorted(batch.removed)
            groups = [removed[place : place + NAMES] for place in range(0, len(removed), NAMES)] or [[]]
            parts = [list[Change]() for _ in groups[1:]] + batch.changes(MESSAGE_PAGES)
            for number, changes in enumerate(parts):
                gone = groups[number] if number < len(groups) else []
                message = self._message(sequence, digest, at, changes, gone, number, len(parts))
                _, digest = seal(message)
                sequence += 1
                kind = PAGES if number == len(parts) - 1 else PART
                lines.append(encode_line(kind, sequence, at, self._images.encode(self._key, message, digest)))
        if sequence:
            lines += [encode_line(MOMENT, sequence, now, encode_name(name)) for name in names]
        if lines:
            self._append(lines)
            self._sequence, self._digest = sequence, digest
        self._begun = self._begun or at
        is_large = self._size > BASE_FACTOR * max(self._base_size, SMALLEST_BASE) or (
            self._size > retention.max_bytes // 2 and self._size > 2 * self._base_size
        )
        return is_large or now >= self._begun + min(retention.base_interval, max(retention.seconds, 1.0))

    def begin_base(self, images: Iterable[DatabaseImage], at: float, retention: Retention) -> None:
        """Begin a segment with all files of the tree, and remove what is older than the past that is kept."""
        if self.is_over or self._is_relocated:
            return
        self.has_failed = False
        older = segments_in(self.folder)
        number = number_of(older[-1]) + 1 if older else 1
        try:
            self._begin(number)
            self._begun = at
            for image in images:
                first = 1
                for content in image.ranges:
                    if self.is_over:
                        return
                    numbers = list(range(first, first + len(content) // PAGE_SIZE))
                    change = Change(image.stem, PAGE_SIZE, image.size, numbers, content, is_new=first == 1)
                    self._append_message(PART, at, [change])
                    first += len(numbers)
                if first == 1:
                    self._append_message(PART, at, [Change(image.stem, PAGE_SIZE, 0, [], b"", is_new=True)])
            self._append_message(PAGES, at, [])
        except BaseException:
            self.has_failed = True
            self._files.remove(segment_path(self.folder, number))
            raise
        self._base_size = self._size
        remove_old(self.folder, at, retention)
        sweep_removed(self.folder, at - retention.seconds, retention.max_bytes)

    def end(self) -> None:
        """Write nothing any more: the past is about to be removed."""
        self.is_over = True
        with self._placing, self._lock:
            pass  # the piece that is being written is written; no other one is

    def relocate(self, folder: Path, root: str, rename: Callable[[], None]) -> None:
        """Have `rename` give the folder another name; on the loop. What is in the queue is written there."""
        with self._placing, self._lock:
            rename()
            if folder != self.folder and not self.folder.exists():
                self.folder, self.root, self._is_relocated, self._may_close = folder, root, True, False
                self._segment = None if self._segment is None else folder / self._segment.name

    def fail(self) -> None:
        """Write nothing before the next base. What is cut short at the end is never continued."""
        self.has_failed = True

    def _begin(self, number: int) -> None:
        with self._placing:
            if self.is_over or (self._is_relocated and segments_in(self.folder)):
                self.is_over = True
                return
            if not (self.folder / LABEL).exists():
                make_private_folder(self.folder)
                self._files.close(self._files.create(self.folder / LABEL, self.root.encode()))
            segment = segment_path(self.folder, number)
            self._files.close(self._files.create(segment, MAGIC))
        self._segment, self._sequence, self._size, self._base_size = segment, 0, len(MAGIC), 0
        self._begun = 0.0
        self._key = object()
        self.is_closed = False

    def _append_message(self, kind: int, at: float, changes: list[Change]) -> None:
        message = self._message(self._sequence, self._digest, at, changes, [], 0, 1)
        _, digest = seal(message)
        self._append([encode_line(kind, self._sequence + 1, at, PageImages().encode(None, message, digest))])
        self._sequence, self._digest = self._sequence + 1, digest

    def _message(
        self, previous: int, before: bytes, at: float, changes: list[Change], removed: list[str], part: int, parts: int
    ) -> Message:
        return Message(
            root=self.root,
            epoch=1,
            previous=previous if part == 0 else 0,
            before=before,
            at=at,
            version=program(),
            parts=parts,
            part=part,
            changes=changes,
            removed=removed,
        )

    def _append(self, lines: list[bytes]) -> None:
        content = b"".join(lines)
        with self._placing:
            if self.is_over:
                return
            assert self._segment is not None
            self._files.append(self._segment, content)
        self._size += len(content)


def remove_old(folder: Path, now: float, retention: Retention) -> None:
    """Remove the segments of a tree whose last state is older than the past that is kept, and the oldest above the
    limit on bytes. The last segment stays."""
    segments = segments_in(folder)
    sizes = [segment.stat().st_size for segment in segments]
    total = sum(sizes)
    for segment, size, after in zip(segments, sizes, segments[1:], strict=False):
        begun = begun_at(after)
        is_old = begun is not None and begun <= now - retention.seconds
        if not is_old and total <= retention.max_bytes:
            return
        segment.unlink(missing_ok=True)
        total -= size
