"""The methods of an agent that clients may call: arguments from JSON, by their annotations, and results to JSON."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from sapwood.errors import InvalidArguments, NotCopyable, OverLimit
from sapwood.kernel.marshal.agent_class import AgentClass, Method
from sapwood.kernel.marshal.copier import to_json, unjson_hook
from sapwood.wire.frames import TOO_DEEP, is_deep


class MethodCodec:
    """How clients call one method."""

    def __init__(self, method: Method) -> None:
        self.method = method
        parameters = [p for p in method.signature.parameters if p.kind is not p.VAR_KEYWORD]
        self._positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._rest = next((p for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self._needs_names = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
        self._required = sum(p.default is p.empty for p in self._positional)
        self._decoders: dict[str, msgspec.json.Decoder[Any]] = {}
        """The decoders of the arguments used so far, by name. They live as long as this object."""

    def arguments(self, raw: list[msgspec.Raw]) -> list[Any]:
        """Return what the client sent as what the method declares."""
        most = len(self._positional)
        name = self.method.full_name
        if self._needs_names:
            raise InvalidArguments(f"{name}() has keyword-only arguments, so clients cannot call it.")
        if len(raw) < self._required or (len(raw) > most and self._rest is None):
            wanted = f"{self._required} to {most}" if self._required != most else str(most)
            raise InvalidArguments(f"{name}() expects {wanted} arguments, got {len(raw)}.")
        return [
            self._argument(self._positional[at].name if at < most else self._rest_name(), value)
            for at, value in enumerate(raw)
        ]

    def _rest_name(self) -> str:
        assert self._rest is not None
        return self._rest.name

    def _argument(self, name: str, raw: msgspec.Raw) -> Any:
        try:
            if is_deep(bytes(raw)):
                raise InvalidArguments(f"{self.method.full_name}() argument {name!r} does not fit: {TOO_DEEP}")
            return self._decoder(name).decode(raw)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            text = f"{self.method.full_name}() argument {name!r} does not fit: {error}."
            raise InvalidArguments(text) from None

    def _decoder(self, name: str) -> msgspec.json.Decoder[Any]:
        if (decoder := self._decoders.get(name)) is None:
            hint = self.method.signature.hints.get(name, Any)
            decoder = self._decoders[name] = msgspec.json.Decoder(hint, dec_hook=unjson_hook)
        return decoder


class JsonResult:
    """Copies a result by writing it as JSON."""

    def copy(self, value: Any, limit: int) -> bytes | None:
        """Return the value as JSON; None for no value."""
        if value is None:
            return None
        try:
            text = to_json(value)
        except TypeError as error:
            raise NotCopyable(f"Result is not JSON-serializable: {error}") from None
        if len(text) > limit:
            raise OverLimit(f"The result must have at most {limit} bytes, got {len(text)}.", limit="payload_bytes")
        return text


JSON_RESULT = JsonResult()


@functools.cache
def exposed(kind: AgentClass) -> dict[str, MethodCodec]:
    """Return the methods of a class that clients may call, inherited ones included."""
    return {name: MethodCodec(method) for name, method in kind.methods.items() if method.is_exposed}
