"""A call as it travels to another node: what is asked, by whom, until when; and what comes back.

Arguments travel packed, one by one, and are unpacked by the callee's annotations, as they are
where caller and callee share a process. An error keeps its type where the other node
knows it, and its text everywhere.
"""

from __future__ import annotations

import asyncio
import enum
import sys
import uuid
from dataclasses import is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from types import ModuleType
from typing import Any, cast

import msgspec

from sapwood import tracing
from sapwood.address import Address, PathSegment
from sapwood.errors import Crashed, NotCopyable
from sapwood.kernel.classes import AgentClass
from sapwood.kernel.context import Call, Running
from sapwood.kernel.copying import SCALARS, Copier, pack_hook, unpack_hook
from sapwood.kernel.crossing import MAX_CAUSES, crashed_of, describe, own_type, rebuilt, reduced

ANYTHING = Copier(Any, "A value")
UNLIMITED = 1 << 40
Steps = list[tuple[str, str]]


class Value(msgspec.Struct, array_like=True):
    """A value that knows its own type."""

    module: str | None
    qualname: str
    content: msgspec.Raw


class Above(msgspec.Struct, array_like=True):
    """One of the calls that led to this one."""

    steps: Steps
    method: str
    is_start: bool
    stem: str
    """The name of its agent's file."""
    key: str | None = None
    """Its idempotency key."""


class Cause(msgspec.Struct, array_like=True):
    """Who asks, and until when."""

    chain: list[Above]
    """Oldest first."""
    seconds: float | None
    """How much time is left."""
    trace: str | None


class Loan(msgspec.Struct, array_like=True):
    """A callback among the arguments."""

    place: int | str
    id: int
    name: str
    methods: list[str] | None
    """What can be called of an object, or `None` if it is a function."""


class Target(msgspec.Struct, array_like=True):
    """The method of an agent that is called."""

    steps: Steps
    module: str
    qualname: str
    """Which class the caller means by the last step."""
    method: str


class Asked(msgspec.Struct, array_like=True):
    """A call, or a stream to be begun."""

    target: bytes
    """Packed by itself: frequent callees are recognized by it."""
    arguments: list[msgspec.Raw]
    named: dict[str, msgspec.Raw] | None
    loans: list[Loan] | None
    node: str
    """Where the callbacks are."""
    cause: Cause | None
    key: str | None = None
    """The idempotency key of the call."""


class Sought(msgspec.Struct, array_like=True):
    """An agent to be woken."""

    path: list[tuple[str, str, str, str]]
    """Type, name, and the module and the name of the class, of each step."""
    cause: Cause | None


class CalledBack(msgspec.Struct, array_like=True):
    """A callback that is to be called."""

    id: int
    name: str
    method: str | None
    """Which one of an object's."""
    arguments: list[msgspec.Raw]
    named: dict[str, msgspec.Raw]
    cause: Cause | None


class ShownOut(msgspec.Struct, array_like=True):
    """A user whose sockets are to be closed."""

    user: Value
    code: int
    reason: str


pack = msgspec.msgpack.Encoder(enc_hook=pack_hook).encode
read_target = msgspec.msgpack.Decoder(Target).decode
read_asked = msgspec.msgpack.Decoder(Asked).decode
read_sought = msgspec.msgpack.Decoder(Sought).decode
read_called_back = msgspec.msgpack.Decoder(CalledBack).decode
read_shown_out = msgspec.msgpack.Decoder(ShownOut).decode


def packed(value: object) -> msgspec.Raw:
    """Return a value that was copied once already."""
    try:
        return msgspec.Raw(pack(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotCopyable(f"A value cannot be sent to another process: {error}") from None


class FarAgent:
    """Stands for an agent of another node in the chain of calls."""

    __slots__ = ("address", "agent", "stem")

    def __init__(self, address: Address, stem: str = "") -> None:
        self.address = address
        self.stem = stem
        self.agent = None

    def check_live(self) -> None:
        """Whether it lives is not known here."""


def cause_of(caller: Call | None, deadline: float | None) -> Cause | None:
    """Return what the other node has to know of the caller, or `None` if there is nothing."""
    trace = tracing.text()
    if caller is None and deadline is None and trace is None:
        return None
    chain: list[Above] = []
    one = caller
    while one is not None:
        agent = one.actor
        chain.append(Above(cast("Steps", list(agent.address.segments)), one.method, one.is_start, agent.stem, one.key))
        one = one.caller
    chain.reverse()
    left = None if deadline is None else max(deadline - asyncio.get_running_loop().time(), 0.0)
    return Cause(chain, left, trace)


def address_of(steps: Steps) -> Address:
    return Address(tuple(PathSegment(*step) for step in steps))


def caller_of(cause: Cause, live: dict[Address, Running]) -> Call | None:
    """Return the caller, as calls made here know their callers; `live` are those of them that run here."""
    call: Call | None = None
    for above in cause.chain:
        address = address_of(above.steps)
        call = Call(live.get(address) or FarAgent(address, above.stem), above.method, call)
        call.is_start = above.is_start
        call.key = above.key
    return call


CONTAINERS: dict[str, type[Any]] = {kind.__name__: kind for kind in (list, dict, tuple, set, frozenset)}
TYPED = (msgspec.Struct, enum.Enum, uuid.UUID, Decimal, date, time, timedelta)
PARTS = "parts"
"""In place of a module: a container whose parts know their own types."""
_read_parts = msgspec.msgpack.Decoder(list[Value]).decode


def value_of(value: object) -> Value:
    """Return a value with its type, and those of all in it, where they can be named; or raise `NotCopyable`."""
    try:
        return _value_of(value)
    except RecursionError:
        raise NotCopyable(
            "A value cannot be sent to another process: it is nested too deeply or contains itself."
        ) from None


def _value_of(value: object) -> Value:
    kind = type(value)
    if _is_plain(value):
        return Value(None, "", msgspec.Raw(ANYTHING.packed(value, UNLIMITED)))
    if kind in CONTAINERS.values():
        held = cast("dict[object, object] | list[object]", value)
        parts = [part for pair in held.items() for part in pair] if isinstance(held, dict) else held
        return Value(PARTS, kind.__name__, packed([_value_of(part) for part in parts]))
    content = packed(value)
    return Value(kind.__module__, kind.__qualname__, content) if _is_named(kind) else Value(None, "", content)


def _is_named(kind: type[Any]) -> bool:
    """Return whether values of a class travel with its name."""
    return is_dataclass(kind) or issubclass(kind, TYPED) or hasattr(kind, "model_dump") or _is_named_tuple(kind)


def _is_plain(value: object) -> bool:
    """Return whether msgpack keeps a value's type, and those of all in it."""
    kind = type(value)
    if kind is list:
        return all(map(_is_plain, cast("list[object]", value)))
    if kind is dict:
        held = cast("dict[object, object]", value)
        return all(map(_is_plain, held)) and all(map(_is_plain, held.values()))
    return kind in SCALARS


def _is_named_tuple(kind: type[Any]) -> bool:
    return hasattr(kind, "_fields") and issubclass(kind, tuple)


def value_from(value: Value) -> Any:
    """Return what `value_of` was given: a copy."""
    if value.module == PARTS:
        parts = [value_from(part) for part in _read_parts(value.content)]
        kind = CONTAINERS[value.qualname]
        return dict(zip(parts[::2], parts[1::2], strict=True)) if kind is dict else kind(parts)
    kind = find(value.module, value.qualname) if value.module is not None else None
    if kind is None or not _is_named(kind):
        return ANYTHING.unpacked(value.content)
    return msgspec.msgpack.decode(value.content, type=kind, dec_hook=unpack_hook)


def find(module: str, qualname: str) -> Any:
    """Return the class of this name in a module that is loaded already; `None` if there is none.

    The name comes from another process. Importing a module, or asking one for a name that it makes up on demand
    (`__getattr__`), would let that process choose which code runs here.
    """
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = vars(found).get(name) if isinstance(found, ModuleType | type) else None
    return found if isinstance(found, type) else None


def kind_named(kind: AgentClass) -> tuple[str, str]:
    return kind.cls.__module__, kind.cls.__qualname__


class Failure(msgspec.Struct, array_like=True):
    """An error."""

    module: str
    qualname: str
    is_crash: bool
    """Whether it is `Crashed` beside its own type."""
    text: str
    arguments: list[Value]
    attributes: dict[str, Value]
    notes: list[str]
    cause: Failure | None
    parts: list[Failure] | None
    """What a group holds."""


_read_failure = msgspec.msgpack.Decoder(Failure).decode


def pack_error(error: BaseException) -> bytes:
    """Return an error as it travels. Never fails: a caller waits for it."""
    try:
        return pack(_failure(error, MAX_CAUSES))
    except Exception:  # noqa: BLE001 - the code of the error, and of what it holds, may raise anything
        return pack(_failure(Crashed(describe(error)), 0))


def _failure(error: BaseException, causes: int) -> Failure:
    kind = own_type(type(error))
    group = cast("BaseExceptionGroup[BaseException]", error) if issubclass(type(error), BaseExceptionGroup) else None
    return Failure(
        kind.__module__,
        kind.__qualname__,
        kind is not type(error),
        describe(error),
        [_told(value) for value in ((group.message,) if group is not None else reduced(error))],
        {name: _told(value) for name, value in vars(error).items() if name != "__notes__"},
        [str(note) for note in getattr(error, "__notes__", ())],
        # An error may be its own cause.
        None if error.__cause__ is None or causes == 0 else _failure(error.__cause__, causes - 1),
        None if group is None else [_failure(one, causes) for one in group.exceptions],
    )


def _told(value: object) -> Value:
    try:
        return value_of(value)
    except (NotCopyable, NotImplementedError):
        return Value(None, "", packed(describe_value(value)))


def describe_value(value: object) -> str:
    try:
        return str(value).encode("utf-8", "replace").decode()
    except Exception:  # noqa: BLE001 - the value's own code may raise anything
        return f"<{type(value).__name__}>"


def unpack_error(packed: bytes) -> Exception:
    """Return the error that `pack_error` was given, or what can be known of it. Never fails, as that does not."""
    failure = _read_failure(packed)
    try:
        error = _error(failure)
    except Exception:  # noqa: BLE001 - the code of the error, and of what it holds, may raise anything
        error = Crashed(failure.text)
    return error if isinstance(error, Exception) else Crashed(describe(error))


def _error(failure: Failure) -> BaseException:
    kind = find(failure.module, failure.qualname)
    if kind is None or not issubclass(kind, BaseException):
        error: BaseException = Crashed(failure.text)
    else:
        arguments = tuple(_known(value) for value in failure.arguments)
        if failure.parts is not None:
            arguments = (*arguments, [_error(one) for one in failure.parts])
        error = rebuilt(crashed_of(kind) if failure.is_crash else kind, arguments, failure.text)
    vars(error).update({name: _known(value) for name, value in failure.attributes.items()})
    for note in failure.notes:
        error.add_note(note)
    error.__cause__ = None if failure.cause is None else _error(failure.cause)
    return error


def _known(value: Value) -> Any:
    try:
        return value_from(value)
    except Exception:  # noqa: BLE001 - its class may be another here, or hold what it does not declare
        return ANYTHING.unpacked(value.content)
