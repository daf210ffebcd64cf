"""The agent, the connection and the step whose code is running."""

from __future__ import annotations

import hashlib
from typing import Any, cast

from sapwood.agent import Agent
from sapwood.capabilities.connections import Connection
from sapwood.errors import UsageError
from sapwood.kernel.marshal.call import current, running_step


def current_agent() -> Agent[Any] | None:
    """Return the agent whose code is running; `None` outside of agents."""
    call = current.get()
    return None if call is None else cast("Agent[Any]", call.actor.agent)


def current_step_key() -> str:
    """Return an idempotency key for the step or tool call that is running: 32 characters.

    The key stays the same if the step is repeated, after a crash or by another node. No other step has it. Raises
    `UsageError` outside of steps and tool calls.
    """
    step = running_step.get()
    if step is None:
        raise UsageError("current_step_key() must be called in a step or in a tool: only these have a key.")
    return hashlib.sha256("\n".join(map(str, step)).encode()).hexdigest()[:32]


def current_connection() -> Connection | None:
    """Return the connection whose call or message is being handled; `None` if no client sent one."""
    call = current.get()
    return None if call is None else cast("Connection | None", call.client)
