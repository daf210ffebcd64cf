"""The output of a chat agent's turns: the type that its class declares, and how it is read from what is stored."""

from __future__ import annotations

import functools
import typing
from typing import Any, ForwardRef

import msgspec

from sapwood.errors import InvalidResult, UsageError
from sapwood.kernel.marshal.agent_class import first_argument
from sapwood.kernel.marshal.copier import CustomType


class Output:
    """The type of the output of one chat agent class."""

    def __init__(self, owner: str, type_: Any) -> None:
        self._owner = owner
        self._type = type_
        self.crosses: Any = Any if type_ in (Any, str) else CustomType(f"{owner}.output", (), {"read": self._copied})
        """The type of the output in a copy of a turn."""

    @functools.cached_property
    def _adapter(self) -> Any:
        from pydantic import TypeAdapter

        return TypeAdapter(self._type)

    def schema(self) -> dict[str, Any] | None:
        """Return the JSON schema of the output; `None` if it is text, or of any type."""
        return None if self._type in (Any, str) else self._adapter.json_schema(mode="serialization")

    def read(self, text: str) -> Any:
        """Return the output from JSON; `InvalidResult` if it is not of this type."""
        value = msgspec.json.decode(text)
        if self._type is Any or (self._type is str and isinstance(value, str)):
            return value
        try:
            return self._adapter.validate_json(text, by_alias=True, by_name=True)
        except ValueError as error:  # what Pydantic raises is one
            raise InvalidResult(f"The output of {self._owner} does not fit: {error}") from None

    def _copied(self, value: Any) -> Any:
        return None if value is None else self._adapter.validate_python(value, by_alias=True, by_name=True)


def declare(cls: Any, base: type) -> Output:
    """Return the output of a class: what its brackets say, or its `output_type`; set that if only the brackets say it.

    Refuse a class whose brackets and `output_type` are different types.
    """
    name = cls.__name__
    given = first_argument(cls, base)
    if isinstance(given, ForwardRef):
        raise UsageError(
            f"{name}: ChatAgent[{given.__forward_arg__!r}] names a type that is not defined yet. Define the type "
            "before the class, and write it without quotes."
        )
    own = next((owner for owner in cls.__mro__ if "output_type" in vars(owner)), base)
    chosen = vars(own)["output_type"]
    if given is None or given is Any or isinstance(given, typing.TypeVar):
        return Output(name, chosen if _is_type(chosen) else Any)
    if own is base:
        cls.output_type = given
    elif _is_type(chosen) and chosen != given:
        raise UsageError(
            f"{name}.output_type is {_named(chosen)}, but the class is a ChatAgent[{_named(given)}]. Remove "
            "output_type: the brackets set it."
        )
    if given is not str and cls.respond is not getattr(base, "respond"):  # noqa: B009 - the base is only known as a type
        raise UsageError(f"{name} has respond(), whose output is text, but is a ChatAgent[{_named(given)}].")
    return Output(name, given)


def _is_type(value: Any) -> bool:
    return isinstance(value, type) or typing.get_origin(value) is not None


def _named(type_: Any) -> str:
    return type_.__name__ if isinstance(type_, type) else str(type_)
