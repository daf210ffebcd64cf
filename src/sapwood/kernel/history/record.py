"""What is recorded of one tree and not written yet."""

from __future__ import annotations

from asyncio import TimerHandle
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import Protocol

from sapwood.address import Address
from sapwood.kernel.durability.slices import Slices
from sapwood.kernel.history.chain import Chain
from sapwood.kernel.history.images import TreeImages
from sapwood.kernel.history.segments import MomentName
from sapwood.kernel.log.writer import Batch
from sapwood.settings import Limits
from sapwood.storage.database import Database
from sapwood.storage.wal_frames import WalFrames


class RecordedTree(Protocol):
    """A tree in memory, as its past is recorded."""

    folder: Path
    databases: dict[str, Database]
    slices: Slices
    limits: Limits

    def kept_still(self) -> AbstractContextManager[None]: ...


class RecordState(Enum):
    """Whether what is committed in a tree is recorded."""

    RECORDED = "recorded"
    STALE = "stale"
    """It needs a new base, which the next commit or moment begins."""
    STOPPED = "stopped"
    """It could not be written, and waits before it tries again."""
    ENDED = "ended"
    """The tree was destroyed."""


class TreeRecord:
    """The past of one tree that has open files."""

    __slots__ = (
        "after_commit", "at", "batch", "chain", "folder", "images", "marked", "open", "pending", "retry_at", "root",
        "state", "timer",
    )  # fmt: skip

    def __init__(self, root: Address, folder: Path, chain: Chain) -> None:
        self.root = root
        self.folder = folder
        """Of the tree."""
        self.chain = chain
        self.state = RecordState.RECORDED
        self.open: set[Database] = set()
        self.batch = Batch()
        self.at = 0.0
        """When the last commit of the batch was made."""
        self.timer: TimerHandle | None = None
        self.after_commit: list[MomentName] = []
        """Moments that contain what the open slice writes."""
        self.marked: Database | None = None
        """The database of that slice. Indexes of the tree may be committed before it."""
        self.images: TreeImages | None = None
        """The base that is being written."""
        self.retry_at = 0.0
        self.pending = 0
        """Jobs in the queue."""


class OpenFile:
    """An open database of a tree."""

    __slots__ = ("frames", "record", "stem")

    def __init__(self, record: TreeRecord, stem: str) -> None:
        self.record = record
        self.stem = stem
        self.frames: WalFrames | None = None
