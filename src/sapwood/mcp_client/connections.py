"""The servers of one agent: connects to them when their tools are needed, and notes how they stand.

What a server does wrong is its state, and never an error of the turn that would use it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import msgspec

from sapwood.capabilities.mcp_servers import McpServers, ServerRow, packed
from sapwood.errors import OverLimit, Refused, Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.mcp_client.http import Asked, Endpoint, McpHttp, in_words
from sapwood.mcp_client.outcomes import NotSent, RpcFailed, SignInNeeded, Unauthorized
from sapwood.mcp_client.sealing import UnreadableSecrets
from sapwood.mcp_client.sign_ins import SignIns
from sapwood.mcp_client.text import cleaned
from sapwood.mcp_client.tool_lists import listed

log = logging.getLogger(__name__)

ID_BITS = 40
"""Of the first id of an exchange: every JSON parser reads such a number exactly."""
CONNECT = 15.0
"""Seconds for the list of a server's tools: a turn may wait for it."""
FIRST_RETRY, LAST_RETRY = 5.0, 300.0
"""Seconds until a server that failed is tried again."""
LONGEST_INSTRUCTIONS, MOST_CAPABILITIES = 8192, 16 * 1024
"""Characters, and bytes: both are sent to every client."""
UNREADABLE = (
    "Its stored secrets cannot be opened: none of Settings(secret_keys=…) is the key that sealed them. Add that key, "
    "or remove the server and add it again."
)


class McpConnections:
    """The servers of one agent, and how to call them."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._servers = actor.of(McpServers)
        self._sign_ins = actor.of(SignIns)
        self._locks: dict[int, asyncio.Lock] = {}

    def has_due(self, *, is_shared: bool = False) -> bool:
        """Return whether the list of a server has to be read; of those that are shared, if `is_shared`."""
        return any(self._is_due(row) for row in self._servers.all() if row.is_shared or not is_shared)

    async def refresh(self, *, only: str | None = None, is_forced: bool = False, is_shared: bool = False) -> None:
        """Read the tools of the servers whose list is old, or that are to be tried again."""
        rows = [row for row in self._servers.all() if only in (None, row.name) and (row.is_shared or not is_shared)]
        rows = [row for row in rows if is_forced or self._is_due(row)]
        await asyncio.gather(*(self._connect(row.number, is_forced=is_forced) for row in rows))

    def _is_due(self, row: ServerRow) -> bool:
        now = self._actor.host.clock.now()
        if row.status == "failed":
            return row.next_try_at is not None and row.next_try_at <= now
        if row.status == "signing_in":
            return not self._sign_ins.is_begun(row.number)
        return row.status == "connecting" or row.fresh_until <= now

    async def _connect(self, number: int, *, is_forced: bool) -> None:
        """Read the tools of a server; note what came of it."""
        async with self._locks.setdefault(number, asyncio.Lock()):
            row = self._servers.numbered(number)
            if row is None or not (is_forced or self._is_due(row)):
                return  # another caller has done it meanwhile, or it was removed
            try:
                await self._sign_ins.end(number, self._endpoint(row))
                columns = await self._exchanged(number, CONNECT, self._read_tools)
            except (Refused, Unavailable, OverLimit) as error:
                self._actor.check_live()
                if not isinstance(error, SignInNeeded):
                    self._failed(number, row, str(error))
            except UnreadableSecrets:
                self._failed(number, row, UNREADABLE)
            else:
                self._servers.set(number, **columns)
        await self._actor.leave()

    async def end_sign_in(self, number: int) -> None:
        """Connect to a server whose user has come back."""
        await self._connect(number, is_forced=True)
        if self._sign_ins.is_ending(number):
            raise Unavailable("The authorization server did not answer.")  # the queue tries again

    async def _read_tools(self, http: McpHttp, row: ServerRow) -> dict[str, Any]:
        await http.open()
        tools, lasts = await listed(http, row.name)
        capabilities: Any = http.about.get("capabilities")
        is_short = isinstance(capabilities, dict) and len(msgspec.json.encode(capabilities)) <= MOST_CAPABILITIES
        return {
            "status": "ready",
            "error": None,
            "failures": 0,
            "next_try_at": None,
            "sign_in_url": None,
            "protocol": http.protocol,
            "instructions": cleaned(http.about.get("instructions"), LONGEST_INSTRUCTIONS) or None,
            "capabilities": msgspec.json.encode(capabilities).decode() if is_short else None,
            "tools": packed(tools),
            "fresh_until": self._actor.host.clock.now() + lasts,
        }

    def _failed(self, number: int, row: ServerRow, why: str) -> None:
        """Note that a server cannot be used for now."""
        wait = min(FIRST_RETRY * 2**row.failures, LAST_RETRY)
        self._servers.set(
            number,
            status="failed",
            error=why,
            failures=min(row.failures + 1, 30),
            next_try_at=self._actor.host.clock.now() + wait,
            sign_in_url=None,
        )
        address = str(self._actor.address)
        log.warning("MCP server failed address=%s server=%s: %s", address, row.name, why, extra={"address": address})

    async def request(
        self,
        name: str,
        method: str,
        params: dict[str, Any],
        headers: dict[str, str] | None = None,
        asked: Asked | None = None,
    ) -> dict[str, Any]:
        """Send one request to a server and return its result. The secrets of the server stay in this agent."""
        row = self._servers.get(name)
        if row is None:
            raise Refused(f"The MCP server {name!r} was removed.")

        async def ask(http: McpHttp, row: ServerRow) -> dict[str, Any]:
            try:
                await http.open(row.protocol)
            except Unavailable as error:
                raise NotSent(str(error)) from None
            return await http.request(method, params, headers)

        try:
            return await self._exchanged(row.number, row.timeout, ask, asked)
        except UnreadableSecrets:
            raise Refused(UNREADABLE) from None
        except RpcFailed:
            self._servers.set(row.number, fresh_until=0.0)  # perhaps it has other tools by now
            raise

    async def _exchanged(
        self,
        number: int,
        timeout: float,
        ask: Callable[[McpHttp, ServerRow], Awaitable[dict[str, Any]]],
        asked: Asked | None = None,
    ) -> dict[str, Any]:
        """Return what comes of an exchange with a server. With a token that is no longer valid, it is repeated once."""
        await self._actor.leave()
        for may_refresh in (True, False):
            row = self._servers.numbered(number)
            if row is None:
                break
            endpoint = self._endpoint(row)
            headers = await self._sign_ins.headers(row, endpoint)
            try:
                async with McpHttp(replace(endpoint, headers=headers), asked) as http, in_words(host_of(row), timeout):
                    found = await ask(http, row)
                self._actor.check_live()
                return found
            except Unauthorized as error:
                self._actor.check_live()
                used = headers.get("authorization")
                if not await self._sign_ins.challenged(row, error, used, endpoint, may_refresh=may_refresh):
                    raise SignInNeeded(f"{host_of(row)} needs a user to sign in: see its sign_in_url.") from None
        raise Refused("The MCP server was removed.")

    def _endpoint(self, row: ServerRow) -> Endpoint:
        from sapwood.client.public_hosts import HostRules

        rules = HostRules(
            "Requests to MCP servers",
            "An operator can allow it with Settings(mcp_private_hosts=…).",
            self._actor.host.settings.mcp_private_hosts,
        )
        return Endpoint(row.url, {}, rules, row.timeout, self._actor.host.random.getrandbits(ID_BITS))


def host_of(row: ServerRow) -> str:
    """Return how errors name a server."""
    return f"The MCP server {row.name!r} ({urlsplit(row.url).hostname})"
