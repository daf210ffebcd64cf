"""Checks the files of a tree: are its databases whole?

No process may have them open. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from sapwood.errors import StoredDataError
from sapwood.storage.file_reader import FileReader, reading
from sapwood.storage.framework_schema import READ, foreign_rows
from sapwood.storage.image import empty_image
from sapwood.storage.migrations import NewerData

Check = Callable[[FileReader], Iterable[str]]
"""Yields what is wrong with the content of one database, in sentences."""
LAYOUT = 21
"""Bytes at the beginning of a database that say how it is stored: its magic, pages, WAL mode and room for checksums."""
MOST_PROBLEMS = 3
"""Maximum number of problems to name per database: a damaged one may have thousands."""
BUSY_TIMEOUT = 60.0
"""Seconds to wait for another check of the same file."""
ROOT = "root.db"
WAL = "-wal"


def damage_in(folder: Path, checks: Iterable[Check] = (), frames: Mapping[str, int] | None = None) -> list[str]:
    """Return what is damaged in the folder of a tree, in sentences.

    `frames`: by the name of a database, how many frames its write-ahead log has.
    """
    checks = tuple(checks)
    try:
        names = {path.name for path in folder.iterdir()}
    except OSError as error:
        return [f"The folder cannot be read: {error.strerror}."]
    databases = sorted(name for name in names if name.endswith(".db"))
    found = [
        f"The database {name.removesuffix(WAL)} is missing, and its write-ahead log is there."
        for name in sorted(names)
        if name.endswith(f".db{WAL}") and name.removesuffix(WAL) not in names
    ]
    if databases and ROOT not in names:
        found.append(f"The database {ROOT} is missing, and those of its children are there.")
    elif len(databases) > 1 and _is_empty(folder / ROOT):
        found.append(f"The database {ROOT} is empty, and those of its children are there.")
    for name in databases:
        found += damage_of(folder / name, checks, (frames or {}).get(name))
    return found


def foreign_in(folder: Path) -> Iterator[str]:
    """Yield, in sentences, what no database of sapwood has: another layout, or SQL that acts on its tables."""
    layout = empty_image()[:LAYOUT]
    for path in sorted(folder.glob("*.db")):
        with path.open("rb") as content:
            if content.read(LAYOUT) != layout:
                yield f"{path.name} does not have the layout of its databases."
                continue
        with reading(path) as file:
            rows = [(str(kind), str(name), str(table), sql) for kind, name, table, sql in file.rows(READ)]
            for kind, name, *_ in foreign_rows(rows, file.versions):
                yield f"{path.name} has the {kind.lower()} {name!r}, which uses tables of the framework."


def _is_empty(path: Path) -> bool:
    """Return whether neither a database nor its write-ahead log has any content."""
    return not any(file.exists() and file.stat().st_size for file in (path, path.with_name(path.name + WAL)))


def damage_of(path: Path, checks: Iterable[Check] = (), frames: int | None = None) -> list[str]:
    """Return what is wrong with one database, in sentences."""
    try:
        with reading(path, BUSY_TIMEOUT) as file:
            corrupt = list(_corruption(file))
            found = [f"The database {path.name} is damaged: {problem}" for problem in (*_lost(file, frames), *corrupt)]
            if corrupt:
                return found
            file.check_known()
            return [*found, *(problem for check in checks for problem in check(file))]
    except (NewerData, StoredDataError) as error:
        return [f"{path.name}: {error}"]


def _lost(file: FileReader, frames: int | None) -> Iterator[str]:
    if frames is not None and file.frames != frames:
        yield f"its write-ahead log has {frames} frames, and only {file.frames} of them can be read."


def _corruption(file: FileReader) -> Iterator[str]:
    problems = [str(text) for (text,) in file.rows(f"PRAGMA integrity_check({MOST_PROBLEMS})")]
    if problems != ["ok"]:
        for problem in problems:
            yield f"{problem}."
