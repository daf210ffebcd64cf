"""The revision of MCP without sessions: every request is checked against its headers, and answered by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from mcp.server.connection import Connection
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.inbound import (
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    InboundLadderRejection,
    classify_inbound_request,
    decode_header_value,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
    validate_mcp_param_headers,
)
from mcp_types.jsonrpc import HEADER_MISMATCH, INVALID_REQUEST
from starlette.requests import Request
from starlette.responses import Response

from sapwood.protocols.mcp_http import AnyCaller, Exchanged, progress_to, refusal, served
from sapwood.protocols.mcp_messages import NOT_ONE, is_notification, is_request, message_of
from sapwood.protocols.mcp_options import McpOptions

Progress = Callable[[float, float | None, str | None], Awaitable[None]]


class Stateless:
    """One request of the revision in which each says all about its client.

    `caller` returns who asks, for its capabilities and what tells it of progress.
    """

    def __init__(
        self, request: Request, options: McpOptions, server: Any, caller: Callable[[Any, Progress], AnyCaller]
    ) -> None:
        self._request, self._options, self._server, self._caller = request, options, server, caller

    async def respond(self) -> Response:
        """Return the response to a request."""
        if self._request.method != "POST":
            return Response(status_code=405, headers={"Allow": "POST"})
        if not all(check_accept_headers(self._request)):
            return refusal(406, INVALID_REQUEST, "Accept must have application/json and text/event-stream.")
        message = await message_of(self._request)
        if isinstance(message, Response):
            return message
        if is_notification(message):
            return self._acknowledged()
        if not is_request(message):
            return refusal(400, INVALID_REQUEST, NOT_ONE)
        refused = self._refused(message)
        if refused is not None:
            return refusal(400, refused.code, refused.message, message["id"], refused.data)
        return self._exchanged(message)

    def _acknowledged(self) -> Response:
        rejection = unsupported_protocol_version_rejection(self._request.headers[MCP_PROTOCOL_VERSION_HEADER])
        if rejection is not None:
            return refusal(400, rejection.code, rejection.message, None, rejection.data)
        return Response(status_code=202)

    def _refused(self, message: dict[str, Any]) -> InboundLadderRejection | None:
        headers = self._request.headers
        if (name := find_duplicated_routing_header(headers.items())) is not None:
            return InboundLadderRejection(HEADER_MISMATCH, f"{name} header appears more than once")
        found = classify_inbound_request(message, headers=dict(headers))
        if isinstance(found, InboundLadderRejection):
            return found
        params = message["params"]
        if message["method"].startswith("tasks/") and isinstance(id := params.get("taskId"), str):
            named = decode_header_value(headers.get(MCP_NAME_HEADER))
            if named is not None and named != id:
                return InboundLadderRejection(HEADER_MISMATCH, "mcp-name header does not match the taskId parameter")
        if message["method"] == "tools/call" and isinstance(params.get("name"), str):
            tool = self._options.catalog.tools.get(params["name"])
            arguments = params.get("arguments")
            if tool is not None and isinstance(arguments, dict | None):
                given = cast("dict[str, Any]", arguments or {})
                return validate_mcp_param_headers(tool.input_schema, given, headers)
        return None

    def _exchanged(self, message: dict[str, Any]) -> Response:
        found: Any = classify_inbound_request(message, headers=dict(self._request.headers))
        caller = self._caller(found.client_capabilities, progress_to(lambda: exchanged, message["params"]))
        connection = Connection.from_envelope(found.protocol_version, found.client_info, found.client_capabilities)
        headers = dict(self._request.headers)
        exchanged = Exchanged(
            lambda _: served(self._server, caller, message, connection, headers),
            message["id"],
            on_lost=caller.cancel,
        )
        return exchanged
