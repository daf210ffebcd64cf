"""Requests whose agent is known only when their user and their body are: the protocols of an app decide."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from sapwood.web.asgi_types import Receive, Scope, Send

if TYPE_CHECKING:
    from starlette.requests import Request

    from sapwood.web.gateway import Gateway
    from sapwood.web.locate import Locate


UNAUTHORIZED = 401


async def serve_located(
    gateway: Gateway,
    locate: Locate,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    is_public: bool = False,
    challenge: Callable[[Request], str | None],
) -> None:
    """Answer a request, or have the root answer it that is found for it.

    `challenge` returns the header that tells a client without a user how to get one.
    """
    from starlette.requests import Request

    from sapwood.web.access_log import log_request
    from sapwood.web.asgi import serve
    from sapwood.web.response_headers import CORS, with_default_headers

    began = time.monotonic()
    found, again = await gateway.located(locate, scope, receive, is_public=is_public)
    if isinstance(found, tuple):
        await serve(gateway, scope, again, send, place=found)
        return
    if found.status_code == UNAUTHORIZED and (told := challenge(Request(scope))) is not None:
        found.headers["www-authenticate"] = told
    if gateway.is_cors:
        found.raw_headers.extend(CORS)
    log_request(scope, found.status_code, time.monotonic() - began)
    await found(scope, receive, with_default_headers(send, gateway.frame_ancestors))
