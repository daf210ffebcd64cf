"""Where users come back to from the sign-in of an MCP server: `GET …/mcp/callback`, below the agent."""

from __future__ import annotations

from html import escape
from typing import Any

from sapwood.capabilities.connections import HttpOnly
from sapwood.capabilities.mcp_servers import MCP_SERVERS
from sapwood.errors import InvalidArguments
from sapwood.kernel.actors.actor import Actor
from sapwood.mcp_client.sign_ins import CALLBACK, SignIns

HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
UNKNOWN = "This sign-in is not known. Perhaps it was ended already, or another one has begun since."
PAGE = "<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1><p>{text}</p>"


class SignInCallback(HttpOnly):
    """Answers users who come back to one agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    async def request(self, request: Any) -> Any:
        """Answer a user; None if the request is for something else."""
        is_ours = request.method == "GET" and request.scope["path"] == CALLBACK
        if not is_ours or not self._actor.database.has(MCP_SERVERS):
            return None
        try:
            server = self._actor.of(SignIns).take(dict(request.query_params))
        except InvalidArguments as error:
            return _page("Not signed in", str(error), 400)
        if server is None:
            return _page("Not signed in", UNKNOWN, 400)
        return _page("Thank you", f"The sign-in at {server} is being completed. You can close this page.", 200)


def _page(title: str, text: str, status: int) -> Any:
    from starlette.responses import HTMLResponse

    return HTMLResponse(PAGE.format(title=escape(title), text=escape(text)), status, headers=HEADERS)
