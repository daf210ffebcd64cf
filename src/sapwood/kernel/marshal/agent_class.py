"""What the kernel knows of an agent class: its type id, its public methods, how to copy for each.

Classes are found by being imported; child classes are not registered. The type id is what
is stored, so that a class may be renamed. Two classes with one id are an error only
where the id alone has to be resolved.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import typing
import weakref
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import Any, cast

from sapwood.address import kebab
from sapwood.errors import NoSuchMethod, UnknownAgent, UsageError
from sapwood.kernel.marshal.namespace import Namespace
from sapwood.kernel.marshal.signatures import NO_ARGUMENTS, Signature
from sapwood.kernel.ports.agent_hooks import AgentHooks
from sapwood.settings import Limits
from sapwood.storage.migrations import Script, of_user

EXPOSED = "__sapwood_exposed__"
"""The attribute of functions that clients may call."""


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
        self.overrides_fork = self.overrides("on_fork", base)
        self._names = names
        self._own: dict[str, Method] = {}
        self.base = base

    @property
    def hooks(self) -> type[AgentHooks]:
        """What the capabilities of agents of this class call, one object for each agent."""
        return cast(Any, self.cls)._hooks_class

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
        """Return whether the class overrides a hook."""
        return getattr(self.cls, hook, None) is not getattr(base or self.base, hook, None)

    @functools.cached_property
    def migrations(self) -> tuple[Script, ...]:
        source: Sequence[str] | Path = getattr(self.cls, "migrations", ())
        return of_user(source)

    @functools.cached_property
    def state_type(self) -> Any:
        """The type given as `Agent[State]` or `ChatAgent[Output, State]`, or that of the initial state."""
        # The type parameters that a framework class adds are not for the state: that is the first one of all.
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


def attributes(cls: type) -> dict[str, Any]:
    """Return what a class and its bases define, by sorted name. Descriptors such as properties are not asked."""
    found: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        found |= vars(owner)
    return dict(sorted(found.items()))


def _public_functions(cls: type, base: type, shown: frozenset[str]) -> list[tuple[str, Callable[..., Any]]]:
    return [
        (name, value)
        for name, value in attributes(cls).items()
        if inspect.isfunction(value) and not name.startswith("_") and (name in shown or not hasattr(base, name))
    ]


def _namespaces(cls: type) -> dict[str, dict[str, Callable[..., Any]]]:
    """Return the `async def` methods of each namespace that crosses, as functions of the agent, by their full names."""
    found: dict[str, dict[str, Callable[..., Any]]] = {}
    for name, value in attributes(cls).items():
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
