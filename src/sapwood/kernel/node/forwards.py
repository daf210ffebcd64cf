"""The former addresses of roots that were moved: a small file each, which all workers of a data folder see.

A forward counts while there is no tree under the former address. So a crash before the folder of the tree was renamed
leaves one that does not count. One to another server counts from the moment on at which the files were put aside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from sapwood.address import Address
from sapwood.errors import InvalidName, MovedAway, StoredDataError
from sapwood.kernel.log.records import tree_id
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.ports.destination import Ticket
from sapwood.kernel.trees.tree import DESTROYED
from sapwood.storage.availability import refusals
from sapwood.storage.files import Files

FORWARDS = "moved"
"""The folder, below the data folder, that has the forwards."""
ARRIVING = "moved_from"
"""A file of this name in the folder of a tree has its former address, until its root has stored the new one."""
MOST = 1000
"""Forwards that are followed from one address at most."""


class Forward(msgspec.Struct, frozen=True, omit_defaults=True):
    """One former address."""

    former: str
    address: str
    """Where the tree was moved to. It may have been moved again."""
    url: str | None = None
    """Where clients find it at another server. `None` means in this data folder."""
    ticket: Ticket | None = None
    """The move to the other server, until it has confirmed that the tree is its own."""


_read = msgspec.json.Decoder(Forward).decode


class Forwards:
    """The forwards of a data folder."""

    def __init__(self, data: Path, files: Files) -> None:
        self._data = data
        self._files = files
        self.folder = data / FORWARDS
        self.departing: set[Address] = set()
        """The roots that this process is moving to other servers."""

    def target(self, root: Address, aliases: Sequence[str] = ()) -> Address | None:
        """Return where a root was moved to, or `None` if it was not. `aliases`: former type ids of its class.

        Raises `MovedAway` if it was moved to another server.
        """
        found: Address | None = None
        one = root
        for _ in range(MOST):
            forward = next((to for type_ in (one.type, *aliases) if (to := self._counted(type_, one.name))), None)
            if forward is None:
                return found
            found = one = Address.root_of(root.type, forward.name)
        return found

    def _counted(self, type_: str, name: str) -> Address | None:
        former = Address.root_of(type_, name)
        forward = self._stored(self._path(former))
        if forward is None or self.has_tree(former):
            return None
        if forward.url is not None:
            if forward.ticket is not None and not self.sent(former).exists():
                return None  # it was not decided
            told = f"{former} was moved to another server. Its address there is {forward.url}."
            raise MovedAway(told, path=former.segments, url=forward.url)
        return Address.parse(forward.address)

    def sent(self, former: Address) -> Path:
        """Return where the files of a tree lie that went to another server, until that server has confirmed it.

        The folder exists from the moment on at which the tree is the other server's.
        """
        return self.folder / tree_id(former)

    def stored(self, former: Address) -> Forward | None:
        """Return what is stored of an address, whether it counts or not."""
        return self._stored(self._path(former))

    def has_tree(self, root: Address) -> bool:
        """Return whether there is a tree under this address."""
        folder = tree_folder(self._data, root)
        return folder.exists() and not (folder / DESTROYED).exists()

    def add(self, former: Address, address: Address) -> None:
        """Store a forward, in place of one that does not count."""
        self.put(Forward(str(former), str(address)))

    def put(self, forward: Forward) -> None:
        """Store a forward, in place of the one that is there."""
        self._files.make_folder(self.folder)
        path = self._path(Address.parse(forward.former))
        new = path.with_suffix(".new")
        self._files.remove(new)
        self._files.close(self._files.create(new, msgspec.json.encode(forward)))
        self._files.sync_file(new)
        self._files.rename(new, path)

    def remove(self, former: Address) -> None:
        """Remove a forward, if there is one."""
        self._files.remove(self._path(former))

    def all(self) -> Iterator[tuple[Address, Address]]:
        """Yield each former address whose tree is in this folder, and where it was moved to."""
        for forward in self.every():
            if forward.url is None:
                yield Address.parse(forward.former), Address.parse(forward.address)

    def every(self) -> Iterator[Forward]:
        """Yield all forwards. Damaged files are left out."""
        for path in self._paths():
            with suppress(StoredDataError):
                if (forward := self._stored(path)) is not None:
                    yield forward

    def damaged(self) -> Iterator[StoredDataError]:
        """Yield what is wrong with each file that cannot be read as a forward."""
        for path in self._paths():
            try:
                self._stored(path)
            except StoredDataError as error:
                yield error

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"))

    def _path(self, former: Address) -> Path:
        return self.folder / f"{tree_id(former)}.json"

    def _stored(self, path: Path) -> Forward | None:
        try:
            with refusals():
                if not path.exists():  # asked first: this needs no descriptor, and most addresses have no forward
                    return None
                content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            what = f"The file {path.name} in the folder {FORWARDS!r} cannot be read: {error.strerror}."
            raise StoredDataError(what) from None
        if not content:
            return None  # the power failed before it counted
        try:
            forward = _read(content)
            for address in (forward.former, forward.address):
                Address.parse(address)
        except (msgspec.DecodeError, UnicodeDecodeError, InvalidName) as error:
            raise StoredDataError(f"The file {path.name} in the folder {FORWARDS!r} is damaged: {error}.") from None
        return forward
