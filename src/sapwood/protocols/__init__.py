"""Protocols of other systems, for `App(protocols=…)`."""

from sapwood.protocols.adapter import Adapter, Place
from sapwood.protocols.exchange import Exchange

__all__ = ["Adapter", "Exchange", "Place"]
