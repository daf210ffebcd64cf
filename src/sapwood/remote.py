"""Agents of other servers, used like sub-agents of one's own."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar
from urllib.parse import urlsplit

from sapwood.agent import Agent
from sapwood.errors import UsageError
from sapwood.runs.contract import Progress
from sapwood.runs.elsewhere import RemoteRuns
from sapwood.runs.http_transport import HttpTransport
from sapwood.runs.question import Approvers
from sapwood.runs.transport import (
    Chunk,
    End,
    Heartbeat,
    Milestone,
    OpenQuestions,
    Position,
    QuestionTransport,
    RemoteAnswer,
    RemoteEvent,
    RemoteQuestion,
    RemoteStatus,
    RunTransport,
)

__all__ = [
    "Chunk",
    "End",
    "Heartbeat",
    "HttpTransport",
    "Milestone",
    "OpenQuestions",
    "Position",
    "Progress",
    "QuestionTransport",
    "RemoteAnswer",
    "RemoteEvent",
    "RemoteQuestion",
    "RemoteStatus",
    "RemoteSubAgent",
    "RunTransport",
]


class RemoteSubAgent(Agent[None], hooks=frozenset({"token", "transport"}), settings=frozenset({"url", "approvers"})):
    """An agent of another server: subclass it, and give it its `url`.

    `run_agent`, `agent_tool` and all that is built on them use it like any other agent. What
    happens there is stored here too, so it is watched, replayed and cancelled as usual. That
    server has to allow it: by `expose_runs` of the agent's class, and by its `authenticate`.
    """

    url: ClassVar[str] = ""
    """Where agents of this class are: `https://host/agents/researcher`. Every run gets one of its own there.

    With a `transport` of its own, any text that names the remote agent. It is stored with every run.
    """

    approvers: ClassVar[Approvers | None] = None
    """Who may answer the questions of its runs here: `ANY_CLIENT`, one role or several, or a function of user and
    question. The other server decides too. `None` means no user, unless the class has `may_answer`, or the app
    does not authenticate clients."""

    _runs_as = RemoteRuns

    def token(self) -> str | Awaitable[str | None] | None:
        """Return what the other server knows this program by, sent with every request. Override it, plain or async.

        Take it from `self.deps`: it is stored nowhere. It is also called after the agent was deleted, to stop
        what the other server does for it: then there is no state, and no `sql`.
        """
        return None

    def transport(self) -> RunTransport:
        """Return what carries the runs of this agent. Override it for agents that no sapwood server has.

        It is called when a run starts, when it continues after a crash, and to cancel it, also after the agent
        was deleted. So make it from the class and from `self.deps`: it is stored nowhere.
        """
        return HttpTransport(self.url, self.token)

    @classmethod
    def _approvers_of(cls, tool: str) -> Approvers | None:
        return cls.approvers

    @classmethod
    def _remote_url(cls) -> str | None:
        if cls.transport is not RemoteSubAgent.transport:
            if not cls.url:
                raise UsageError(f"{cls.__name__}.url must name the remote agent, got ''.")
            return cls.url
        parts = urlsplit(cls.url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
            raise UsageError(
                f"{cls.__name__}.url is {cls.url!r}. Write where the agents are, such as "
                "'https://research.example/agents/researcher'."
            )
        return cls.url


def remote_class(
    url: str,
    type: str,
    token: str | Callable[[Any], str | Awaitable[str | None] | None] | None,
    transport: Callable[[Any], RunTransport] | None = None,
    approvers: Approvers | None = None,
) -> type[RemoteSubAgent]:
    """Return a class of agents of another server that nobody has written down as one."""

    def own(self: RemoteSubAgent) -> str | Awaitable[str | None] | None:
        return token(self.deps) if callable(token) else token

    def carrier(self: RemoteSubAgent) -> RunTransport:
        assert transport is not None
        return transport(self.deps)

    members: dict[str, Any] = {"url": url, "token": own, "approvers": approvers, "__module__": __name__}
    if transport is not None:
        members["transport"] = carrier
    return types.new_class(type, (RemoteSubAgent,), exec_body=lambda body: body.update(members))
