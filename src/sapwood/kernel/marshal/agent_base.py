"""The base of all agent classes, for the rooms below `Agent`."""

from __future__ import annotations


class AgentBase:
    """What every agent class extends. Only the framework extends it directly."""
