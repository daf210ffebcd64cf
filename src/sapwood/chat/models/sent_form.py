"""What a model is sent, as JSON of ours: for models that no HTTP client of a known kind sends it for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sapwood.chat.store.sent_files import without_bytes


@dataclass(frozen=True, slots=True)
class SentForm:
    """The messages, tools and settings of a request, in the form of Pydantic AI."""

    messages: Sequence[Any]
    settings: Any
    parameters: Any

    def body(self) -> bytes:
        """Return the whole request."""
        return self._object([without_bytes(one) for one in self.messages])

    def frame(self) -> bytes:
        """Return the request with `null` in place of its messages."""
        return self._object([None])

    def has_frame_of(self, other: SentForm) -> bool:
        """Return whether another request had the same tools and settings."""
        return bool(self.settings == other.settings and self.parameters == other.parameters)

    def message(self, message: Any) -> bytes:
        """Return one message, as it is in the body."""
        return _json(without_bytes(message))

    def _object(self, messages: list[Any]) -> bytes:
        fields: dict[str, Any] = {
            "settings": self.settings,
            "parameters": self.parameters,
            "messages": messages,
        }
        parts = [f"{msgspec.json.encode(name).decode()}:".encode() + _json(value) for name, value in fields.items()]
        return b"{" + b",".join(parts) + b"}"


def _json(value: Any) -> bytes:
    import pydantic_core

    return pydantic_core.to_json(value, serialize_unknown=True)
