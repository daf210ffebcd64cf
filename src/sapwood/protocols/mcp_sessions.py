"""The revisions of MCP with a handshake: sessions, questions on the stream of a call, and continued streams."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec
from mcp.server.connection import Connection
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INVALID_REQUEST
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from starlette.responses import Response

from sapwood.errors import InvalidArguments, Refused
from sapwood.protocols.mcp_calls import INVALID, Caller, hold
from sapwood.protocols.mcp_desk import Session
from sapwood.protocols.mcp_http import Exchanged, field_of, progress_to, refusal, served
from sapwood.protocols.mcp_messages import NOT_ONE, is_notification, is_request, message_of
from sapwood.protocols.mcp_questions import elicitation
from sapwood.protocols.mcp_tools import RunTool
from sapwood.protocols.mcp_work import DeskWork
from sapwood.runs.execution.contract import CANCELLED
from sapwood.runs.tables.question import Question

SESSION_HEADER = "mcp-session-id"
QUESTION = "question:"
"""What the ids of requests to clients begin with; the run and the `full_id` of the question follow."""
NO_RUN = "This call has no run: the server ended before the run started, or the run was deleted since."
MARKED_SINCE = "2025-11-25"
"""The first revision whose clients take an event without data."""


class WithSession:
    """The revisions with a handshake. A session is a row of the desk, so it survives a restart."""

    def __init__(self, work: DeskWork, server: Any) -> None:
        self._work, self._server, self._request = work, server, work.request

    async def respond(self) -> Response:
        """Return the response to a request."""
        if self._request.method == "POST":
            return await self._posted()
        if self._request.method not in ("GET", "DELETE"):
            return Response(status_code=405, headers={"Allow": "GET, POST, DELETE"})
        session = self._session()
        if isinstance(session, Response):
            return session
        if self._request.method == "DELETE":
            self._work.sessions.end(session.id)
            return Response(status_code=200)
        return self._resumed(session)

    def _session(self) -> Session | Response:
        id = self._request.headers.get(SESSION_HEADER)
        if not id:
            return refusal(400, INVALID_REQUEST, "The header Mcp-Session-Id is missing. Send `initialize` first.")
        session = self._work.sessions.get(id)
        if session is None:
            return refusal(404, INVALID_REQUEST, "There is no such session. Send `initialize` again.")
        self._work.session = session
        return session

    async def _posted(self) -> Response:
        if not all(check_accept_headers(self._request)):
            return refusal(406, INVALID_REQUEST, "Accept must have application/json and text/event-stream.")
        message = await message_of(self._request)
        if isinstance(message, Response):
            return message
        if message.get("method") == "initialize" and is_request(message):
            return self._initialized(message)
        session = self._session()
        if isinstance(session, Response):
            return session
        if "method" not in message and ("result" in message or "error" in message):
            return await self._answered(message)
        if is_notification(message):
            return self._notified(message)
        if not is_request(message):
            return refusal(400, INVALID_REQUEST, NOT_ONE)
        return self._exchanged(session, message)

    def _initialized(self, message: dict[str, Any]) -> Response:
        connection = Connection.from_envelope(LATEST_HANDSHAKE_VERSION, None, None)

        async def begin(exchanged: Exchanged) -> dict[str, Any]:
            result = await served(self._server, self._caller(None, message, exchanged), message, connection, {})
            session = self._work.sessions.begin(result["protocolVersion"], message["params"]["capabilities"])
            exchanged.headers_of_json[SESSION_HEADER] = session.id
            exchanged.headers_of_json["access-control-expose-headers"] = SESSION_HEADER  # for pages of other origins
            return result

        return Exchanged(begin, message["id"], on_lost=None)

    def _exchanged(self, session: Session, message: dict[str, Any]) -> Response:
        connection = Connection.from_envelope(session.version, None, session.capabilities)

        async def work(exchanged: Exchanged) -> dict[str, Any]:
            caller = self._caller(session, message, exchanged)
            return await served(self._server, caller, message, connection, dict(self._request.headers))

        return Exchanged(work, message["id"], on_lost=None)

    def _caller(self, session: Session | None, message: dict[str, Any], exchanged: Exchanged) -> Caller:
        async def begins(tool: RunTool) -> None:
            if session is not None and session.version >= MARKED_SINCE:
                token = field_of(field_of(message.get("params"), "_meta"), "progressToken")
                await exchanged.mark(_mark(message["id"], token, tool.name))

        return Caller(
            self._work,
            is_stateless=False,
            takes_forms=session is not None and session.takes_forms,
            takes_tasks=False,
            progress=progress_to(lambda: exchanged, message.get("params")),
            ask=asking(exchanged),
            run=None if session is None else self._work.run_of_request(message["id"]),
            begins=begins,
        )

    async def _answered(self, message: dict[str, Any]) -> Response:
        """Take the response to a question, which may have been asked by a process that is gone."""
        id: Any = message.get("id")
        if isinstance(id, str) and id.startswith(QUESTION) and "result" in message:
            run_id, _, key = id.removeprefix(QUESTION).partition(":")
            run = self._work.run(run_id)
            try:
                if run is not None:
                    await self._work.answer(run, {key: message["result"]})
            except InvalidArguments as error:
                return refusal(400, -32602, str(error), id)
            except Refused as error:
                return refusal(403, INVALID_REQUEST, str(error), id)
        return Response(status_code=202)

    def _notified(self, message: dict[str, Any]) -> Response:
        cancelled = field_of(message.get("params"), "requestId")
        if message["method"] == "notifications/cancelled" and isinstance(cancelled, str | int):
            self._work.cancel(self._work.run_of_request(cancelled), CANCELLED)
        return Response(status_code=202)

    def _resumed(self, session: Session) -> Response:
        """Continue the stream of a call whose connection was lost. There is no other stream to open."""
        last = self._request.headers.get("last-event-id")
        if last is None:
            return Response(status_code=405, headers={"Allow": "POST, DELETE"})
        found = _read_mark(last)
        tool = None if found is None else self._work.options.catalog.tools.get(found[2])
        if found is None or not isinstance(tool, RunTool):
            return refusal(400, INVALID_REQUEST, "Last-Event-ID names no event of this server.")
        id, token, _ = found
        run = self._work.run_of_request(id)

        async def work(exchanged: Exchanged) -> dict[str, Any]:
            message = {"id": id, "params": {"_meta": {"progressToken": token}}}
            caller = self._caller(session, message, exchanged)
            await exchanged.mark(last)
            if self._work.run(run) is None:  # an error of HTTP would tell the client that the session has ended
                raise MCPError(INVALID, NO_RUN)
            return await hold(caller, tool, run, b"", 0)

        return Exchanged(work, id, on_lost=None)


def asking(exchanged: Exchanged) -> Any:
    """Return what sends a question as a request, whose id leads the response to it."""

    async def ask(run: str, question: Question) -> None:
        id = f"{QUESTION}{run}:{question.full_id}"
        await exchanged.tell({"jsonrpc": "2.0", "id": id, **elicitation(question)})

    return ask


def _mark(id: Any, token: Any, tool: str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([id, token, tool])).decode()


def _read_mark(text: str) -> tuple[str | int, str | int | None, str] | None:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=tuple[str | int, str | int | None, str])
    except (msgspec.DecodeError, binascii.Error, ValueError):
        return None
