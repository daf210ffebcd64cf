"""The MCP servers of an agent as rows, with their tools and states; clients see each change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import msgspec

from sapwood.capabilities.stored_rows import time_of
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.outbox import Outbox
from sapwood.kernel.actors.sockets import Absent, Socket
from sapwood.storage.migrations import Schema
from sapwood.wire import frames

MCP_SERVERS = Schema("sapwood.capabilities", "mcp_servers")
McpStatus: TypeAlias = Literal["connecting", "signing_in", "ready", "failed"]
Approval: TypeAlias = Literal["always", "writes", "destructive", "never"]
COLUMNS = (
    "number, name, url, approval, approvers, is_shared, timeout, status, error, failures, next_try_at, sign_in_url,"
    " protocol, instructions, capabilities, tools, fresh_until, secrets"
)
SHOWN_TOOLS = 1024 * 1024
"""Bytes of tools that clients are told of; above this, they are told the names only."""


class StoredTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool of a server, as it was listed."""

    name: str
    """As the server calls it."""
    shown: str
    """As the model calls it."""
    description: str = ""
    schema: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """The JSON schema of its arguments."""
    reads_only: bool = False
    """Whether the server says that it changes nothing."""
    destroys: bool = True
    """Whether it may overwrite or delete something."""
    repeats: bool = False
    """Whether to call it twice is the same as to call it once."""
    headers: dict[str, list[str]] = msgspec.field(default_factory=dict[str, list[str]])
    """Arguments that are also sent as a header, by the name of the header: the path to each."""


_tools = msgspec.json.Decoder(list[StoredTool])


class ServerRow(NamedTuple):
    """One stored server."""

    number: int
    name: str
    url: str
    approval: Approval
    approvers: str | None
    is_shared: int
    timeout: float
    status: McpStatus
    error: str | None
    failures: int
    next_try_at: float | None
    sign_in_url: str | None
    protocol: str | None
    instructions: str | None
    capabilities: str | None
    tools: str
    fresh_until: float
    secrets: bytes | None

    def stored_tools(self) -> list[StoredTool]:
        return _tools.decode(self.tools)

    def tool(self, name: str) -> StoredTool | None:
        """Return the tool that the server calls so."""
        return next((one for one in self.stored_tools() if one.name == name), None)

    def roles(self) -> tuple[str, ...] | None:
        """Return who may answer questions about its tools; `None` means that it does not say."""
        return None if self.approvers is None else tuple(msgspec.json.decode(self.approvers))

    def needs_approval(self, tool: StoredTool) -> bool:
        """Return whether a person must allow each call of a tool."""
        if self.approval in ("always", "never"):
            return self.approval == "always"
        return not tool.reads_only and (tool.destroys or self.approval == "writes")


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool of an MCP server."""

    name: str
    """The name that the server gives it: for `self.mcp.call`."""
    tool: str
    """The name that the model sees: the name of the server and the tool."""
    description: str
    """What the server says about it."""
    input_schema: dict[str, Any]
    """The JSON schema of its arguments."""
    requires_approval: bool
    """Whether a person must allow each call of a model."""


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server of an agent, and how it stands."""

    name: str
    """The name that the agent has given it."""
    url: str
    """Its URL."""
    status: McpStatus
    """`connecting` until its tools were first read; `signing_in` while a user has to sign in at `sign_in_url`;
    `ready`; or `failed`: see `error`."""
    error: str | None
    """Why it failed."""
    next_try_at: datetime | None
    """When it is tried again, if it failed: at the first use after this time."""
    sign_in_url: str | None
    """Where a user signs in, if the status is `signing_in`."""
    tools: tuple[McpTool, ...]
    """Its tools. While it is not `ready`, models are not offered them."""
    instructions: str | None
    """What the server says about its use."""


class McpServers:
    """The table of the servers of one agent. All writes belong to the slice that makes them."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._database = actor.database

    def all(self) -> list[ServerRow]:
        return self._rows("ORDER BY number")

    def get(self, name: str) -> ServerRow | None:
        return next(iter(self._rows("WHERE name = ?", name)), None)

    def numbered(self, number: int) -> ServerRow | None:
        return next(iter(self._rows("WHERE number = ?", number)), None)

    def _rows(self, where: str, *arguments: str | int) -> list[ServerRow]:
        if not self._database.has(MCP_SERVERS):
            return []
        rows = self._database.execute(f"SELECT {COLUMNS} FROM sapwood_mcp_servers {where}", *arguments)  # noqa: S608 - ours
        return [ServerRow(*row) for row in rows]

    def add(self, **columns: Any) -> ServerRow:
        """Store a server, which is not connected yet."""
        self._database.ensure(MCP_SERVERS)
        names = ", ".join(columns)
        marks = ", ".join("?" * len(columns))
        self._database.execute(
            f"INSERT INTO sapwood_mcp_servers ({names}, status) VALUES ({marks}, 'connecting')",  # noqa: S608 - ours
            *columns.values(),
        )
        self.changed()
        row = self.get(columns["name"])
        assert row is not None
        return row

    def set(self, number: int, **columns: Any) -> ServerRow | None:
        """Change a server; return `None` if it was removed."""
        if not self._database.has(MCP_SERVERS):
            return None
        names = ", ".join(f"{name} = ?" for name in columns)
        self._database.execute(
            f"UPDATE sapwood_mcp_servers SET {names} WHERE number = ?",  # noqa: S608 - ours
            *columns.values(),
            number,
        )
        self.changed()
        return self.numbered(number)

    def remove(self, name: str) -> bool:
        """Forget a server and its secrets. Returns `False` if there is none of this name."""
        row = self.get(name)
        if row is None:
            return False
        self._database.execute("DELETE FROM sapwood_mcp_sign_ins WHERE server = ?", row.number)
        self._database.execute("DELETE FROM sapwood_mcp_servers WHERE number = ?", row.number)
        self.changed()
        return True

    def usable(self) -> list[tuple[Actor, ServerRow]]:
        """Return the servers that this agent uses: its own, and those that agents above it share; each with its agent.

        Of two with the same name, the nearer one counts.
        """
        found: dict[str, tuple[Actor, ServerRow]] = {}
        for agent in self._actor.lineage():
            for row in agent.of(McpServers).all():
                if agent is self._actor or row.is_shared:
                    found.setdefault(row.name, (agent, row))
        return list(found.values())

    def shown(self, row: ServerRow) -> McpServer:
        """Return a server as users see it."""
        return McpServer(
            row.name,
            row.url,
            row.status,
            row.error,
            None if row.next_try_at is None else time_of(row.next_try_at),
            row.sign_in_url,
            tuple(
                McpTool(one.name, one.shown, one.description, one.schema, row.needs_approval(one))
                for one in row.stored_tools()
            ),
            row.instructions,
        )

    def changed(self) -> None:
        """Tell the clients of this agent, and of those below it that use the same servers."""
        for agent in _with_descendants(self._actor):
            sockets = [one for one in agent.host.sockets.of(agent.address) if one.is_protocol]
            if sockets:
                outbox, servers = agent.of(Outbox), agent.of(McpServers)
                for socket in sockets:
                    if isinstance(socket, Absent) and any(row.sign_in_url for _, row in servers.usable()):
                        socket.require_reconnect()  # it is not known who may sign in
                    else:
                        outbox.put(socket, servers.frame(socket))

    def frame(self, socket: Socket) -> str:
        """Return what a client is told. Only clients that may act are told where to sign in."""
        may_act = not (socket.is_readonly or socket.is_watch_only)
        usable = self.usable()
        told = {
            row.name: frames.McpServerState(
                row.name,
                without_secrets(row.url),
                row.sign_in_url if may_act and agent is self._actor else None,
                "authenticating" if row.status == "signing_in" else row.status,
                row.error,
                row.instructions,
                msgspec.Raw((row.capabilities or "null").encode()),
            )
            for agent, row in usable
        }
        is_whole = sum(len(row.tools) for _, row in usable) <= SHOWN_TOOLS
        tools = [
            frames.McpToolState(row.name, one.name, one.description, one.schema)
            if is_whole
            # so many that their schemas would fill the client's buffer
            else frames.McpToolState(row.name, one.name, "", {})
            for _, row in usable
            if row.status == "ready"
            for one in row.stored_tools()
        ]
        return frames.mcp_servers(told, tools)


def _with_descendants(actor: Actor) -> Iterator[Actor]:
    """Yield an agent and all below it that are in memory."""
    left = [actor]
    while left:
        yield (one := left.pop())
        left.extend(one.children.values())


def without_secrets(url: str) -> str:
    """Return a URL without what may be a key in it."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def packed(tools: Sequence[StoredTool]) -> str:
    """Return a list of tools as it is stored."""
    return msgspec.json.encode(tools).decode()
