"""Protocols of other systems, for `App(protocols=…)`."""

from sapwood.protocols.a2a import A2a
from sapwood.protocols.a2a_agent import A2aAgent
from sapwood.protocols.a2a_wire import A2aMessage, A2aPart
from sapwood.protocols.adapter import Adapter, Place
from sapwood.protocols.ag_ui import AgUi
from sapwood.protocols.exchange import Exchange
from sapwood.protocols.mcp_server import Mcp
from sapwood.protocols.openai_api import OpenAi

__all__ = ["A2a", "A2aAgent", "A2aMessage", "A2aPart", "Adapter", "AgUi", "Exchange", "Mcp", "OpenAi", "Place"]
