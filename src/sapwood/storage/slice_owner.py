"""What a database asks and tells the owner of the slices that write to it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from sapwood.errors import SapwoodError
from sapwood.storage.availability import StorageUnavailable

D_contra = TypeVar("D_contra", contravariant=True)
SUSPENDED = (
    "`with self.transaction():` was suspended by an await, and its writes are rolled back. Keep awaits outside "
    "the block."
)


class SliceOwner(Protocol[D_contra]):
    """The owner of the slices that write to a database."""

    def before_create(self, database: D_contra) -> None:
        """Called before the file appears; may refuse by raising."""
        ...

    def before_write(self, database: D_contra, sql: str) -> None:
        """Called before the first write after each commit; may refuse by raising."""
        ...

    def whose_slice(self) -> object:
        """Return what tells the slices of two tasks apart."""
        ...

    def opened(self, database: D_contra) -> None:
        """Called when the file was opened."""
        ...

    def lost(self, database: D_contra, error: BaseException) -> None:
        """Called when the transaction was undone: by SQLite, by a refused write, or because the file is damaged."""
        ...

    def refused(self, error: StorageUnavailable) -> None:
        """Called when the operating system refuses to write to a file, or to open it."""
        ...

    def damaged(self, database: D_contra, how: str) -> SapwoodError:
        """Return the error to raise for a damaged file: it names the file and what the operator can do."""
        ...
