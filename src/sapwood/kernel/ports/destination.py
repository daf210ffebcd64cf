"""The server that a tree is moved to, as the process sees it that moves the tree."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from sapwood.address import Address

Part = tuple[str, int, bytes]
"""A part of a file: the name of the file, where the part begins, and its content."""


class FileState(msgspec.Struct, array_like=True, frozen=True):
    """What a file of a tree must be."""

    bytes: int
    sha256: str
    """Empty: only the size is compared."""

    @classmethod
    def of(cls, path: Path, *, with_digest: bool) -> FileState:
        """Return what a file is."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest() if with_digest else ""
            return cls(os.fstat(file.fileno()).st_size, digest)


FileStates = Mapping[str, FileState]


class Ticket(msgspec.Struct, frozen=True):
    """What a server gives out for one move. It allows nothing but to finish that move."""

    url: str
    """The server, without a path of an agent."""
    id: str
    key: str
    path: str
    """Where clients find the root on that server."""


class Destination(Protocol):
    """One move, at the other server. Each request can be repeated."""

    ticket: Ticket

    async def write(self, parts: Sequence[Part]) -> None:
        """Write parts of files."""
        ...

    async def check(self, files: FileStates) -> None:
        """Check whether the files that were written can be a tree there. Raises what is wrong with them."""
        ...

    async def seal(self, files: FileStates) -> None:
        """Make the files durable, as they are from now on. The tree waits for `commit` or `discard`."""
        ...

    async def commit(self) -> None:
        """Make a tree of them: it runs there from now on."""
        ...

    async def discard(self) -> None:
        """Remove them. After `commit`, forget the move."""
        ...

    async def close(self) -> None:
        """End the connection."""
        ...


class Destinations(Protocol):
    """The way to other servers."""

    async def offer(self, url: str, token: str, root: Address) -> Destination:
        """Ask a server whether it takes a tree, with a token of it. Its address is held there from now on."""
        ...

    def known(self, ticket: Ticket, root: Address) -> Destination:
        """Return a move that was offered before."""
        ...
