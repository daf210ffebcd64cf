"""Decorators of agent classes and their methods."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from sapwood.agent import Agent
from sapwood.kernel.marshal.agent_class import EXPOSED, check_pool, check_type_id, known

A = TypeVar("A", bound=Agent[Any])
M = TypeVar("M", bound=Callable[..., Coroutine[Any, Any, Any] | AsyncIterable[Any]])


def agent(
    *, type: str | None = None, aliases: Sequence[str] = (), pool: str | None = None
) -> Callable[[type[A]], type[A]]:
    """Set the type id and the worker pool of an agent class. Subclasses do not inherit them.

    `type` is the type id in stored data: with it, the class can be renamed. `aliases` are former type ids. With `pool`,
    the roots of this class and everything below them run only in workers of that pool (`sapwood serve --pool`). It has
    no effect in a single process, or on sub-agents.
    """
    if type is not None:
        check_type_id(type)
    if pool is not None:
        check_pool(pool)

    def decorate(cls: Any) -> Any:
        kind = known(cls)
        kind.type = type or kind.type
        kind.aliases = tuple(aliases)
        kind.pool = pool
        return cls

    return decorate


def expose(method: M) -> M:
    """Let remote clients call this method. Without it, only other agents and the app can call it."""
    setattr(method, EXPOSED, True)
    return method
