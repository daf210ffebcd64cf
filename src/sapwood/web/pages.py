"""A folder of pages beside the agents: its files are sent to clients unchanged."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import PurePath

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from sapwood.escapes import escape_controls
from sapwood.web.asgi import Scope

access = logging.getLogger("sapwood.access")

HEADERS = {
    # Asked for again each time, and not sent again if it is the same: nobody runs yesterday's page with today's agents.
    "cache-control": "no-cache",
}
NO_SNIFF = (b"x-content-type-options", b"nosniff")
CSP = b"content-security-policy"
PUBLIC = ".well-known"


class Pages(StaticFiles):
    """The files of one folder; a folder in it is its `index.html`. Files whose name begins with a dot are not shown."""

    def __init__(self, folder: str, frame_ancestors: str) -> None:
        super().__init__(directory=folder, html=True)
        self._frame_ancestors = frame_ancestors

    async def answer(self, scope: Scope) -> Response:
        """Return the file that a path names, or say that there is none."""
        try:
            path = self.get_path(scope)
            if any(part.startswith(".") and part != PUBLIC for part in PurePath(path).parts):
                raise HTTPException(404)
            response = await self.get_response(path, scope)
        except HTTPException as no:
            status = 404 if no.status_code == 401 else no.status_code  # a file that we may not read is none
            text = "Not Found" if status == 404 else no.detail
            response = PlainTextResponse(text, status, no.headers)
        response.headers.update(HEADERS)
        response.raw_headers = with_page_rules(response.raw_headers, self._frame_ancestors)
        access.info("%s %s %s", scope["method"], escape_controls(scope["path"]), response.status_code)
        return response


def with_page_rules(headers: Iterable[tuple[bytes, bytes]], frame_ancestors: str) -> list[tuple[bytes, bytes]]:
    """Return headers that also forbid browsers to guess a type, and pages of others to frame this one.

    A response that sets these headers itself keeps its own.
    """
    given = list(headers)
    if not any(name.lower() == NO_SNIFF[0] for name, _ in given):
        given.append(NO_SNIFF)
    if frame_ancestors and not any(name.lower() == CSP and b"frame-ancestors" in value for name, value in given):
        given.append((CSP, f"frame-ancestors {frame_ancestors}".encode("latin-1")))
    return given
