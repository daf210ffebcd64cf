"""What a client is told of an error: an HTTP status, a close code, one line of text. The only place that maps them."""

from __future__ import annotations

from sapwood.errors import (
    Aborted,
    CallTooDeep,
    Gated,
    InvalidArguments,
    InvalidName,
    NoSuchMethod,
    NotFound,
    OverLimit,
    Quarantined,
    Refused,
    RemoteRefused,
    TimedOut,
    Unavailable,
)
from sapwood.kernel.disclosure import internal_error

STATUS: tuple[tuple[type[Exception], int], ...] = (
    (NotFound, 404),
    (NoSuchMethod, 404),
    (Gated, 403),
    (InvalidName, 400),
    (InvalidArguments, 400),
    (Quarantined, 503),
    (CallTooDeep, 400),
    (RemoteRefused, 502),
    (Refused, 403),
    (OverLimit, 429),
    (TimedOut, 504),
    (Aborted, 503),
    (Unavailable, 503),
)
"""The first that fits counts; everything else is 500, and is not told what it was."""

TEXT = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
INTERNAL = 500
CLOSED_WITH_STATUS = 4000
TRY_AGAIN = 1013
INTERNAL_ERROR = 1011


def status_of(error: BaseException) -> int:
    """Return the HTTP status for an error; Starlette's own `HTTPException` says it itself."""
    from starlette.exceptions import HTTPException  # here: whoever serves nothing need not have it

    if isinstance(error, HTTPException):
        return error.status_code
    return next((status for kind, status in STATUS if isinstance(error, kind)), INTERNAL)


def told(status: int, reference: str | None) -> str:
    """Return what a client is told of a failure of the server, in an answer's body or a close frame's reason."""
    if status == INTERNAL and reference is not None:
        return internal_error(reference)
    return TEXT.get(status, "Error")


def close_code(status: int) -> int:
    """Return the close code for a refusal: the clients come back unless it is their own fault."""
    if 400 <= status < 500 and status != 429:
        return CLOSED_WITH_STATUS + status
    return TRY_AGAIN if status in (429, 503, 504) else INTERNAL_ERROR
