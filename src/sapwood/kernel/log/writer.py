"""The log of one tree as its owner writes it: what was committed and is not stored yet, and what that follows.

Commits gather until the log takes them; of a page that changed several times only the
last image is stored. What gathered becomes one message, which is cut into parts if it
is large.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.log.alarm_entry import AlarmLine, encode_line
from sapwood.kernel.log.records import Base, Change, Message, seal, tree_id
from sapwood.kernel.ports.durability import settle
from sapwood.kernel.ports.log import Entry, Epoch, OutOfTouch
from sapwood.kernel.ports.shards import shard_of
from sapwood.storage.image import PAGE_SIZE
from sapwood.storage.wal_frames import Frames
from sapwood.timings import Timings

NAMES = 1000
"""How many files one message may say to be no more."""


class LogPosition(NamedTuple):
    """The end of a tree's log."""

    sequence: int = 0
    """The place of the last message; 0: the log has none."""
    digest: bytes = b""
    """Of the last message, also if it is in the archive by now; empty: there never was one."""
    epoch: int = 0
    """Whose it was."""
    messages: int = 0
    """How many there are since the last base, it included."""
    stored_bytes: int = 0
    """How long these are."""
    files: frozenset[str] = frozenset()
    """The files that the tree has as of it, by their names without the suffix."""


class SnapshotPoint:
    """A moment between two commits of a tree: its files were copied, and what comes later is kept beside."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.known: Future[LogPosition] = loop.create_future()
        """Done with the last message before it, as soon as that is stored."""


class _File:
    """What changed in one file."""

    __slots__ = ("is_new", "pages", "size")

    def __init__(self, size: int, pages: dict[int, memoryview], *, is_new: bool) -> None:
        self.size = size
        self.pages = pages
        self.is_new = is_new

    def take(self, size: int, pages: dict[int, memoryview]) -> None:
        if size < self.size:
            self.pages = {number: page for number, page in self.pages.items() if number <= size}
        self.pages.update(pages)
        self.size = size


class Batch:
    """Commits that are stored together."""

    __slots__ = ("after", "files", "pages", "removed", "told", "up_to")

    def __init__(self, after: Batch | None = None) -> None:
        self.files: dict[str, _File] = {}
        self.removed: set[str] = set()
        self.pages = 0
        """How many it has, at most."""
        self.up_to = 0
        """How many commits of the tree there were, these included."""
        self.after = after
        """What gathers since the last cut, if they came after one."""
        self.told: list[Future[LogPosition]] = []
        """Callers that wait to learn where they are stored."""

    def count(self) -> int:
        """Count the pages."""
        self.pages = sum(len(file.pages) for file in self.files.values())
        return self.pages

    def begin(self, stem: str, image: bytes) -> None:
        """A file begins, as this image."""
        view = memoryview(image)
        pages = {at // PAGE_SIZE + 1: view[at : at + PAGE_SIZE] for at in range(0, len(image), PAGE_SIZE)}
        self.files[stem] = _File(len(pages), pages, is_new=True)
        self.pages += len(pages)
        self.removed.discard(stem)

    def take(self, stem: str, frames: Frames) -> None:
        """Add a commit."""
        self.pages += len(frames.pages)
        file = self.files.get(stem)
        if file is None:
            self.files[stem] = _File(frames.size, frames.pages, is_new=False)
        else:
            file.take(frames.size, frames.pages)

    def remove(self, stem: str) -> None:
        """A file is no more."""
        self.files.pop(stem, None)
        self.removed.add(stem)

    def merge(self, later: Batch) -> None:
        """Add what came after this. Both share the pages then, so the other one may not change any more."""
        self.pages += later.pages
        for stem in later.removed:
            self.remove(stem)
        for stem, file in later.files.items():
            mine = self.files.get(stem)
            if mine is None or file.is_new:
                self.files[stem] = _File(file.size, dict(file.pages), is_new=file.is_new)
                if file.is_new:
                    self.removed.discard(stem)
            else:
                mine.take(file.size, file.pages)

    def changes(self, most: int) -> list[list[Change]]:
        """Return what to store, cut into parts of so many pages; at least one."""
        parts: list[list[Change]] = [[]]
        room = most
        for stem, file in self.files.items():
            numbers = sorted(file.pages)
            at, is_new = 0, file.is_new
            while True:
                some = numbers[at : at + room] if len(numbers) > room else numbers
                images = b"".join([file.pages[number] for number in some])
                parts[-1].append(Change(stem, PAGE_SIZE, file.size, some, images, is_new))
                at, room, is_new = at + len(some), room - len(some), False
                if at >= len(numbers):
                    break
                parts.append([])
                room = most
                numbers, at = numbers[at:], 0
            if room <= 0:
                parts.append([])
                room = most
        if len(parts) > 1 and not parts[-1]:
            parts.pop()
        return parts


class InFlight(NamedTuple):
    """What was handed to the log."""

    entries: list[Entry]
    messages: int
    """How many of them, the last ones, are messages of the tree; the others are about its alarm."""
    size: int
    """How long these are."""
    up_to: int
    digest: bytes
    shard: int
    epoch: Epoch
    """By which they are ours to send."""
    told: Sequence[Future[LogPosition]]
    is_fresh: bool
    """Whether nothing that was stored before counts any more."""


class TreeLog:
    """Where one tree stands."""

    __slots__ = (
        "alarm",
        "closed",
        "committed",
        "ended",
        "ending",
        "error",
        "files",
        "flushing",
        "id",
        "last_cut",
        "objects",
        "open",
        "owned",
        "rebasing",
        "root",
        "sending",
        "shard",
        "since",
        "stored",
        "stream",
        "tail",
        "text",
        "timings",
        "waiters",
    )

    def __init__(self, root: Address, tail: LogPosition, stream: int, owned: Epoch | None, timings: Timings) -> None:
        self.root = root
        self.timings = timings
        self.owned = owned
        """By which its shard was ours when it was read: by no other may it be written to."""
        self.stream = stream
        self.text = str(root)
        self.id = tree_id(root)
        self.shard = shard_of(root)
        self.tail = tail
        self.files = set(tail.files)
        """What the tree consists of once all that gathered is stored."""
        self.committed = 0
        self.stored = 0
        self.open: Batch | None = None
        """What the next commit joins."""
        self.closed: deque[Batch] = deque()
        """What goes before it, in separate messages."""
        self.sending: InFlight | None = None
        self.alarm: AlarmLine | None = None
        """What the index of alarms has to say."""
        self.since: Batch | None = None
        """What was sent since the last cut."""
        self.last_cut: SnapshotPoint | None = None
        self.rebasing: tuple[Base, Future[LogPosition]] | None = None
        """What the log is to begin with, and who wants to know that it does."""
        self.ending: Future[LogPosition] | None = None
        """Who wants to know that it is stored that the tree was destroyed."""
        self.objects = ""
        """The folder of its larger files in the archive, which its end has to name."""
        self.ended = False
        """Whether it is destroyed: what is still committed in what is left of it is not kept."""
        self.error: Unavailable | None = None
        """Why it is not ours to write to any more."""
        self.waiters: list[tuple[int, list[Future[None]]]] = []
        self.flushing: list[Future[None]] = []
        """Callers that wait until nothing is left to store."""

    @property
    def is_stored(self) -> bool:
        """Whether everything that was committed is."""
        return self.stored >= self.committed

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to store."""
        return self.sending is None and not self.has_more

    @property
    def has_more(self) -> bool:
        """Whether there is something to send next."""
        asked = self.alarm is not None or self.rebasing is not None or self.ending is not None
        return asked or self.open is not None or bool(self.closed)

    @property
    def pages(self) -> int:
        """How many pages it would send now, at most."""
        if self.rebasing is not None and self.since is not None:
            left = [*self.closed, *([] if self.open is None else [self.open])]
            return self.since.pages + sum(gathered.pages for gathered in left)
        gathered = self.closed[0] if self.closed else self.open
        return 0 if gathered is None else gathered.pages

    @property
    def _largest_base(self) -> int:
        """Pages that may be stored together with a new base."""
        return self.timings.log_batch // 2 * (self.timings.log_message_bytes // PAGE_SIZE)

    def gathering(self) -> Batch:
        """Return what the next commit joins."""
        if self.open is None:
            self.open = Batch(self.since)
        return self.open

    def commit(self, stem: str, frames: Frames) -> None:
        """Add a commit of a file."""
        self.committed += 1
        gathered = self.open or self.gathering()
        gathered.take(stem, frames)
        gathered.up_to = self.committed

    def cut(self, loop: asyncio.AbstractEventLoop) -> SnapshotPoint:
        """Keep what is committed from now on beside, until it is stored with a new base."""
        cut = self.last_cut = SnapshotPoint(loop)
        if self.rebasing is not None:
            _refuse([self.rebasing[1]], Unavailable(f"Another snapshot of {self.root} was started."))
            self.rebasing = None
        if self.open is not None:
            self.closed.append(self.open)
            self.open = None
        if self.closed:
            self.closed[-1].told.append(cut.known)
        elif self.sending is not None and self.sending.messages:
            self.sending = self.sending._replace(told=[*self.sending.told, cut.known])
        else:
            cut.known.set_result(self.tail)
        self.since = Batch()
        return cut

    def send(self, epoch: Epoch, at: float, version: str, alarm_id: str) -> InFlight | None:
        """Return what to store next. `None` means nothing. It has to be answered before more can be sent."""
        entries: list[Entry] = []
        if self.alarm is not None:
            line = self.alarm
            data = b"" if line.due is None and not line.dead else encode_line(line)
            entries.append(Entry(self.shard, self.id, data, alarm_id, is_alarm=True))
            self.alarm = None
        gathered, base, is_end = self._next()
        sealed: list[Entry] = []
        size = 0
        digest, told, up_to = self.tail.digest, (), self.stored
        if gathered is not None:
            parts = gathered.changes(self.timings.log_message_bytes // PAGE_SIZE)
            is_fresh = base is not None or is_end
            removed = _cut(sorted(gathered.removed))
            parts = [list[Change]() for _ in removed[1:]] + parts  # so many names leave no room for pages
            for number, changes in enumerate(parts):
                message = Message(
                    root=self.text,
                    epoch=epoch.number,
                    previous=self.tail.sequence if number == 0 else 0,
                    before=digest,
                    at=at,
                    version=version,
                    parts=len(parts),
                    part=number,
                    base=base if number == 0 else None,
                    changes=changes,
                    removed=removed[number] if number < len(removed) else [],
                    is_end=is_end,
                    objects=self.objects if is_end else "",
                )
                data, digest = seal(message)
                size += len(data)
                sealed.append(Entry(self.shard, self.id, data, digest.hex(), replaces=is_fresh and number == 0))
            told, up_to = gathered.told, gathered.up_to
        if not entries and not sealed:
            return None
        is_fresh = bool(sealed) and sealed[0].replaces
        self.sending = InFlight(entries + sealed, len(sealed), size, up_to, digest, self.shard, epoch, told, is_fresh)
        return self.sending

    def _next(self) -> tuple[Batch | None, Base | None, bool]:
        """Take what gathered; return it with the base it stands on, if that is new, and whether it is the end."""
        if self.ending is not None:
            last = self._all(Batch())
            last.files, last.removed, last.up_to = {}, set(), self.committed
            last.told.append(self.ending)
            if self.rebasing is not None:
                last.told.append(self.rebasing[1])
            self.ending = self.since = self.rebasing = None
            return last, None, True
        gathered: Batch | None
        if self.rebasing is not None and self.pages > self._largest_base:
            # It would be stored in several steps, and the first takes away what was stored before.
            _refuse([self.rebasing[1]], Unavailable(f"No snapshot of {self.root} was made: writes arrive too fast."))
            self.rebasing = self.since = None
        if self.rebasing is not None and self.since is not None:
            (base, told), gathered = self.rebasing, self._all(self.since)
            gathered.told.append(told)
            self.rebasing = self.since = None
            return gathered, base, False
        if self.closed:
            gathered = self.closed.popleft()
        else:
            gathered, self.open = self.open, None
        if gathered is not None:
            gathered.up_to = max(gathered.up_to, self.stored)
            if self.since is not None and gathered.after is self.since:
                self.since.merge(gathered)
                most = self.timings.snapshot_max_pages
                if self.since.pages > most and self.since.count() > most:
                    self.since = None
        return gathered, None, False

    def _all(self, gathered: Batch) -> Batch:
        """Add all that was not sent."""
        gathered.up_to = self.stored
        for later in [*self.closed, *([] if self.open is None else [self.open])]:
            gathered.merge(later)
            gathered.up_to = max(gathered.up_to, later.up_to)
            gathered.told += later.told
        self.closed.clear()
        self.open = None
        return gathered

    def done(self, sequences: Sequence[int], error: OutOfTouch | None = None) -> None:
        """What was sent is stored, at these places. `error`: why nothing may leave the node now, if nothing may."""
        sent, self.sending = self.sending, None
        if sent is None:
            return
        if sent.messages:
            old = LogPosition() if sent.is_fresh else self.tail
            self.tail = LogPosition(
                sequences[-1],
                sent.digest,
                sent.epoch.number,
                old.messages + sent.messages,
                old.stored_bytes + sent.size,
                frozenset(),
            )
            self.stored = sent.up_to
            for one in sent.told:
                if not one.done():
                    one.set_result(self.tail)
            self._let_go(error)

    def take_back(self) -> bool:
        """What was sent is not stored; return whether that leaves nothing unstored that was committed."""
        sent = self.sending
        if sent is None or self.ended or not sent.is_fresh or sent.up_to > self.stored:
            return False
        if sent.messages < len(sent.entries):
            return False  # it has to say something about its alarm
        self.sending = None
        _refuse(sent.told, Unavailable(f"The log has no room for a new base of {self.root}."))
        return True

    def forget_all(self) -> None:
        """Nothing that was not sent has to be stored any more."""
        self._all(Batch())
        self.alarm = None
        self.stored = self.committed
        self._let_go()
        self.settle_if_idle()

    def _let_go(self, error: OutOfTouch | None = None) -> None:
        left: list[tuple[int, list[Future[None]]]] = []
        for waiting in self.waiters:
            if waiting[0] > self.stored:
                left.append(waiting)
            else:
                settle(waiting[1], error)
        self.waiters = left

    def settle_if_idle(self) -> None:
        """Let those go who wait until nothing is left."""
        if self.flushing and self.is_idle:
            flushing, self.flushing = self.flushing, []
            settle(flushing, None)

    def fail(self, error: Unavailable) -> None:
        """End all waits for this tree."""
        self.error = error
        told = [one for gathered in self.closed for one in gathered.told]
        told += [] if self.sending is None else self.sending.told
        told += [] if self.rebasing is None else [self.rebasing[1]]
        told += [] if self.ending is None else [self.ending]
        waiting = [*(one for _, some in self.waiters for one in some), *self.flushing]
        self.open = self.since = self.rebasing = self.alarm = self.ending = None
        self.closed.clear()
        self.waiters, self.flushing = [], []
        settle(waiting, error)
        _refuse(told, error)


def _cut(names: list[str]) -> list[list[str]]:
    """Return names in groups of which each fits into a message beside its pages; the first may be all."""
    return [names[at : at + NAMES] for at in range(0, len(names), NAMES)]


def _refuse(told: Sequence[Future[LogPosition]], error: Unavailable) -> None:
    for one in told:
        if not one.done():
            one.set_exception(Unavailable(str(error)))
            one.exception()  # perhaps no caller waits for it any more
