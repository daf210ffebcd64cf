"""Asks again, in a fork, what a person has allowed and what has not begun: a turn waits for its other answers.

The tool would run in both otherwise, and the answer was given for the original.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import msgspec

from sapwood.address import Address
from sapwood.capabilities.mcp_servers import MCP_SERVERS
from sapwood.chat.store.transcript import Transcript
from sapwood.chat.store.turn_rows import ToolCall, TurnRow
from sapwood.forks.turn_end import FixedClock
from sapwood.runs.tables.question import Question
from sapwood.storage.database import Database
from sapwood.storage.offline_edit import OfflineEdit

Roles = tuple[str, ...] | None


class ServerTools:
    """Who may allow the tools of MCP servers, of the agents of one fork."""

    def __init__(self) -> None:
        self._roles: dict[Address, dict[str, tuple[bool, Roles]]] = {}

    def look(self, address: Address, edit: OfflineEdit) -> None:
        """Read the servers of an agent."""
        if not edit.has(MCP_SERVERS):
            return
        found = self._roles[address] = {}
        for approvers, is_shared, tools in edit.execute("SELECT approvers, is_shared, tools FROM sapwood_mcp_servers"):
            roles: Roles = None if approvers is None else tuple(msgspec.json.decode(approvers))
            for tool in msgspec.json.decode(tools):
                found[tool["shown"]] = (bool(is_shared), roles)

    def roles(self, address: Address, tool: str) -> Roles:
        """Return who may allow a tool. `None` means that no server says so."""
        for depth in range(len(address.segments), 0, -1):
            is_own = depth == len(address.segments)
            is_shared, roles = self._roles.get(Address(address.segments[:depth]), {}).get(tool, (False, None))
            if (is_own or is_shared) and roles is not None:
                return roles
        return None


def reopen(edit: OfflineEdit, turn: TurnRow, calls: list[ToolCall], now: float) -> None:
    """Forget the answers to these calls of a turn that waits."""
    # It reads and writes rows only, as of a database that is open.
    transcript = Transcript(cast("Database", edit), FixedClock(now))
    message = transcript.get(turn.message)
    ids = {call.id for call in calls}
    for id in ids:
        edit.execute("UPDATE sapwood_tool_calls SET answer = NULL, auto_continue = 0 WHERE id = ?", id)
    if message is not None:
        parts = [_asked_again(part) if part.get("toolCallId") in ids else part for part in message["parts"]]
        transcript.put({**message, "parts": parts})


def _asked_again(part: dict[str, Any]) -> dict[str, Any]:
    return {**part, "state": "approval-requested", "approval": {"id": part["toolCallId"]}}


def questions_about(calls: list[ToolCall], address: Address, servers: ServerTools) -> list[dict[str, Any]]:
    """Return the questions about tool calls, as the index of a tree has them."""
    found: list[dict[str, Any]] = []
    for call in calls:
        question = Question.about(call.id, call.name, msgspec.json.decode(call.input), "approval")
        found.append(msgspec.to_builtins(replace(question, roles=servers.roles(address, call.name))))
    return found
