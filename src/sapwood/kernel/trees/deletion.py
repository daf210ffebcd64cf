"""Removes what is left of a child that has a tombstone: its files, and those of everything below it.

The order makes it safe to die anywhere: an agent's file is the list of its children, so
it goes only after theirs are gone for good, and the tombstone goes last of all. Done
again from the start, it removes what is left and nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path
from typing import Protocol

from sapwood.address import Address
from sapwood.errors import StoredDataError, Unavailable
from sapwood.kernel.actors.actor import Actor, Host
from sapwood.kernel.actors.children_table import ChildrenTable
from sapwood.kernel.actors.objects_table import OBJECTS
from sapwood.kernel.alarms.tree_index import TreeAlarms
from sapwood.kernel.durability.slices import Slices
from sapwood.kernel.trees.pending_questions import TreeQuestions
from sapwood.kernel.trees.quota import Ledger
from sapwood.kernel.trees.run_quota import RunQuota
from sapwood.kernel.trees.usage import UsageMeter
from sapwood.settings import Limits
from sapwood.storage.blobs import blob_folder, blobs_of, remove_blobs
from sapwood.storage.database import Database
from sapwood.storage.files import Files
from sapwood.storage.marks import Marks

log = logging.getLogger(__name__)

PAGE = 200
AGAIN = 60.0
"""Seconds until a deletion continues that needs the archive, which is down."""


def child_stem(parent_stem: str, generation: int) -> str:
    """Return the file name of a child: no name a user chose is part of it, and none is ever used twice."""
    return f"{hashlib.sha256(parent_stem.encode()).hexdigest()[:24]}-{generation}"


class DeletionHost(Protocol):
    """What a deletion needs of its tree."""

    folder: Path
    files: Files
    slices: Slices
    ledger: Ledger
    spending: UsageMeter
    alarms: TreeAlarms
    questions: TreeQuestions
    givers: RunQuota
    databases: dict[str, Database]
    marks: Marks | None

    @property
    def host(self) -> Host: ...

    @property
    def address(self) -> Address: ...

    def stored_object_folder(self) -> str | None: ...

    def delete_in_background(self, parent: Actor, generation: int, address: Address) -> asyncio.Task[None]: ...

    async def may_remove(self) -> None: ...

    def database(self, stem: str, limits: Limits, *, new: bool = False) -> Database: ...

    def release(self, database: Database) -> None: ...


class _ArchiveDown(Unavailable):
    """The archive cannot be told which objects to remove."""


class Deletion:
    """Finishes deletions in one tree."""

    def __init__(self, yard: DeletionHost) -> None:
        self._yard = yard

    async def finish(self, owner: Actor, generation: int, address: Address) -> None:
        """Remove the child of this generation, which has a tombstone in its parent and had this address."""
        parent, registry = owner.database, owner.registry
        await self._durable(parent)
        # If it was created again since, the entries may be the new one's, and those that are not cost a look.
        if not parent.removed and not registry.has((address.type,), address.name):
            self._yard.alarms.forget_below(address)
            self._yard.questions.forget_below(address, owner)
        if self._yard.alarms.exist:
            await self._yard.alarms.tell_node()
        try:
            await self._remove(child_stem(owner.stem, generation))
        except _ArchiveDown as error:
            # The tombstone stays: the next start of the parent continues, too.
            log.warning("deletion continues later agent=%s error=%s", address, error)
            self._yard.host.loop.call_later(AGAIN, self._continue, owner, generation, address)
            return
        await self._yard.host.gate.sync_folder(self._yard.folder)
        if not parent.removed:
            registry.forget(generation)
            self._yard.slices.commit()

    def _continue(self, owner: Actor, generation: int, address: Address) -> None:
        if owner.dropped is None:
            self._yard.delete_in_background(owner, generation, address)

    async def _remove(self, stem: str) -> None:
        database = self._yard.database(stem, self._yard.host.settings.limits)
        if database.exists and database.path.exists():  # an earlier try may have removed it
            had_children = False
            registry = ChildrenTable(database, self._yard.host.clock)
            after = 0
            while page := self._generations(registry, database, after):
                had_children = True
                for generation in page:
                    await self._remove(child_stem(stem, generation))
                after = page[-1]
                await asyncio.sleep(0)
            if had_children:
                self._yard.ledger.release(stem)
                self._yard.slices.commit()
                await self._durable(self._yard.databases["root"])
                await self._yard.host.gate.sync_folder(self._yard.folder)
        await self._forget_objects(stem, database)
        self._yard.spending.forget(stem)
        self._yard.slices.commit()
        await self._durable(database)
        await self._yard.may_remove()
        if database.removed:
            return  # by the deletion of its own parent, or of itself, which continued at the same time
        database.removed = True
        self._yard.release(database)
        if self._yard.marks is not None:
            self._yard.marks.remove(stem)
        if self._yard.host.file_archive is None:
            for path in blobs_of(blob_folder(database.path)):
                self._yard.host.history.keep_file(self._yard.address, path)
        for _ in remove_blobs(blob_folder(database.path), self._yard.files):
            await asyncio.sleep(0)
        self._yard.files.remove(database.path)
        self._yard.files.remove(database.wal)
        self._yard.databases.pop(stem, None)
        self._yard.ledger.freed()
        self._yard.givers.freed()

    async def _forget_objects(self, stem: str, database: Database) -> None:
        """Have the objects of an agent's files be removed, before the database goes that knows of them."""
        archive = self._yard.host.file_archive
        folder = None if archive is None else self._yard.stored_object_folder()
        if archive is None or folder is None or not _may_have_objects(database):
            return
        try:
            await archive.note_agent_removal(self._yard.address, folder, stem)
        except Unavailable as error:
            raise _ArchiveDown(str(error)) from None

    def _generations(self, registry: ChildrenTable, database: Database, after: int) -> list[int]:
        if database.removed:
            return []
        try:
            return [generation for generation, _ in registry.generations(after, PAGE)]
        except StoredDataError as error:
            log.error(
                "reading a deleted agent failed: %s", database.path, extra={"file": database.path.name}, exc_info=error
            )
            return []

    async def _durable(self, database: Database) -> None:
        if (waiting := self._yard.host.gate.wait(database)) is not None:
            await waiting


def _may_have_objects(database: Database) -> bool:
    if database.removed or not database.exists or not database.path.exists():
        return False
    try:
        return database.has(OBJECTS)
    except StoredDataError:
        return True
