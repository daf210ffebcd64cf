"""What an ASGI server asks of the app: start and stop, is it well, and everything that goes through the door."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sapwood.kernel.classes import AgentClass
    from sapwood.web.door import Door

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGI = Callable[[Scope, Receive, Send], Awaitable[None]]

DRAIN = "sapwood.drain"
"""In `scope["extensions"]`: tells our server that the app knows the message of this type, which is the last it hears of
a socket's client: answer what came before, and close."""


async def serve_lifespan(app: AbstractAsyncContextManager[object], receive: Receive, send: Send) -> None:
    """Run the app from the server's start to its stop."""
    await receive()
    try:
        await app.__aenter__()
    except BaseException as error:
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        raise
    await send({"type": "lifespan.startup.complete"})
    await receive()
    try:
        await app.__aexit__(None, None, None)
    except BaseException as error:
        await send({"type": "lifespan.shutdown.failed", "message": str(error)})
        raise
    await send({"type": "lifespan.shutdown.complete"})


async def serve(
    door: Door, scope: Scope, receive: Receive, send: Send, place: tuple[AgentClass, str, str] | None = None
) -> None:
    """Serve one request or socket; with `place`, for that root, whatever its URL."""
    from starlette.responses import PlainTextResponse

    from sapwood.web.carrying import carry, follow
    from sapwood.web.door import Place, Refusal, raw_path
    from sapwood.web.errors import close_code
    from sapwood.web.moving import hold_open
    from sapwood.wire.routing import as_sent

    is_http = scope["type"] == "http"
    try:
        if not is_http and (drains := scope.get("extensions", {}).get(DRAIN)) is not None:
            drains()
        found = door.find(scope) if place is None else Place(place[0], place[1], as_sent(place[2], raw_path(scope)))
        if found is not None:
            if (moving := door.moving(found)) is not None:
                with door.counted(scope):
                    await (follow if is_http else hold_open)(door, *moving, found, scope, receive, send)
                return
            if (away := door.away(found)) is not None:
                with door.counted(scope):
                    await carry(*away, found, scope, receive, send)
                return
            await (door.http if is_http else door.websocket)(found, scope, receive, send)
            return
        response = (await door.about(scope) or await door.page(scope)) if is_http else None
    except Refusal as no:
        response = no.response
    if is_http:
        await (response or PlainTextResponse("Not Found", 404))(scope, receive, send)
    else:
        status = response.status_code if response is not None else 404
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": close_code(status), "reason": f"Connection rejected ({status})"})
