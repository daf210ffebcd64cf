"""What a model is asked in the form of Pydantic AI, as JSON: any model can be asked the same again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sapwood.chat.store.sent_files import without_bytes
from sapwood.chat.store.tool_keys import without_keys

NOT_SENT = frozenset({"usage", "run_id", "conversation_id", "instructions", "timestamp"})
"""Fields of messages that are not for models, or that the parameters have.

The newest request has a time, and the same request as part of the history has none: with it, both would be stored.
"""


@dataclass(frozen=True, slots=True)
class SentForm:
    """The messages, tools and settings of a request, in the form of Pydantic AI."""

    model: str
    """The name of the model with its provider."""
    messages: Sequence[Any]
    settings: Any
    parameters: Any

    def body(self) -> bytes:
        """Return the whole request."""
        return self._object([_lean(without_bytes(one)) for one in self.messages])

    def frame(self) -> bytes:
        """Return the request with `null` in place of its messages."""
        return self._object([None])

    def has_frame_of(self, other: SentForm) -> bool:
        """Return whether another request had the same tools and settings."""
        mine, others = (self.model, self.settings, self.parameters), (other.model, other.settings, other.parameters)
        return bool(mine == others)

    def message(self, message: Any) -> bytes:
        """Return one message, as it is in the body."""
        return _json(_lean(without_bytes(message)))

    def _object(self, messages: list[Any]) -> bytes:
        # Headers may hold keys: they are not for a record.
        settings = {name: value for name, value in dict(self.settings or {}).items() if name != "extra_headers"}
        fields: dict[str, Any] = {
            "model": self.model,
            "settings": settings,
            "parameters": without_keys(self.parameters),
            "messages": messages,
        }
        parts = [f"{msgspec.json.encode(name).decode()}:".encode() + _json(value) for name, value in fields.items()]
        return b"{" + b",".join(parts) + b"}"


def _lean(message: Any) -> dict[str, Any]:
    """Return a message as JSON has it, without what no model is sent of it and fields that have no value.

    The instructions of a request are in its parameters; messages repeat them.
    """
    import pydantic_core

    whole = pydantic_core.to_jsonable_python(message, serialize_unknown=True, bytes_mode="base64")
    whole["parts"] = [_without_none(part) for part in whole["parts"]]
    return _without_none({name: value for name, value in whole.items() if name not in NOT_SENT})


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None or name == "content"}


def _json(value: Any) -> bytes:
    import pydantic_core

    return pydantic_core.to_json(value, serialize_unknown=True, bytes_mode="base64")
