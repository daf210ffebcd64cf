"""Erases a sub-agent with all below it out of a tree that keeps running.

The files of the sub-agents are removed as by a deletion. The agents above keep their databases: what they know of the
sub-agents is deleted from those, and each is written again, because a deleted row stays in the file until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from sapwood.address import Address, PathSegment
from sapwood.errors import NotFound, Unavailable, UsageError
from sapwood.kernel.actors.children_table import CHILDREN, ChildrenTable, ChildRow
from sapwood.kernel.actors.idempotency import IDEMPOTENCY
from sapwood.kernel.alarms.tree_index import OWN_AND_BELOW
from sapwood.kernel.erasure.receipt import ErasedPlace
from sapwood.kernel.erasure.records import ErasureRecord
from sapwood.kernel.erasure.subject_names import names_of
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.erasure import ErasedBelow, ErasureHooks
from sapwood.kernel.trees.deletion import child_stem
from sapwood.kernel.trees.former_addresses import ADDRESSES
from sapwood.kernel.trees.tree import Tree
from sapwood.kernel.trees.tree_files import ROOT_STEM
from sapwood.storage.blobs import blob_folder
from sapwood.storage.database import Database
from sapwood.storage.wal_frames import has_empty_log

CREATED = "SELECT created_at FROM sapwood_children WHERE generation = ?"
PAGE = 200
LOOKS = 1000
LOOK_AGAIN = 0.05
"""Seconds until to look again at a database that is being written."""


class ErasedSubtree:
    """The steps of erasures of subtrees, on one node."""

    def __init__(self, node: Node, hooks: ErasureHooks, place: Callable[..., ErasedPlace]) -> None:
        self._node = node
        self._hooks = hooks
        self._place = place

    async def find(self, record: ErasureRecord) -> None:
        """Note which files are to be removed; `NotFound` if there is no such agent, and nothing is known of one.

        An agent that was deleted has no files, but those above it may keep the content of its runs.
        """
        subject = record.subject
        if not self._node.roots:
            raise UsageError(f"{subject} is erased by the server that runs its tree. Start the server, and try again.")
        tree = await self._node.loader.load_files(subject.root)
        tree.slices.commit()
        stems = self._stems_above(tree, subject)
        types = _types_of(tree, subject.segments[-1])
        rows = _children(tree, stems[-1], types, subject.name) if len(stems) == len(subject.segments) - 1 else []
        record.types = list(dict.fromkeys((*(row.type for row in rows), *types)))
        record.names = names_of(subject, tree, self._node.roots)
        if not rows and not self._is_known_above(tree, stems, record):
            raise NotFound(f"There is no {subject}.", path=subject.segments)
        if rows:
            record.generation, record.created_at = rows[0].generation, rows[0].created_at
        for row in rows:
            record.stems += await self._below(tree, child_stem(stems[-1], row.generation))
        files = [path for stem in record.stems for path in _files_of(tree.folder, stem)]
        record.agents, record.files = len(record.stems), len(files)
        record.bytes = sum(path.stat().st_size for path in files)

    def _stems_above(self, tree: Tree, subject: Address) -> list[str]:
        """Return the file stems of the agents above one, the root first, as far as they exist."""
        stems = [ROOT_STEM]
        for segment in subject.segments[1:-1]:
            if (row := _child(tree, stems[-1], _types_of(tree, segment), segment.name)) is None:
                break
            stems.append(child_stem(stems[-1], row.generation))
        return stems

    def _is_known_above(self, tree: Tree, stems: Sequence[str], record: ErasureRecord) -> bool:
        """Return whether an agent above has stored something of an agent that was deleted."""
        for depth, stem in enumerate(stems):
            database = tree.database(stem, tree.limits)
            below = ErasedBelow(record.subjects, depth, record.types)
            if database.exists and any(knows(database, below) for knows in self._hooks.knows):
                return True
        return False

    async def _tree_of(self, record: ErasureRecord) -> Tree | None:
        """Return the tree that has, or had, the subtree. `None` if it was destroyed. It may have been created again."""
        tree = await self._node.loader.load_files(record.subject.root)
        if not tree.root.exists:
            return None
        tree.slices.commit()
        stem = self._stems_above(tree, record.subject)[-1]
        if record.stems and record.stems[0] == child_stem(stem, record.generation):
            database = tree.database(stem, tree.limits)
            created = database.execute(CREATED, record.generation) if database.has(CHILDREN) else []
            if created and created[0][0] != record.created_at:
                return None  # the number is that of a child of another tree
        return tree

    async def _below(self, tree: Tree, stem: str) -> list[str]:
        """Return the stem of an agent and of all below it, also of those whose deletion is not finished."""
        found, left = list[str](), [stem]
        while left:
            found.append(one := left.pop())
            database = tree.database(one, tree.limits)
            if not database.exists:
                continue
            registry, after = ChildrenTable(database, self._node.clock), 0
            while page := registry.generations(after, PAGE):
                left.extend(child_stem(one, generation) for generation, _ in page)
                after = page[-1][0]
            await asyncio.sleep(0)
        return found

    async def remove(self, record: ErasureRecord) -> list[ErasedPlace]:
        """Remove the files."""
        if record.stems and (tree := await self._tree_of(record)) is not None:
            if len(self._stems_above(tree, record.subject)) == len(record.subject.segments) - 1:
                await self._delete(record)
            for _ in range(LOOKS):  # an agent above may have been deleted, and its deletion runs
                if not _files_in(tree, record):
                    break
                await asyncio.sleep(LOOK_AGAIN)
        await self.check(record)
        return [self._place("files", count=record.files, bytes=record.bytes)]

    async def _delete(self, record: ErasureRecord) -> None:
        """Delete the agent, if it is there, and wait until its deletion is finished."""
        subject = record.subject
        assert subject.parent is not None
        parent = await self._node.reach_alone(subject.parent)
        alive = parent.registry.find(tuple(record.types), subject.name)
        if alive is not None and alive.generation == record.generation:
            await self._hooks.delete_child(parent, alive.type, subject.name)
        stems = {child_stem(parent.stem, row.generation): row.generation for row in parent.registry.buried()}
        for generation in [stems[stem] for stem in record.stems if stem in stems]:
            for _ in range(LOOKS):
                if not any(row.generation == generation for row in parent.registry.buried()):
                    break
                tree = await self._node.loader.load_files(subject.root)
                await asyncio.wait({tree.delete_in_background(parent, generation, subject)})
                await asyncio.sleep(LOOK_AGAIN)

    async def check(self, record: ErasureRecord) -> None:
        """Raise `Unavailable` if a file of the subtree is left."""
        if left := await self.files_left(record):
            raise Unavailable(f"Files are left of the erased agents: {', '.join(path.name for path in left[:5])}.")

    async def files_left(self, record: ErasureRecord) -> list[Path]:
        """Return the files of the subtree that are there. After a restore, those of the backup may be."""
        tree = await self._tree_of(record)
        return [] if tree is None else _files_in(tree, record)

    async def erase_rows(self, record: ErasureRecord) -> list[ErasedPlace]:
        """Delete what the other agents of the tree have in their databases, and write those again."""
        tree = await self._tree_of(record)
        rows = 0 if tree is None else await self._erase_rows(tree, record)
        return [self._place("other agents of the tree", count=rows)]

    async def _erase_rows(self, tree: Tree, record: ErasureRecord) -> int:
        above = self._stems_above(tree, record.subject)
        rows = 0
        for depth, stem in enumerate(above):
            database = tree.database(stem, tree.limits)
            if database.exists:
                database.begin()
                tree.slices.commit()  # what its agent has yet to write of them is deleted with the rest
                below = ErasedBelow(record.subjects, depth, record.types)
                rows += sum(erase(database, below) for erase in self._hooks.rows)
        rows += sum(_erase_in_root(tree.root, one) for one in record.subjects)
        changed = set(above)
        for path in sorted(tree.folder.glob("*.db")):
            database = tree.database(path.stem, tree.limits)
            if database.has(IDEMPOTENCY) and (count := _erase_outcomes(database, record.subjects)):
                rows += count
                changed.add(path.stem)
            tree.slices.commit()
            await asyncio.sleep(0)
        for stem in changed:
            database = tree.database(stem, tree.limits)
            if database.exists:
                await self._write_again(tree, database)
        return rows

    async def _write_again(self, tree: Tree, database: Database) -> None:
        """Write a database again without what was deleted from it, and empty its log."""
        gate, is_written = self._node.gate, False
        for _ in range(LOOKS):
            await tree.may_remove()
            tree.slices.commit()
            if gate.is_quiet(database) and not database.in_transaction:
                if not is_written:
                    tree.vacuum(database)
                    is_written = True
                if gate.is_quiet(database):
                    database.empty_log()
                if has_empty_log(database.path):
                    tree.slices.commit()
                    return
            await asyncio.sleep(LOOK_AGAIN)
        raise Unavailable(f"The log of the database {database.path.name} cannot be emptied.")


def _types_of(tree: Tree, segment: PathSegment) -> tuple[str, ...]:
    kind = tree.kinds.get(segment.type)
    return (segment.type, *(kind.aliases if kind is not None else ()))


def _child(tree: Tree, stem: str, types: tuple[str, ...], name: str) -> ChildRow | None:
    database = tree.database(stem, tree.limits)
    return ChildrenTable(database, tree.host.clock).find(types, name) if database.exists else None


def _children(tree: Tree, stem: str, types: tuple[str, ...], name: str) -> list[ChildRow]:
    """Return the child of this name, first, and those of the same name whose deletion is not finished."""
    database = tree.database(stem, tree.limits)
    if not database.exists:
        return []
    registry = ChildrenTable(database, tree.host.clock)
    alive = registry.find(types, name)
    buried = [row for row in registry.buried() if row.type in types and row.name == name]
    return [*([] if alive is None else [alive]), *reversed(buried)]


def _files_in(tree: Tree, record: ErasureRecord) -> list[Path]:
    return [path for stem in record.stems for path in _files_of(tree.folder, stem)]


def _files_of(folder: Path, stem: str) -> list[Path]:
    path = folder / f"{stem}.db"
    beside = blob_folder(path)
    return [
        *(one for one in (path, path.with_name(f"{path.name}-wal")) if one.exists()),
        *((one for one in beside.rglob("*") if one.is_file()) if beside.exists() else ()),
    ]


def _erase_in_root(root: Database, subject: Address) -> int:
    """Delete what the indexes of a tree have of the agents."""
    count = 0
    for schema, table, column in ADDRESSES:
        if root.has(schema):
            where = OWN_AND_BELOW.replace("owner", column)
            count += len(root.execute(f"DELETE FROM {table} WHERE {where} RETURNING 1", str(subject)))  # noqa: S608 - ours
    return count


def _erase_outcomes(database: Database, subjects: Sequence[Address]) -> int:
    """Delete the outcomes of calls that the agents have made with idempotency keys."""
    # An address ends at the space before the file stem; "!" and "0" are the characters after " " and "/".
    sql = (
        "DELETE FROM sapwood_idempotency WHERE (caller >= ?1 || ' ' AND caller < ?1 || '!')"
        " OR (caller >= ?1 || '/' AND caller < ?1 || '0') RETURNING 1"
    )
    return sum(len(database.execute(sql, str(one))) for one in subjects)
