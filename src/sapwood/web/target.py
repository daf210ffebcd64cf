"""Where the URL of a request or a socket leads, or why it is refused."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from starlette.responses import PlainTextResponse, Response

from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.web.asgi_types import Scope
from sapwood.web.errors import TEXT


class Refusal(Exception):
    """An agent on the path refuses the client."""

    def __init__(self, response: Response, what: str = "Connection") -> None:
        super().__init__(response.status_code)
        self.response = response
        self.what = what
        """What was refused, in the words of a close frame."""


def refusal(status: int, text: str | None = None) -> Refusal:
    return Refusal(PlainTextResponse(text or TEXT[status], status))


@dataclass(frozen=True, slots=True)
class UrlTarget:
    """Where a URL leads: a root, and what follows it."""

    root: AgentClass
    name: str
    rest: str


def raw_path(scope: Scope) -> str:
    """Return a path as it stands in the URL."""
    raw = scope.get("raw_path")
    return raw.decode("latin-1") if raw else quote(scope["path"], errors="replace")
