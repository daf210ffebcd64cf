"""The past of trees of a node that records none: what was recorded before stays, and goes with its tree."""

from __future__ import annotations

import hashlib
import logging
import shutil
from pathlib import Path

from sapwood.address import Address
from sapwood.kernel.history.chain import LABEL
from sapwood.kernel.history.segments import closed_state, history_folder, reopen, segments_in
from sapwood.kernel.log.records import DIGEST
from sapwood.kernel.ports.history import MomentKind
from sapwood.storage.files import Files
from sapwood.storage.marks import MARKS

log = logging.getLogger(__name__)

REMOVED = ".removed"


class UnrecordedHistory:
    """Changes what is stored of the past, and adds nothing to it."""

    def __init__(self, data: Path, files: Files) -> None:
        self._data = data
        self._files = files

    def mark(self, agent: Address, kind: MomentKind, label: str) -> None:
        """Do nothing."""

    def keep_file(self, root: Address, path: Path) -> None:
        """Do nothing."""

    def replaced(self, root: Address) -> None:
        """Other files are in the place of a tree now: its past no longer has everything that they have."""
        try:
            segments = segments_in(history_folder(self._data, root))
            if segments and closed_state(segments[-1]) is not None:
                reopen(segments[-1])
        except OSError as error:
            log.warning("history not changed root=%s error=%s", root, error, extra={"root": str(root)})

    def renamed(self, old: Address, new: Address) -> None:
        """A tree has another address, as its class has another type id. Its past goes with it."""
        source, target = history_folder(self._data, old), history_folder(self._data, new)
        try:
            if source.exists() and not target.exists():
                self._files.rename(source, target)
                self._files.remove(target / LABEL)
                self.replaced(new)
        except OSError as error:
            log.warning("history not renamed root=%s error=%s", new, error, extra={"root": str(new)})

    def forget(self, root: Address, *, is_destroyed: bool = False) -> None:
        """Remove the past of a tree."""
        if (away := self.move_away(root)) is not None:
            shutil.rmtree(away, ignore_errors=True)

    def move_away(self, root: Address) -> Path | None:
        """Free the name of the folder of a past, and return its new path, or `None` if there is no past."""
        return self.move_folder_away(history_folder(self._data, root))

    def move_folder_away(self, folder: Path) -> Path | None:
        """Free the name of this folder of a past, and return its new path, or `None` if it is not there."""
        try:
            if not folder.exists():
                return None
            away = self._files.unused_path(folder, REMOVED)
            self._files.rename(folder, away)
        except OSError as error:
            log.warning("history not removed folder=%s error=%s", folder.name, error)
            return None
        return away


def is_complete(past: Path, tree: Path) -> bool:
    """Return whether the past in this folder has everything that the files of a closed tree have."""
    segments = segments_in(past)
    state = closed_state(segments[-1]) if segments else None
    return state is not None and state.files == fingerprint(tree)


def fingerprint(folder: Path) -> bytes:
    """Return what identifies how far the files of a closed tree are written."""
    try:
        content = (folder / MARKS).read_bytes()
    except FileNotFoundError:
        content = b""
    return hashlib.blake2b(content, digest_size=DIGEST).digest()
