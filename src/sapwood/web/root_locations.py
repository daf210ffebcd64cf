"""Where a root is that a URL names: it may have another name by now, or be at another server."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from starlette.responses import PlainTextResponse

from sapwood.address import Address
from sapwood.errors import InvalidName, MovedAway, SapwoodError
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.node.forwards import Forwards
from sapwood.web.asgi_types import Scope
from sapwood.web.errors import headers_of, status_of, told
from sapwood.web.target import Refusal
from sapwood.wire.final_errors import HEADER

MOVED_STATUS = 308
"""The root is at another server."""
Log = Callable[[str, BaseException, Scope, str], "str | None"]
"""Logs an error, and returns its reference."""


class RootLocations:
    """The names of roots, as URLs have them."""

    def __init__(self, forwards: Forwards, log: Log) -> None:
        self._forwards = forwards
        self._log = log

    def name_now(self, kind: AgentClass, name: str, scope: Scope, rest: str) -> str:
        """Return the name of a root, also if it was moved since its URL was made.

        Raises `Refusal` if it is at another server: an HTTP response that leads there, or a close frame that names it.
        """
        try:
            target = self._forwards.target(Address.root_of(kind.type, name), kind.aliases)
        except InvalidName:
            return name
        except SapwoodError as error:  # a forward is damaged, or no descriptor is left to read it
            if isinstance(error, MovedAway):
                headers = {"location": f"{error.url}{_sent(scope, rest)}", HEADER: error.code}
                raise Refusal(PlainTextResponse(str(error), MOVED_STATUS, headers)) from None
            status, headers = status_of(error), headers_of(error)
            reference = self._log("request", error, scope, f"{kind.type}:{name}")
            raise Refusal(PlainTextResponse(told(error, reference), status, headers)) from error
        return name if target is None else target.name


def _sent(scope: Scope, rest: str) -> str:
    """Return what follows the root in a URL."""
    query = scope.get("query_string", b"").decode("latin-1")
    path = "" if rest == "/" else quote(rest, safe="/%!$&'()*+,;=:@-._~")
    return f"{path}?{query}" if query else path
