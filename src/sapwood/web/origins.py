"""Which web pages may talk to the server: the defence against cross-site request forgery and DNS rebinding.

Browsers let a page of any site send requests to any server, and add the user's cookies. They say in headers, which a
page cannot forge, where the page came from. Programs that are not browsers send no such headers, and are let through.

The rules are those of Go's `http.CrossOriginProtection`, and hold for sockets too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sapwood.settings import Settings

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.responses import Response

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
TRUSTED = "sapwood.trusted_origin"
"""In a scope: whether the request comes from a program, from a page of the server or from one that `origins` names.
Cookies of other requests do not identify a user."""


def cross_origin_refusal(request: HTTPConnection, settings: Settings, *, allows_cors: bool = True) -> Response | None:
    """Return the answer to a request that a page of another origin may not send, and `None` if it may.

    Requests with a safe method pass: what they return, the page cannot read. Without `allows_cors`, only origins pass
    that the settings name.
    """
    is_trusted = is_from_own_page(request) or is_listed(request, settings.origins)
    request.scope[TRUSTED] = is_trusted
    if is_trusted or is_safe(request.scope):
        return None
    if not allows_cors:
        may_pass = False
    elif request.scope["type"] != "http":
        may_pass = "*" in settings.origins
    else:  # what CORS allows to pages of all origins, it allows without credentials
        may_pass = (settings.cors or "*" in settings.origins) and "cookie" not in request.headers
    if may_pass:
        return None
    from starlette.responses import PlainTextResponse  # here: an app that serves no clients need not have it

    origin = request.headers.get("origin")
    source = "a page of another site that does not name its origin" if origin is None else f"the origin {origin!r}"
    return PlainTextResponse(
        f"Expected a request from a page of this server, got one from {source}. "
        "To allow it, add the origin to Settings(origins=…) or SAPWOOD_ORIGINS.",
        403,
    )


def is_safe(scope: Mapping[str, Any]) -> bool:
    """Return whether a request changes nothing by its method. A socket is not safe: the page could read from it."""
    return scope["type"] == "http" and scope["method"] in SAFE_METHODS


def is_from_own_page(request: HTTPConnection) -> bool:
    """Return whether a request comes from a page of this server, or from a program that is no browser."""
    if (site := request.headers.get("sec-fetch-site")) is not None:
        if site in ("same-origin", "none"):
            return True  # also behind a proxy that rewrites Host
        # Of a socket, browsers may compare the schemes of the page and the socket, http and ws, and call it cross-site.
        if request.scope["type"] == "http" or "origin" not in request.headers:
            return False
    if (origin := request.headers.get("origin")) is None:
        return True
    try:
        return urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower() != ""
    except ValueError:
        return False


def is_listed(request: HTTPConnection, origins: tuple[str, ...]) -> bool:
    """Return whether `origins` names the page's origin, with its port or with `:*`."""
    origin = request.headers.get("origin")
    return origin is not None and (origin in origins or f"{origin.rpartition(':')[0]}:*" in origins)
