"""Protocols of other systems, for `App(protocols=…)`."""

from sapwood.protocols.adapter import Adapter, Place
from sapwood.protocols.exchange import Exchange
from sapwood.protocols.mcp_server import Mcp

__all__ = ["Adapter", "Exchange", "Mcp", "Place"]
