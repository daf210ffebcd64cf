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
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.call import Call, current
from sapwood.kernel.marshal.signatures import Callback, Signature


def lend(target: Any, call: Call, limit: int) -> Any:
    """Return what the other agent gets with `call` instead of `target`."""
    lent = Lent(call, limit)
    if isinstance(target, CallbackFunction):
        return CallbackFunction(lent, target.name, target)
    if isinstance(target, Callback):
        return CallbackObject(lent, target)
    return CallbackFunction(lent, getattr(target, "__name__", "callback"), target)


def refuse(target: Any, call: Call, limit: int) -> Any:
    raise UsageError("A callback cannot be passed to a callback.")


class Lent:
    """The way back of a callback, open until the call it was passed to has ended."""

    __slots__ = ("_call", "_context", "_limit")

    def __init__(self, call: Call, limit: int) -> None:
        self._call = call
        self._limit = limit
        self._context: Context = copy_context()

    async def run(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._call.ended:
            raise UsageError(f"The callback {name!r} was called after the call that it was passed to had finished.")
        caller = current.get()
        if caller is not None and isinstance(caller.actor, Actor):
            await caller.actor.leave()
        signature = Signature(name, function, {}, bound=False)
        arguments, named = signature.copy_arguments(args, kwargs, self._call, self._limit, refuse)

        async def work() -> Any:
            result = function(*arguments, **named)
            return await result if inspect.isawaitable(result) else result

        lender = self._call.caller
        if lender is not None and isinstance(lender.actor, Actor):
            owner = lender.actor
            return await owner.serve(Call(owner, name, caller), work, (), {}, True, signature.result)
        task = asyncio.get_running_loop().create_task(work(), context=self._context)
        return signature.result.copy(await asyncio.shield(task), self._limit)


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

    def __dir__(self) -> list[str]:
        return public_methods(self._target)


def public_methods(target: Callback) -> list[str]:
    """Return what can be called of an object that is passed as a callback."""
    return [name for name in dir(target) if not name.startswith("_") and callable(getattr(target, name, None))]


class ExportedCallback:
    """A callback on its way to another node."""

    __slots__ = ("lent", "methods", "name")

    def __init__(self, target: Any, call: Call, limit: int) -> None:
        self.lent: CallbackFunction | CallbackObject = lend(target, call, limit)
        self.methods: list[str] | None = None
        """What can be called of an object, or `None` if it is a function."""
        if isinstance(self.lent, CallbackFunction):
            self.name = self.lent.name
        else:
            self.name, self.methods = type(target).__name__, public_methods(target)
