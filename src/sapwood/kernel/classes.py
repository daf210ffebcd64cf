"""What the kernel knows of an agent class: its type id, its public methods, how to copy for each.

Classes are found by being imported; child classes are not registered. The type id is what
is stored, so that a class may be renamed. Two classes with one id are an error only
where the id alone has to be resolved.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
import types
import typing
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import Any, cast

import msgspec

from sapwood.address import kebab
from sapwood.errors import InvalidArguments, InvalidResult, NoSuchMethod, UnknownAgent, UsageError
from sapwood.kernel.context import Call
from sapwood.kernel.copying import SCALARS, Copier
from sapwood.kernel.namespace import Namespace
from sapwood.settings import Limits
from sapwood.storage.migrations import Script, of_user

STREAMS = (AsyncIterator, AsyncIterable, AsyncGenerator)
EXPOSED = "__sapwood_exposed__"
"""The attribute of functions that clients may call."""


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
        """Return what tells these arguments from others; it does not depend on whether they come by name."""
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


class Method:
    """One public method of an agent class."""

    def __init__(
        self,
        owner: str,
        name: str,
        function: Callable[..., Any],
        names: Mapping[str, Any],
        type_arguments: Mapping[Any, Any] = NO_ARGUMENTS,
    ) -> None:
        self.name = name
        self.full_name = f"{owner}.{name}"
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.streams = inspect.isasyncgenfunction(function)
        self.is_exposed = getattr(function, EXPOSED, False) is True
        self._names = names
        self._type_arguments = type_arguments

    @functools.cached_property
    def signature(self) -> Signature:
        # Resolved at the first call: annotations may name classes defined further down.
        return Signature(self.full_name, self.function, self._names, bound=True, type_arguments=self._type_arguments)


class AgentClass:
    """One agent class, as the kernel sees it."""

    def __init__(self, cls: type, *, base: type, shown: frozenset[str], names: Mapping[str, Any]) -> None:
        self.cls = cls
        self.type = cls.__name__
        self.aliases: tuple[str, ...] = ()
        self.pool: str | None = None
        """Which workers run its roots. `None` means any but those of a pool."""
        given: Mapping[Any, Any] = cast(Any, cls)._type_arguments() if hasattr(cls, "_type_arguments") else NO_ARGUMENTS
        self.methods = {
            name: Method(cls.__name__, name, function, names, given)
            for name, function in _public_functions(cls, base, shown)
        }
        self.namespaces = _namespaces(cls)
        """The methods of each namespace that can be called through a stub."""
        for functions in self.namespaces.values():
            self.methods |= {
                name: Method(cls.__name__, name, function, names, given) for name, function in functions.items()
            }
        self.limits: Limits | None = getattr(cls, "limits", None)
        self.overrides_start = self.overrides("on_start", base)
        self._names = names
        self._own: dict[str, Method] = {}
        self.base = base

    @property
    def type_ids(self) -> tuple[str, ...]:
        """What agents of this class are called where they are stored: the type id it has, then those it had."""
        return (self.type, *self.aliases)

    @property
    def brings(self) -> list[AgentClass]:
        """The classes that this one names as those it uses."""
        named: Callable[[], list[type]] | None = getattr(self.cls, "_brings", None)
        return [] if named is None else [known(cls) for cls in named()]

    def brought(self, type_id: str) -> AgentClass | None:
        """Return the one of these that has this type id, or had it; None if none has, or two have."""
        found = {one for one in self.brings if type_id in one.type_ids}
        return found.pop() if len(found) == 1 else None

    def overrides(self, hook: str, base: type | None = None) -> bool:
        """Return whether the class has a hook of its own."""
        return getattr(self.cls, hook, None) is not getattr(base or self.base, hook, None)

    @functools.cached_property
    def migrations(self) -> tuple[Script, ...]:
        source: Sequence[str] | Path = getattr(self.cls, "migrations", ())
        return of_user(source)

    @functools.cached_property
    def state_type(self) -> Any:
        """The type given as `Agent[State]` or `ChatAgent[Output, State]`, or that of the initial state."""
        # What a framework class has for parameters of its own is not for the state: that is the first one of all.
        generic = [one for one in self.base.__mro__ if getattr(one, "__parameters__", ())]
        given = first_argument(self.cls, generic[-1]) if generic else None
        # What the framework class itself gives is nothing the user has said.
        of_base = first_argument(self.base, generic[-1]) if generic else None
        # Where only the output is given, the default stands for the state: it says nothing either.
        unsaid = given in (None, getattr(of_base, "__default__", None)) or isinstance(given, typing.TypeVar)
        if isinstance(of_base, typing.TypeVar) and not unsaid:
            return given
        initial: Any = getattr(self.cls, "initial_state", None)
        return Any if initial is None else cast(Any, type(initial))

    def annotation(self, name: str) -> Any:
        """Return the annotation of a class attribute that the user gave, or None."""
        for owner in self.cls.__mro__:
            if owner is self.base:
                return None
            annotation = inspect.get_annotations(owner).get(name)
            if annotation is not None:
                namespace = {**vars(sys.modules[owner.__module__]), **self._names}
                try:
                    return eval(annotation, namespace) if isinstance(annotation, str) else annotation
                except NameError:
                    return None  # imported for the type checker only
        return None

    def own(self, name: str) -> Method:
        """Return any method that the agent itself may call later, the framework's and private ones too."""
        found = self.methods.get(name) or self._own.get(name)
        if found is None:
            function = inspect.getattr_static(self.cls, name, None)
            if not inspect.isfunction(function):
                raise NoSuchMethod(f"{self.cls.__name__} has no method {name!r}.")
            found = self._own[name] = Method(self.cls.__name__, name, function, self._names)
        return found

    def method(self, name: str) -> Method:
        try:
            return self.methods[name]
        except KeyError:
            pass
        if name in ("fetch", "connect"):
            reason = "cannot be called through a stub: clients reach an agent by its URL, which App.path_to() returns"
        elif (own := self.namespaces.get(name.partition(".")[0])) is not None:
            reason = f"cannot be called through a stub. These can: {', '.join(sorted(own))}"
        elif hasattr(self.base, name) or name.startswith("_"):
            reason = "is private to the agent and cannot be called through a stub"
        elif hasattr(self.cls, name):
            reason = "is not a method; define an async method that returns it"
        else:
            # Its own first: it is more likely that one of those was meant.
            public = [one for one in self.methods if "." not in one]
            known = ", ".join(sorted(public, key=lambda one: (hasattr(self.base, one), one))) or "none"
            reason = f"does not exist. Public methods: {known}"
        raise NoSuchMethod(f"{self.cls.__name__}.{name} {reason}.")


def _public_functions(cls: type, base: type, shown: frozenset[str]) -> list[tuple[str, Callable[..., Any]]]:
    found: list[tuple[str, Callable[..., Any]]] = []
    for name in dir(cls):
        if name.startswith("_") or (hasattr(base, name) and name not in shown):
            continue
        value = inspect.getattr_static(cls, name)
        if inspect.isfunction(value):
            found.append((name, value))
    return found


def _namespaces(cls: type) -> dict[str, dict[str, Callable[..., Any]]]:
    """Return the `async def` methods of each namespace that crosses, as functions of the agent, by their full names."""
    found: dict[str, dict[str, Callable[..., Any]]] = {}
    for name in dir(cls):
        value = inspect.getattr_static(cls, name)
        if isinstance(value, Namespace) and value.crosses:
            inside = value.inside
            methods = {n: one for n, one in vars(value.cls).items() if not n.startswith("_") and n not in inside}
            found[name] = {
                f"{name}.{one}": _method_of(name, method)
                for one, method in methods.items()
                if inspect.iscoroutinefunction(method)
            }
    return found


def _method_of(namespace: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a namespace as a method of the agent."""

    @functools.wraps(method)
    async def call(agent: Any, *args: Any, **kwargs: Any) -> Any:
        return await method(getattr(agent, namespace), *args, **kwargs)

    return call


_by_class: weakref.WeakKeyDictionary[type, AgentClass] = weakref.WeakKeyDictionary()
_by_name: dict[tuple[str, str], weakref.ref[type]] = {}


def learn(cls: type, known: AgentClass) -> None:
    _by_class[cls] = known
    _by_name[cls.__module__, cls.__qualname__] = weakref.ref(cls)


def named(module: str, qualname: str) -> AgentClass | None:
    """Return the newest agent class of this name; None if there is none."""
    found = _by_name.get((module, qualname))
    cls = found() if found is not None else None
    return None if cls is None else _by_class.get(cls)


def all_classes() -> list[AgentClass]:
    """Return every agent class that was ever imported and is still there; of two with one name, the newest."""
    return list({(one.cls.__module__, one.cls.__qualname__): one for one in list(_by_class.values())}.values())


def known(cls: type) -> AgentClass:
    """Return what is known of an agent class."""
    try:
        return _by_class[cls]
    except (KeyError, TypeError):
        name = getattr(cls, "__name__", repr(cls))
        raise UsageError(f"{name} is not an agent class. Agent classes must extend sapwood.Agent.") from None


def with_tool_classes(kinds: Iterable[AgentClass]) -> Iterator[AgentClass]:
    """Yield classes and those that they use as tools, at every level, each once."""
    left, seen = list(kinds), set[type]()
    while left:
        kind = left.pop()
        if kind.cls not in seen:
            seen.add(kind.cls)
            yield kind
            left += kind.brings


def brought_by(kinds: Iterable[AgentClass]) -> dict[str, AgentClass]:
    """Return the classes that these use, and those that those do, by type; without types that two of them have."""
    found: dict[str, AgentClass] = {}
    doubled: set[str] = set()
    for user in with_tool_classes(kinds):
        for kind in user.brings:
            if found.setdefault(kind.type, kind) is not kind:
                doubled.add(kind.type)
    return {type_id: kind for type_id, kind in found.items() if type_id not in doubled}


def all_known() -> list[AgentClass]:
    """Return every class that has been defined or looked at, roots and others."""
    return list(_by_class.values())


def resolve(type_id: str, among: Sequence[AgentClass] = ()) -> AgentClass:
    """Return the one class that a stored type id means: one of these, or one they bring along, before any other."""

    def fits(one: AgentClass) -> bool:
        return type_id in one.type_ids

    nearest = next(filter(fits, among), None) or next(filter(fits, brought_by(among).values()), None)
    if nearest is not None:
        return nearest
    fitting = {
        # Same module and qualified name: a module was reloaded, a notebook cell run again. The newest wins.
        (one.cls.__module__, one.cls.__qualname__): one
        for one in all_known()
        if fits(one)
    }
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    if not fitting:
        names = ", ".join(sorted({one.type for one in _by_class.values() if not one.type.startswith("_")}))
        raise UnknownAgent(
            f"No agent class has the type {type_id!r}. Import the module that defines it, or keep the old name "
            f"with @agent(type={type_id!r}) or aliases. Known: {names or 'none'}."
        )
    places = ", ".join(sorted(f"{module}.{name}" for module, name in fitting))
    raise UsageError(
        f"The type {type_id!r} is ambiguous: {places}. Give each class a type of its own with @agent(type=…)."
    )


def check_type_id(type_id: str) -> None:
    if kebab(type_id) == "sub":
        raise UsageError(f"A class cannot be named {type_id!r}: 'sub' separates agents in URLs. Choose another name.")
    if not type_id or "\0" in type_id or "/" in type_id:
        raise UsageError(f"{type_id!r} is not a valid type id.")


def check_pool(pool: str) -> None:
    if re.fullmatch(r"[A-Za-z0-9_-]+", pool) is None:
        raise UsageError(f"The name of a pool must consist of letters, digits, - and _, got {pool!r}.")


def first_argument(cls: type, base: type) -> Any:
    """Return the first type argument that a class passes to a base, directly or not, or `None` if there is none."""
    if cls is base:
        return next(iter(getattr(base, "__parameters__", ())), None)
    for one in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin: Any = typing.get_origin(one) or one
        if isinstance(origin, type) and issubclass(origin, base):
            found = first_argument(origin, base)
            if isinstance(found, typing.TypeVar):
                # Parameters of a class in between may stand for something else, or be in another order.
                parameters: tuple[Any, ...] = getattr(origin, "__parameters__", ())
                given: dict[Any, Any] = dict(zip(parameters, typing.get_args(one), strict=False))
                return given.get(found, found)
            return found
    return None
