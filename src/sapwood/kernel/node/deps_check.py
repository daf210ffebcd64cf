"""Whether the dependencies of an app are what its agent classes ask for."""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin

from sapwood.errors import UsageError
from sapwood.kernel.marshal.agent_class import AgentClass


class DepsCheck:
    """Checks each class once."""

    def __init__(self, deps: object) -> None:
        self._deps = deps
        self._checked: set[AgentClass] = set()

    def check(self, kind: AgentClass) -> None:
        """Refuse a class that asks for other dependencies than the app has."""
        if kind in self._checked:
            return
        wanted = kind.annotation("deps")
        if wanted is not None and not _may_be(self._deps, wanted):
            raise UsageError(
                f"{kind.cls.__name__} expects deps of type {getattr(wanted, '__name__', wanted)}, got "
                f"{type(self._deps).__name__}. Pass App(deps=…)."
            )
        self._checked.add(kind)


def _may_be(value: object, annotation: Any) -> bool:
    """Return whether a value may be what an annotation says; only what can be seen at once is held against it."""
    if get_origin(annotation) in (Union, UnionType):
        return any(_may_be(value, member) for member in get_args(annotation))
    wanted = get_origin(annotation) or annotation
    try:
        return isinstance(value, wanted)
    except TypeError:  # Any, or a protocol that cannot be checked at run time
        return True
