"""The trees that other servers send: their addresses are held, and their files wait in a folder of their own.

The other server decides. Once it has `sealed` a tree, only its word makes a tree of the files, or removes them: it may
have let go of the tree already. So a sealed one outlives each crash, and nothing else takes its address.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from sapwood.address import Address
from sapwood.errors import InvalidName, NotFound, Refused, StoredDataError, Unavailable
from sapwood.storage.availability import refusals
from sapwood.storage.files import Files, make_private_folder

FOLDER = "arriving"
"""The folder, below the data folder, that has a folder for each of them."""
RECORD = "arrival.json"
ID = re.compile("[0-9a-f]{64}")
DONE_FOR = 30 * 86400.0
"""Seconds for which it is known that a tree has arrived, if the other server does not ask for it to be forgotten."""


class Arrival(msgspec.Struct, frozen=True):
    """One tree that another server sends."""

    id: str
    root: str
    key: str
    """The digest of the key of the other server."""
    state: Literal["open", "sealed", "done"]
    at: float

    @property
    def address(self) -> Address:
        return Address.parse(self.root)


_read = msgspec.json.Decoder(Arrival).decode


class Arrivals:
    """The trees that arrive in one data folder, as one process of it knows them."""

    def __init__(self, data: Path, files: Files) -> None:
        self._folder = data / FOLDER
        self._files = files
        self.held: dict[Address, str] = {}
        """The addresses of this process that wait for a tree, with the ids of the moves."""
        self.lock = asyncio.Lock()
        """Held while a tree is made of the files."""

    def check(self, root: Address, *, id: str | None = None) -> None:
        """Raise `Unavailable` for an address that waits for another move than this one."""
        if self.held and self.held.get(root, id) != id:
            raise Unavailable(f"{root} is being moved here from another server.")

    def folder(self, id: str) -> Path:
        """Return a data folder of its own, which has the files of one arrival."""
        return self._folder / id

    def get(self, id: str) -> Arrival | None:
        """Return what is stored of one arrival."""
        path = self._folder / id / RECORD
        try:
            with refusals():
                content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            arrival = _read(content)
            _ = arrival.address
        except (msgspec.DecodeError, UnicodeDecodeError, InvalidName) as error:
            raise StoredDataError(f"The file {RECORD!r} in {FOLDER}/{id} is damaged: {error}.") from None
        return arrival

    def allowed(self, id: str, key: str) -> Arrival | None:
        """Return an arrival, if this is its key."""
        if not ID.fullmatch(id):
            return None
        arrival = self.get(id)
        return arrival if arrival is not None and hmac.compare_digest(arrival.key, digest_of(key)) else None

    def existing(self, id: str, root: Address) -> Arrival:
        """Return an arrival. Raises `NotFound` for one that was discarded, or is of another address."""
        arrival = self.get(id)
        if arrival is None:
            raise NotFound(f"The move of {root} to this server is not known here any more.", path=root.segments)
        if arrival.address != root:
            raise Refused(f"The move {id} is not of {root}.")
        return arrival

    def put(self, arrival: Arrival) -> None:
        """Store an arrival durably, in place of what is stored of it. Takes a sync of the disk."""
        folder = self.folder(arrival.id)
        with refusals():
            make_private_folder(folder)
            new = folder / f"{RECORD}.new"
            self._files.remove(new)
            self._files.close(self._files.create(new, msgspec.json.encode(arrival)))
            self._files.sync_file(new)
            self._files.rename(new, folder / RECORD)
            for path in (folder, self._folder, self._folder.parent):
                self._files.sync_folder(path)

    def all(self) -> Iterator[Arrival | StoredDataError]:
        """Yield each arrival of the data folder, and what is wrong with each that cannot be read."""
        for path in sorted(self._folder.glob("*")):
            try:
                found = self.get(path.name)
            except StoredDataError as error:
                yield error
            else:
                if found is not None:
                    yield found

    def resume(self, owns: Callable[[Address], bool], now: float) -> list[str]:
        """Hold the addresses of sealed trees again; return the ids of what a crash or the time has ended."""
        # Without a record, a crash came before it was stored, or while it was removed.
        ended = [path.name for path in self._folder.glob("*") if not (path / RECORD).exists()]
        for arrival in self.all():
            if isinstance(arrival, StoredDataError) or not owns(arrival.address):
                continue
            if arrival.state == "sealed":
                self.held[arrival.address] = arrival.id
            elif arrival.state == "open" or arrival.at + DONE_FOR < now:
                ended.append(arrival.id)
        return ended

    def remove(self, ids: Sequence[str]) -> None:
        """Remove all files of arrivals."""
        for id in ids:
            shutil.rmtree(self.folder(id), ignore_errors=True)


def digest_of(key: str) -> str:
    """Return what is stored of a key."""
    return hashlib.sha256(key.encode()).hexdigest()
