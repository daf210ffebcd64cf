"""The form of the messages between nodes, and in the log and the archive: arrays whose fields have an order.

A reader of an older release skips fields behind those that it knows. So a field may only be added at the end, with a
default for messages that lack it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

import sapwood
from sapwood.errors import Refused
from sapwood.kernel.marshal.failures import pack_error
from sapwood.runtimes.cluster.nats.transport import VERSION
from sapwood.runtimes.workers.frames import Kind, credit, framed, opening

NOT_SENT = {"HostCall", "BackupRequest"}
"""Structs that only travel between processes of one version: into a sandbox, and to a process of one backup."""


def forms() -> dict[str, list[list[Any]]]:
    """Return the fields of each message: name, type, and whether it is required."""
    found = {cls.__name__: cls for cls in _structs() if cls.__name__ not in NOT_SENT}
    return {
        name: [[field.name, str(_described(field.type)), field.required] for field in _fields(cls)]
        for name, cls in sorted(found.items())
    }


def _structs() -> Iterator[type[msgspec.Struct]]:
    for module in pkgutil.walk_packages(sapwood.__path__, "sapwood."):
        if module.name.startswith(PARTS):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__struct_config__.array_like:
                    yield value


def frames() -> dict[str, Any]:
    """Return frames between nodes, and an error that travels, as they are written."""
    return {
        "kinds": {kind.name: kind.value for kind in Kind},
        "opening": framed(1, 7, Kind.OPEN, opening(b"call", 3, b"message")).hex(),
        "credit": framed(2, 7, Kind.CREDIT, credit(5)).hex(),
        "last": framed(3, 7, Kind.LAST, b"result").hex(),
        "error": pack_error(Refused("not now")).hex(),
        "version": VERSION,
    }


PARTS = ("sapwood.kernel.", "sapwood.runtimes.", "sapwood.web.", "sapwood.runs.")


def _fields(cls: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _described(kind: inspect.Type) -> str:
    """Return a type in a form that does not depend on where its class stands."""
    match kind:
        case inspect.StructType():
            return kind.cls.__name__
        case inspect.UnionType():
            return " | ".join(sorted(map(_described, kind.types)))
        case inspect.ListType() | inspect.VarTupleType():
            return f"list[{_described(kind.item_type)}]"
        case inspect.TupleType():
            return f"tuple[{', '.join(map(_described, kind.item_types))}]"
        case inspect.DictType():
            return f"dict[{_described(kind.key_type)}, {_described(kind.value_type)}]"
        case _:
            return type(kind).__name__.removesuffix("Type").lower()


def problems(released: dict[str, list[list[Any]]], now: dict[str, list[list[Any]]]) -> list[str]:
    """Return the messages that a node of a release could not exchange with a node of now."""
    found: list[str] = []
    for name, fields in released.items():
        if now.get(name, [])[: len(fields)] != fields:
            found.append(f"{name}: expected {fields}, got {now.get(name)}")
        found += [
            f"{name}.{added} has no default" for added, _, required in now.get(name, [])[len(fields) :] if required
        ]
    return found
