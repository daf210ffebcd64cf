"""The types of ASGI: what a server and an application pass to each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGI = Callable[[Scope, Receive, Send], Awaitable[None]]

FRAME_LIMIT = "sapwood.frame_limit"
"""In `scope["extensions"]`: a function of our server that takes how many bytes a frame of this socket may have from now
on. The type of the message with which the app, perhaps in another process, has it called."""
DRAIN = "sapwood.drain"
"""In `scope["extensions"]`: tells our server that the app knows the message of this type, which is the last it hears of
a socket's client: answer what came before, and close."""
