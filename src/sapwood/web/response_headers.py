"""The headers that HTTP responses get, from an agent, a page or the app itself."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

from sapwood.web.asgi_types import Send

CORS = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, POST, PUT, HEAD, OPTIONS"),
    (b"access-control-allow-headers", b"*"),
    (b"access-control-max-age", b"86400"),
)
"""What responses of agents have if the setting `cors` is on."""
NO_SNIFF = (b"x-content-type-options", b"nosniff")
CSP = b"content-security-policy"


def with_default_headers(send: Send, frame_ancestors: str) -> Send:
    """Return a function that sends responses with headers that every response has, unless it sets them itself.

    They forbid browsers to guess a type, and pages of other origins to frame this one.
    """

    async def send_complete(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = _complete(message.get("headers", ()), frame_ancestors)
        await send(message)

    return send_complete


def _complete(headers: Iterable[tuple[bytes, bytes]], frame_ancestors: str) -> list[tuple[bytes, bytes]]:
    given = list(headers)
    if not any(name.lower() == NO_SNIFF[0] for name, _ in given):
        given.append(NO_SNIFF)
    if frame_ancestors and not any(name.lower() == CSP and b"frame-ancestors" in value for name, value in given):
        given.append((CSP, f"frame-ancestors {frame_ancestors}".encode("latin-1")))
    return given
