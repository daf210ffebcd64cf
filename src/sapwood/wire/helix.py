"""Events, conversations and runs in the words of Helix: for clients and tools that were written for it.

A session there is an agent here. Its id is the agent's address as text, such as `Desk:acme/Writer:w1`:
names are unique only among the children of one parent.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from sapwood.address import Address
from sapwood.errors import PathSegment
from sapwood.wire.events import ShownEvent, milliseconds

SUBAGENT = "subagent__"
"""What the name of a tool begins with, in a recorded conversation, whose calls are runs of an agent."""
COMPANION = "companion__"
"""What the name of a tool begins with, in a recorded conversation, with which a model keeps its persistent children."""
COMPANIONS = {
    "spawn_agent": "spawnAgent",
    "send_message": "sendMessage",
    "list_children": "listChildren",
    "get_child_status": "getChildStatus",
    "terminate_child": "terminateChild",
    "wait_for_result": "waitForResult",
}
"""How Helix calls those tools."""
STATUS = {"queued": "running", "cancelled": "terminated"}
"""How Helix calls the status of a run, where it has another word for it."""


@functools.lru_cache(maxsize=1024)
def session_id(path: tuple[PathSegment, ...]) -> str:
    """Return the id of the session of an agent; `Address.parse` reads it back."""
    return str(Address(path))


class Helix:
    """The events of one stream."""

    def __init__(self) -> None:
        self._tools: dict[tuple[str, str], str] = {}
        """The names of the running tool calls, by session and id: two sessions may use the same id."""

    def of(self, event: ShownEvent) -> list[dict[str, Any]]:
        """Return what Helix says for an event: perhaps nothing."""
        agent, session, when = event.path[-1], session_id(event.path), milliseconds(event.at)
        if event.kind == "chunk":
            told = self._chunk(session, event.body)
        elif event.kind in ("progress", "milestone"):
            told = {"type": "custom", "eventName": event.kind, "data": event.body}
        elif event.kind in ("waiting", "resumed", "retracted"):
            return []  # Helix has no such events
        elif event.run_id is not None:
            return [self._run(event, session, when)]
        elif event.kind == "completed":
            told = {"type": "output", "output": event.body["output"]}
        else:
            told = None if event.kind == "started" else {"type": "error", "error": event.body["error"]}
        return [] if told is None else [{**told, "agentId": session, "agentType": agent.type, "timestamp": when}]

    def _run(self, event: ShownEvent, session: str, when: int) -> dict[str, Any]:
        told: dict[str, Any] = {"subAgentId": session, "agentType": event.path[-1].type}
        if event.kind == "started":
            told = {"type": "subagent_start", **told, "input": event.body["input"]}
        elif event.kind == "completed":
            told = {"type": "subagent_end", **told, "result": event.body, "success": True}
        else:
            told = {"type": "subagent_end", **told, "success": False, "error": event.body["error"]}
        parent = session_id(event.path[:-1]) if len(event.path) > 1 else None
        return {**told, "parentSessionId": parent, "timestamp": when}

    def _chunk(self, session: str, chunk: Mapping[str, Any]) -> dict[str, Any] | None:
        kind = str(chunk["type"])
        if kind == "text-delta":
            return {"type": "text_delta", "delta": chunk["delta"]}
        if kind == "reasoning-delta":
            return {"type": "thinking", "content": chunk["delta"]}
        if kind == "tool-input-available":
            name = self._tools[session, chunk["toolCallId"]] = chunk["toolName"]
            call = {"toolCallId": chunk["toolCallId"], "toolName": name}
            return {"type": "tool_start", **call, "arguments": chunk["input"]}
        if kind in ("tool-output-available", "tool-output-error", "tool-output-denied"):
            return self._tool_end(session, chunk)
        if kind == "error":
            return {"type": "error", "error": chunk["errorText"]}
        if kind.startswith("data-"):
            return {"type": "custom", "eventName": kind.removeprefix("data-"), "data": chunk.get("data")}
        return None

    def _tool_end(self, session: str, chunk: Mapping[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = {"type": "tool_end", "toolCallId": chunk["toolCallId"]}
        name = self._tools.pop((session, chunk["toolCallId"]), None)
        if name is not None:
            told["toolName"] = name
        if "output" in chunk:
            return {**told, "result": chunk["output"]}
        return {**told, "error": chunk.get("errorText", "The call was not allowed.")}


def is_subagent_tool(name: str) -> bool:
    """Return whether the calls of a tool with this recorded name are runs of an agent."""
    return name.startswith(SUBAGENT)


def agent_type(name: str) -> str:
    """Return whose runs the calls of a tool with this recorded name are."""
    return name.removeprefix(SUBAGENT)


def recorded(
    messages: Iterable[Mapping[str, Any]], agents: Mapping[str, str], *, companions: bool = False
) -> list[dict[str, Any]]:
    """Return a conversation as Helix records it; `messages` as Pydantic AI has them, `agents` the types by tool.

    The model knows a tool by another name; here a tool whose calls are runs is called after
    the agent's type, and marked. So are the tools for persistent children, if it has any.
    """
    names = {tool: f"{SUBAGENT}{type}" for tool, type in agents.items()}
    if companions:
        names |= {ours: f"{COMPANION}{theirs}" for ours, theirs in COMPANIONS.items()}
    found: list[dict[str, Any]] = []
    for message in messages:
        if message["kind"] == "response":
            found.append(_assistant(message["parts"], names))
        else:
            found += [one for part in message["parts"] if (one := _request(part, names)) is not None]
    return found


def _assistant(parts: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(part["content"] for part in parts if part["part_kind"] == "text"),
    }
    calls = [part for part in parts if part["part_kind"] == "tool-call"]
    if calls:
        told["toolCalls"] = [
            {
                "id": part["tool_call_id"],
                "name": names.get(part["tool_name"], part["tool_name"]),
                "arguments": msgspec.json.decode(part["args"] or "{}")
                if isinstance(part["args"], str)
                else part["args"],
            }
            for part in calls
        ]
    return told


def _request(part: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any] | None:
    kind = part["part_kind"]
    if kind == "user-prompt":
        return {"role": "user", "content": part["content"]}
    if kind == "system-prompt":
        return {"role": "system", "content": part["content"]}
    if kind not in ("tool-return", "retry-prompt") or part.get("tool_name") is None:
        return None
    content = part["content"]
    if kind == "retry-prompt" or part.get("outcome", "success") != "success":
        content = {"error": _error(content)}
    return {
        "role": "tool",
        "toolCallId": part["tool_call_id"],
        "toolName": names.get(part["tool_name"], part["tool_name"]),
        "content": msgspec.json.encode(content).decode(),
    }


def _error(content: Any) -> Any:
    """Return what went wrong, of what the model was told of it."""
    if isinstance(content, str):
        try:
            content = msgspec.json.decode(content)
        except msgspec.DecodeError:
            return content
    return content.get("error", content) if isinstance(content, dict) else content  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


class Given(Protocol):
    """A run, as far as a reference to it is concerned."""

    @property
    def id(self) -> str: ...
    @property
    def agent(self) -> PathSegment: ...
    @property
    def status(self) -> str: ...
    @property
    def output(self) -> Any: ...
    @property
    def error(self) -> str | None: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def tool_call(self) -> str | None: ...
    @property
    def started_at(self) -> datetime | None: ...
    @property
    def ended_at(self) -> datetime | None: ...


def sub_session_ref(
    run: Given, caller: Address, mode: str = "ephemeral", remote: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a reference to a run of this caller, under all the names that Helix has for its fields."""
    told: dict[str, Any] = {
        "id": run.id,
        "subSessionId": session_id((*caller.segments, run.agent)),
        "toolCallId": run.tool_call,
        "parentToolCallId": run.tool_call,
        "agentType": run.agent.type,
        "status": STATUS.get(run.status, run.status),
        "mode": mode,
        "name": run.agent.name,
        "startedAt": _time(run.started_at),
    }
    if run.ended_at is not None:
        told["completedAt"] = _time(run.ended_at)
    if run.status == "completed":
        told["output"] = run.output
    elif run.ended_at is not None:
        told["error"] = run.error or run.reason
    if remote is not None:
        told["remote"] = {"streamId": remote["session"], "lastSequence": remote["seq"]}
    return told


def _time(when: datetime | None) -> int | None:
    return None if when is None else milliseconds(when.timestamp())
