"""Forks of an erased agent: trees of their own, which have a copy of its data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sapwood.address import Address
from sapwood.errors import NotFound, SapwoodError, Unavailable
from sapwood.kernel.actors.fork_origin import FORKS, SOURCES, sources_in
from sapwood.kernel.erasure.receipt import ErasedPlace
from sapwood.kernel.node.data_folder import COPYING, RESTORED, TREES, OddEntry, entries, labelled, tree_folder
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.placement import Moved
from sapwood.kernel.trees.tree_files import ROOT_STEM
from sapwood.storage.file_reader import reading

NOTE = "A fork is a tree of its own, and may have a copy. The file 'address' in the folder names its root."
DAMAGED = "The tree is damaged, and does not say whether it is a fork. It may have a copy."


async def known_forks(node: Node, subjects: Sequence[Address], here: str) -> list[ErasedPlace]:
    """Return the trees of this process that were forked from an agent, from one above it, or from one below it.

    `subjects`: all addresses that the agent has had.
    """
    if node.keeper is not None:
        return []  # the folder of a node has only some trees
    found: dict[str, str] = {}
    for root, folder in _copies(node):  # first: one that gets its place in the meantime is among the trees
        if await asyncio.to_thread(_is_fork, folder, subjects):
            found[f"{TREES}/{tree_folder(node.folder, root).name}"] = NOTE
    for one in list(entries(node.folder)):
        if isinstance(one, OddEntry):
            if one.has_data and node.owns(subjects[0].root):  # once, if there are several processes
                found[one.path] = DAMAGED
        elif node.owns(one) and (note := await _note_of(node, one, subjects)):
            found[f"{TREES}/{tree_folder(node.folder, one).name}"] = note
        await asyncio.sleep(0)
    return [ErasedPlace(place="fork", state="unknown", node=here, where=one, note=found[one]) for one in found]


async def _note_of(node: Node, root: Address, subjects: Sequence[Address]) -> str:
    """Return what to say about a tree that is a fork of an agent, or may be; an empty string about others."""
    try:
        database = (await node.loader.load_files(root)).root
        rows = database.execute(SOURCES) if database.exists and database.has(FORKS) else []
        return NOTE if _are_any_related(rows, subjects) else ""
    except (NotFound, Moved):
        return ""  # it was destroyed since, or is looked at by another process
    except Unavailable:
        raise
    except (SapwoodError, ValueError, OverflowError):
        return DAMAGED


def _copies(node: Node) -> list[tuple[Address, Path]]:
    """Return the copies that may become trees of this process, by the roots that they get."""
    paths = [path for path in sorted((node.folder / TREES).iterdir()) if path.suffix in (COPYING, RESTORED)]
    named = [(labelled(path), path) for path in paths]
    return [(root, path) for root, path in named if isinstance(root, Address) and node.owns(root)]


def _is_fork(folder: Path, subjects: Sequence[Address]) -> bool:
    """Return whether a copy that is not in its place yet is a fork of an agent."""
    try:
        with reading(folder / f"{ROOT_STEM}.db") as file:
            return file.has(FORKS) and _are_any_related(file.rows(SOURCES), subjects)
    except (SapwoodError, OSError, ValueError):
        return False  # it is not complete: who makes it looks whether its source was erased since


def _are_any_related(rows: Iterable[tuple[Any, ...]], subjects: Sequence[Address]) -> bool:
    sources = [Address.parse(source) for row in rows for source in sources_in(row)]
    return any(_are_related(source, one) for source in sources for one in subjects)


def _are_related(source: Address, subject: Address) -> bool:
    return source == subject or source.is_below(subject) or subject.is_below(source)
