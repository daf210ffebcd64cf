"""What a token without the scope `content` sees instead of what agents and people wrote; and what no token sees."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import msgspec

from sapwood.capabilities.redaction import Redaction
from sapwood.errors import SapwoodError
from sapwood.kernel.marshal.copier import json_hook
from sapwood.kernel.node.node import Node
from sapwood.web.errors import status_of

SECRET = re.compile(
    r"pass(word|wd|phrase)|secret|token$|api[_-]?key|authorization|cookie|credential|private[_-]?key", re.IGNORECASE
)
"""Names of fields whose values are never shown."""
REDACTED = "<redacted>"
ALWAYS_SHOWN = frozenset({"code", "model", "key", "agent", "child", "run", "turn"})
"""Facts of spans that are names and ids, and no content."""
NAMED_BY_CODE = frozenset({"function", "milestone"})
"""Kinds of spans whose names are read from where the app has stored them."""


class HiddenFailure(Exception):
    """An agent failed, and what its error says is not for this token."""

    def __init__(self, error: SapwoodError) -> None:
        super().__init__("The agent failed. To see its error, use a token with the scope 'content'.")
        self.code = error.code
        self.status = status_of(error)


class Content:
    """Shows values to one token."""

    def __init__(self, node: Node, *, is_shown: bool) -> None:
        self._redaction = node.shared(Redaction)
        self.is_shown = is_shown

    @contextmanager
    def of_failures(self) -> Generator[None, None, None]:
        """Hide what errors in this block say: agents run in it, and may put anything into their errors."""
        try:
            yield
        except SapwoodError as error:
            if self.is_shown:
                raise
            raise HiddenFailure(error) from None

    def text(self, kind: str, text: str | None) -> Any:
        """Return a text without secrets, or what stands for it."""
        if text is None:
            return None
        return self._redaction.apply(kind, text) if self.is_shown else hidden(text)

    def value(self, kind: str, value: Any) -> Any:
        """Return a JSON value without secrets, or what stands for it."""
        if value is None:
            return None
        if not self.is_shown:
            return hidden(value)
        value = masked(value)
        if self._redaction.function is None:
            return value
        text = self._redaction.apply(kind, msgspec.json.encode(value, enc_hook=json_hook).decode())
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text

    def chunks(self, body: list[Any]) -> Any:
        """Return streamed chunks without secrets, or what stands for them.

        A secret may be spread over several of them, so none is shown if the app redacts. The input of a tool is masked
        by the names of its fields, so it is shown only once it is whole.
        """
        if self._redaction.function is not None:
            return hidden(body)
        return self.value("chunks", [_without_delta(one) for one in body])

    def span(self, span: dict[str, Any]) -> dict[str, Any]:
        """Return a span as it may be shown."""
        facts: dict[str, Any] = span["facts"]
        if self.is_shown:
            facts = self.value("facts", facts)
        else:
            facts = {
                name: value if name in ALWAYS_SHOWN or isinstance(value, int | float) else hidden(value)
                for name, value in facts.items()
            }
        is_named_by_code = span["kind"] in NAMED_BY_CODE
        name = self._redaction.apply("name", span["name"]) if is_named_by_code else span["name"]
        return span | {"name": name, "facts": facts}


def hidden(value: Any) -> dict[str, Any]:
    """Return the type of a JSON value, and its length."""
    match value:
        case None:
            return {"hidden": "null", "length": 0}
        case bool():
            return {"hidden": "boolean", "length": 0}
        case int() | float():
            return {"hidden": "number", "length": 0}
        case str():
            return {"hidden": "string", "length": len(value)}
        case list() | tuple():
            return {"hidden": "array", "length": len(cast("list[Any]", value))}
        case dict():
            return {"hidden": "object", "length": len(cast("dict[str, Any]", value))}
        case _:
            return {"hidden": "object", "length": 0}


def masked(value: Any) -> Any:
    """Return a value without the fields that are named like a secret."""
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        return {name: REDACTED if _is_secret(name, one) else masked(one) for name, one in fields.items()}
    if isinstance(value, list | tuple):
        return [masked(one) for one in cast("list[Any]", value)]
    return value


def _is_secret(name: Any, value: Any) -> bool:
    return value is not None and SECRET.search(str(name)) is not None


def _without_delta(chunk: Any) -> Any:
    match chunk:
        case {"type": "tool-input-delta"}:
            return {**chunk, "inputTextDelta": ""}
        case _:
            return chunk
