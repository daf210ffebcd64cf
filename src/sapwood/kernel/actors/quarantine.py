"""Strikes: which trees have blocked the process, and how often, across restarts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

from sapwood.address import Address
from sapwood.clock import Clock, SystemClock
from sapwood.storage.files import Files, open_private

STRIKES = "strikes.jsonl"
HOUR = 3600.0
MOST_TOLD = 100
"""Trees of which other nodes are told: more than a few are a program that cannot be run at all."""


class StrikeReport(NamedTuple):
    """What nodes with folders of their own tell each other: a tree is held back for what it did to any of them."""

    strikes: Mapping[str, Sequence[float]]
    """When each tree ended the process, by its root."""
    released: Mapping[str, float]
    """When each was let run again: what it did before counts no more."""


class Strikes:
    """Which trees ended their process, and which are held back for it."""

    def __init__(self, folder: Path, allowed: int, clock: Clock | None = None) -> None:
        self._file = folder / STRIKES
        self._allowed = allowed
        self._clock = clock or SystemClock()
        self._at: dict[str, list[float]] = {}
        self._released: dict[str, float] = {}
        self._size = 0
        self.elsewhere: Callable[[], Iterable[StrikeReport]] = lambda: ()
        """What other nodes tell."""
        self.when_released: Callable[[], object] = lambda: None
        self._read()

    def _read(self) -> None:
        """Read what is new in the file, if it is: other processes on the folder write to it too."""
        try:
            size = self._file.stat().st_size
        except FileNotFoundError:
            return
        if size != self._size:
            self._size = size
            self._at.clear()
            self._released.clear()
            for line in self._file.read_text().splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue  # a crash cut it short
                if "at" in entry:
                    self._at.setdefault(entry["root"], []).append(entry["at"])
                else:
                    self._at.pop(entry["root"], None)
                    self._released[entry["root"]] = entry["released"]

    def quarantined(self, root: Address) -> bool:
        """Return whether the last strikes of this tree came within one hour."""
        self._read()
        last = self._counted(str(root))[-self._allowed :]
        return len(last) == self._allowed and last[-1] - last[0] <= HOUR

    def _counted(self, root: str) -> list[float]:
        """Return when a tree ended a process since it was last released."""
        own, others = self._at.get(root, []), list(self.elsewhere())
        if not others:
            return own
        released = max(other.released.get(root, -inf) for other in others)
        theirs = [at for other in others for at in other.strikes.get(root, ()) if at > self._released.get(root, -inf)]
        return sorted(at for at in {*own, *theirs} if at > released)

    def release(self, root: Address) -> bool:
        """Let a tree run again; return whether it had any strikes."""
        self._read()
        if not self._counted(str(root)):
            return False
        self._note_release(str(root), self._clock.now())
        self.when_released()
        return True

    def erase(self, root: Address, files: Files) -> int:
        """Remove all lines of a tree from the file; return how many."""
        try:
            lines = self._file.read_text().splitlines()
        except FileNotFoundError:
            return 0
        left = [line for line in lines if line and _root_of(line) != str(root)]
        count = len([line for line in lines if line]) - len(left)
        if count:
            new = files.unused_path(self._file, ".new")
            files.close(files.create(new, "".join(f"{line}\n" for line in left).encode()))
            files.sync_file(new)
            files.rename(new, self._file)
            files.sync_folder(self._file.parent)
            self._read()
        return count

    def told(self) -> StrikeReport:
        """Return what to tell other nodes. What they have released is noted here too: they may be gone tomorrow."""
        self._read()
        for other in self.elsewhere():
            for root, at in other.released.items():
                if root in self._at and self._at[root][-1] <= at:
                    self._note_release(root, at)
        strikes = {root: at[-self._allowed :] for root, at in list(self._at.items())[-MOST_TOLD:]}
        return StrikeReport(strikes, dict(list(self._released.items())[-MOST_TOLD:]))

    def _note_release(self, root: str, at: float) -> None:
        self._at.pop(root, None)
        self._released[root] = at
        append_entry(self._file, {"root": root, "released": at})


def _root_of(line: str) -> object:
    try:
        return json.loads(line)["root"]
    except (ValueError, KeyError, TypeError):
        return None  # a crash cut it short


def append_entry(file: Path, entry: dict[str, object]) -> None:
    with open_private(file, "a") as out:
        out.write(f"\n{json.dumps(entry)}\n")  # on a line of its own, even if a crash cut the last one short
        out.flush()
        os.fsync(out.fileno())
