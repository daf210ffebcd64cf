"""The methods of an agent class as a client calls them: arguments to JSON, results from it, by their annotations."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sapwood.errors import InvalidArguments, InvalidResult, NotCopyable
from sapwood.kernel.marshal.agent_class import Method
from sapwood.kernel.marshal.copier import to_json, unjson_hook


def encode(value: object, what: str) -> bytes:
    """Return a value as JSON; `what` names it in errors."""
    try:
        return to_json(value)
    except TypeError as error:
        raise NotCopyable(f"{what} cannot be sent to the server: {error}") from None


class Decoder:
    """Reads JSON as values of one type; `what` names them in errors."""

    def __init__(self, annotation: Any, what: str) -> None:
        self._what = what
        try:
            self._decode = msgspec.json.Decoder(annotation, dec_hook=unjson_hook).decode
        except TypeError as error:
            raise NotCopyable(f"{what} has a type that cannot be read from JSON: {error}") from None

    def __call__(self, text: bytes) -> Any:
        try:
            return self._decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidResult(f"{self._what} does not fit: {error}.") from None
        except NotImplementedError:
            raise NotCopyable(f"{self._what} is annotated with a type that cannot be read from JSON.") from None


class RemoteMethod:
    """One method of a remote agent."""

    def __init__(self, method: Method) -> None:
        self.name = method.name
        self.full_name = method.full_name
        self.streams = method.streams
        signature = method.signature
        self._signature = inspect.Signature(list(signature.parameters))
        self.decode = Decoder(
            signature.returned, f"{'An item' if self.streams else 'The result'} of {self.full_name}()"
        )

    def arguments(self, args: Sequence[object], named: Mapping[str, object]) -> bytes:
        """Return the arguments as a JSON array: a call by name does not exist on the wire."""
        try:
            bound = self._signature.bind(*args, **named)
        except TypeError as error:
            raise InvalidArguments(f"{self.full_name}(): {error}.") from None
        if named:
            only = [name for name in named if not self._has_place(name)]
            if only:
                raise InvalidArguments(
                    f"{self.full_name}() has the keyword-only argument {only[0]!r}; clients pass arguments by position."
                )
            bound.apply_defaults()
        return encode(bound.args, f"An argument of {self.full_name}()")

    def _has_place(self, name: str) -> bool:
        parameter = self._signature.parameters.get(name)
        return parameter is not None and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
