"""Values as they travel to another process: with the names of their types, where those are needed."""

from __future__ import annotations

import enum
import sys
import uuid
from dataclasses import is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from types import ModuleType
from typing import Any, cast

import msgspec

from sapwood.errors import NotCopyable
from sapwood.kernel.marshal.copier import SCALARS, Copier, pack_hook, unpack_hook

ANYTHING = Copier(Any, "A value")
UNLIMITED = 1 << 40


class Value(msgspec.Struct, array_like=True):
    """A value that knows its own type."""

    module: str | None
    qualname: str
    content: msgspec.Raw


pack = msgspec.msgpack.Encoder(enc_hook=pack_hook).encode


def packed(value: object) -> msgspec.Raw:
    """Return a value that was copied once already."""
    try:
        return msgspec.Raw(pack(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotCopyable(f"A value cannot be sent to another process: {error}") from None


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


def describe_value(value: object) -> str:
    try:
        return str(value).encode("utf-8", "replace").decode()
    except Exception:  # noqa: BLE001 - the value's own code may raise anything
        return f"<{type(value).__name__}>"
