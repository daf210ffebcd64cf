"""`self.mcp`: the MCP servers whose tools an agent uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast, get_args
from urllib.parse import parse_qsl, urlsplit

import msgspec

from sapwood.capabilities.mcp_servers import Approval, McpServer, McpServers, ServerRow
from sapwood.capabilities.steps import Steps, StoredProgress
from sapwood.errors import InvalidArguments, NotFound, OverLimit, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.mcp_client.connections import McpConnections
from sapwood.mcp_client.oauth import Client
from sapwood.mcp_client.results import value_of
from sapwood.mcp_client.sealing import Seal
from sapwood.mcp_client.sign_ins import Secrets, SignIns
from sapwood.mcp_client.tool_calls import ToolCalls
from sapwood.roles import Roles, stored_roles

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
"""Without `_`, which ends it in the names of tools: no server can have a tool with the name of another's."""
MOST_SERVERS, LONGEST_URL, LONGEST_TIMEOUT = 32, 2048, 3600.0
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class AgentMcp:
    """The MCP servers of this agent. In a chat agent, the model is offered the tools of those that are ready.

    A server is stored with its tools and secrets, and survives crashes. What goes wrong with it is its `status`: a
    server that fails costs its tools, not the turn.
    """

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._servers = actor.of(McpServers)
        self._connections = actor.of(McpConnections)

    async def add(
        self,
        name: str,
        url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        client_id: str | None = None,
        client_secret: str | None = None,
        redirect_url: str | None = None,
        approval: Approval = "writes",
        approvers: Roles | None = None,
        shared: bool = False,
        timeout: float = 300.0,
    ) -> McpServer:
        """Add a server, read its tools, and return how it stands: `ready`, `signing_in` or `failed`.

        A server of the same name and URL keeps its tokens; one with another URL is replaced. `token` and `headers`
        are sent to this server only, and stored encrypted: see `Settings(secret_keys=…)`. Without them, a user signs in
        at a server that wants it: see `McpServer.sign_in_url`. `client_id` and `client_secret` are those of a client
        that is registered at its authorization server; without them, the agent registers itself. `redirect_url` is a
        page of yours to which the user comes back, and which leads to `complete_sign_in`; by default, it is the agent.

        `approval` says which calls of the model a person must allow: `writes` means those of all tools that do not
        declare themselves read-only, `destructive` only those that may overwrite or delete, `always` or `never`. The
        server declares this itself: use `always` for one that you do not trust. `approvers` are the roles that may
        allow them, and answer what the server asks; they are required in an app with `authenticate`. With `shared`,
        the agents below this one use the server too, through this agent. `timeout` is the one of a request, in seconds.
        """
        self._actor.check_use()
        _check_address(name, url)
        _check_options(approval, timeout)
        roles = self._roles(approvers)
        secrets = Secrets(_headers(token, headers), _client(client_id, client_secret), redirect_url=redirect_url)
        if secrets != Secrets():
            self._actor.of(Seal).check()
        before = self._servers.get(name)
        if before is None and len(self._servers.all()) >= MOST_SERVERS:
            raise OverLimit(f"An agent has at most {MOST_SERVERS} MCP servers. Remove one.", limit="mcp_servers")
        if before is not None and before.url != url:
            self._servers.remove(name)
            before = None
        options = {"approval": approval, "approvers": roles, "is_shared": shared, "timeout": timeout}
        if before is None:
            row = self._servers.add(name=name, url=url, **options)
        else:
            row = self._servers.set(before.number, **options) or before
        if secrets != Secrets():
            self._actor.of(SignIns).configure(row, secrets)
        await self._connections.refresh(only=name, is_forced=True)
        return self.get(name)

    async def remove(self, name: str) -> bool:
        """Remove a server with its tools and tokens. Returns `False` if there is none of this name."""
        self._actor.check_use()
        return self._servers.remove(name)

    def get(self, name: str) -> McpServer:
        """Return a server. Raises `NotFound` if this agent has none of this name."""
        return self._servers.shown(self._row(name))

    def list(self) -> list[McpServer]:
        """Return the servers of this agent, in the order in which they were added."""
        self._actor.check_use()
        return [self._servers.shown(row) for row in self._servers.all()]

    async def refresh(self, name: str | None = None) -> None:
        """Connect to a server, or to all, and read their tools again now."""
        self._actor.check_use()
        if name is not None:
            self._row(name)
        await self._connections.refresh(only=name, is_forced=True)

    async def complete_sign_in(self, url: str) -> McpServer:
        """Take the URL with which a user came back to a `redirect_url` of yours, and return the server.

        Raises `InvalidArguments` if no sign-in of this agent is waiting for it, and changes nothing.
        """
        self._actor.check_use()
        query = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
        name = self._actor.of(SignIns).take(query)
        if name is None:
            raise InvalidArguments("No sign-in at an MCP server is waiting for this URL.")
        await self._connections.refresh(only=name)
        return self.get(name)

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a tool from code, without approval. Return its structured content, or its text.

        In a fiber, a run, a turn, or a method that was scheduled or queued, a task at the server is followed again
        after a crash. A call that a crash interrupted before the server had answered is repeated only if the server
        declares that this is safe; otherwise it raises `Refused`. Call each such tool in a step of its own if you
        need its result again.
        """
        self._actor.check_use()
        given = dict(arguments or {})
        await self._connections.refresh(only=server)
        await self._actor.until_leased()
        progress: StoredProgress | None = self._actor.of(Steps).place("mcp.call")
        return value_of(await self._actor.of(ToolCalls).call(server, tool, given, progress))

    def _row(self, name: str) -> ServerRow:
        self._actor.check_use()
        row = self._servers.get(name)
        if row is None:
            raise NotFound(f"{self._actor.address} has no MCP server {name!r}.", path=self._actor.address.segments)
        return row

    def _roles(self, approvers: Roles | None) -> str | None:
        """Return who may answer questions about the tools, as it is stored."""
        if approvers is not None:
            return msgspec.json.encode(stored_roles(approvers)).decode()
        if self._actor.host.authentication is not None and not self._actor.kind.overrides("may_answer"):
            raise UsageError(
                "The app authenticates its users, so say who may allow calls to an MCP server and answer what it asks: "
                'approvers="manager" for users with this role in claims["roles"], or approvers=ANY_CLIENT for every '
                f"client. Or write {self._actor.kind.cls.__name__}.may_answer()."
            )
        return None


def _check_address(name: object, url: object) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(
            f"The name of an MCP server must have 1 to 32 lower-case letters, digits and '-', got {name!r}."
        )
    try:
        parts = urlsplit(cast("str", url))
        is_url = isinstance(url, str) and len(url) <= LONGEST_URL and url.isascii() and url.isprintable()
        is_url = is_url and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
        _ = parts.port
    except (ValueError, TypeError, AttributeError):
        is_url = False
    if not is_url:
        raise UsageError(
            "The URL of an MCP server must begin with https:// or http://, and have no user in it; a token belongs in "
            "token=…."
        )


def _check_options(approval: object, timeout: object) -> None:
    if approval not in get_args(Approval):
        raise UsageError(f"approval={approval!r}: expected {', '.join(map(repr, get_args(Approval)))}.")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= LONGEST_TIMEOUT:
        raise UsageError(f"timeout={timeout!r}: expected seconds above 0, at most {LONGEST_TIMEOUT:g}.")


def _client(id: str | None, secret: str | None) -> Client | None:
    if id is None:
        if secret is not None:
            raise UsageError("client_secret=… requires client_id=….")
        return None
    return Client(id, secret, "none" if secret is None else "client_secret_basic")


def _headers(token: str | None, headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return the headers that are sent to a server."""
    found = dict(headers or {})
    if token is not None:
        found["authorization"] = f"Bearer {token}"
    for name, value in found.items():
        texts: tuple[Any, ...] = (name, value)
        if not all(isinstance(one, str) for one in texts) or not HEADER.fullmatch(name):
            raise UsageError(f"headers=…: expected names and values of HTTP headers, got the name {name!r}.")
        if not value.isascii() or not value.isprintable():
            raise UsageError(f"The value of the header {name!r} must be printable ASCII.")
    return found
