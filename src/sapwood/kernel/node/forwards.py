"""The former addresses of roots that were moved: a small file each, which all workers of a data folder see.

A forward counts while there is no tree under the former address. So a crash before the folder of the tree was renamed
leaves one that does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from sapwood.address import Address
from sapwood.errors import InvalidName, StoredDataError
from sapwood.kernel.log.records import tree_id
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.trees.tree import DESTROYED
from sapwood.storage.availability import refusals
from sapwood.storage.files import Files

FORWARDS = "moved"
"""The folder, below the data folder, that has the forwards."""
ARRIVING = "moved_from"
"""A file of this name in the folder of a tree has its former address, until its root has stored the new one."""
MOST = 1000
"""Forwards that are followed from one address at most."""


class Forward(msgspec.Struct, frozen=True):
    """One former address."""

    former: str
    address: str
    """Where the tree was moved to. It may have been moved again."""


_read = msgspec.json.Decoder(Forward).decode


class Forwards:
    """The forwards of a data folder."""

    def __init__(self, data: Path, files: Files) -> None:
        self._data = data
        self._files = files
        self.folder = data / FORWARDS

    def target(self, root: Address, aliases: Sequence[str] = ()) -> Address | None:
        """Return where a root was moved to, or `None` if it was not. `aliases`: former type ids of its class."""
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
        return None if forward is None or self.has_tree(former) else Address.parse(forward.address)

    def has_tree(self, root: Address) -> bool:
        """Return whether there is a tree under this address."""
        folder = tree_folder(self._data, root)
        return folder.exists() and not (folder / DESTROYED).exists()

    def add(self, former: Address, address: Address) -> None:
        """Store a forward, in place of one that does not count."""
        self._files.make_folder(self.folder)
        self.remove(former)
        content = msgspec.json.encode(Forward(str(former), str(address)))
        self._files.close(self._files.create(self._path(former), content))

    def remove(self, former: Address) -> None:
        """Remove a forward, if there is one."""
        self._files.remove(self._path(former))

    def all(self) -> Iterator[tuple[Address, Address]]:
        """Yield each former address, and where its tree was moved to. Damaged files are left out."""
        for path in self._paths():
            with suppress(StoredDataError):
                if (forward := self._stored(path)) is not None:
                    yield Address.parse(forward.former), Address.parse(forward.address)

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
