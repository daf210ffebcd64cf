"""Where a copied test imports the classes of an app from."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from sapwood import Agent
from sapwood.admin.app_origin import Origin, deps_origin, import_lines, origin_of, unknown_origin
from sapwood.kernel.marshal.agent_class import known


class OriginStore:
    """What an agent needs."""


class OriginOuter:
    class OriginInner(Agent):
        """Is inside another class."""


class OriginClerk(Agent):
    deps: OriginStore


class OriginGuest(Agent):
    deps: OriginStore | None


class OriginCook(Agent):
    deps: dict[str, OriginStore]


HERE = OriginClerk.__module__


def test_a_class_is_imported_from_its_module() -> None:
    inner = origin_of(OriginOuter.OriginInner)

    assert origin_of(OriginClerk) == Origin(HERE, "OriginClerk")
    assert (inner.name, inner.imported) == ("OriginOuter.OriginInner", "OriginOuter")


def test_a_class_of_the_program_is_imported_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    program = ModuleType("__main__")
    program.__file__ = "/srv/bakery.py"
    cls = type("OriginMain", (), {"__module__": "__main__"})
    monkeypatch.setitem(sys.modules, "__main__", program)
    monkeypatch.setattr(program, "OriginMain", cls, raising=False)

    assert origin_of(cls) == Origin("bakery", "OriginMain")


def test_a_class_that_no_module_has_needs_a_correction() -> None:
    cls = type("OriginLocal", (), {"__module__": HERE, "__qualname__": "f.<locals>.OriginLocal"})

    (line,) = import_lines(origin_of(cls))
    assert line.startswith(f"from {HERE} import OriginLocal  # OriginLocal is no name in the module")
    (line,) = import_lines(unknown_origin("Desk"))
    assert line.startswith("from app import Desk  # without the running app")
    assert unknown_origin("not a name").name == "Agent"


def test_classes_of_one_module_are_imported_in_one_line() -> None:
    assert [*import_lines(Origin("b", "B"), Origin("a", "C"), Origin("b", "A.X"))] == [
        "from a import C",
        "from b import A, B",
    ]


def test_dependencies_are_needed_unless_they_may_be_none() -> None:
    assert deps_origin(known(OriginClerk)) == Origin(HERE, "OriginStore")
    assert deps_origin(known(OriginGuest)) is None
    assert deps_origin(known(OriginCook)) == Origin("builtins", "dict")
    assert deps_origin(known(OriginOuter.OriginInner)) is None
