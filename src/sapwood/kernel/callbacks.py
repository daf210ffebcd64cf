"""Functions and objects that another agent may call back while it works for you.

They run at the side that passed them, in a task of that agent, with copied arguments;
and only until the call they were passed to has ended.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from sapwood.errors import NoSuchMethod, UsageError
from sapwood.kernel.actor import Actor
from sapwood.kernel.classes import Callback, Signature
from sapwood.kernel.context import Call, current


class Lent:
    """The callbacks that one call was given; they end with it."""

    __slots__ = ("_context", "_lender", "_limit", "ended")

    def __init__(self, lender: Call | None, limit: int) -> None:
        self.ended = False
        self._lender = lender
        self._limit = limit
        self._context: Context | None = None

    def proxy(self, target: Any) -> Any:
        """Return what the other agent gets instead of `target`."""
        self._context = copy_context()
        if isinstance(target, CallbackFunction):
            return CallbackFunction(self, target.name, target)
        if isinstance(target, Callback):
            return CallbackObject(self, target)
        return CallbackFunction(self, getattr(target, "__name__", "callback"), target)

    async def run(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.ended:
            raise UsageError(f"The callback {name!r} was used after the call it was passed to had ended.")
        caller = current.get()
        if caller is not None and isinstance(caller.actor, Actor):
            await caller.actor.leave()
        signature = Signature(name, function, {}, bound=False)
        arguments, named = signature.copy_arguments(args, kwargs, self._limit, self._refuse)

        async def work() -> Any:
            result = function(*arguments, **named)
            return await result if inspect.isawaitable(result) else result

        if self._lender is not None and isinstance(self._lender.actor, Actor):
            owner = self._lender.actor
            return await owner.serve(Call(owner, name, caller), work, (), {}, awaits=True, result=signature.result)
        task = asyncio.get_running_loop().create_task(work(), context=self._context)
        return signature.result.copy(await asyncio.shield(task), self._limit)

    def _refuse(self, value: Any) -> Any:
        raise UsageError("A callback cannot be given to a callback.")


class CallbackFunction(Callback):
    """Calls a function at the side that passed it; may itself be passed on."""

    __slots__ = ("_function", "_lent", "name")

    def __init__(self, lent: Lent, name: str, function: Callable[..., Any]) -> None:
        self._lent = lent
        self.name = name
        self._function = function

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self._lent.run(self.name, self._function, args, kwargs)


class CallbackObject(Callback):
    """Calls the public methods of an object at the side that passed it; may itself be passed on."""

    __slots__ = ("_lent", "_target")

    def __init__(self, lent: Lent, target: Callback) -> None:
        self._lent = lent
        self._target = target

    def __getattr__(self, name: str) -> CallbackFunction:
        function = None if name.startswith("_") else getattr(self._target, name, None)
        if not callable(function):
            raise NoSuchMethod(f"The callback {type(self._target).__name__} has no public method {name!r}.")
        return CallbackFunction(self._lent, f"{type(self._target).__name__}.{name}", function)
