"""Which archive is the cluster's own. A node with another one would find no parked trees.

The archive has a random id, which is written into it once, and the cluster remembers the id of the one that it was
founded with. Every node compares the two before anything is read from the archive or written to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from sapwood.errors import Unavailable, UsageError
from sapwood.kernel.ports.log import Archive
from sapwood.randomness import SYSTEM, Random, new_id
from sapwood.runtimes.cluster.base.cluster_status import last_of, names_of
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.base.segments import segment_key
from sapwood.runtimes.cluster.copies.log_shipper import position
from sapwood.runtimes.cluster.nats.bootstrap import said_first
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.timings import DEFAULTS, Timings

SETUP = "setup"
"""Where in the archive it stands whose it is."""
ID = "id"
"""Where in the archive its id stands."""


class Setup(msgspec.Struct, frozen=True):
    """Whose an archive is, and how that cluster is cut."""

    cluster: str
    layout: Layout


class Own(msgspec.Struct, frozen=True):
    """The archive of a cluster, as it was when the cluster was founded."""

    id: str
    url: str
    """Its URL at that time, for error messages."""


class OwnArchive:
    """An archive that is used only once it is known to be the cluster's own; `Unavailable` until then."""

    def __init__(self, archive: Archive, check: Callable[[], Awaitable[None]]) -> None:
        """`check`: returns if it is, and raises `UsageError` if not, or `Unavailable` if it cannot be asked now."""
        self._archive = archive
        self._check = check
        self._is_own = False
        self._checking: asyncio.Future[None] | None = None

    async def know(self) -> None:
        """Return if the archive is the cluster's own; raise what `check` does."""
        if self._is_own:
            return
        if self._checking is None:
            self._checking = asyncio.ensure_future(self._know())
            self._checking.add_done_callback(_seen)
        await asyncio.shield(self._checking)  # all concurrent callers get the same answer

    async def _know(self) -> None:
        try:
            await self._check()
            self._is_own = True
        finally:
            self._checking = None

    async def _own(self) -> Archive:
        if not self._is_own:
            try:
                await self.know()
            except UsageError as error:
                raise Unavailable(str(error)) from None
        return self._archive

    async def put(self, key: str, data: bytes, *, only_new: bool = False) -> bool:
        """Store an object; False: `only_new` was asked for and there is one."""
        return await (await self._own()).put(key, data, only_new=only_new)

    async def get(self, key: str) -> bytes | None:
        """Return an object, or `None` if there is none."""
        return await (await self._own()).get(key)

    async def put_file(self, key: str, path: Path) -> None:
        """Store a file as an object, in parts."""
        await (await self._own()).put_file(key, path)

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return the bytes of an object from `start` to before `end`, or `None` if there is no such object."""
        return await (await self._own()).get_range(key, start, end)

    async def size(self, key: str) -> int | None:
        """Return how many bytes an object has, or `None` if there is none."""
        return await (await self._own()).size(key)

    async def keys(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        """Return the keys that begin so, in order, those after `after`."""
        async for key in (await self._own()).keys(prefix, after):
            yield key

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are gone already are no trouble."""
        await (await self._own()).remove(keys)


def _seen(checking: asyncio.Future[None]) -> None:
    if not checking.cancelled():
        checking.exception()  # the callers may be gone


async def setup_of(archive: Archive) -> Setup | None:
    """Return the cluster of an archive, or `None` if it has none yet; `UsageError` if that cannot be read."""
    data = await archive.get(SETUP)
    try:
        return None if data is None else msgspec.json.decode(data, type=Setup)
    except msgspec.DecodeError as error:
        raise UsageError(
            f"The object {SETUP!r} of the archive {url_of(archive)} is damaged: {error}. Delete it: a node of the "
            "cluster writes it again when it starts."
        ) from None


async def compare_archive(connection: Any, names: Names, archive: Archive) -> None:
    """Raise `UsageError` if this is not the archive that the cluster was founded with. Nothing is written."""
    # In this order: the archive has its id before the cluster remembers it.
    own = await last_of(connection, names.members, [names.archive])
    has = await archive.get(ID)
    if own:
        _compare(names, msgspec.json.decode(own[0].data, type=Own), "" if has is None else has.decode(), archive)


@asynccontextmanager
async def looking_at(nats: str, cluster: str, archive: Archive, who: str) -> AsyncGenerator[tuple[Any, Names], None]:
    """Give a command a connection to a cluster, and its names; `UsageError` if the archive is not its own."""
    connection = await connect(nats, who, in_hurry=True)
    try:
        names = await names_of(connection, cluster)
        await compare_archive(connection, names, archive)
        yield connection, names
    finally:
        await connection.close()


async def claim_archive(
    connection: Any, names: Names, archive: Archive, timings: Timings = DEFAULTS, random: Random = SYSTEM
) -> None:
    """Have the archive be the cluster's own if it has none yet; `UsageError` if it has another."""
    await compare_archive(connection, names, archive)
    await _claim(connection, names, archive, timings, random)


async def _claim(connection: Any, names: Names, archive: Archive, timings: Timings, random: Random) -> None:
    """The same, of an archive that was compared."""
    await archive.put(ID, new_id(random).encode(), only_new=True)
    has = (await archive.get(ID) or b"").decode()
    wished = msgspec.json.encode(Own(has, url_of(archive)))
    own = await said_first(connection, names.members, names.archive, wished, timings)
    _compare(names, msgspec.json.decode(own, type=Own), has, archive)


async def check_archive(
    connection: Any, names: Names, archive: Archive, timings: Timings = DEFAULTS, random: Random = SYSTEM
) -> None:
    """Have cluster and archive know each other; `UsageError` if one is another's, or the log has lost its messages."""
    await compare_archive(connection, names, archive)
    mine = Setup(names.cluster, names.layout)
    await archive.put(SETUP, msgspec.json.encode(mine), only_new=True)
    found = await setup_of(archive)
    if found is not None and found != mine:
        raise UsageError(
            f"The archive belongs to the cluster {found.cluster!r} with {found.layout.streams} streams, but this "
            f"is {names.cluster!r} with {names.layout.streams}. Each cluster needs its own archive."
        )
    for stream in range(names.layout.streams * names.layout.cells):
        if (await position(connection, names.stream(stream))).last == 0:
            async for _ in archive.keys(f"{segment_key(stream, 0).rpartition('/')[0]}/"):
                raise UsageError(
                    f"The stream {names.stream(stream)!r} is empty, but the archive has messages of it: NATS has "
                    "lost its data. Rebuild the cluster from the archive: `sapwood cluster restore`."
                )
    await _claim(connection, names, archive, timings, random)


def _compare(names: Names, own: Own, has: str, archive: Archive) -> None:
    if own.id == has:
        return
    url = url_of(archive)
    which = (
        f"The cluster {names.cluster!r} uses the archive {own.url}, got {url}."
        if url != own.url
        else f"The archive at {url} is no longer that of the cluster {names.cluster!r}: it was emptied, or it is a "
        "folder of this machine only."
    )
    raise UsageError(
        f"{which} All nodes and commands must use the same archive, with SAPWOOD_ARCHIVE or --archive. Move an "
        f"archive only as a whole, with its object {ID!r}."
    )


def url_of(archive: Archive) -> str:
    """Return the URL of an archive, for error messages."""
    return getattr(archive, "url", "memory://")
