"""A folder of pages beside the agents: its files are sent to clients unchanged."""

from __future__ import annotations

from pathlib import PurePath

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from sapwood.web.asgi_types import Scope

HEADERS = {
    # Asked for again each time, and not sent again if unchanged: no client runs yesterday's page with today's agents.
    "cache-control": "no-cache",
}
PUBLIC = ".well-known"


class Pages(StaticFiles):
    """The files of one folder; a folder in it is its `index.html`. Files whose name begins with a dot are not shown."""

    def __init__(self, folder: str) -> None:
        super().__init__(directory=folder, html=True)

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
        return response
