"""The host functions that code may call: what it passes is checked before they see it, and what they raise is answered.

Code in a sandbox passes plain data, by the annotations of the function; it never gets hold
of the function, nor of anything the function returns: what it gets are copies.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sapwood.errors import InvalidArguments, NotCopyable, OverLimit, SapwoodError, UsageError
from sapwood.kernel.marshal.copier import Copier
from sapwood.kernel.marshal.signatures import Signature
from sapwood.sandbox.contract import Answer

PLAIN = Copier(Any, "It")
EVERY = (Exception, BaseException, object)
"""What says nothing about an error."""


class Bindings:
    """The host functions of one run of code, by the names it knows them by."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]], limit: int) -> None:
        self._functions = dict(functions)
        self._signatures = {name: _signature(name, function) for name, function in functions.items()}
        self._limit = limit
        """Bytes that may cross at once."""

    @property
    def names(self) -> frozenset[str]:
        """What the code may call."""
        return frozenset(self._functions)

    def pack(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes | Answer:
        """Return arguments as they are stored, or what to answer because they do not fit."""
        if name not in self._functions:
            return Answer(error=("NameError", f"name {name!r} is not defined"))
        try:
            return self._signatures[name].pack(args, dict(kwargs), self._limit)
        except (InvalidArguments, NotCopyable, OverLimit, RecursionError) as error:
            return Answer(error=("TypeError", str(error)))

    def call(self, name: str, arguments: bytes) -> Awaitable[Answer] | Answer:
        """Call a host function with arguments that `pack` stored; what is not awaited happens in this slice."""
        if name not in self._functions:
            return Answer(error=("NameError", f"name {name!r} is not defined"))
        try:
            args, kwargs = self._signatures[name].unpack(arguments)
            value = self._functions[name](*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the code is told
            return _raised(error)
        return self._awaited(name, value) if inspect.isawaitable(value) else self._answer(name, value)

    async def _awaited(self, name: str, value: Awaitable[Any]) -> Answer:
        try:
            return self._answer(name, await value)
        except Exception as error:  # noqa: BLE001 - the code is told
            return _raised(error)

    def _answer(self, name: str, value: Any) -> Answer:
        try:
            return Answer(plain(value, self._limit))
        except (SapwoodError, ValueError) as error:
            return Answer(error=("TypeError", f"The result of {name}() cannot be passed to the code: {error}"))


def checked(functions: Mapping[str, object], inputs: Mapping[str, object]) -> None:
    """Refuse names that code could not use, and what is no function."""
    for name in (*functions, *inputs):
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("__"):
            raise UsageError(f"{name!r} is not a valid name for a binding or an input. Use a Python identifier.")
    for name, function in functions.items():
        if not callable(function):
            raise UsageError(
                f"The binding {name!r} must be a function, got {function!r}. Code calls an agent through methods: "
                "pass the methods of the stub that it may call."
            )
        if name in inputs:
            raise UsageError(f"{name!r} is both a binding and an input. Rename one of them.")


def plain(value: Any, limit: int) -> Any:
    """Return a value as what msgpack has, so that it is the same whether or not it was stored in between."""
    packed = PLAIN.pack(value)
    if len(packed) > limit:
        raise OverLimit(f"The value has {len(packed)} bytes; the limit is {limit}.", limit="payload_bytes")
    return PLAIN.unpack(packed)


def _signature(name: str, function: Callable[..., Any]) -> Signature:
    try:
        return Signature(name, function, {}, bound=False)
    except (ValueError, TypeError):  # a builtin without one
        return Signature(name, _anything, {}, bound=False)


def _anything(*args: Any, **kwargs: Any) -> Any: ...


def _raised(error: Exception) -> Answer:
    """Say what a host function raised with the nearest exception that Python itself has."""
    for kind in type(error).__mro__:
        if getattr(builtins, kind.__name__, None) is kind and kind not in EVERY:
            own = kind is type(error)
            return Answer(error=(kind.__name__, _words(error) if own else f"{type(error).__name__}: {_words(error)}"))
    return Answer(error=("RuntimeError", f"{type(error).__name__}: {_words(error)}"))


def _words(error: Exception) -> str:
    if isinstance(error, KeyError) and len(error.args) == 1:
        return str(error.args[0])  # its text is the repr of it, and would be once more
    return str(error)
