"""The access log: one line for each request and socket, with its facts as fields."""

from __future__ import annotations

import logging

from sapwood.escapes import escape_controls
from sapwood.web.asgi_types import Scope
from sapwood.web.target import raw_path

log = logging.getLogger("sapwood.access")


def log_request(scope: Scope, status: int | None, seconds: float, trace_id: str = "", *, root: str = "") -> None:
    """Log a request and its answer; no status: the client left before the answer."""
    path = shown_path(scope)
    facts: dict[str, object] = {"method": scope["method"], "path": path, "duration": round(seconds, 6)}
    log.info(
        "%s %s %s %.1f ms%s",
        scope["method"],
        path,
        "-" if status is None else status,
        seconds * 1e3,
        trace_id and f" trace {trace_id}",
        extra=facts | ({} if status is None else {"status": status}) | _about(root, trace_id),
    )


def log_socket(scope: Scope, trace_id: str = "", *, root: str = "", seconds: float | None = None) -> None:
    """Log that a socket was opened, or after how many seconds it was closed."""
    path = shown_path(scope)
    facts: dict[str, object] = {"method": "SOCKET", "path": path}
    if seconds is None:
        log.info("SOCKET %s opened trace %s", path, trace_id, extra=facts | _about(root, trace_id))
    else:
        facts["duration"] = round(seconds, 6)
        log.info(
            "SOCKET %s closed after %.1f s trace %s", path, seconds, trace_id, extra=facts | _about(root, trace_id)
        )


def log_refused_socket(scope: Scope, status: int) -> None:
    """Log a socket whose URL leads to no agent."""
    path = shown_path(scope)
    log.info("SOCKET %s %s", path, status, extra={"method": "SOCKET", "path": path, "status": status})


def client_of(scope: Scope) -> str:
    """Return the network address of a client, for a log."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def _about(root: str, trace_id: str) -> dict[str, object]:
    return {name: value for name, value in (("address", root), ("trace_id", trace_id)) if value}


def shown_path(scope: Scope) -> str:
    """Return a path for a line of a log, which it cannot break."""
    return escape_controls(raw_path(scope))
