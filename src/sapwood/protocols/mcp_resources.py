"""Resources of MCP: the tool calls of a client with their tree, and what the agent of each knows."""

from __future__ import annotations

import base64
import re
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INVALID_PARAMS

from sapwood.errors import NotFound, OverLimit
from sapwood.kernel.marshal.disclosure import for_clients
from sapwood.protocols.exchange import Exchange
from sapwood.protocols.mcp_calls import Caller
from sapwood.protocols.mcp_work import time_of
from sapwood.runs.events.events import Event
from sapwood.runs.tables.runs_table import Run

PREFIX = "sapwood://runs/"
URI = re.compile(r"sapwood://runs/([^/]{1,300})(?:/(transcript|state|files)(?:/([0-9a-f]{64}))?)?")
LISTED = 100
"""How many of the latest calls are listed."""
NOT_FOUND = -32002
"""The error of the revisions with sessions."""
JSON = "application/json"
TEMPLATES = (
    ("{id}", "run", "A tool call: its status, its result, and all runs below it."),
    ("{id}/transcript", "transcript", "The conversation of the agent that executes a tool call."),
    ("{id}/state", "state", "The state of the agent that executes a tool call."),
    ("{id}/files", "files", "The files of the agent that executes a tool call."),
    ("{id}/files/{digest}", "file", "One of these files."),
)


def templates() -> dict[str, Any]:
    """Return the URIs of the resources of a tool call; its id is that of its task."""
    told = [
        {"uriTemplate": PREFIX + uri, "name": name, "description": description} for uri, name, description in TEMPLATES
    ]
    return {"resultType": "complete", "resourceTemplates": told}


def listed(caller: Caller) -> dict[str, Any]:
    """Return the latest calls of a user. Clients without a user share a desk, so nothing is listed for them."""
    runs = [] if caller.work.is_anonymous else caller.work.desk.runs.list()[-LISTED:]
    told = [{"uri": PREFIX + quote(run.id, safe=""), "name": run.id, "mimeType": JSON} for run in reversed(runs)]
    return {"resultType": "complete", "resources": told}


async def read(caller: Caller, uri: str) -> dict[str, Any]:
    """Return the content of a resource."""
    found = URI.fullmatch(uri)
    run = None if found is None else caller.work.run(unquote(found[1]))
    if found is None or run is None or (found[3] and found[2] != "files"):
        raise _unknown(caller, uri)
    if found[2] is None:
        content: Any = await _run(caller, run)
    else:
        content = await caller.work.exchange.below((run.agent,), lambda there: _known(there, found[2], found[3]))
    if content is None:
        raise _unknown(caller, uri)
    if isinstance(content, dict) and "blob" in content:
        return {"resultType": "complete", "contents": [{"uri": uri, **content}]}
    text = msgspec.json.encode(content).decode()
    return {"resultType": "complete", "contents": [{"uri": uri, "mimeType": JSON, "text": text}]}


async def _known(there: Exchange, what: str, digest: str | None) -> Any:
    if what == "state":
        return there.state()
    if what == "transcript":
        return there.messages() if there.has_conversation else None
    if digest is None:
        return [
            {"digest": one.digest, "name": one.name, "mediaType": one.media_type, "size": one.size}
            for one in there.files.list()
        ]
    try:
        info, content = there.files.info(digest), await there.files.get(digest)
    except NotFound:
        return None
    except OverLimit as error:
        raise MCPError(INVALID_PARAMS, str(error)) from None
    kind = "application/octet-stream" if info is None else info.media_type
    return {"mimeType": kind, "blob": base64.b64encode(content).decode()}


async def _run(caller: Caller, run: Run) -> dict[str, Any]:
    told = {
        "id": run.id,
        "agent": run.agent.type,
        "status": run.status,
        "summary": run.summary,
        "error": for_clients(run.error),
        "reason": run.reason,
        "progress": run.progress,
        "milestones": list(run.milestones),
        "startedAt": None if run.started_at is None else time_of(run.started_at),
        "endedAt": None if run.ended_at is None else time_of(run.ended_at),
    }
    depth = len(caller.work.exchange.address.segments)
    runs = dict[str, dict[str, Any]]()
    for event in await caller.work.exchange.runs_below(run.id):
        one = runs.setdefault(f"{event.path} {event.run_id}", {"path": [step.type for step in event.path[depth:]]})
        one |= _shown(event)
    return {**{name: value for name, value in told.items() if value is not None}, "runs": list(runs.values())}


def _shown(event: Event) -> dict[str, Any]:
    if event.kind == "started":
        return {"id": event.run_id, "parent": event.parent_run_id, "status": "running", "input": event.body["input"]}
    return {"status": event.kind, "result": event.body}


def _unknown(caller: Caller, uri: str) -> MCPError:
    code = INVALID_PARAMS if caller.is_stateless else NOT_FOUND
    return MCPError(code, "There is no such resource.", {"uri": uri[:300]})
