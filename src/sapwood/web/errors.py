"""How errors are reported to clients: an HTTP status, a close code, one line of text."""

from __future__ import annotations

from math import ceil

from sapwood.errors import (
    Aborted,
    CallTooDeep,
    InvalidArguments,
    InvalidName,
    MovedAway,
    NoSuchMethod,
    NotFound,
    OverLimit,
    Quarantined,
    Refused,
    RemoteRefused,
    TimedOut,
    Unavailable,
)
from sapwood.kernel.actors.sockets import TRY_AGAIN
from sapwood.kernel.marshal.disclosure import internal_error
from sapwood.kernel.ports.placement import Forwarded
from sapwood.wire import final_errors

STATUS: tuple[tuple[type[Exception], int], ...] = (
    (Forwarded, 503),
    (MovedAway, 503),
    (NotFound, 404),
    (NoSuchMethod, 404),
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
"""The first that fits counts; everything else is 500, and is not told what it was.

A client that meets one of the first two asks again, and is led to where the agent is.
"""

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
UNAVAILABLE = 503
RETRY = {"retry-after": "1"}
CLOSED_WITH_STATUS = 4000
INTERNAL_ERROR = 1011


def status_of(error: BaseException) -> int:
    """Return the HTTP status for an error; Starlette's own `HTTPException` says it itself."""
    from starlette.exceptions import HTTPException  # here: a process that serves nothing need not have it

    if isinstance(error, HTTPException):
        return error.status_code
    return next((status for kind, status in STATUS if isinstance(error, kind)), INTERNAL)


def told(error: BaseException, reference: str | None) -> str:
    """Return the text that a client gets for a failure of the server, in the body of a response."""
    status = status_of(error)
    if status == INTERNAL and reference is not None:
        return internal_error(reference, final_errors.final_code(error))
    return TEXT.get(status, "Error")


def headers_of(error: BaseException) -> dict[str, str]:
    """Return the headers of a response to a failed request: whether to retry, or that it is final."""
    if code := final_errors.final_code(error):
        return {final_errors.HEADER: code}
    if isinstance(error, OverLimit) and error.retry_after is not None:
        return {"retry-after": str(ceil(error.retry_after))}
    return RETRY if status_of(error) == UNAVAILABLE else {}


def closing(error: BaseException, reference: str | None) -> tuple[int, str]:
    """Return the code and the reason that a socket is closed with after a failure."""
    text = told(error, reference)
    if code := final_errors.final_code(error):
        return final_errors.CLOSE_CODE, final_errors.close_reason(code, text)
    return close_code(status_of(error)), text


def close_code(status: int) -> int:
    """Return the close code for a refusal: the clients come back unless it is their own fault."""
    if 400 <= status < 500 and status != 429:
        return CLOSED_WITH_STATUS + status
    return TRY_AGAIN if status in (429, 503, 504) else INTERNAL_ERROR
