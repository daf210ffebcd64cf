"""A response that an agent gives: what a route of another framework returns to hand its request over."""

from __future__ import annotations

from starlette.responses import Response

from sapwood.web.asgi_types import ASGI, Receive, Scope, Send


class Handoff(Response):
    """Hands a request or a socket over. Frameworks that look at what a route returns take it for a response."""

    def __init__(self, handle: ASGI) -> None:
        super().__init__()
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the agent answer."""
        await self._handle(scope, receive, send)
        if self.background is not None:
            await self.background()
