"""Files of a tree that a node has already: what they are, and how they get what the log got since.

They count only if they were not touched since they were noted, and if the log still has the message
that they are after. Otherwise they are thrown away, and the tree is read as a whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sapwood.errors import StoredDataError
from sapwood.kernel.log.records import DIGEST, ChainLink, chained, commits
from sapwood.kernel.log.restore import File, Pages, apply, ends
from sapwood.kernel.log.writer import LogPosition
from sapwood.kernel.ports.log import Record
from sapwood.storage.files import Files
from sapwood.storage.image import PAGE_SIZE
from sapwood.storage.wal_frames import fold

CLEAN = "clean"
"""The file in a tree's folder that says which message the others are after, and what they are."""


class Clean(msgspec.Struct, array_like=True, frozen=True):
    """What the files of a tree are that was closed in good order."""

    epoch: int
    sequence: int
    """The place of its last message; 0: the archive has it."""
    digest: bytes
    messages: int
    """How many messages it has in the log since its base."""
    stored_bytes: int
    files: dict[str, bytes] = msgspec.field(default_factory=dict[str, bytes])
    """The digest of each."""


def record_clean(folder: Path, tail: LogPosition, files: Files) -> None:
    """Note which message the files of a closed tree are after, and what they are. Takes a while."""
    path = folder / CLEAN
    files.remove(path)
    if folder.exists():
        half = folder / f"{CLEAN}.new"
        files.remove(half)
        clean = Clean(tail.epoch, tail.sequence, tail.digest, tail.messages, tail.stored_bytes, _digests(folder))
        files.close(files.create(half, msgspec.msgpack.encode(clean)))
        files.rename(half, path)


def clean_tail(folder: Path) -> LogPosition | None:
    """Return which message the files of a folder are after, or `None` if they are not what was noted. Takes a while."""
    try:
        clean = msgspec.msgpack.decode((folder / CLEAN).read_bytes(), type=Clean)
        if _digests(folder) != clean.files:
            return None
    except (OSError, msgspec.DecodeError):
        return None
    stems = frozenset(name.removesuffix(".db") for name in clean.files if name.endswith(".db"))
    return LogPosition(clean.sequence, clean.digest, clean.epoch, clean.messages, clean.stored_bytes, stems)


def _digests(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in os.scandir(folder):
        if entry.name.endswith((".db", ".db-wal")):
            with Path(entry.path).open("rb") as file:
                found[entry.name] = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST)).digest()
    return found


def catch_up(folder: Path, tail: LogPosition, records: Sequence[Record], files: Files) -> LogPosition | None:
    """Have files be what they are after all of these messages, the first of which they should be after; return which.

    None: that cannot be done, and whatever the files are now, they do not count. Takes a while.
    """
    try:
        known, *links = chained(records)
        if (known.sequence, known.digest) != (tail.sequence, tail.digest):
            return None
        if any(link.message.base is not None or ends(link) for link in links):
            return None  # what was before does not count any more
        stems = _patch(folder, tail, links, files)
    except (StoredDataError, OSError):
        return None
    whole = commits(links)
    end = whole[-1][-1] if whole else known
    return LogPosition(
        end.sequence,
        end.digest,
        end.message.epoch,
        tail.messages + len(links),
        tail.stored_bytes + sum(len(record.data) for record in records[1:]),
        stems,
    )


def _patch(folder: Path, tail: LogPosition, links: Sequence[ChainLink], files: Files) -> frozenset[str]:
    """Write the pages that these messages changed; return which files there are then."""
    changed = {change.file for link in links for change in link.message.changes}
    there: Pages = {}
    for stem in tail.files:
        path = folder / f"{stem}.db"
        if stem in changed:
            fold(path)
        there[stem] = File(PAGE_SIZE, size=path.stat().st_size // PAGE_SIZE)
    after = dict(there)
    apply(after, links)
    for stem, old in there.items():
        if after.get(stem) is not old:  # it was deleted, or created again
            files.remove(folder / f"{stem}.db")
            files.remove(folder / f"{stem}.db-wal")
    for stem, file in after.items():
        path = folder / f"{stem}.db"
        if file is there.get(stem):
            if not file.pages:
                continue
            pieces = [((number - 1) * PAGE_SIZE, page) for number, page in file.pages.items() if number <= file.size]
            files.patch(path, pieces, file.size * PAGE_SIZE)
        else:
            files.create_database(path, file.whole())
    return frozenset(after)
