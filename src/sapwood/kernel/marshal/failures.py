"""Errors as they travel to another process, or are stored."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from sapwood.errors import Crashed, NotCopyable
from sapwood.kernel.marshal.exceptions import MAX_CAUSES, crashed_of, describe, own_type, rebuilt, reduced
from sapwood.kernel.marshal.values import ANYTHING, Value, describe_value, find, pack, packed, value_from, value_of


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
