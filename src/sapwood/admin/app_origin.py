"""Where a test imports a class from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from sapwood.kernel.marshal.agent_class import AgentClass


class Origin(NamedTuple):
    """What a class is imported by."""

    module: str
    name: str
    """The class, after the dots of the classes that it is defined in."""
    problem: str | None = None
    """Why the import has to be corrected; `None` if it works."""

    @property
    def imported(self) -> str:
        """The name that is imported."""
        return self.name.partition(".")[0]


def import_lines(*origins: Origin) -> Iterator[str]:
    """Yield the lines that import classes."""
    modules: dict[tuple[str, str | None], set[str]] = {}
    for one in origins:
        modules.setdefault((one.module, one.problem), set()).add(one.imported)
    for (module, problem), names in sorted(modules.items(), key=lambda one: one[0][0]):
        line = f"from {module} import {', '.join(sorted(names))}"
        yield line if problem is None else f"{line}  # {problem}"


def origin_of(cls: type) -> Origin:
    """Return where a class is imported from."""
    module, name = cls.__module__, cls.__qualname__
    found: Any = sys.modules.get(module)
    if module == "__main__" and (file := getattr(found, "__file__", None)):
        module = Path(file).stem
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not cls:
        simple = cls.__name__ if cls.__name__.isidentifier() else "Agent"
        return Origin(module, simple, f"{simple} is no name in the module {module}: define it there, or correct this")
    return Origin(module, name)


def unknown_origin(type_id: str) -> Origin:
    """Return the origin of a class that no process of the app has told."""
    name = type_id if type_id.isidentifier() else "Agent"
    return Origin("app", name, f"without the running app it is not known where {name} is defined: correct this")


def deps_origin(kind: AgentClass) -> Origin | None:
    """Return the class of the dependencies that an agent class needs; `None` if it needs none."""
    wanted = kind.annotation("deps")
    members = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    if None in members or type(None) in members:
        return None
    classes = [get_origin(one) or one for one in members]
    return next((origin_of(one) for one in classes if isinstance(one, type) and one is not object), None)
