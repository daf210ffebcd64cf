"""What crosses a stub is a copy, made by the callee's annotations.

A value is packed and unpacked again with the type the receiving side declared, so
types survive, nothing mutable is shared, and an argument that does not fit is refused
with a sentence. Scalars that cannot change pass as they are.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, Protocol, cast

import msgspec

from sapwood.errors import InvalidArguments, InvalidResult, NotCopyable, OverLimit
from sapwood.storage.rows import Rows

SCALARS = frozenset({int, float, bool, str, bytes, types.NoneType})
SIZED = frozenset({str, bytes})
LARGE_NUMBER = re.compile(rb"[0-9]{19}")
"""What the JSON of every integer contains that has more than 64 bits."""


def pack_hook(value: Any) -> Any:
    """Take apart what msgspec does not know, for a copy in memory."""
    return _taken_apart(value, "python")


def unpack_hook(type_: Any, value: Any) -> Any:
    """Put together again what `pack_hook` took apart."""
    # Not strict: dates and tuples arrive as what msgpack has for them. By name: so `pack_hook` wrote them.
    return _put_together(
        type_, lambda model: model.model_validate(value, strict=False, by_alias=True, by_name=True), value
    )


def json_hook(value: Any) -> Any:
    """Take apart what msgspec does not know, for JSON."""
    return _taken_apart(value, "json")


def to_json(value: object) -> bytes:
    """Return a value as JSON; whatever is wrong with it is a `TypeError`."""
    try:
        return msgspec.json.encode(value, enc_hook=json_hook)
    except (ValueError, NotImplementedError, RecursionError) as error:
        raise TypeError(str(error)) from None


def json_to_copy(value: object, what: str) -> bytes:
    """Return a value as JSON, to be stored now and copied to other agents later. Raises `NotCopyable`."""
    try:
        text = to_json(value)
    except TypeError as error:
        raise NotCopyable(f"{what} cannot be stored: {error}") from None
    if LARGE_NUMBER.search(text) and (field := _large_integer(text)) is not None:
        where = f"`{field}` in it" if field else "it"
        raise NotCopyable(f"{what} cannot be stored: {where} is an integer of more than 64 bits. Use a string.")
    return text


def _large_integer(text: bytes) -> str | None:
    """Return the path to an integer in JSON that msgpack does not have; `None` if there is none."""
    left: list[tuple[str, Any]] = [("", msgspec.json.decode(text))]
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value).items()
            left += [(f"{path}.{name}" if path else name, one) for name, one in fields]
        elif isinstance(value, list):
            left += [(f"{path}[{place}]", one) for place, one in enumerate(cast("list[Any]", value))]
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            return path
    return None


def unjson_hook(type_: Any, value: Any) -> Any:
    """Put together again what `json_hook` took apart."""
    return _put_together(
        type_, lambda model: model.model_validate_json(msgspec.json.encode(value), by_alias=True, by_name=True), value
    )


def _taken_apart(value: Any, mode: str) -> Any:
    if (pydantic := sys.modules.get("pydantic")) is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode=mode, round_trip=True)
    hint = ""
    if inspect.isawaitable(value):
        hint = " Did you forget await?"
    elif isinstance(value, Rows):
        hint = " Pass list(rows), rows.into(…) or rows.scalar(…)."
    raise TypeError(f"it holds a value that cannot be copied, of type {type(value).__name__}.{hint}")


class CustomType(type):
    """The class of types that stand for one that msgspec cannot read. `read` returns a value of that type.

    `read` gets what msgpack has for the value: a dict for a dataclass or a model.
    """

    read: Callable[[Any], Any]

    def __instancecheck__(cls, instance: object) -> bool:
        return True  # only `read` knows


def _put_together(type_: Any, validate: Callable[[Any], Any], value: Any) -> Any:
    if type_ is object:
        return value
    if isinstance(type_, CustomType):
        return type_.read(value)
    # From Python 3.13 on, `issubclass` refuses what is no class, such as `Callable[[], None]`.
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(type_, type) and issubclass(type_, pydantic.BaseModel):
        try:
            return validate(type_)
        except pydantic.ValidationError as error:
            raise ValueError(str(error)) from None
    raise NotImplementedError


_pack: Callable[[object], bytes] = msgspec.msgpack.Encoder(enc_hook=pack_hook).encode


_pack_in_order: Callable[[object], bytes] = msgspec.msgpack.Encoder(enc_hook=pack_hook, order="deterministic").encode


ODD_INT, ODD_TEXT = 1, 2
"""Extensions of msgpack for what Python has and msgpack has not: very large numbers, and half characters."""
EXTENSIONS = {0xC7: 2, 0xC8: 3, 0xC9: 5, 0xD4: 1, 0xD5: 1, 0xD6: 1, 0xD7: 1, 0xD8: 1}
"""Where the code of an extension stands, by its first byte."""


def _pack_scalar(value: Any) -> bytes:
    """Return a scalar that is passed as it is."""
    try:
        return _pack(value)
    except OverflowError:
        return _pack(msgspec.msgpack.Ext(ODD_INT, hex(value).encode()))
    except UnicodeEncodeError:
        return _pack(msgspec.msgpack.Ext(ODD_TEXT, value.encode(errors="surrogatepass")))


def _odd_scalar(packed: bytes | msgspec.Raw) -> Any:
    """Return what `_pack_scalar` could not leave to msgpack, or `None` if it is nothing of that kind."""
    view = memoryview(packed)
    place = EXTENSIONS.get(view[0])
    if place is None or view[place] not in (ODD_INT, ODD_TEXT):
        return None
    found = msgspec.msgpack.decode(packed, type=msgspec.msgpack.Ext)
    return int(bytes(found.data), 16) if found.code == ODD_INT else bytes(found.data).decode(errors="surrogatepass")


def _as_is(annotation: Any) -> frozenset[type]:
    """Return the scalar types that this annotation takes without a conversion."""
    if annotation in (Any, object):
        return SCALARS
    if annotation in (None, types.NoneType):
        return frozenset({types.NoneType})
    if annotation in SCALARS:
        return frozenset({annotation})
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return frozenset[type]().union(*(_as_is(member) for member in typing.get_args(annotation)))
    return frozenset()


def without_object(annotation: Any) -> Any:
    """Say `Any` where it says `object`: to msgspec that is a type of ours, and each such value a call of the hook."""
    if annotation is object:
        return Any
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if object not in members and not any(typing.get_args(member) for member in members):
        return annotation
    changed = tuple(without_object(member) for member in members)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[changed]  # noqa: UP007 - there are as many as there are
    if isinstance(annotation, types.GenericAlias):
        return origin[changed] if origin is not None else annotation
    return annotation


class Copies(Protocol):
    """Makes what the caller gets of what a method returned."""

    def copy(self, value: Any, limit: int) -> Any: ...


class AsIs:
    """Leaves a value unchanged: it does not leave the agent."""

    def copy(self, value: Any, limit: int) -> Any:
        return value


AS_IS = AsIs()


class Copier:
    """Copies one argument or result, by its annotation; `what` names it in errors."""

    __slots__ = ("_annotation", "_as_is", "_base", "_unfit", "_unpack", "_what")

    def __init__(
        self, annotation: Any, what: str, unfit: type[InvalidArguments | InvalidResult] = InvalidArguments
    ) -> None:
        self._annotation = annotation
        self._what = what
        self._unfit = unfit
        self._as_is = _as_is(annotation)
        self._unpack: Callable[[bytes], Any] | None = None
        self._base: type | None = annotation if isinstance(annotation, type) and is_dataclass(annotation) else None
        """A dataclass is rebuilt as what was declared: an instance of a subclass would lose its own fields."""

    def takes(self, value: object) -> bool:
        """Return whether the annotation takes this value as it is; False: that has to be tried."""
        return type(value) in self._as_is

    def pack(self, value: Any) -> bytes:
        """Return a value as it is stored."""
        if self._base is not None:
            self._refuse_subclass(type(value))  # pyright: ignore[reportUnknownArgumentType]
        try:
            return _pack(value)
        except (TypeError, ValueError, OverflowError, NotImplementedError, RecursionError) as error:
            raise NotCopyable(f"{self._what} cannot be stored: {error}") from None

    def unpack(self, packed: bytes | msgspec.Raw) -> Any:
        """Return what `pack` was given; `InvalidArguments` or `InvalidResult` if it does not fit the annotation."""
        unpack = self._unpack or self._prepare()
        try:
            return unpack(packed)  # pyright: ignore[reportArgumentType] - a buffer
        except msgspec.ValidationError as error:
            raise self._unfit(f"{self._what} does not fit: {error}.") from None
        except NotImplementedError:
            raise NotCopyable(f"{self._what} is annotated with a type that cannot be copied.") from None

    def packed(self, value: Any, limit: int) -> bytes:
        """Return `value` as it crosses to another process, where `unpacked` copies it; it may have `limit` bytes."""
        kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
        if kind in self._as_is:
            if kind in SIZED and len(value) * 4 > limit:
                self._check_size(value, limit)
            return _pack_scalar(value)
        if self._base is not None:
            self._refuse_subclass(kind)
        try:
            packed = _pack(value)
        except (TypeError, ValueError, OverflowError, NotImplementedError, RecursionError) as error:
            raise NotCopyable(f"{self._what} cannot be copied to another agent: {error}") from None
        if len(packed) > limit:
            raise self._too_large(len(packed), limit)
        return packed

    def parcel(self, value: Any, limit: int) -> msgspec.Raw:
        """Return what `packed` does; refuse here what `unpacked` would refuse there."""
        kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
        if kind not in self._as_is:
            if self._base is not None:
                self._refuse_subclass(kind)
            try:
                packed = _pack(value)
                (self._unpack or self._prepare())(packed)
            except Exception:
                self.copy(value, limit)  # says what is wrong
                raise
            if len(packed) <= limit:
                return msgspec.Raw(packed)
        return msgspec.Raw(self.packed(value, limit))

    def in_order(self, value: Any, limit: int) -> bytes:
        """Return what `packed` does, with sets and dicts in an order of their own: equal values have equal bytes."""
        try:
            return _pack_in_order(value)
        except (TypeError, ValueError, OverflowError, NotImplementedError, RecursionError):
            return self.packed(value, limit)  # what has no order, or no place in msgpack

    def unpacked(self, packed: bytes | msgspec.Raw) -> Any:
        """Return the copy of what `packed` was given; `InvalidArguments` or `InvalidResult` if it does not fit."""
        if self._as_is:
            odd = _odd_scalar(packed)
            return self.unpack(packed) if odd is None else odd
        try:
            return (self._unpack or self._prepare())(packed)  # pyright: ignore[reportArgumentType] - a buffer
        except Exception:
            self.unpack(packed)  # says what is wrong
            raise

    def copy(self, value: Any, limit: int) -> Any:
        """Return a copy of `value`, which may have `limit` bytes at most."""
        kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
        if kind in self._as_is:
            # A character has four bytes at most, so nearly every text need not be looked at.
            if kind in SIZED and len(value) * 4 > limit:
                self._check_size(value, limit)
            return value
        if self._base is not None:
            self._refuse_subclass(kind)
        unpack = self._unpack or self._prepare()
        try:
            packed = _pack(value)
        except (TypeError, ValueError, OverflowError, NotImplementedError, RecursionError) as error:
            raise NotCopyable(f"{self._what} cannot be copied to another agent: {error}") from None
        if len(packed) > limit:
            raise self._too_large(len(packed), limit)
        try:
            return unpack(packed)
        except msgspec.ValidationError as error:
            raise self._unfit(f"{self._what} does not fit: {error}.") from None
        except NotImplementedError:
            raise NotCopyable(f"{self._what} is annotated with a type that cannot be copied.") from None

    def _refuse_subclass(self, kind: type) -> None:
        if self._base is not None and kind is not self._base and issubclass(kind, self._base):
            raise self._unfit(
                f"{self._what} must be a {self._base.__name__}, got its subclass {kind.__name__}, whose "
                "additional fields would be lost. Annotate it with a union of both."
            )

    def _check_size(self, value: str | bytes, limit: int) -> None:
        size = len(value) if isinstance(value, bytes) or value.isascii() else len(value.encode(errors="surrogatepass"))
        if size > limit:
            raise self._too_large(size, limit)

    def _prepare(self) -> Callable[[bytes], Any]:
        try:
            self._unpack = msgspec.msgpack.Decoder(without_object(self._annotation), dec_hook=unpack_hook).decode
        except TypeError as error:
            raise NotCopyable(f"{self._what} is annotated with a type that cannot be copied: {error}") from None
        return self._unpack

    def _too_large(self, size: int, limit: int) -> OverLimit:
        return OverLimit(f"{self._what} has {size} bytes; the limit is {limit}.", limit="payload_bytes")
