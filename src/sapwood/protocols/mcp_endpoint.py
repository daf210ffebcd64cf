"""The endpoint of MCP: the revision without sessions, or those with sessions, at a desk or at the root of a method."""

from __future__ import annotations

from typing import Any

from mcp.server.connection import Connection
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.jsonrpc import INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from starlette.requests import Request
from starlette.responses import Response

from sapwood.protocols.exchange import Exchange
from sapwood.protocols.mcp_calls import TASKS, Caller
from sapwood.protocols.mcp_desk import takes_forms
from sapwood.protocols.mcp_http import Exchanged, field_of, refusal, served
from sapwood.protocols.mcp_messages import NOT_ONE, is_request, message_of
from sapwood.protocols.mcp_methods import MethodCaller
from sapwood.protocols.mcp_options import McpOptions
from sapwood.protocols.mcp_sessions import WithSession
from sapwood.protocols.mcp_stateless import Progress, Stateless
from sapwood.protocols.mcp_work import DeskWork


def has_sessions(request: Request) -> bool:
    """Return whether a request is one of the revisions with sessions."""
    version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
    return version is None or version in HANDSHAKE_PROTOCOL_VERSIONS


async def respond_at_desk(work: DeskWork, server: Any) -> Response:
    """Return the response to a request of the client of a desk."""
    if has_sessions(work.request):
        return await WithSession(work, server).respond()

    def caller(capabilities: Any, progress: Progress) -> Caller:
        extensions = field_of(capabilities, "extensions")
        takes_tasks = isinstance(extensions, dict) and TASKS in extensions
        forms = takes_forms(capabilities)
        return Caller(work, is_stateless=True, takes_forms=forms, takes_tasks=takes_tasks, progress=progress)

    return await Stateless(work.request, work.options, server, caller).respond()


async def respond_at_root(request: Request, exchange: Exchange, options: McpOptions, server: Any) -> Response:
    """Return the response to a call of a method of this root."""
    caller = MethodCaller(exchange)
    if not has_sessions(request):
        return await Stateless(request, options, server, lambda capabilities, progress: caller).respond()
    if not all(check_accept_headers(request)):
        return refusal(406, INVALID_REQUEST, "Accept must have application/json and text/event-stream.")
    message = await message_of(request)
    if isinstance(message, Response):
        return message
    if not is_request(message):
        return refusal(400, INVALID_REQUEST, NOT_ONE)
    version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER, LATEST_HANDSHAKE_VERSION)
    connection = Connection.from_envelope(version, None, None)
    headers = dict(request.headers)
    return Exchanged(lambda _: served(server, caller, message, connection, headers), message["id"], on_lost=None)
