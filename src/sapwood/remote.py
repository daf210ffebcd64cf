"""Agents of other servers, used like local sub-agents."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

from sapwood.agent import Agent
from sapwood.errors import UsageError
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.runs.backends.remote_backend import RemoteRuns
from sapwood.runs.default_hooks import DefaultHooks
from sapwood.runs.execution.contract import Progress, RunBackend
from sapwood.runs.remote.http_transport import HttpTransport
from sapwood.runs.remote.transport import (
    Chunk,
    End,
    Heartbeat,
    Memo,
    MemoTransport,
    Milestone,
    NestedEvent,
    NestedEvents,
    OpenQuestions,
    Position,
    QuestionTransport,
    RemoteAnswer,
    RemoteEvent,
    RemoteQuestion,
    RemoteStatus,
    RunTransport,
)
from sapwood.runs.tables.question import Approvers

__all__ = [
    "Chunk",
    "End",
    "Heartbeat",
    "HttpTransport",
    "Memo",
    "MemoTransport",
    "Milestone",
    "NestedEvent",
    "NestedEvents",
    "OpenQuestions",
    "Position",
    "Progress",
    "QuestionTransport",
    "RemoteAnswer",
    "RemoteEvent",
    "RemoteQuestion",
    "RemoteStatus",
    "RunTransport",
]


class RemoteHooks(DefaultHooks):
    """The hooks of an agent whose runs another server executes."""

    def run_backend(self) -> RunBackend:
        return RemoteRuns(self._actor)

    @staticmethod
    def approvers_of(kind: AgentClass, tool: str) -> Approvers | None:
        return cast("type[RemoteSubAgent]", kind.cls).approvers

    @staticmethod
    def remote_url(kind: AgentClass) -> str | None:
        return _checked_url(cast("type[RemoteSubAgent]", kind.cls))


class RemoteSubAgent(Agent[None], hooks=frozenset({"token", "transport"}), settings=frozenset({"url", "approvers"})):
    """An agent of another server. Subclass it and set its `url`.

    Use it with `run_agent`, `agent_tool` and everything built on them, like any other agent. The events of its runs
    are stored here too, so runs are watched, replayed and cancelled as usual. The other server must allow it:
    with `expose_runs` of the agent's class, and with its `authenticate`.
    """

    url: ClassVar[str] = ""
    """The URL of the remote class: `https://host/agents/researcher`. Each run gets a new agent there.

    With your own `transport`, any string that names the remote agent. It is stored with each run.
    """

    approvers: ClassVar[Approvers | None] = None
    """Who may answer the questions of its runs here: `ANY_CLIENT`, one role or several, or a function of user and
    question. The other server decides too. `None` means no user, unless the class has `may_answer`, or the app
    does not authenticate clients."""

    _hooks_class = RemoteHooks

    def token(self) -> str | Awaitable[str | None] | None:
        """Return the bearer token for the other server. It is sent with every request. Override it, plain or async.

        Read it from `self.deps`: the token is not stored. It is also called after the agent was deleted, to cancel
        its remote runs: then there is no state, and no `sql`.
        """
        return None

    def transport(self) -> RunTransport:
        """Return the transport of this agent's runs. Override it for agents that do not run on a sapwood server.

        It is called when a run starts, when it continues after a crash, and to cancel it, also after the agent
        was deleted. Create it from the class and from `self.deps`: the transport is not stored.
        """
        return HttpTransport(self.url, self.token)


def _checked_url(cls: type[RemoteSubAgent]) -> str:
    """Return the URL of a remote class; raise `UsageError` if it has none that can be used."""
    if cls.transport is not RemoteSubAgent.transport:
        if not cls.url:
            raise UsageError(f"{cls.__name__}.url must name the remote agent, got ''.")
        return cls.url
    parts = urlsplit(cls.url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            f"{cls.__name__}.url must be the URL of a class of agents, such as "
            f"'https://research.example/agents/researcher', got {cls.url!r}."
        )
    return cls.url


def remote_class(
    url: str,
    type: str,
    token: str | Callable[[Any], str | Awaitable[str | None] | None] | None,
    transport: Callable[[Any], RunTransport] | None = None,
    approvers: Approvers | None = None,
) -> type[RemoteSubAgent]:
    """Return a `RemoteSubAgent` class for a URL."""

    def own(self: RemoteSubAgent) -> str | Awaitable[str | None] | None:
        return token(self.deps) if callable(token) else token

    def carrier(self: RemoteSubAgent) -> RunTransport:
        assert transport is not None
        return transport(self.deps)

    members: dict[str, Any] = {"url": url, "token": own, "approvers": approvers, "__module__": __name__}
    if transport is not None:
        members["transport"] = carrier
    return types.new_class(type, (RemoteSubAgent,), exec_body=lambda body: body.update(members))
