"""A part of an agent's interface under a name of its own: the `schedules` of `agent.schedules.list()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Never, Self, TypeVar, overload

from sapwood.errors import UsageError

N = TypeVar("N")
NONE: frozenset[str] = frozenset()


class Namespace(Generic[N]):
    """An attribute of an agent class: reading it returns the agent's own instance of `cls`, made from its actor.

    With `crosses`, its `async def` methods can be called through a stub too, except those in `inside`.
    """

    def __init__(self, cls: Callable[[Any], N], *, crosses: bool = False, inside: frozenset[str] = NONE) -> None:
        self.cls = cls
        self.crosses = crosses
        self.inside = inside
        self.__doc__ = cls.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, agent: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, agent: object, owner: type | None = None) -> N: ...
    def __get__(self, agent: Any, owner: type | None = None) -> Any:
        return self if agent is None else agent._actor.of(self.cls)

    def __set__(self, agent: object, value: Never) -> None:
        raise UsageError(f"{type(agent).__name__}.{self._name} belongs to Agent and cannot be set. Use another name.")
