"""A diff of two trees is exactly what differs in them: rows by type and bytes, states by pointer, agents by path."""

from __future__ import annotations

import resource
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import slow

from sapwood.admin.read_models import READ_MODELS
from sapwood.capabilities.file_rows import FILES
from sapwood.capabilities.state import STATE
from sapwood.chat.store.transcript import CHAT
from sapwood.errors import NotFound, StoredDataError
from sapwood.kernel.actors.children_table import CHILDREN
from sapwood.kernel.comparison.agent_diff import MOST_CHANGES, Cancelled, Comparison, Side
from sapwood.kernel.comparison.row_diff import MOST_COLUMNS
from sapwood.kernel.comparison.tree_diff import PartDiff, TreeDiff
from sapwood.kernel.trees.deletion import child_stem
from sapwood.kernel.trees.usage import SPENDING
from sapwood.storage.engine import CHECKED
from sapwood.storage.image import empty_image
from sapwood.storage.migrations import Schema
from sapwood.types import Address


class Made:
    """A folder with the files of a tree, as a copy has them."""

    def __init__(self, folder: Path, root: str = "Box:a") -> None:
        self.folder = folder
        self.address = Address.parse(root)
        self._parents = set[str]()
        folder.mkdir()

    def run(self, sql: str, *, stem: str = "root") -> None:
        """Run statements in a database."""
        with self._opened(stem) as connection:
            connection.execute(sql).fetchall()

    def insert(self, sql: str, rows: Iterable[Iterable[Any]], *, stem: str = "root") -> None:
        """Run a statement in a database, once for each of these rows of values."""
        with self._opened(stem) as connection, connection:
            connection.executemany(sql, [tuple(row) for row in rows])

    @contextmanager
    def _opened(self, stem: str) -> Generator[apsw.Connection, None, None]:
        path = self.folder / f"{stem}.db"
        if not path.exists():
            path.write_bytes(empty_image())
        connection = apsw.Connection(str(path), vfs=CHECKED)
        try:
            connection.execute("PRAGMA synchronous = OFF")
            yield connection
        finally:
            connection.close(True)

    def add(self, schema: Schema, stem: str = "root") -> None:
        """Add tables of sapwood."""
        for script in schema.scripts:
            self.run(script.sql, stem=stem)
            sql = "INSERT INTO sapwood_migrations VALUES (?, ?, ?)"
            self.insert(sql, [(script.owner, script.number, script.digest)], stem=stem)

    def child(self, name: str, of: str = "root") -> str:
        """Add a child, and return the name of its file."""
        if of not in self._parents:
            self._parents.add(of)
            self.add(CHILDREN, of)
        self.insert("INSERT INTO sapwood_children (type, name, created_at) VALUES ('Box', ?, 1)", [(name,)], stem=of)
        with self._opened(of) as connection:
            ((generation,),) = connection.execute("SELECT max(generation) FROM sapwood_children").fetchall()
        return child_stem(of, int(str(generation)))

    @property
    def side(self) -> Side:
        return Side(self.address, self.folder)


def comparison(a: Side, b: Side, limit: int = 20) -> Comparison:
    return Comparison(a, b, READ_MODELS.compared, limit, threading.Event())


def diff(a: Made, b: Made, limit: int = 20) -> TreeDiff:
    found = comparison(a.side, b.side, limit).run()
    assert msgspec.json.decode(msgspec.json.encode(found), type=TreeDiff) == found
    return found


def parts(found: TreeDiff, path: str = "") -> dict[str, PartDiff]:
    """Return the parts of one agent that differ, by their kinds, tables by their names."""
    return {
        part.name or part.kind: part for agent in found.agents_changed if agent.path == path for part in agent.parts
    }


def counts(part: PartDiff) -> tuple[int, int, int]:
    return part.only_a, part.only_b, part.changed


@pytest.fixture
def two(tmp_path: Path) -> tuple[Made, Made]:
    return Made(tmp_path / "a"), Made(tmp_path / "b", "Box:b")


def both(two: tuple[Made, Made], sql: str, rows: Iterable[Iterable[Any]] = ()) -> None:
    values = [*rows]
    for one in two:
        one.insert(sql, values) if values else one.run(sql)


# Rows

VALUES = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.sampled_from([0.5, 1.0, 2.0, 1e300, float("inf")]),
    st.sampled_from(["", "a", "A", "1", "1.0", "ä", "a\0b", "a\0c", "🌲"]),
    st.binary(max_size=3),
)
NUMBERS, WORDS = st.integers(-3, 3), st.sampled_from(["", "a", "A", "b", "ä", "1", "01"])
SHAPES: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "integer key": ("CREATE TABLE t (k INTEGER PRIMARY KEY, v, w)", NUMBERS),
    "text key": ("CREATE TABLE t (k TEXT PRIMARY KEY NOT NULL, v, w)", WORDS),
    "strict": ("CREATE TABLE t (k TEXT PRIMARY KEY NOT NULL, v ANY, w ANY) STRICT", WORDS),
    "without rowid": ("CREATE TABLE t (k TEXT, v, w, PRIMARY KEY (k)) WITHOUT ROWID", WORDS),
    "generated column": (
        "CREATE TABLE t (k INTEGER PRIMARY KEY, v, w, g AS (typeof(v)), s AS (w || 'x') STORED)",
        NUMBERS,
    ),
    "key that ignores case": (
        "CREATE TABLE t (k TEXT COLLATE NOCASE PRIMARY KEY NOT NULL, v, w COLLATE NOCASE)",
        st.sampled_from(["a", "b", "c"]),
    ),
}


def exact(row: Iterable[Any]) -> tuple[Any, ...]:
    """Return what makes two rows equal: the types of their values, and their bytes."""
    return tuple((type(value), value) for value in row)


@pytest.mark.parametrize("shape", [*list(SHAPES)[:3], *slow(list(SHAPES)[3:])])
@settings(max_examples=10)
@given(st.data())
def test_rows_with_a_key_differ_exactly_where_they_were_edited(
    tmp_path_factory: pytest.TempPathFactory, shape: str, data: st.DataObject
) -> None:
    create, keys = SHAPES[shape]
    values = st.tuples(VALUES, VALUES)
    rows_a = data.draw(st.dictionaries(keys, values, max_size=6))
    edits = data.draw(st.dictionaries(keys, st.none() | values, max_size=4))
    rows_b = {key: row for key, row in (rows_a | edits).items() if row is not None}
    folder = tmp_path_factory.mktemp("rows")
    two = Made(folder / "a"), Made(folder / "b")
    for made, rows in zip(two, (rows_a, rows_b), strict=True):
        made.run(create)
        made.insert("INSERT INTO t (k, v, w) VALUES (?, ?, ?)", [(key, *row) for key, row in rows.items()])

    found = parts(diff(*two)).get("t")

    shared = rows_a.keys() & rows_b.keys()
    changed = {key for key in shared if exact(rows_a[key]) != exact(rows_b[key])}
    expected = (len(rows_a.keys() - rows_b.keys()), len(rows_b.keys() - rows_a.keys()), len(changed))
    assert expected == ((0, 0, 0) if found is None else counts(found))
    if found is not None:
        listed = {(one.kind, msgspec.json.decode(one.key)) for one in found.changes}
        places = {"only_a": rows_a.keys() - rows_b.keys(), "only_b": rows_b.keys() - rows_a.keys(), "changed": changed}
        assert listed == {(kind, key) for kind, keys in places.items() for key in keys}
        for one in (one for one in found.changes if one.kind == "changed"):
            key = msgspec.json.decode(one.key)
            columns = {
                name
                for name, mine, other in zip("vw", rows_a[key], rows_b[key], strict=True)
                if exact([mine]) != exact([other])
            }
            assert set(one.a) == set(one.b) == columns


@pytest.mark.parametrize("create", ["CREATE TABLE t (v, w)", "CREATE TABLE t (v PRIMARY KEY, w)"])
@settings(max_examples=10)
@given(st.data())
def test_rows_without_a_key_are_counted_as_often_as_they_occur(
    tmp_path_factory: pytest.TempPathFactory, create: str, data: st.DataObject
) -> None:
    values = st.none() if "PRIMARY" in create else VALUES  # a key may be NULL, and then matches no row
    rows_a, rows_b = (data.draw(st.lists(st.tuples(values, VALUES), min_size=1, max_size=6)) for _ in "ab")
    folder = tmp_path_factory.mktemp("rows")
    two = Made(folder / "a"), Made(folder / "b")
    for made, rows in zip(two, (rows_a, rows_b), strict=True):
        made.run(create)
        made.insert("INSERT INTO t VALUES (?, ?)", rows)

    found = parts(diff(*two)).get("t")

    bag_a, bag_b = Counter(map(exact, rows_a)), Counter(map(exact, rows_b))
    expected = ((bag_a - bag_b).total(), (bag_b - bag_a).total(), 0)
    assert expected == ((0, 0, 0) if found is None else counts(found))
    assert found is None or len(found.changes) == sum(expected)


def test_a_changed_row_shows_its_key_and_the_columns_that_changed(two: tuple[Made, Made]) -> None:
    both(two, "CREATE TABLE t (p TEXT, q INTEGER, Name TEXT, n, PRIMARY KEY (q, p)) WITHOUT ROWID")
    both(two, "INSERT INTO t VALUES (?, ?, ?, ?)", [("x", 1, "same", b"\0\1"), ("y", 2, "old", 9e999)])
    two[1].run("UPDATE t SET Name = 'new', n = NULL WHERE q = 2")

    (change,) = parts(diff(*two))["t"].changes

    assert (change.kind, change.key) == ("changed", '[2,"y"]')
    assert change.a == {"Name": "old", "n": "inf"}
    assert change.b == {"Name": "new", "n": None}


def test_names_that_differ_only_by_the_case_of_other_letters_than_a_to_z_are_two(two: tuple[Made, Made]) -> None:
    both(two, 'CREATE TABLE "ä" (x)')
    both(two, 'CREATE TABLE "Ä" (id INTEGER PRIMARY KEY, "é", "É")')
    for made, value in zip(two, (1, 2), strict=True):
        made.insert('INSERT INTO "ä" VALUES (?)', [(value,)])
        made.insert('INSERT INTO "Ä" VALUES (1, 1, ?)', [(value,)])
    found = parts(diff(*two))
    assert {name: counts(part) for name, part in found.items()} == {"ä": (1, 1, 0), "Ä": (0, 0, 1)}
    (change,) = found["Ä"].changes
    assert (change.a, change.b) == ({"É": 1}, {"É": 2})


def test_values_of_different_types_differ_even_if_sqlite_takes_them_for_equal(two: tuple[Made, Made]) -> None:
    both(two, "CREATE TABLE t (k INTEGER PRIMARY KEY, v); CREATE TABLE bag (v)")
    values = [(1, 1, 1.0), (2, "1", b"1"), (3, "", None), (4, "a", "A"), (5, 2, 2)]
    for made, side in zip(two, (1, 2), strict=True):
        made.insert("INSERT INTO t VALUES (?, ?)", [(row[0], row[side]) for row in values])
        made.insert("INSERT INTO bag VALUES (?)", [(row[side],) for row in values])
    found = parts(diff(*two))
    assert [one.key for one in found["t"].changes] == ["1", "2", "3", "4"]
    assert counts(found["bag"]) == (4, 4, 0)


def test_long_values_are_cut_and_still_compared_to_their_end(two: tuple[Made, Made]) -> None:
    both(two, "CREATE TABLE t (k INTEGER PRIMARY KEY, text, blob, same)")
    for made, end in zip(two, "ab", strict=True):
        made.insert("INSERT INTO t VALUES (1, ?, ?, ?)", [("ä" * 9999 + end, b"\1" * 9999 + end.encode(), "x" * 9999)])

    (change,) = parts(diff(*two))["t"].changes

    assert set(change.a) == {"text", "blob"}
    assert change.a["text"].endswith("ä… (19999 bytes)")
    assert change.a["blob"].endswith("01…' (10000 bytes)")
    assert len(change.a["text"]) < 1100


def test_a_text_that_is_not_unicode_is_shown_all_the_same(two: tuple[Made, Made]) -> None:
    both(two, "CREATE TABLE t (v)")
    two[0].run("INSERT INTO t VALUES (CAST(x'61ff' AS TEXT))")
    assert parts(diff(*two))["t"].changes[0].a == {"v": "a\ufffd"}


# Tables


def test_a_table_that_one_side_lacks_is_a_change_of_the_schema_and_its_rows_are_counted(two: tuple[Made, Made]) -> None:
    both(two, "CREATE TABLE t (k INTEGER PRIMARY KEY)")
    both(two, "INSERT INTO t VALUES (?)", [(at,) for at in range(30)])
    two[1].run("ALTER TABLE t RENAME TO u")

    found = parts(diff(*two, limit=5))

    assert counts(found["schema"]) == (1, 1, 0)
    assert [one.key for one in found["schema"].changes] == ["table t", "table u"]
    assert counts(found["t"]) == (30, 0, 0)
    assert counts(found["u"]) == (0, 30, 0)
    assert len(found["t"].changes) == 5


def test_a_new_column_changes_only_the_rows_that_have_a_value_in_it(two: tuple[Made, Made]) -> None:
    both(two, "CREATE TABLE t (k INTEGER PRIMARY KEY, v)")
    both(two, "INSERT INTO t VALUES (?, 'v')", [(1,), (2,)])
    two[1].run("ALTER TABLE t ADD COLUMN more")
    assert parts(diff(*two)).keys() == {"schema"}

    two[1].run("UPDATE t SET more = 3 WHERE k = 2")

    (change,) = parts(diff(*two))["t"].changes
    assert (change.key, change.a, change.b) == ("2", {}, {"more": 3})


def test_another_primary_key_makes_rows_match_by_content(two: tuple[Made, Made]) -> None:
    two[0].run("CREATE TABLE t (k INTEGER PRIMARY KEY, v)")
    two[1].run("CREATE TABLE t (k INTEGER, v PRIMARY KEY)")
    both(two, "INSERT INTO t VALUES (1, 'x'), (2, 'y')")
    two[1].run("UPDATE t SET k = 3 WHERE k = 2")
    assert counts(parts(diff(*two))["t"]) == (1, 1, 0)


def test_the_rows_of_a_full_text_table_are_compared_and_not_its_index(two: tuple[Made, Made]) -> None:
    both(two, "CREATE VIRTUAL TABLE f USING fts5(body)")
    both(two, "INSERT INTO f VALUES (?)", [("one",), ("two",), ("three",)])
    two[1].run("INSERT INTO f (f) VALUES ('optimize')")  # another index, the same content
    assert diff(*two).is_empty

    two[1].run("UPDATE f SET body = 'four' WHERE rowid = 2")

    found = parts(diff(*two))
    assert found.keys() == {"f"}
    assert [(one.a, one.b) for one in found["f"].changes] in (
        [({"rowid": 2, "body": "two"}, None), (None, {"rowid": 2, "body": "four"})],
        [(None, {"rowid": 2, "body": "four"}), ({"rowid": 2, "body": "two"}, None)],
    )


def test_a_full_text_table_over_another_table_and_one_without_content_are_compared(two: tuple[Made, Made]) -> None:
    both(two, "CREATE TABLE t (k INTEGER PRIMARY KEY, body)")
    both(two, "CREATE VIRTUAL TABLE over USING fts5(body, content='t', content_rowid='k')")
    both(two, "CREATE VIRTUAL TABLE bare USING fts5(body, content='')")
    both(two, "INSERT INTO t VALUES (1, 'one')")
    both(two, "INSERT INTO over (rowid, body) VALUES (1, 'one')")
    both(two, "INSERT INTO bare (rowid, body) VALUES (1, 'one')")
    assert diff(*two).is_empty
    two[1].run("INSERT INTO bare (rowid, body) VALUES (2, 'two')")
    assert counts(parts(diff(*two))["bare"]) == (0, 1, 0)


def test_a_virtual_table_that_stores_no_rows_is_part_of_the_schema_only(two: tuple[Made, Made]) -> None:
    both(two, "CREATE VIRTUAL TABLE f USING fts5(body)")
    both(two, "CREATE VIRTUAL TABLE words USING fts5vocab('f', 'row')")
    both(two, "CREATE VIRTUAL TABLE pages USING dbstat")
    both(two, "INSERT INTO f VALUES ('x')")
    two[1].run("INSERT INTO f VALUES ('y')")
    assert parts(diff(*two)).keys() == {"f"}
    two[1].run("DROP TABLE words")
    assert parts(diff(*two)).keys() == {"f", "schema"}


def test_a_table_that_is_too_wide_says_so(two: tuple[Made, Made]) -> None:
    both(two, f"CREATE TABLE wide ({', '.join(f'c{at}' for at in range(MOST_COLUMNS + 1))})")
    assert parts(diff(*two))["wide"].problem == "'wide' has 201 columns. Tables with at most 200 are compared."


def test_the_widest_table_that_is_compared_is_compared(two: tuple[Made, Made]) -> None:
    columns = ", ".join(f"c{at}" for at in range(MOST_COLUMNS))
    for made in two:
        made.run(f"CREATE TABLE wide ({columns}, PRIMARY KEY (c0))")
        made.run(f"CREATE TABLE bag ({columns})")
        made.run("INSERT INTO wide (c0) VALUES (1)")
        made.run("INSERT INTO bag (c0) VALUES (1)")
    two[1].run("UPDATE wide SET c7 = 'x'")
    two[1].run("UPDATE bag SET c7 = 'x'")
    found = parts(diff(*two))
    assert counts(found["wide"]) == (0, 0, 1)
    assert counts(found["bag"]) == (1, 1, 0)


def test_a_view_an_index_and_a_trigger_are_part_of_the_schema(two: tuple[Made, Made]) -> None:
    both(two, 'CREATE TABLE "select ""x""" (k INTEGER PRIMARY KEY AUTOINCREMENT, v)')
    both(two, 'INSERT INTO "select ""x""" (v) VALUES (1)')
    two[1].run('CREATE VIEW seen AS SELECT v FROM "select ""x"""')
    two[1].run('CREATE INDEX i ON "select ""x""" (v)')
    two[1].run('CREATE TRIGGER g AFTER INSERT ON "select ""x""" BEGIN SELECT 1; END')
    two[1].run('UPDATE "select ""x""" SET v = 2')
    found = parts(diff(*two))
    assert [one.key for one in found["schema"].changes] == ["index i", "trigger g", "view seen"]
    assert counts(found['select "x"']) == (0, 0, 1)


def test_the_tables_of_sapwood_are_left_out(two: tuple[Made, Made]) -> None:
    both(two, "CREATE TABLE t (k INTEGER PRIMARY KEY AUTOINCREMENT)")
    for schema in (Schema("sapwood.capabilities", "calls"), Schema("sapwood.capabilities", "spans")):
        two[1].add(schema)
    two[1].run("INSERT INTO t DEFAULT VALUES")
    two[1].run("DELETE FROM t")  # the number counts on in sqlite_sequence
    assert diff(*two).is_empty


@pytest.mark.slow
def test_a_large_table_is_compared_in_little_memory(two: tuple[Made, Made]) -> None:
    rows = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {}) "
    for made in two:
        made.run("CREATE TABLE t (k INTEGER PRIMARY KEY, v); CREATE TABLE bag (v, w)")
        made.run(rows.format(20_000) + "INSERT INTO t SELECT n, hex(zeroblob(1000)) FROM n")
        made.run(rows.format(20_000) + "INSERT INTO bag SELECT n % 1000, hex(zeroblob(500)) FROM n")
    two[1].run("UPDATE t SET v = v || 'x' WHERE k % 2")
    two[1].run("UPDATE bag SET v = -1 WHERE rowid <= 100")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    found = parts(diff(*two))

    assert counts(found["t"]) == (0, 0, 10_000)
    assert counts(found["bag"]) == (100, 100, 0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # kB; the tables have 60,000


# State, conversation, files, spending


def set_state(made: Made, value: Any, stem: str = "root") -> None:
    made.add(STATE, stem)
    made.insert("INSERT INTO sapwood_state VALUES (1, 1, ?)", [(msgspec.json.encode(value).decode(),)], stem=stem)


def test_a_state_differs_by_json_pointer_and_one_is_neither_true_nor_one_point_zero(two: tuple[Made, Made]) -> None:
    set_state(two[0], {"a/b": 1, "t": 1, "f": 1, "same": [1, {"x": "y"}], "gone": {}, "list": [1, 2]})
    set_state(two[1], {"a/b": 2, "t": True, "f": 1.0, "same": [1, {"x": "y"}], "list": [1]})
    changes = {(one.kind, one.key): (one.a, one.b) for one in parts(diff(*two))["state"].changes}
    assert changes == {
        ("changed", "/a~1b"): (1, 2),
        ("changed", "/f"): (1, 1.0),
        ("changed", "/t"): (1, True),
        ("only_a", "/gone"): ({}, None),
        ("only_a", "/list/1"): (2, None),
    }


def test_a_state_that_was_never_set_differs_from_null(two: tuple[Made, Made]) -> None:
    set_state(two[1], None)
    (change,) = parts(diff(*two))["state"].changes
    assert (change.kind, change.key, change.b) == ("only_b", "", None)


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x", "~/"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "/", "~1"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=20)
@given(DOCUMENTS, DOCUMENTS)
def test_states_differ_exactly_in_the_leaves_that_differ(
    tmp_path_factory: pytest.TempPathFactory, a: Any, b: Any
) -> None:
    folder = tmp_path_factory.mktemp("states")
    two = Made(folder / "a"), Made(folder / "b")
    set_state(two[0], a)
    set_state(two[1], b)
    found = parts(diff(*two, limit=500)).get("state")
    mine, other = dict(leaves(a)), dict(leaves(b))
    expected = {key for key in mine.keys() | other.keys() if mine.get(key) != other.get(key)}
    assert expected == (set() if found is None else {one.key for one in found.changes})


def leaves(value: Any, at: str = "") -> Iterable[tuple[str, str]]:
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    else:
        return [(at, repr(value))]
    found = [
        leaf for key, one in inner for leaf in leaves(one, f"{at}/{str(key).replace('~', '~0').replace('/', '~1')}")
    ]
    return found or [(at, repr(value))]


def say(made: Made, *messages: tuple[str, str, str]) -> None:
    made.add(CHAT)
    rows = [
        (
            at,
            id,
            role,
            msgspec.json.encode({"id": id, "parts": [{"type": "text", "text": said}]}).decode(),
        )
        for at, (id, role, said) in enumerate(messages, 1)
    ]
    made.insert("INSERT INTO sapwood_messages (position, id, role, body, created_at) VALUES (?, ?, ?, ?, 1)", rows)


def test_conversations_differ_by_message_in_their_order(two: tuple[Made, Made]) -> None:
    shared = ("m2", "user", "Hello.")
    say(two[0], shared, ("m9", "assistant", "Hi."), ("m1", "user", "Which?"))
    say(two[1], shared, ("m9", "assistant", "Hi!"), ("m5", "user", "Why?"), ("m0", "assistant", "So."))
    found = parts(diff(*two, limit=3))["messages"]
    assert counts(found) == (1, 2, 1)
    assert [(one.kind, one.key) for one in found.changes] == [("changed", "m9"), ("only_a", "m1"), ("only_b", "m5")]
    assert found.changes[0].b == {"role": "assistant", "is_active": True, "parts": [{"type": "text", "text": "Hi!"}]}


def test_another_active_branch_is_a_difference(two: tuple[Made, Made]) -> None:
    for made in two:
        say(made, ("m1", "user", "To Rome."), ("m2", "user", "To Oslo."))
    two[1].run("UPDATE sapwood_messages SET is_active = 0 WHERE id = 'm1'")
    (change,) = parts(diff(*two))["messages"].changes
    assert (change.key, change.a["is_active"], change.b["is_active"]) == ("m1", True, False)


def test_files_differ_by_their_content(two: tuple[Made, Made]) -> None:
    for made, name in zip(two, ("old.txt", "new.txt"), strict=True):
        made.add(FILES)
        row = "INSERT INTO sapwood_files VALUES (?, ?, 3, 'text/plain', ?, 1, x'616263', NULL)"
        made.insert(row, [(1, "a" * 64, "same.txt"), (2, "b" * 64, name), (3, name, name)])
    found = parts(diff(*two))["files"]
    assert counts(found) == (1, 1, 1)
    assert ("changed", "b" * 64) in {(one.kind, one.key) for one in found.changes}


def test_spending_of_each_agent_differs_by_model(two: tuple[Made, Made]) -> None:
    for made, tokens in zip(two, (10, 30), strict=True):
        stem = made.child("k")
        made.run("CREATE TABLE t (v)", stem=stem)
        made.add(SPENDING)
        row = "INSERT INTO sapwood_spending VALUES (?, ?, ?, 'path', 1, ?, 2, 5, 0)"
        runs = [(stem, "r1", "m", tokens), (stem, "r2", "m", 1), (stem, "*", "m", tokens + 1), ("root", "*", "m", 9)]
        made.insert(row, runs)
    found = diff(*two)
    assert [agent.path for agent in found.agents_changed] == ["Box:k"]
    (change,) = parts(found, "Box:k")["spending"].changes
    assert change.key == "m"
    assert change.a == {"requests": 2, "input_tokens": 11, "output_tokens": 4, "cost": 1e-8}
    assert change.b["input_tokens"] == 31


# Agents


def test_agents_are_matched_by_their_paths_three_levels_down(two: tuple[Made, Made]) -> None:
    a, b = two
    b.child("first")  # so that the files of equal paths have other names
    for made in two:
        made.child("asleep")  # it has stored nothing
        one = made.child("one")
        deep = made.child("x/y", of=one)
        deepest = made.child("deepest", of=deep)
        made.run("CREATE TABLE t (v)", stem=deepest)
        made.insert("INSERT INTO t VALUES (?)", [(str(made.address),)], stem=deepest)
    lost = a.child("lost")
    a.child("in it", of=lost)

    found = diff(a, b)

    assert (found.both, found.only_a, found.only_b, found.changed) == (5, 2, 1, 1)
    assert found.agents_only_a == ("Box:lost", "Box:lost/Box:in%20it")
    assert found.agents_only_b == ("Box:first",)
    assert [agent.path for agent in found.agents_changed] == ["Box:one/Box:x%2Fy/Box:deepest"]
    assert not diff(a, a).changed


def test_two_children_of_one_tree_are_compared_with_all_below_them(tmp_path: Path) -> None:
    made = Made(tmp_path / "a")
    for name, value in (("x", 1), ("y", 2)):
        below = made.child("in", of=made.child(name))
        made.run("CREATE TABLE t (v)", stem=below)
        made.insert("INSERT INTO t VALUES (?)", [(value,)], stem=below)
    sides = [Side(made.address.child("Box", name), made.folder) for name in "xy"]
    found = comparison(sides[0], sides[1]).run()
    assert (found.a, found.b, found.both) == ("Box:a/Box:x", "Box:a/Box:y", 2)
    assert counts(parts(found, "Box:in")["t"]) == (1, 1, 0)

    nowhere = Side(made.address.child("Box", "z"), made.folder)
    with pytest.raises(NotFound, match="Box:a/Box:z does not exist: Box:a has no such child"):
        comparison(nowhere, sides[0]).run()


def test_a_deleted_child_is_no_child(two: tuple[Made, Made]) -> None:
    two[0].child("k")
    two[1].child("k")
    two[1].run("UPDATE sapwood_children SET deleted_at = 1")
    assert diff(*two).agents_only_a == ("Box:k",)


def test_lists_are_limited_and_counts_are_not(two: tuple[Made, Made]) -> None:
    for made, value in zip(two, "ab", strict=True):
        for at in range(8):
            stem = made.child(f"k{at}")
            made.run("CREATE TABLE t (v)", stem=stem)
            made.insert("INSERT INTO t VALUES (?)", [(value,)] * 500, stem=stem)
    for at in range(4):
        two[1].child(f"n{at}")

    found = diff(*two, limit=3)
    assert (found.changed, found.only_b) == (8, 4)
    assert found.agents_only_b == ("Box:n0", "Box:n1", "Box:n2")
    assert [agent.path for agent in found.agents_changed] == ["Box:k0", "Box:k1", "Box:k2"]

    found = diff(*two, limit=500)
    assert sum(len(part.changes) for agent in found.agents_changed for part in agent.parts) == MOST_CHANGES
    assert all(counts(part) == (500, 500, 0) for agent in found.agents_changed for part in agent.parts)


# What goes wrong


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1000:-900] = b"\xa5" * 100
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [flip, lambda path: path.write_bytes(b"no database")])
def test_a_damaged_file_is_a_sentence(two: tuple[Made, Made], harm: Callable[[Path], Any]) -> None:
    both(two, "CREATE TABLE t (v)")
    both(two, "INSERT INTO t VALUES (?)", [("x" * 500,)] * 100)
    both(two, "PRAGMA wal_checkpoint(TRUNCATE)")
    harm(two[1].folder / "root.db")
    with pytest.raises(
        StoredDataError, match=r"^(The database|A database|The table 't') (is damaged|cannot be opened): "
    ):
        diff(*two)


def test_a_cancelled_comparison_stops(two: tuple[Made, Made]) -> None:
    both(two, "CREATE TABLE t (v)")
    asked = comparison(two[0].side, two[1].side)
    asked.cancelled.set()
    with pytest.raises(Cancelled):
        asked.run()
