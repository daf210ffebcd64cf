"""Calls of exposed methods as tools, inside the root that the call names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sapwood.errors import Unavailable
from sapwood.kernel.marshal.agent_class import known
from sapwood.protocols.exchange import Exchange
from sapwood.protocols.mcp_tools import AGENT, MethodTool
from sapwood.protocols.mcp_work import failed, succeeded


class MethodCaller:
    """Who calls a method of a root."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def cancel(self) -> None:
        """Cancel nothing more: the call ends with its request."""

    def told(self, error: Exception, method: str) -> str:
        """Return what the client may be told of an error."""
        return self._exchange.told(error, method)

    async def call(self, tool: MethodTool, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a call of a tool that is a method of this root."""
        address = self._exchange.address
        if address.type not in known(tool.cls).type_ids or arguments.get(AGENT) != address.name:
            return failed(f"The argument {AGENT!r} must be {address.name!r} here, and the tool one of {address.type}.")
        try:
            return succeeded(await self._exchange.call(tool.method.name, tool.arguments(arguments)), tool)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything; the model is told what it may know
            return failed(self.told(error, tool.method.name))
