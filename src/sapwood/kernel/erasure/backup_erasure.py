"""Which backups still hold a tree, and the erasure of a tree from one of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from sapwood.address import Address
from sapwood.errors import FolderInUse, NotFound, UsageError
from sapwood.kernel.erasure.receipt import ErasedPlace, ErasureReceipt, signed, subject_of, time_text
from sapwood.kernel.erasure.records import ErasureRecords
from sapwood.kernel.erasure.traces import CRASHES
from sapwood.kernel.history.segments import HISTORY, history_folder
from sapwood.kernel.node.backup_notes import BackupNote
from sapwood.kernel.node.data_folder import TREES, tree_folder
from sapwood.kernel.node.tree_check import LEFT_OUT
from sapwood.randomness import SYSTEM, new_id
from sapwood.storage.files import Files, held_still

STILL = "Erase it with `sapwood erase --backup FOLDER ADDRESS`, or remove the backup."
STILL_WHOLE = (
    "It has the whole tree, and only that can be erased from it: `sapwood erase --backup FOLDER ROOT` with the address "
    "of the root. Or remove the backup."
)
FORMER = (
    "It has the tree under a former address. Erase it with `sapwood erase --backup FOLDER FORMER_ADDRESS`, or remove "
    "the backup."
)
NAMED = "These files name the tree, without its content: {}. Remove them, or the folder."
GONE = "There is no backup at this path now: it was removed or moved."
ELSEWHERE = "The backup is on another machine. It may hold a copy."
UNREADABLE = "The folder cannot be read now. It may hold a copy."


def backups_with(
    roots: Sequence[Address], notes: Sequence[BackupNote], here: str = "", *, is_subtree: bool = False
) -> list[ErasedPlace]:
    """Return the backups that hold a tree, or may. Takes a while: not for the event loop.

    `roots`: all addresses that it has had, the present one first. `here`: the name of this node. The folders of other
    nodes cannot be read. `is_subtree`: a sub-agent is erased, and not the whole tree.
    """
    still = STILL_WHOLE if is_subtree else STILL
    found: list[ErasedPlace] = []
    for note in notes:
        where = str(note.folder)
        if note.node != here:
            place = ErasedPlace(place="backup", state="unknown", node=note.node, where=where, note=ELSEWHERE)
            found.append(place)
            continue
        try:
            if not (note.folder / TREES).is_dir():
                found.append(ErasedPlace(place="backup", state="unknown", where=where, note=GONE))
            elif names := [root for root in roots if _copies_of(note.folder, root)]:
                text = still if names[0] == roots[0] else FORMER
                found.append(ErasedPlace(place="backup", state="still there", where=where, note=text))
        except OSError:
            found.append(ErasedPlace(place="backup", state="unknown", where=where, note=UNREADABLE))
    return found


def _copies_of(folder: Path, root: Address) -> list[Path]:
    name = tree_folder(folder, root).name
    return [path for path in (folder / TREES).iterdir() if path.name.startswith(name)]


def erase_from_backup(data: Path, folder: Path, subject: Address, now: float, key: str = "") -> ErasureReceipt:
    """Remove a tree from a backup, or from a copy of a data folder, and return a signed receipt. Takes a while.

    `key`: the setting `erasure_key`. Without it, the key of the data folder signs.
    """
    if subject.parent is not None:
        raise UsageError(f"A backup holds whole trees. Pass {subject.root}, to erase the whole tree from it.")
    if not (folder / TREES).is_dir():
        raise UsageError(f"{str(folder)!r} is not a backup: it has no folder {TREES!r}.")
    if folder.resolve() == data.resolve():
        raise UsageError(f"{str(folder)!r} is the data folder. Leave --backup out to erase from it.")
    files = Files()
    private = ErasureRecords(data, files).key(key)
    try:
        with held_still(folder):
            copies = _copies_of(folder, subject)
            past = _past_of(folder, subject)
            if not copies and not past:
                raise NotFound(f"The backup {str(folder)!r} has no {subject}.", path=subject.segments)
            agents = sum(path.suffix == ".db" for copy in copies for path in copy.rglob("*"))
            place = partial(ErasedPlace, place="backup", where=str(folder.resolve()), done_at=time_text(now))
            count, size = _removed([*copies, *past, *_crashes_of(folder, subject)], files)
            _forget_left_out(folder, subject)
            places = [place(state="erased", count=count, bytes=size)]
            if names := _files_naming(folder, subject):
                places.append(place(state="still there", count=len(names), note=NAMED.format(", ".join(names))))
    except FolderInUse as error:
        raise UsageError(f"{error} Erase from it with --data.") from None
    salt = new_id(SYSTEM, 32)
    return signed(
        ErasureReceipt(
            id=new_id(SYSTEM),
            salt=salt,
            subject=subject_of(salt, str(subject)),
            is_subtree=False,
            by="cli",
            asked_at=time_text(now),
            finished_at=time_text(now),
            agents=agents,
            places=places,
            not_covered=["Everything but this backup.", "Forks of the tree in this backup."],
            public_key="",
            fingerprint="",
        ),
        private,
    )


def _past_of(folder: Path, root: Address) -> list[Path]:
    """Return the folders with the history of a tree. A copy of a data folder has them."""
    path = history_folder(folder, root)
    return list(path.parent.glob(f"{path.name}*")) if path.parent.is_dir() else []


def _crashes_of(folder: Path, root: Address) -> list[Path]:
    """Return the stack traces that name a tree."""
    crashes, text = folder / CRASHES, str(root).encode()
    return [path for path in crashes.iterdir() if text in path.read_bytes()] if crashes.is_dir() else []


def _removed(paths: Sequence[Path], files: Files) -> tuple[int, int]:
    """Remove files and folders, durably; return how many files that were, and how many bytes."""
    found = [one for path in paths for one in (path.rglob("*") if path.is_dir() else [path]) if one.is_file()]
    size = sum(path.stat().st_size for path in found)
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for parent in {path.parent for path in paths}:
        files.sync_folder(parent)
    return len(found), size


def _files_naming(folder: Path, root: Address) -> list[str]:
    """Return the files beside the trees that have the address of a tree, such as indexes and logs."""
    text, content = str(root).encode(), (folder / TREES, folder / HISTORY)
    paths = [path for one in sorted(folder.iterdir()) if one not in content for path in (one, *sorted(one.rglob("*")))]
    return [str(path.relative_to(folder)) for path in paths if path.is_file() and text in path.read_bytes()]


def _forget_left_out(folder: Path, subject: Address) -> None:
    """Remove the note of a backup that a tree was damaged, and was not copied."""
    path = folder / LEFT_OUT
    if path.exists() and str(subject).encode() in path.read_bytes():
        path.unlink()
