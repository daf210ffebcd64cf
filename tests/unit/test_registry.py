"""The table that is the truth about an agent's children."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.helpers import a_database

from sapwood.kernel.actors.children_table import ChildrenTable
from sapwood.storage.database import Database
from sapwood.testing import FakeClock


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = a_database(tmp_path / "agent.db")
    yield database
    database.rollback()
    database.close()


@pytest.fixture
def registry(database: Database) -> ChildrenTable:
    return ChildrenTable(database, FakeClock(1000.0))


def names(registry: ChildrenTable, type_: str | None = None) -> list[str]:
    return [child.name for child in registry.page(type_, 0, 100)]


def test_looking_for_children_makes_no_file(registry: ChildrenTable, database: Database) -> None:
    assert registry.find(("T",), "a") is None
    assert registry.count() == 0
    assert registry.page(None, 0, 10) == []
    assert registry.buried() == []
    assert registry.generations(0, 10) == []

    assert not database.path.exists()


def test_a_child_is_found_by_type_and_name_together(registry: ChildrenTable) -> None:
    added = registry.add("T", "a", None)
    registry.add("U", "a", None)

    assert registry.find(("T",), "a") == added
    assert (added.name, added.type, added.created_at) == ("a", "T", 1000.0)
    assert registry.find(("T",), "A") is None
    assert registry.find(("V",), "a") is None
    assert registry.count() == 2


def test_a_child_is_found_under_a_former_type(registry: ChildrenTable) -> None:
    added = registry.add("Old", "a", None)

    assert registry.find(("New", "Old"), "a") == added
    registry.retype(added.generation, "New")
    assert registry.find(("Old",), "a") is None
    found = registry.find(("New",), "a")
    assert found is not None
    assert found.generation == added.generation


def test_a_generation_is_never_used_twice(registry: ChildrenTable) -> None:
    seen: list[int] = []
    for _ in range(5):
        generation = registry.add("T", "a", None).generation
        seen.append(generation)
        registry.bury(generation)
        registry.forget(generation)

    assert seen == sorted(set(seen))


def test_a_tombstone_is_no_child_but_is_remembered_until_nothing_is_left(registry: ChildrenTable) -> None:
    generation = registry.add("T", "a", None).generation

    assert registry.bury(generation)

    assert registry.find(("T",), "a") is None
    assert registry.count() == 0
    assert names(registry) == []
    assert [row.generation for row in registry.buried()] == [generation]
    assert registry.generations(0, 10) == [(generation, False)]
    registry.forget(generation)
    assert registry.buried() == []


def test_burying_twice_counts_once(registry: ChildrenTable) -> None:
    generation = registry.add("T", "a", None).generation
    registry.add("T", "b", None)

    assert registry.bury(generation)
    assert not registry.bury(generation)

    assert registry.count() == 1


def test_a_child_may_be_made_again_while_its_former_files_are_being_removed(registry: ChildrenTable) -> None:
    first = registry.add("T", "a", None).generation
    registry.bury(first)

    second = registry.add("T", "a", None).generation

    assert second > first
    assert [row.generation for row in registry.buried()] == [first]
    assert names(registry) == ["a"]


def test_children_are_listed_in_the_order_they_were_made_page_by_page(registry: ChildrenTable) -> None:
    for name in "cabd":
        registry.add("T" if name != "b" else "U", name, None)

    assert names(registry) == ["c", "a", "b", "d"]
    assert names(registry, "T") == ["c", "a", "d"]
    first = registry.page(None, 0, 3)
    assert [child.name for child in registry.page(None, first[-1].generation, 3)] == ["d"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "bury", "forget"]), st.integers(0, 4)), max_size=40))
def test_the_count_is_always_what_counting_would_find(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    database = a_database(tmp_path_factory.mktemp("registry") / "agent.db")
    registry = ChildrenTable(database, FakeClock())
    alive: dict[str, int] = {}
    buried: set[int] = set()

    for what, number in steps:
        name = str(number)
        if what == "add" and name not in alive:
            alive[name] = registry.add("T", name, None).generation
        elif what == "bury" and name in alive:
            buried.add(alive[name])
            registry.bury(alive.pop(name))
        elif what == "forget" and buried:
            registry.forget(buried.pop())

    assert registry.count() == len(alive)
    assert {child.name: child.generation for child in registry.page(None, 0, 100)} == alive
    assert [row.generation for row in registry.buried()] == sorted(buried)
    database.rollback()
    database.close()
