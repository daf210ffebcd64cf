"""Requests whose agent is known only when their user and their body are: the protocols of an app decide."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sapwood.web.asgi_types import Receive, Scope, Send

if TYPE_CHECKING:
    from sapwood.web.gateway import Gateway
    from sapwood.web.locate import Locate


async def serve_located(gateway: Gateway, locate: Locate, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request, or have the root answer it that is found for it."""
    from sapwood.web.access_log import log_request
    from sapwood.web.asgi import serve
    from sapwood.web.response_headers import CORS, with_default_headers

    began = time.monotonic()
    found, again = await gateway.located(locate, scope, receive)
    if isinstance(found, tuple):
        await serve(gateway, scope, again, send, place=found)
        return
    if gateway.is_cors:
        found.raw_headers.extend(CORS)
    log_request(scope, found.status_code, time.monotonic() - began)
    await found(scope, receive, with_default_headers(send, gateway.frame_ancestors))
