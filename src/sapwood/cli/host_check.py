"""Which names a server on this machine answers to."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from sapwood.cli.serve_options import is_loopback
from sapwood.web.asgi_types import ASGI, Receive, Scope, Send


class HostCheck:
    """Refuses requests and sockets whose `Host` is neither a loopback name nor a configured one.

    A foreign site can point its own domain name at this machine (DNS rebinding). A browser then treats the server as
    part of that site, and its pages could use every agent of an app without `authenticate`.
    """

    def __init__(self, app: ASGI, hosts: tuple[str, ...]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = None if scope["type"] == "lifespan" else Headers(scope=scope).get("host")
        if host is None or self._is_known(host):  # every browser sends a host; some health checks send none
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            text = (
                "Expected the host 127.0.0.1, localhost or one of Settings(allowed_hosts=…). To allow another, add it "
                "to SAPWOOD_ALLOWED_HOSTS, or start the server with --insecure."
            )
            await PlainTextResponse(text, 421)(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name in self._hosts
