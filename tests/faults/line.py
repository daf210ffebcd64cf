"""A client of the door without a server between: its socket is a list and a queue."""

from __future__ import annotations

import asyncio
from typing import Any


class Line:
    """A socket without a server: what it is sent, and what it hears."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: list[Any] = []
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.inbox.put_nowait({"type": "websocket.connect"})

    async def send(self, message: Any) -> None:
        self.heard.append(message)

    def say(self, frame: str | bytes) -> None:
        self.inbox.put_nowait({"type": "websocket.receive", "text" if isinstance(frame, str) else "bytes": frame})

    def leave(self, code: int = 1000) -> None:
        self.inbox.put_nowait({"type": "websocket.disconnect", "code": code})
