"""The signature of a function: how its arguments and its result are checked and copied."""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Mapping,
    Sequence,
)
from typing import Any

import msgspec

from sapwood.errors import InvalidArguments, InvalidResult, UsageError
from sapwood.kernel.marshal.call import Call
from sapwood.kernel.marshal.copier import SCALARS, Copier

STREAMS = (AsyncIterator, AsyncIterable, AsyncGenerator)


NO_ARGUMENTS: Mapping[Any, Any] = types.MappingProxyType({})


class Signature:
    """How the arguments and the result of one function cross."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        names: Mapping[str, Any],
        *,
        bound: bool,
        type_arguments: Mapping[Any, Any] = NO_ARGUMENTS,
    ) -> None:
        self._name = name
        self._signature = inspect.signature(function)
        parameters = list(self._signature.parameters.values())
        if bound:
            parameters = parameters[1:]
            self._signature = self._signature.replace(parameters=parameters)
        self.parameters: Sequence[inspect.Parameter] = parameters
        hints = _hints(name, function, names)
        if type_arguments:
            hints = {name: _substituted(hint, type_arguments) for name, hint in hints.items()}
        self.hints = hints
        self._copiers = {p.name: Copier(hints.get(p.name, Any), f"{name}() argument {p.name!r}") for p in parameters}
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._positional = [self._copiers[p.name] for p in positional]
        self._names = [p.name for p in positional]
        self._all = frozenset(self._names)
        self._required = sum(p.default is p.empty for p in positional)
        self._most = len(positional) if len(positional) == len(parameters) else -1
        """How many arguments may be given by position, where none can come otherwise."""
        self._further = next((self._copiers[p.name] for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self._other = next((self._copiers[p.name] for p in parameters if p.kind is p.VAR_KEYWORD), None)
        returned = hints.get("return", Any)
        self.streams = inspect.isasyncgenfunction(function)
        if typing.get_origin(returned) in STREAMS:
            returned = typing.get_args(returned)[0]
        self.returned: Any = returned
        """What it returns, or what its items are."""
        self.result = Copier(returned, f"{'An item' if self.streams else 'The result'} of {name}()", InvalidResult)

    def copy_arguments(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Call,
        limit: int,
        lend: Callable[[Any, Call, int], Any],
        make: Callable[[Copier, Any, int], Any] = Copier.copy,
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return copies of the arguments; functions and callbacks become what `lend` makes of them for this call.

        With `Copier.parcel` they are only packed, to be copied where they are unpacked.
        """
        if kwargs or not self._required <= len(args) <= self._most:
            return self._copy_bound(args, kwargs, call, limit, lend, make)
        copied: list[Any] = list(args)
        for at, value in enumerate(args):
            if type(value) in FUNCTIONS or isinstance(value, Callback):
                copied[at] = lend(value, call, limit)
            else:
                copied[at] = make(self._positional[at], value, limit)
        return copied, kwargs

    def unparcel(self, arguments: Sequence[msgspec.Raw]) -> list[Any]:
        """Return copies of the arguments that `copy_arguments` packed by their place."""
        if len(arguments) > len(self._positional):
            return [self.copier(place).unpacked(raw) for place, raw in enumerate(arguments)]
        return [copier.unpacked(raw) for copier, raw in zip(self._positional, arguments, strict=False)]

    def copier(self, place: int | str) -> Copier:
        """Return what copies the argument at this place, or of this name, in what `copy_arguments` returns."""
        if isinstance(place, int):
            found = self._positional[place] if place < len(self._positional) else self._further
        else:
            found = self._copiers.get(place, self._other)
        if found is None:
            raise InvalidArguments(f"{self._name}() has no argument {place!r}.")
        return found

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> bytes:
        """Return arguments as they are stored, by the names of the parameters; refuse what would not fit later."""
        packed: dict[str, Any] = {}
        if not kwargs and self._required <= len(args) <= self._most:
            for name, copier, value in zip(self._names, self._positional, args, strict=False):
                packed[name] = msgspec.Raw(_stored(copier, value, limit))
            return _pack_named(packed)
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidArguments(f"{self._name}(): {error}.") from None
        for parameter in self.parameters:
            if parameter.name not in bound:
                continue
            value, copier = bound[parameter.name], self._copiers[parameter.name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                packed[parameter.name] = [msgspec.Raw(_stored(copier, one, limit)) for one in value]
            elif parameter.kind is parameter.VAR_KEYWORD:
                packed[parameter.name] = {key: msgspec.Raw(_stored(copier, one, limit)) for key, one in value.items()}
            else:
                packed[parameter.name] = msgspec.Raw(_stored(copier, value, limit))
        return _pack_named(packed)

    def digest(self, args: Sequence[Any], kwargs: Mapping[str, Any], limit: int) -> bytes:
        """Return a digest of these arguments; it does not depend on whether they are passed by name."""
        found = hashlib.blake2b(digest_size=16)
        for name, value in self._signature.bind(*args, **kwargs).arguments.items():
            packed = self._copiers[name].in_order(value, limit)
            found.update(f"{name} {len(packed)} ".encode())
            found.update(packed)
        return found.digest()

    def unpack(self, stored: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments that `pack` stored; `InvalidArguments` if they do not fit any more."""
        found = _unpack_named(stored)
        if len(found) == self._most and found.keys() >= self._all:
            return [copier.unpack(found[name]) for name, copier in zip(self._names, self._positional, strict=True)], {}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for place, parameter in enumerate(self.parameters):
            raw, copier = found.pop(parameter.name, None), self._copiers[parameter.name]
            if raw is None:
                if parameter.default is parameter.empty and parameter.kind not in VARIABLE:
                    raise InvalidArguments(
                        f"{self._name}() has an argument {parameter.name!r} that the stored call lacks."
                    )
                if parameter.kind is parameter.POSITIONAL_ONLY:
                    args.append(parameter.default)
            elif parameter.kind is parameter.VAR_POSITIONAL:
                args += [copier.unpack(one) for one in msgspec.msgpack.decode(raw, type=list[msgspec.Raw])]
            elif parameter.kind is parameter.VAR_KEYWORD:
                named = _unpack_named(raw)
                kwargs |= {key: copier.unpack(one) for key, one in named.items()}
            elif parameter.kind is parameter.KEYWORD_ONLY or len(args) < place:
                kwargs[parameter.name] = copier.unpack(raw)
            else:
                args.append(copier.unpack(raw))
        if found:
            raise InvalidArguments(f"{self._name}() no longer has the argument {', '.join(map(repr, found))}.")
        return args, kwargs

    def _copy_bound(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Call,
        limit: int,
        lend: Callable[[Any, Call, int], Any],
        make: Callable[[Copier, Any, int], Any],
    ) -> tuple[list[Any], dict[str, Any]]:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"{self._name}(): {error}.") from None

        def copy(name: str, value: Any) -> Any:
            return lend(value, call, limit) if is_callback(value) else make(self._copiers[name], value, limit)

        for name, parameter in self._signature.parameters.items():
            if name not in bound.arguments:
                continue
            value = bound.arguments[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(copy(name, item) for item in value)
            elif parameter.kind is parameter.VAR_KEYWORD:
                bound.arguments[name] = {key: copy(name, item) for key, item in value.items()}
            else:
                bound.arguments[name] = copy(name, value)
        return list(bound.args), bound.kwargs


_pack_named: Callable[[dict[str, Any]], bytes] = msgspec.msgpack.Encoder().encode
_unpack_named: Callable[[bytes | msgspec.Raw], dict[str, msgspec.Raw]] = msgspec.msgpack.Decoder(
    dict[str, msgspec.Raw]
).decode
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _stored(copier: Copier, value: Any, limit: int) -> bytes:
    packed = copier.pack(value)
    if type(value) not in SCALARS or len(packed) > limit:
        copier.copy(value, limit)  # what would not fit when it is due is refused now
    elif not copier.takes(value):
        copier.unpack(packed)
    return packed


def _hints(name: str, function: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    target = inspect.unwrap(function)
    if isinstance(target, functools.partial):
        target = target.func
    try:
        return typing.get_type_hints(target, localns=dict(names))
    except NameError as error:
        raise UsageError(
            f"An annotation of {name}() cannot be resolved: {error}. Annotations define how values are copied: "
            "import the types that they name at run time, not only for the type checker."
        ) from None
    except TypeError:
        return {}  # a builtin has no annotations


def _substituted(hint: Any, type_arguments: Mapping[Any, Any]) -> Any:
    """Return an annotation with the type arguments of a class in the place of type variables."""
    if isinstance(hint, typing.TypeVar):
        return type_arguments.get(hint, hint)
    parameters: tuple[Any, ...] = getattr(hint, "__parameters__", ())
    if isinstance(hint, type) or not any(one in type_arguments for one in parameters):
        return hint
    return hint[tuple(type_arguments.get(one, one) for one in parameters)]


class Callback:
    """An object whose methods another agent may call while it works for you.

    Pass an instance as an argument: what arrives is a proxy whose public methods are
    awaited, run at your side, and end with the call they were passed to.
    """


FUNCTIONS = frozenset({types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial})


def is_callback(value: object) -> bool:
    return type(value) in FUNCTIONS or isinstance(value, Callback)
