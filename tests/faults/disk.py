"""A disk that loses power: what was synced stays, of the rest anything may.

Below sapwood's file layer and below SQLite's own writes lies this record of what a disk
has for certain. The real folder holds what the operating system shows. `image()` writes
what a disk could hold after a loss of power: of the writes since a file's last sync any
may be missing, whole or from some sector on, and of the names changed since a folder's
last sync any, as long as the changes of one name stay in order. A file's sync says
nothing about its name.
"""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import apsw

from sapwood.storage.engine import CHECKED
from sapwood.storage.files import Files

SECTOR = 512
IGNORED = frozenset({"lock"})
NUMBERS = itertools.count(1)


@dataclass(slots=True)
class Content:
    """A file: what the disk has, and the writes it may not have yet, in order."""

    kept: bytearray = field(default_factory=bytearray)
    waiting: list[tuple[int, int, bytes | None]] = field(default_factory=list)
    """(number, offset, data); without data: cut off at this length."""

    def after(self, random: Random, odds: float) -> bytes:
        """Return what may be left of it."""
        left = bytearray(self.kept)
        for _, offset, data in self.waiting:
            draw = random.random()
            if draw > odds:
                continue
            if data is not None and draw > odds * 0.8:
                sectors = range(offset - offset % SECTOR + SECTOR, offset + len(data), SECTOR)
                data = data[: random.choice(sectors) - offset] if sectors else b""
            apply(left, offset, data)
        return bytes(left)


@dataclass(slots=True)
class Folder:
    """A folder: the names the disk has, those the system shows, and the changes between, in order."""

    kept: dict[str, Content | Folder] = field(default_factory=dict)
    shown: dict[str, Content | Folder] = field(default_factory=dict)
    waiting: list[tuple[int, dict[str, Content | Folder | None]]] = field(default_factory=list)

    def change(self, number: int, names: dict[str, Content | Folder | None]) -> None:
        put(self.shown, names)
        self.waiting.append((number, names))

    def after(self, random: Random, odds: float) -> dict[str, Content | Folder]:
        left = dict(self.kept)
        held_back: set[str] = set()
        for _, names in self.waiting:
            if held_back.isdisjoint(names) and random.random() <= odds:
                put(left, names)
            else:
                held_back.update(names)
        return left


def apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def put(folder: dict[str, Content | Folder], names: dict[str, Content | Folder | None]) -> None:
    for name, entry in names.items():
        if entry is None:
            folder.pop(name, None)
        else:
            folder[name] = entry


class Disk:
    """Knows of every file below one folder what is certain to be kept."""

    def __init__(self, root: Path, memory: Path, *, slowness: float) -> None:
        self._root = root
        self._slowness = slowness
        self._lock = threading.RLock()
        self._wanted: Callable[[], None] | None = None
        self._top: Folder
        self._number: int
        self.boot: int
        """The same for the next process; after a loss of power the machine boots again."""
        if memory.exists():
            self._top, self._number, self.boot = pickle.loads(memory.read_bytes())  # noqa: S301 - our own, see remember()
        else:
            self._top, self._number, self.boot = _whole(root), 0, int.from_bytes(os.urandom(3), "big")
        self._random = Random(root.name)

    @contextmanager
    def step(self) -> Iterator[int]:
        """Do one thing to the files; nobody cuts the power in the middle of it."""
        with self._lock:
            self._number += 1
            yield self._number
        if self._wanted is not None:
            self._wanted()

    def interrupt(self, end: Callable[[], None]) -> None:
        """Call `end`, now or, if this very thread is in the middle of a step, right after it."""
        if self._lock._is_owned():  # pyright: ignore[reportAttributeAccessIssue]
            self._wanted = end
        else:
            end()

    def folder(self, path: Path) -> Folder:
        folder = self._top
        for part in path.relative_to(self._root).parts:
            folder = folder.shown.get(part)
            if not isinstance(folder, Folder):
                raise FileNotFoundError(path)
        return folder

    def content(self, path: Path) -> Content:
        content = self.folder(path.parent).shown.get(path.name)
        if not isinstance(content, Content):
            raise FileNotFoundError(path)
        return content

    def sync(self, path: Path) -> None:
        """Keep every write to this file that was done before now."""
        with self.step() as number:
            content = self.content(path)
        self._take_time()
        with self.step():
            while content.waiting and content.waiting[0][0] <= number:
                _, offset, data = content.waiting.pop(0)
                apply(content.kept, offset, data)

    def sync_folder(self, path: Path) -> None:
        """Keep every change of names in this folder that was done before now; a folder above the disk is not ours."""
        if not path.is_relative_to(self._root):
            return
        with self.step() as number:
            folder = self.folder(path)
        self._take_time()
        with self.step():
            while folder.waiting and folder.waiting[0][0] <= number:
                put(folder.kept, folder.waiting.pop(0)[1])

    def _take_time(self) -> None:
        if self._slowness and threading.current_thread() is not threading.main_thread():
            time.sleep(self._random.random() ** 3 * self._slowness)

    def image(self, to: Path, random: Random, odds: float) -> None:
        """Write what would be left after a loss of power now; `odds`: how likely it is that something unsynced is."""
        with self._lock:
            self._write(self._top, to, random, odds)

    def freeze(self) -> None:
        """Let nothing change any more but by this thread, which is about to end the process."""
        self._lock.acquire()

    def _write(self, folder: Folder, to: Path, random: Random, odds: float) -> None:
        to.mkdir()
        for name, entry in folder.after(random, odds).items():
            if isinstance(entry, Folder):
                self._write(entry, to / name, random, odds)
            else:
                (to / name).write_bytes(entry.after(random, odds))

    def remember(self, memory: Path) -> None:
        """Write down what is certain, for the next process on the same folder: this one dies, the power stays."""
        with self._lock:
            memory.write_bytes(pickle.dumps((self._top, self._number, self.boot)))


def _whole(path: Path) -> Folder:
    """Return a folder that is on the disk as it is."""
    entries: dict[str, Content | Folder] = {}
    for entry in path.iterdir() if path.exists() else ():
        if entry.name not in IGNORED:
            entries[entry.name] = _whole(entry) if entry.is_dir() else Content(bytearray(entry.read_bytes()))
    return Folder(kept=entries, shown=dict(entries))


class DiskFiles(Files):
    """Sapwood's file layer on such a disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.vfs = f"sapwood-faults-{next(NUMBERS)}"
        self._vfs = DiskVfs(self.vfs, disk)

    def make_folder(self, path: Path) -> None:
        with self.disk.step() as number:
            known = path.exists()
            super().make_folder(path)
            if not known:
                self.disk.folder(path.parent).change(number, {path.name: Folder()})

    def create(self, path: Path, content: bytes) -> int:
        with self.disk.step() as number:
            descriptor = super().create(path, content)
            self.disk.folder(path.parent).change(number, {path.name: Content(waiting=[(number, 0, content)])})
        return descriptor

    def overwrite(self, path: Path, content: bytes) -> None:
        with self.disk.step() as number:
            super().overwrite(path, content)
            self.disk.content(path).waiting.append((number, 0, content))

    def write_at(self, path: Path, place: int, content: bytes) -> None:
        with self.disk.step() as number:
            super().write_at(path, place, content)
            self.disk.content(path).waiting.append((number, place, content))

    @property
    def boot(self) -> int:
        return self.disk.boot

    def sync_descriptor(self, path: Path, descriptor: int) -> None:
        self.disk.sync(path)

    def sync_file(self, path: Path) -> None:
        self.disk.sync(path)

    def sync_folder(self, path: Path) -> None:
        self.disk.sync_folder(path)

    def rename(self, old: Path, new: Path) -> None:
        with self.disk.step() as number:
            folder = self.disk.folder(old.parent)
            super().rename(old, new)
            folder.change(number, {old.name: None, new.name: folder.shown[old.name]})

    def remove(self, path: Path) -> None:
        with self.disk.step() as number:
            super().remove(path)
            folder = self.disk.folder(path.parent)
            if path.name in folder.shown:
                folder.change(number, {path.name: None})

    def remove_folder(self, path: Path) -> None:
        with self.disk.step() as number:
            super().remove_folder(path)
            self.disk.folder(path.parent).change(number, {path.name: None})


class DiskVfs(apsw.VFS):
    """SQLite's way to the same disk."""

    def __init__(self, name: str, disk: Disk) -> None:
        super().__init__(name, CHECKED)
        self._disk = disk

    def xOpen(self, name: Any, flags: list[int]) -> DiskFile:  # noqa: N802 - SQLite's name
        return DiskFile(self._disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        with self._disk.step() as number:
            super().xDelete(filename, syncdir)
            path = Path(filename)
            self._disk.folder(path.parent).change(number, {path.name: None})
            if syncdir:
                folder = self._disk.folder(path.parent)
                while folder.waiting:
                    put(folder.kept, folder.waiting.pop(0)[1])


class DiskFile(apsw.VFSFile):
    """One open file of SQLite's."""

    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._path = Path(os.fsdecode(name.filename() if isinstance(name, apsw.URIFilename) else name))
        with disk.step() as number:
            super().__init__(CHECKED, name, flags)
            folder = disk.folder(self._path.parent)
            if self._path.name not in folder.shown:
                folder.change(number, {self._path.name: Content()})
            self._content = disk.content(self._path)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        with self._disk.step() as number:
            super().xWrite(data, offset)
            written = super().xRead(len(data), offset)  # with the checksum of the page
            self._content.waiting.append((number, offset, bytes(written)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        with self._disk.step() as number:
            super().xTruncate(newsize)
            self._content.waiting.append((number, newsize, None))

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.sync(self._path)
