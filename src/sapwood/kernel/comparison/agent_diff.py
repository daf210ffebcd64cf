"""Compares the files of two trees, which no process has open: agent by agent, from the compared ones down."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import apsw

from sapwood.address import Address
from sapwood.errors import NotFound, StoredDataError
from sapwood.kernel.comparison.entry_diff import compare_entries
from sapwood.kernel.comparison.row_diff import compare_rows
from sapwood.kernel.comparison.tables import schema_of, tables_of
from sapwood.kernel.comparison.tree_diff import AgentDiff, PartDiff, TreeDiff
from sapwood.kernel.ports.compared_parts import ComparedEntry, ComparedPart
from sapwood.kernel.trees.lost_children import stored_children
from sapwood.kernel.trees.tree_files import ROOT_STEM
from sapwood.kernel.trees.usage import SPENDING, SUMS, Spent
from sapwood.storage.engine import CHECKED
from sapwood.storage.file_reader import FileReader, reading
from sapwood.storage.marks import MARKS
from sapwood.storage.sql_errors import damage

MOST_CHANGES = 2000
"""Changes of a whole diff that are listed, so that it has a limited size."""
STEPS = 50_000
"""Instructions of SQLite between two looks whether the comparison was cancelled."""


class Side(NamedTuple):
    """One of the two agents: its address, and the folder with the files of its tree."""

    address: Address
    folder: Path


class Pair(NamedTuple):
    """Two agents with the same path below the compared ones, by the names of their files."""

    path: str
    a: str
    b: str


class Cancelled(Exception):
    """The comparison is not needed any more."""


@dataclass
class Comparison:
    """Compares two agents and those below them."""

    a: Side
    b: Side
    parts: Sequence[ComparedPart]
    limit: int
    """How many agents, and changes of each part, are listed."""
    cancelled: threading.Event

    def __post_init__(self) -> None:
        self._left = MOST_CHANGES

    def run(self) -> TreeDiff:
        """Return what differs. Takes a while: not for the event loop."""
        for folder in {self.a.folder, self.b.folder}:
            _fold(folder)
        both = only_a = only_b = changed = 0
        names_a, names_b, diffs = list[str](), list[str](), list[AgentDiff]()
        to_visit = [Pair("", _stem_of(self.a), _stem_of(self.b))]
        while to_visit:
            pair = to_visit.pop()
            both += 1
            if parts := self._compare(pair):
                changed += 1
                if len(diffs) < self.limit:
                    diffs.append(AgentDiff(pair.path, parts))
            below_a, below_b = self._children(self.a, pair.a), self._children(self.b, pair.b)
            for side, mine, others, names in (
                (self.a, below_a, below_b, names_a),
                (self.b, below_b, below_a, names_b),
            ):
                for name in sorted(mine.keys() - others.keys()):
                    count = self._listed(side, _joined(pair.path, name), mine[name], names)
                    if side is self.a:
                        only_a += count
                    else:
                        only_b += count
            shared = sorted(below_a.keys() & below_b.keys(), reverse=True)
            to_visit += [Pair(_joined(pair.path, name), below_a[name], below_b[name]) for name in shared]
        return TreeDiff(
            str(self.a.address),
            str(self.b.address),
            both,
            only_a,
            only_b,
            changed,
            tuple(names_a),
            tuple(names_b),
            tuple(diffs),
        )

    def _children(self, side: Side, stem: str) -> dict[str, str]:
        with _opened(side, stem) as file:
            found = () if file is None else stored_children(file)
            return {f"{quote(type_, safe='')}:{quote(name, safe='')}": child for type_, name, child in found}

    def _listed(self, side: Side, path: str, stem: str, names: list[str]) -> int:
        """Count an agent that exists on one side only, with all below it, and list the first."""
        count, to_visit = 0, [(path, stem)]
        while to_visit:
            self._check()
            path, stem = to_visit.pop()
            count += 1
            if len(names) < self.limit:
                names.append(path)
            children = self._children(side, stem)
            to_visit += [(_joined(path, name), children[name]) for name in sorted(children, reverse=True)]
        return count

    def _compare(self, pair: Pair) -> tuple[PartDiff, ...]:
        self._check()
        found = list[PartDiff | None]()
        with ExitStack() as stack:
            files = [stack.enter_context(_opened(side, stem)) for side, stem in ((self.a, pair.a), (self.b, pair.b))]
            for part in self.parts:
                a, b = (iter(()) if file is None else part.read(file) for file in files)
                found.append(compare_entries(part.kind, a, b, self._room(), part.show))
        a, b = _spending(self.a, pair.a), _spending(self.b, pair.b)
        found.append(compare_entries("spending", a, b, self._room(), Spent.told))
        with self._attached(pair) as connection:
            found += self._compare_tables(connection)
        parts = tuple(part for part in found if part is not None)
        self._left -= sum(len(part.changes) for part in parts)
        return parts

    def _compare_tables(self, connection: apsw.Connection) -> Iterator[PartDiff | None]:
        try:
            mine, other = tables_of(connection, "a"), tables_of(connection, "b")
            a, b = _statements(schema_of(connection, "a")), _statements(schema_of(connection, "b"))
            yield compare_entries("schema", a, b, self._room(), str)
            for name in sorted(mine.keys() | other.keys()):
                yield compare_rows(connection, mine.get(name), other.get(name), self._room())
        except apsw.InterruptError:
            raise Cancelled from None
        except apsw.Error as error:
            raise StoredDataError(f"A database is damaged: {damage(error) or error}.") from error

    @contextmanager
    def _attached(self, pair: Pair) -> Generator[apsw.Connection, None, None]:
        """Yield a connection with the databases of two agents as `a` and `b`. A missing file is an empty database."""
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOMUTEX
        connection = apsw.Connection(":memory:", flags=flags)
        try:
            connection.set_progress_handler(self.cancelled.is_set, STEPS)
            for name, side, stem in (("a", self.a, pair.a), ("b", self.b, pair.b)):
                path = side.folder / f"{stem}.db"
                where = f"file:{quote(str(path))}?immutable=1&vfs={CHECKED}" if path.exists() else ":memory:"
                connection.execute(f"ATTACH ? AS {name}", (where,))
            # What is sorted may be larger than the memory.
            connection.execute("PRAGMA temp_store = FILE; PRAGMA trusted_schema = OFF")
            yield connection
        finally:
            connection.close(True)

    def _room(self) -> int:
        return min(self.limit, max(self._left, 0))

    def _check(self) -> None:
        if self.cancelled.is_set():
            raise Cancelled


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _fold(folder: Path) -> None:
    """Copy what the write-ahead logs of a private copy have into its databases."""
    (folder / MARKS).unlink(missing_ok=True)  # they name the logs, which are emptied here
    for wal in folder.glob("*.db-wal"):
        path = wal.with_name(wal.name.removesuffix("-wal"))
        try:
            connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=CHECKED)
            try:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE; PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                connection.close(True)
        except apsw.Error as error:
            raise StoredDataError(f"The database {path.name} is damaged: {damage(error) or error}.") from error


def _stem_of(side: Side) -> str:
    """Return the name of the file of the compared agent."""
    stem = ROOT_STEM
    for at, segment in enumerate(side.address.segments[1:], 1):
        with _opened(side, stem) as file:
            found = () if file is None else stored_children(file)
            child = next((child for type_, name, child in found if (type_, name) == tuple(segment)), None)
        if child is None:
            parent = Address(side.address.segments[:at])
            missing = Address(side.address.segments[: at + 1])
            raise NotFound(f"{missing} does not exist: {parent} has no such child.", path=side.address.segments)
        stem = child
    return stem


@contextmanager
def _opened(side: Side, stem: str) -> Generator[FileReader | None, None, None]:
    """Open the database of an agent. `None` means that it has stored nothing."""
    path = side.folder / f"{stem}.db"
    if not path.exists():
        yield None
        return
    with reading(path) as file:
        yield file


def _statements(schema: dict[str, str]) -> list[ComparedEntry]:
    return [ComparedEntry(name, 0, schema[name]) for name in sorted(schema)]


def _spending(side: Side, stem: str) -> Iterator[ComparedEntry]:
    """Yield what an agent itself has used of each model. The root of its tree has counted it."""
    with _opened(side, ROOT_STEM) as root:
        if root is None or not root.has(SPENDING):
            return
        rows = root.rows(
            f"SELECT model, {SUMS} FROM sapwood_spending WHERE agent = ? AND run <> '*' GROUP BY model ORDER BY model",  # noqa: S608 - ours
            stem,
        )
        for model, *spent in rows:
            yield ComparedEntry(model, 0, Spent(*spent))
