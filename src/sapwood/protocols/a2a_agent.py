"""Agents of A2A servers, used like local sub-agents."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from inspect import isawaitable
from typing import cast
from urllib.parse import urlsplit

from sapwood.errors import UsageError
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.protocols.a2a_connection import A2aConnection, AgentCards
from sapwood.protocols.a2a_transport import A2aTransport
from sapwood.remote import RemoteHooks, RemoteSubAgent
from sapwood.runs.remote.transport import RunTransport


class A2aHooks(RemoteHooks):
    """The hooks of an agent whose runs are tasks of an A2A server."""

    @staticmethod
    def remote_url(kind: AgentClass) -> str | None:
        url, name = cast("type[A2aAgent]", kind.cls).url, kind.cls.__name__
        try:
            parts = urlsplit(url)
            is_valid = (
                parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
            )
        except ValueError:
            is_valid = False
        if not is_valid:
            raise UsageError(
                f"{name}.url must be the URL of an A2A agent, such as 'https://bureau.example/a2a/travel-bureau', "
                f"got {url!r}."
            )
        return url


class A2aAgent(
    RemoteSubAgent,
    hooks=frozenset({"token", "transport", "headers"}),
    settings=frozenset({"url", "approvers", "allow_private", "resends"}),
):
    """An agent of another system, by the protocol A2A 1.0. Subclass it and set its `url`.

    Use it with `run_agent`, `agent_tool` and everything built on them, like any other agent. A run is a task there. Its
    card is at `{url}/.well-known/agent-card.json`.
    """

    allow_private = True
    """Whether the host of `url` may be one of a private network. Set it to `False` if `url` is not written in code."""

    resends = False
    """Whether a message is sent again if its answer was lost and the server does not list its task. Set it to `True` if
    the server joins repeated messages by their `messageId`, as sapwood's does, or if a task may be done twice."""

    _hooks_class = A2aHooks

    def headers(self) -> Mapping[str, str] | Awaitable[Mapping[str, str]]:
        """Return headers for every request, such as an API key. Override it, plain or async.

        Read them from `self.deps`: they are not stored. They are sent only to the server of `url`. For a bearer token,
        override `token`.
        """
        return {}

    def transport(self) -> RunTransport:
        """Return the transport of this agent's runs."""
        host = self._actor.host
        cards, delay = host.shared(AgentCards), host.timings.remote_look_delay
        connection = A2aConnection(self.url, self._all_headers, cards, allow_private=self.allow_private)
        return A2aTransport(connection, resends=self.resends, delay=delay)

    async def _all_headers(self) -> Mapping[str, str]:
        given, token = self.headers(), self.token()
        headers = dict(await given if isawaitable(given) else given)
        bearer = await token if isawaitable(token) else token
        return headers if bearer is None else {"authorization": f"Bearer {bearer}", **headers}
