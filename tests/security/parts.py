"""Messages of the AI SDK's form, as clients send them, and as attackers do."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.chats import TALKER
from tests.conformance.served import Served


def file(url: Any, media_type: Any = "text/plain", **more: Any) -> dict[str, Any]:
    return {"type": "file", "mediaType": media_type, "url": url, **more}


def message(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"id": "m-1", "role": "user", "parts": list(parts), **more}


def user_text() -> dict[str, Any]:
    return {"type": "text", "text": "hi"}


async def post(one: Served, *messages: Any, **more: Any) -> Any:
    body = json.dumps({"messages": messages, **more}).encode()
    return await one.site.http(f"{TALKER}/chat", method="POST", body=body)
