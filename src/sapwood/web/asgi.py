"""What an ASGI server asks of the app: start and stop, health, and every request and socket."""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from sapwood.web.asgi_types import DRAIN, FRAME_LIMIT, Receive, Scope, Send

if TYPE_CHECKING:
    from sapwood.kernel.marshal.agent_class import AgentClass
    from sapwood.web.gateway import Gateway


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
    gateway: Gateway, scope: Scope, receive: Receive, send: Send, place: tuple[AgentClass, str, str] | None = None
) -> None:
    """Serve one request or socket; with `place`, for that root, whatever its URL."""
    from starlette.responses import PlainTextResponse

    from sapwood.web.access_log import log_refused_socket, log_request
    from sapwood.web.errors import close_code
    from sapwood.web.proxy import carry, follow
    from sapwood.web.response_headers import with_default_headers
    from sapwood.web.root_locations import MOVED_STATUS
    from sapwood.web.socket_migration import hold_open
    from sapwood.web.target import Refusal, UrlTarget, raw_path
    from sapwood.wire import final_errors
    from sapwood.wire.routing import as_sent

    is_http, is_logged, began = scope["type"] == "http", True, time.monotonic()
    if is_http:
        send = with_default_headers(send, gateway.frame_ancestors)
    try:
        if not is_http:
            extensions = scope.get("extensions", {})
            if (drains := extensions.get(DRAIN)) is not None:
                drains()
            send = _with_frame_limit(send, extensions.get(FRAME_LIMIT))
        found = (
            gateway.find(scope) if place is None else UrlTarget(place[0], place[1], as_sent(place[2], raw_path(scope)))
        )
        if found is not None:
            if (moving := gateway.moving(found)) is not None:
                with gateway.counted(scope):
                    await (follow if is_http else hold_open)(gateway, *moving, found, scope, receive, send)
                return
            if (away := gateway.away(found)) is not None:
                with gateway.counted(scope):
                    await carry(gateway, *away, found, scope, receive, send)
                return
            await (gateway.http if is_http else gateway.websocket)(found, scope, receive, send)
            return
        response = await gateway.about(scope) if is_http else None
        is_logged = response is None  # monitoring systems ask all the time
        if is_http and response is None:
            response = await gateway.page(scope)
    except Refusal as no:
        response = no.response
    if is_http:
        response = response or PlainTextResponse("Not Found", 404)
        if is_logged:
            log_request(scope, response.status_code, time.monotonic() - began)
        await response(scope, receive, send)
    else:
        status = response.status_code if response is not None else 404
        await receive()
        await send({"type": "websocket.accept"})
        log_refused_socket(scope, status)
        code, reason = close_code(status), f"Connection rejected ({status})"
        if response is not None and status == MOVED_STATUS:
            code, reason = final_errors.CLOSE_CODE, final_errors.moved_reason(response.headers["location"])
        await send({"type": "websocket.close", "code": code, "reason": reason})


def _with_frame_limit(send: Send, set_limit: Callable[[int], None] | None) -> Send:
    """Return a `send` that keeps messages about the limit of frames from servers, and tells ours."""

    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] != FRAME_LIMIT:
            await send(message)
        elif set_limit is not None:
            set_limit(message["bytes"])

    return sent
