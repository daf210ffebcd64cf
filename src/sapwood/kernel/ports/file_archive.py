"""Where the larger files of agents lie in a cluster: each is an object of its own in the archive."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sapwood.address import Address


class FileArchive(Protocol):
    """The objects of files, as one node sees them."""

    node: str
    """The name of the node: what one has received of a file, another does not have."""
    arriving: int
    """Bytes that are on their way to the disk of the node, as copies of files."""

    def new_folder(self, root: Address) -> str:
        """Return a name for a folder of a tree that nothing else has or had."""
        ...

    def new_key(self, folder: str, stem: str, digest: str) -> str:
        """Return a key for one upload of an agent, which no other upload has or had."""
        ...

    async def put_file(self, key: str, path: Path) -> None:
        """Store a file as an object, in parts."""
        ...

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return bytes of an object, or `None` if there is no such object."""
        ...

    async def size(self, key: str) -> int | None:
        """Return how many bytes an object has, or `None` if there is none."""
        ...

    async def note_removal(self, root: Address, keys: Sequence[str], at: float) -> None:
        """Note that nothing names these objects since a time: after `Settings.history`, they are removed."""
        ...

    async def note_check(self, root: Address) -> None:
        """Note that a restore may leave objects of a tree that nothing names: later, they are looked for."""
        ...

    async def note_agent_removal(self, root: Address, folder: str, stem: str) -> None:
        """Note that an agent was deleted: after `Settings.history`, all its objects are removed."""
        ...
