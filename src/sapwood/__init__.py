"""Durable AI agents that branch: every agent an actor with its own SQLite database."""

from typing import TYPE_CHECKING, Any

from sapwood.address import Address, PathSegment
from sapwood.agent import Agent, agent, current_agent, current_connection, expose
from sapwood.app import App
from sapwood.capabilities.calls import DeadLetter
from sapwood.capabilities.child_states import on_child_state
from sapwood.capabilities.children import SubAgentStatus, Subtree
from sapwood.capabilities.connections import Connection
from sapwood.capabilities.fiber_rows import Fiber
from sapwood.capabilities.keep_alive import KeepAlive
from sapwood.capabilities.queue import QueuedCall
from sapwood.capabilities.schedules import Schedule
from sapwood.capabilities.steps import StepOptions
from sapwood.errors import (
    Aborted,
    ChildFailed,
    Crashed,
    FiberFailed,
    NotFound,
    OverLimit,
    PipelineFailed,
    Refused,
    SapwoodError,
    StoredDataError,
    TimedOut,
    Unavailable,
    UsageError,
)
from sapwood.kernel.circuits import Breaker
from sapwood.kernel.classes import Callback
from sapwood.kernel.context import deadline
from sapwood.kernel.options import with_options
from sapwood.kernel.registry import SubAgent
from sapwood.kernel.spending import Usage
from sapwood.remote import RemoteSubAgent
from sapwood.runs.events import Event
from sapwood.runs.fanning import Branch
from sapwood.runs.question import ANY_CLIENT, Question
from sapwood.runs.registry import Run
from sapwood.runs.retention import Retention
from sapwood.settings import Durability, Limits, Settings
from sapwood.web.auth import ApiKeys, JwtAuth, User
from sapwood.when import After, At, Cron, Every, Retry

if TYPE_CHECKING:
    from sapwood.chat.agent import ChatAgent
    from sapwood.chat.agent_tools import agent_tool, persistent_agent, remote_agent_tool
    from sapwood.chat.tools import tool
    from sapwood.chat.turns import Turn

__all__ = [
    "ANY_CLIENT",
    "Aborted",
    "Address",
    "After",
    "Agent",
    "ApiKeys",
    "App",
    "At",
    "Branch",
    "Breaker",
    "Callback",
    "ChatAgent",
    "ChildFailed",
    "Connection",
    "Crashed",
    "Cron",
    "DeadLetter",
    "Durability",
    "Event",
    "Every",
    "Fiber",
    "FiberFailed",
    "JwtAuth",
    "KeepAlive",
    "Limits",
    "NotFound",
    "OverLimit",
    "PathSegment",
    "PipelineFailed",
    "Question",
    "QueuedCall",
    "Refused",
    "RemoteSubAgent",
    "Retention",
    "Retry",
    "Run",
    "SapwoodError",
    "Schedule",
    "Settings",
    "StepOptions",
    "StoredDataError",
    "SubAgent",
    "SubAgentStatus",
    "Subtree",
    "TimedOut",
    "Turn",
    "Unavailable",
    "Usage",
    "UsageError",
    "User",
    "agent",
    "agent_tool",
    "current_agent",
    "current_connection",
    "deadline",
    "expose",
    "on_child_state",
    "persistent_agent",
    "remote_agent_tool",
    "tool",
    "with_options",
]

CHAT = {
    "ChatAgent": "sapwood.chat.agent",
    "Turn": "sapwood.chat.turns",
    "agent_tool": "sapwood.chat.agent_tools",
    "persistent_agent": "sapwood.chat.agent_tools",
    "remote_agent_tool": "sapwood.chat.agent_tools",
    "tool": "sapwood.chat.tools",
}
"""Names that are imported on first use: not every program chats."""


def __getattr__(name: str) -> Any:
    if name not in CHAT:
        raise AttributeError(f"module 'sapwood' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(CHAT[name]), name)
