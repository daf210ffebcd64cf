"""A method of an agent that is called later: it is stored by its name, with a copy of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from sapwood.errors import InvalidArguments, NoSuchMethod, NotCopyable, SignatureChanged, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import Method
from sapwood.kernel.marshal.signatures import is_callback

KEEP = "Keep a method of this name that accepts the stored arguments."


def method_of(actor: Actor, method: Callable[..., Any], what: str) -> Method:
    """Return the agent's own method that a user passed to `what`."""
    if inspect.iscoroutine(method):
        method.close()
        raise UsageError(
            f"{what} expects a method, got the result of {method.__qualname__}(). Pass the method without "
            "parentheses, followed by its arguments."
        )
    if isinstance(method, str):
        raise UsageError(
            f"{what} expects a method, such as self.remind, got the string {method!r}. For a named "
            f"queue, write self.queues[{method!r}].add(…)."
        )
    if getattr(method, "__self__", None) is not actor.agent:
        name = getattr(method, "__qualname__", repr(method))
        raise UsageError(
            f"{what} expects a method of this agent, such as self.remind, got {name}. The method is stored by "
            "name, so a function or a method of another agent cannot be used."
        )
    found = actor.kind.own(method.__name__)
    if found.streams:
        raise UsageError(f"{what} cannot call {found.full_name}(): it is a generator. Return instead of yielding.")
    return found


def pack(actor: Actor, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return arguments as they are stored, checked against the method's annotations."""
    for value in (*args, *kwargs.values()):
        if is_callback(value):
            raise NotCopyable(
                f"{method.full_name}() is called later: its arguments are stored, and a function cannot be stored."
            )
    return method.signature.pack(args, kwargs, actor.limits.payload_bytes)


def load(actor: Actor, name: str, arguments: bytes) -> tuple[Method, Callable[[], Any]]:
    """Return a stored method, and its call. Raises `SignatureChanged` if the class does not fit any more."""
    try:
        method = actor.kind.own(name)
        args, kwargs = method.signature.unpack(arguments)
    except (NoSuchMethod, InvalidArguments, UsageError) as error:
        raise SignatureChanged(f"The stored call no longer matches the program: {error}") from None
    return method, lambda: method.function(actor.agent, *args, **kwargs)


def check_stored(actor: Actor, name: str, arguments: bytes) -> None:
    """Raise unless stored arguments fit a method of the user's own class."""
    cls = actor.kind.cls.__name__
    if "." in name or hasattr(actor.kind.base, name) or name.startswith("_sapwood"):
        raise InvalidArguments(f"{cls}.{name} is a method of sapwood. Choose a method of the class itself.")
    method, _ = load(actor, name, arguments)
    if method.streams:
        raise InvalidArguments(f"{method.full_name}() is a generator, and cannot be called later.")
