"""Finds children whose database was there and is missing: the parent's database names them, and so does their mark.

A child that never wrote has neither a file nor a mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sapwood.kernel.actors.children_table import CHILDREN
from sapwood.kernel.trees.deletion import child_stem
from sapwood.storage.file_reader import FileReader
from sapwood.storage.files import Files
from sapwood.storage.integrity import Check
from sapwood.storage.marks import Marks


def stored_children(file: FileReader) -> Iterator[tuple[str, str, str]]:
    """Yield the type, the name and the file stem of each child of an agent."""
    if file.has(CHILDREN):
        rows = file.rows(
            "SELECT type, name, generation FROM sapwood_children WHERE deleted_at IS NULL ORDER BY generation"
        )
        for type_, name, generation in rows:
            yield type_, name, child_stem(file.stem, generation)


def lost_children(folder: Path) -> Check:
    """Return a check of a tree's databases, or of copies of them: does the tree's folder have those of all children?

    The tree may be running.
    """
    files = Files()
    marks = Marks(folder, files)

    def has_mark(stem: str) -> bool:
        mark = marks.find(stem)
        return mark is not None and mark.counts(files.boot)

    def is_lost(stem: str) -> bool:
        path = folder / f"{stem}.db"
        # A mark is written after its file. A deletion removes first the mark: if that is still there, it is damage.
        return not path.exists() and has_mark(stem) and not path.exists() and has_mark(stem)

    def check(file: FileReader) -> Iterator[str]:
        for type_, name, stem in stored_children(file):
            if is_lost(stem):
                yield f"The database {stem}.db, which belongs to {type_}:{name}, is missing."

    return check
