"""The larger files of agents in the archive: what their objects are called, and when they are removed.

Each upload makes an object of its own, whose key has a random part, and no object is ever written over. So a late
removal can never remove what was stored later, even if it is the same content. Each tree has a folder, whose name has
the id of the tree and a random part, and is stored by its root. So objects of a destroyed tree are not those of a tree
that was created again under its name.

Nothing is removed at once, as a restore to an earlier time may need it. A removal is noted in the archive, under its
time, once it is durable that nothing names the objects. The node that looks after the archive removes them later.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.errors import SapwoodError
from sapwood.kernel.actors.objects_table import OBJECTS
from sapwood.kernel.log.records import Message, tree_id
from sapwood.kernel.marshal.agent_class import all_classes
from sapwood.kernel.ports.log import Archive
from sapwood.randomness import Random, new_id
from sapwood.storage.file_reader import reading
from sapwood.storage.files import Files

log = logging.getLogger(__name__)

FORMAT = 1
FILES = "files"
REMOVALS = "removals"
NOTE = re.compile(rf"{REMOVALS}/([0-9]{{10,}})-([0-9a-f]+)-[0-9a-z]+")
"""The key of a note: its time, and the tree."""
NAMED_OBJECTS = b"sapwood_objects"
"""Is in every database that names objects of files."""
RESTORE = 86400.0
"""Seconds that the restore of a tree may take."""
BATCH = 20_000
"""Objects that are looked for in a tree at once."""

Named = Callable[[Address, Sequence[str]], Awaitable[Collection[str]]]
"""Returns which of these keys a tree names now; none if there is no such tree."""


class Removal(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Objects that nothing names any more."""

    format: int = FORMAT
    root: str
    """The tree that named them."""
    at: float
    """Since when."""
    keys: list[str] = msgspec.field(default_factory=list[str])
    prefixes: list[str] = msgspec.field(default_factory=list[str])
    """All objects whose keys begin so."""
    is_checked: bool = False
    """Whether the tree may name some of them after all, so that it is read before they are removed."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Removal).decode


def tree_prefix(folder: str) -> str:
    """Return how the keys of the files in a folder of a tree begin; `folder` may be the id of the tree, for all."""
    return f"{FILES}/{folder}/"


def agent_prefix(folder: str, stem: str) -> str:
    """Return how the keys of an agent's files begin."""
    return f"{FILES}/{folder}/{stem}/"


class NodeFileArchive:
    """The objects of files, as one node sees them."""

    def __init__(self, archive: Archive, clock: Clock, random: Random, node: str) -> None:
        self._archive = archive
        self._clock = clock
        self._random = random
        self.node = node
        self.arriving = 0

    async def put_file(self, key: str, path: Path) -> None:
        """Store a file as an object, in parts."""
        await self._archive.put_file(key, path)

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return bytes of an object, or `None` if there is no such object."""
        return await self._archive.get_range(key, start, end)

    async def size(self, key: str) -> int | None:
        """Return how many bytes an object has, or `None` if there is none."""
        return await self._archive.size(key)

    def new_folder(self, root: Address) -> str:
        """Return a name for a folder of a tree that nothing else has or had."""
        return f"{tree_id(root)}/{new_id(self._random, 8)}"

    def new_key(self, folder: str, stem: str, digest: str) -> str:
        """Return a key for one upload of an agent, which no other upload has or had."""
        return f"{agent_prefix(folder, stem)}{new_id(self._random, 16)}-{digest}"

    async def note_removal(self, root: Address, keys: Sequence[str], at: float) -> None:
        """Note that nothing names these objects since a time."""
        await self.note(Removal(root=str(root), at=at, keys=list(keys)))

    async def note_check(self, root: Address) -> None:
        """Note that a restore may leave objects of a tree that nothing names."""
        await note_check(self._archive, root, self._clock.now(), new_id(self._random, 8))

    async def note_agent_removal(self, root: Address, folder: str, stem: str) -> None:
        """Note that an agent was deleted."""
        await self.note(Removal(root=str(root), at=self._clock.now(), prefixes=[agent_prefix(folder, stem)]))

    async def note(self, removal: Removal) -> str:
        """Note a removal, and return the key of the note."""
        return await note_removal(self._archive, removal, new_id(self._random, 8))


async def note_removal(archive: Archive, removal: Removal, id: str) -> str:
    """Note a removal, and return the key of the note. The same note under the same id counts once."""
    key = f"{REMOVALS}/{int(removal.at) + 1:010}-{tree_id(Address.parse(removal.root))}-{id}"
    await archive.put(key, _encode(removal))
    return key


async def note_tree_end(archive: Archive, end: Message, sequence: int) -> None:
    """Note that a tree was destroyed by this message."""
    if end.is_end and end.objects:
        removal = Removal(root=end.root, at=end.at, prefixes=[tree_prefix(end.objects)])
        await note_removal(archive, removal, f"end{sequence}")


async def note_check(archive: Archive, root: Address, at: float, id: str) -> None:
    """Note that a tree is restored or set back now: it may have objects that nothing names then."""
    prefixes = [tree_prefix(tree_id(one)) for one in addresses_of(root)]
    await note_removal(archive, Removal(root=str(root), at=at + RESTORE, prefixes=prefixes, is_checked=True), id)


def addresses_of(root: Address) -> list[Address]:
    """Return the address of a tree, and those that it had or has instead, as far as this program knows."""
    (step,) = root.segments
    types = {step.type: None}
    for kind in all_classes():
        if step.type in kind.type_ids:
            types.update(dict.fromkeys(kind.type_ids))
    return [Address.root_of(one, step.name) for one in types]


async def removals(
    archive: Archive, after: str = "", trees: Collection[str] = ()
) -> AsyncIterator[tuple[str, Removal]]:
    """Return the removals that are noted, in the order of time; one that cannot be read is left, and logged.

    `after`: only those after this key. `trees`: only those of these trees.
    """
    async for key in archive.keys(f"{REMOVALS}/", after):
        if (name := NOTE.fullmatch(key)) is None or (trees and name[2] not in trees):
            continue
        data = await archive.get(key)
        try:
            if data is not None:
                yield key, _decode(data)
        except msgspec.DecodeError as error:
            log.error("removal of files cannot be read key=%s error=%s", key, error)


async def check_later_removals(archive: Archive, since: float) -> None:
    """Trees were set back to this time: have removals that are later be checked before they are done."""
    async for key, removal in removals(archive, f"{REMOVALS}/{max(int(since), 0):010}"):
        if removal.at >= since and not removal.is_checked:
            await archive.put(key, _encode(msgspec.structs.replace(removal, is_checked=True)))


async def sweep_removals(archive: Archive, before: float, named: Named) -> int:
    """Remove the objects that nothing names since before this time; return how many removals were done."""
    count = 0
    async for key in archive.keys(f"{REMOVALS}/"):
        if (name := NOTE.fullmatch(key)) is None:
            continue  # it is not ours
        if int(name[1]) >= before:
            break
        data = await archive.get(key)
        try:
            if data is not None:
                await _remove(archive, key, _decode(data), named)
        except (SapwoodError, msgspec.DecodeError) as error:
            log.warning("files not removed from the archive yet key=%s error=%s", key, error)
            continue
        await archive.remove([key])
        count += 1
    return count


async def _remove(archive: Archive, key: str, removal: Removal, named: Named) -> None:
    async for batch in _batches(archive, removal):
        left = await _left(archive, key, removal, batch, named) if removal.is_checked else ()
        await archive.remove([one for one in batch if one not in left])


async def _left(archive: Archive, key: str, removal: Removal, batch: Sequence[str], named: Named) -> Collection[str]:
    """Return which objects of a removal stay: those that the tree names, and those that a later removal is about."""
    root = Address.parse(removal.root)
    left = set(await named(root, batch))
    async for _, later in removals(archive, key, {tree_id(one) for one in addresses_of(root)}):
        keys, prefixes = set(later.keys), tuple(later.prefixes)
        left.update(one for one in batch if one in keys or one.startswith(prefixes))
    return left


async def _batches(archive: Archive, removal: Removal) -> AsyncIterator[list[str]]:
    for at in range(0, len(removal.keys), BATCH):
        yield removal.keys[at : at + BATCH]
    for prefix in removal.prefixes:
        batch: list[str] = []
        async for key in archive.keys(prefix):
            batch.append(key)
            if len(batch) == BATCH:
                yield batch
                batch = []
        if batch:
            yield batch


def named_in(files: Mapping[str, bytes | bytearray], keys: Sequence[str]) -> set[str]:
    """Return which of these keys the databases of a tree know of. Takes a while.

    `files`: the content of each database. Each names only objects of its own agent.
    """
    named: set[str] = set()
    for stem in {_stem_of(key) for key in keys}:
        content = files.get(stem, b"")
        if NAMED_OBJECTS in content:
            named |= _named_in_rows(content)
    return named.intersection(keys)


def _stem_of(key: str) -> str:
    """Return the file name of the agent whose object this is."""
    return key.rsplit("/", 2)[-2]


def _named_in_rows(content: bytes | bytearray) -> set[str]:
    with tempfile.TemporaryDirectory(prefix="sapwood-") as folder:
        path = Path(folder) / "copy.db"
        Files().create_database(path, content)
        with reading(path) as file:
            if not file.has(OBJECTS):
                return set()
            return {key for (key,) in file.rows("SELECT key FROM sapwood_objects")}
