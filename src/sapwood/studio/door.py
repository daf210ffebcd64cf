"""The studio over HTTP, below `/studio/`: pages that show what the admin API answers, and act through it.

The pages have no rights of their own. Each request to the admin API needs a token, which a page reads from the
fragment of its URL or is given by the user, and never sends anywhere else.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from sapwood.kernel.node.node import Node
from sapwood.studio.tab_pages import TABS, TabPages, below
from sapwood.web.asgi_types import ASGI, Receive, Scope, Send
from sapwood.web.pages import Pages

PATH = "/studio"
ADMIN = "/_sapwood/"
"""Where the admin API is."""
PAGE = Path(__file__).parent / "page"
POLICY = (
    "default-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'none'; frame-ancestors 'none'; "
    "base-uri 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
}


class StudioDoor:
    """Stands before an ASGI application, and answers what is below `/studio/` itself.

    A foreign site can point its own domain name at this server. Its pages would have no token, but could ask the user
    for one, so a name that is not configured is refused, also to pages that use the admin API. No such attack is
    possible with an IP address.
    """

    def __init__(
        self, app: ASGI, hosts: tuple[str, ...], node: Callable[[], Node], *, checks_host: bool = True
    ) -> None:
        self._app = app
        self._checks_host = checks_host
        self._hosts = frozenset(host.lower() for host in hosts)
        self._pages = Pages(str(PAGE))
        self._tabs = TabPages(node)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", ""))
        if scope["type"] == "http" and path.startswith(ADMIN) and _is_from_browser(Headers(scope=scope)):
            response = self._refused(scope)
        elif scope["type"] == "http" and (path == PATH or path.startswith(f"{PATH}/")):
            response = self._refused(scope) or await self._answer(scope, path)
        else:
            response = None
        if response is None:
            await self._app(scope, receive, send)
            return
        for name, value in _headers(scope).items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    def _refused(self, scope: Scope) -> Response | None:
        if not self._checks_host or self._is_known(Headers(scope=scope).get("host", "")):
            return None
        text = "Expected an IP address, localhost or one of Settings(allowed_hosts=…) as the host of the studio."
        return PlainTextResponse(text, 421)

    async def _answer(self, scope: Scope, path: str) -> Response:
        if path == PATH:
            return RedirectResponse(f"{scope.get('root_path', '')}{PATH}/")
        if path.startswith(f"{PATH}{TABS}"):
            return await self._tabs.answer(scope, PATH)
        return await self._pages.answer({**scope, "root_path": f"{scope.get('root_path', '')}{PATH}"})

    def _is_known(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        return name == "localhost" or name.endswith(".localhost") or name in self._hosts or _is_ip_address(name)


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers of the studio's own pages. Frames show tabs, and nothing else."""
    frames = f"frame-src {below(scope, PATH)}"
    return {**HEADERS, "content-security-policy": f"{POLICY}, {frames}"}


def _is_from_browser(headers: Headers) -> bool:
    """Return whether a page may have sent a request: browsers say so, and pages cannot keep them from it."""
    return "origin" in headers or "sec-fetch-site" in headers


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
