"""What a model is sent, as JSON of ours: for models that no HTTP client of a known kind sends it for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


def sent_form(messages: Sequence[Any], settings: Any, parameters: Any) -> bytes:
    """Return messages, tools and settings of a request, in the form of Pydantic AI."""
    import pydantic_core

    fields: dict[str, Any] = {"settings": dict(settings or {}), "parameters": parameters, "messages": list(messages)}
    parts = [
        f"{msgspec.json.encode(name).decode()}:".encode() + pydantic_core.to_json(value, serialize_unknown=True)
        for name, value in fields.items()
    ]
    return b"{" + b",".join(parts) + b"}"
