"""A request as the next agent on its way sees it: with what is left of the path."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection


def with_path(request: HTTPConnection, path: str) -> HTTPConnection:
    """Return a request with another path, which is given as it stands in a URL. Its body may have been read."""
    twin = copy.copy(request)
    twin.scope = {**request.scope, "path": unquote(path), "raw_path": path.encode("latin-1"), "root_path": ""}
    vars(twin).pop("_url", None)
    return twin
