"""Durable AI agents that branch: every agent an actor with its own SQLite database."""

from sapwood.address import Address, Step
from sapwood.agent import Agent, agent, current_agent, current_connection, expose
from sapwood.app import App
from sapwood.capabilities.children import SubAgentStatus, Subtree
from sapwood.capabilities.connections import Connection
from sapwood.errors import (
    Aborted,
    ChildFailed,
    Crashed,
    NotFound,
    OverLimit,
    Refused,
    SapwoodError,
    StoredDataError,
    TimedOut,
    Unavailable,
    UsageError,
)
from sapwood.kernel.classes import Callback
from sapwood.kernel.context import deadline
from sapwood.kernel.registry import SubAgent
from sapwood.settings import Durability, Limits, Settings
from sapwood.web.auth import ApiKeys, JwtAuth, User

__all__ = [
    "Aborted",
    "Address",
    "Agent",
    "ApiKeys",
    "App",
    "Callback",
    "ChildFailed",
    "Connection",
    "Crashed",
    "Durability",
    "JwtAuth",
    "Limits",
    "NotFound",
    "OverLimit",
    "Refused",
    "SapwoodError",
    "Settings",
    "Step",
    "StoredDataError",
    "SubAgent",
    "SubAgentStatus",
    "Subtree",
    "TimedOut",
    "Unavailable",
    "UsageError",
    "User",
    "agent",
    "current_agent",
    "current_connection",
    "deadline",
    "expose",
]
