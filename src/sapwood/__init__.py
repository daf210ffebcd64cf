"""Durable AI agents that branch: every agent an actor with its own SQLite database."""

from typing import TYPE_CHECKING, Any

from sapwood.agent import Agent
from sapwood.app import App
from sapwood.capabilities.child_states import on_child_state
from sapwood.capabilities.connections import Connection
from sapwood.capabilities.steps import StepOptions
from sapwood.current import current_agent, current_connection, current_step_key
from sapwood.decorators import agent, expose
from sapwood.errors import ChildFailed, NotFound, OverLimit, Refused, SapwoodError, TimedOut, Unavailable
from sapwood.kernel.marshal.call import deadline
from sapwood.kernel.marshal.signatures import Callback
from sapwood.kernel.rpc.circuits import Breaker
from sapwood.kernel.rpc.options import with_options
from sapwood.periods import Per
from sapwood.remote import RemoteSubAgent
from sapwood.retention import Retention
from sapwood.runs.dispatch.fan_out import Branch
from sapwood.runs.tables.question import Question
from sapwood.runs.tables.runs_table import Run
from sapwood.settings import Limits, Settings
from sapwood.when import After, At, Cron, Every, Retry

if TYPE_CHECKING:
    from sapwood.chat.agent import ChatAgent
    from sapwood.chat.store.turns import Turn
    from sapwood.chat.tools.agent_tools import agent_tool, persistent_agent, remote_agent_tool
    from sapwood.chat.tools.tools import tool

__all__ = [
    "After",
    "Agent",
    "App",
    "At",
    "Branch",
    "Breaker",
    "Callback",
    "ChatAgent",
    "ChildFailed",
    "Connection",
    "Cron",
    "Every",
    "Limits",
    "NotFound",
    "OverLimit",
    "Per",
    "Question",
    "Refused",
    "RemoteSubAgent",
    "Retention",
    "Retry",
    "Run",
    "SapwoodError",
    "Settings",
    "StepOptions",
    "TimedOut",
    "Turn",
    "Unavailable",
    "agent",
    "agent_tool",
    "current_agent",
    "current_connection",
    "current_step_key",
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
    "Turn": "sapwood.chat.store.turns",
    "agent_tool": "sapwood.chat.tools.agent_tools",
    "persistent_agent": "sapwood.chat.tools.agent_tools",
    "remote_agent_tool": "sapwood.chat.tools.agent_tools",
    "tool": "sapwood.chat.tools.tools",
}
"""The names that are imported on first use, because they load Pydantic AI."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in CHAT:
        return getattr(import_module(CHAT[name]), name)
    # Modules are asked for here too, and have lower-case names.
    if name[:1].isupper() and (place := _place_of(name)) is not None:
        # Not an AttributeError: an import statement would replace its message.
        raise ImportError(f"{name} is in {place}. Write: from {place} import {name}")
    raise AttributeError(f"module 'sapwood' has no attribute {name!r}")


def _place_of(name: str) -> str | None:
    """Return the module that a public name is in."""
    from importlib import import_module

    for place in (
        "sapwood.auth",
        "sapwood.types",
        "sapwood.errors",
        "sapwood.protocols",
        "sapwood.studio",
        "sapwood.testing",
    ):
        try:
            module = import_module(place)
        except ImportError:  # its extra is not installed
            continue
        if name in getattr(module, "__all__", ()) or _is_error(getattr(module, name, None)):
            return place
    return None


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, SapwoodError)
