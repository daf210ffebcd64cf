"""Errors in the form of the OpenAI API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from starlette.responses import Response

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
"""The `type` of an error, by its status. Other errors of the client are `invalid_request_error`."""
CODES = {
    401: "invalid_api_key",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    503: "service_unavailable",
}
"""The `code` of an error that says no more than its status."""
SERVER = 500


class ApiError(Exception):
    """A request that is refused, and what the client is told."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(status, message, param=param, code=code)

    def response(self) -> Response:
        """Return the refusal."""
        return json_response(self.body, self.status)


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return an error as the API describes it."""
    kind = TYPES.get(status, "server_error" if status >= SERVER else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code or CODES.get(status)}}


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a value as JSON."""
    from starlette.responses import Response

    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def unsupported(param: str, why: str) -> ApiError:
    """Return the refusal of a parameter that this server does not act on."""
    return ApiError(f"Unsupported parameter: `{param}`. {why}", param=param, code="unsupported_parameter")


def invalid(param: str, why: str) -> ApiError:
    """Return the refusal of a value."""
    return ApiError(f"Invalid `{param}`: {why}", param=param, code="invalid_value")
