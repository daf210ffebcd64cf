"""Errors of the framework in the form of a protocol: they are written as text, and a protocol has a form of its own."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from sapwood.web.asgi_types import Send

ERRORS = 400
"""Statuses from here on are errors."""
MOST = 65_536
"""A longer text is a page of its own, and no refusal."""


def with_refusals(send: Send, refusal: Callable[[int, str], bytes | None]) -> Send:
    """Return a `send` that gives errors whose body is plain text the body that `refusal` returns."""
    start: MutableMapping[str, Any] | None = None
    text = b""

    async def told(message: MutableMapping[str, Any]) -> None:
        nonlocal start, text
        if message["type"] == "http.response.start" and _is_refusal(message):
            start = message
        elif message["type"] != "http.response.body" or start is None:
            await send(message)
        else:
            text += message.get("body", b"")
            if message.get("more_body") and len(text) <= MOST:
                return
            first, start = start, None
            is_whole = not message.get("more_body")
            body = refusal(first["status"], text.decode(errors="replace")) if is_whole else None
            await send(first if body is None else _in_json(first, len(body)))
            await send({**message, "body": text if body is None else body})

    return told


def _is_refusal(message: MutableMapping[str, Any]) -> bool:
    kind = next((value for name, value in message.get("headers", ()) if name.lower() == b"content-type"), b"text/plain")
    return message["status"] >= ERRORS and kind.startswith(b"text/plain")


def _in_json(start: MutableMapping[str, Any], length: int) -> MutableMapping[str, Any]:
    kept = [
        (name, value)
        for name, value in start.get("headers", ())
        if name.lower() not in (b"content-type", b"content-length")
    ]
    headers = [*kept, (b"content-type", b"application/json"), (b"content-length", str(length).encode())]
    return {**start, "headers": headers}
