"""What comes of a request to an MCP server, as values that can be stored."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from sapwood.errors import Refused, Unavailable


class Result(msgspec.Struct, frozen=True, tag="result"):
    """The server has answered."""

    body: dict[str, Any]


class RemoteTask(msgspec.Struct, frozen=True, tag="task"):
    """The call has become a task at the server."""

    id: str
    interval: float
    """Seconds between two looks at it."""


class InputRequired(msgspec.Struct, frozen=True, tag="input"):
    """The server wants to know something before it continues. Without `requests`, it only wants to be asked again."""

    requests: dict[str, dict[str, Any]]
    state: str | None
    round: int = 0
    """How often it has asked before."""


Outcome: TypeAlias = Result | RemoteTask | InputRequired


class RpcFailed(Refused):
    """The server answered with an error of JSON-RPC."""

    def __init__(self, number: int, text: str, data: Any = None) -> None:
        super().__init__(text)
        self.number = number
        self.data = data


class NotSent(Unavailable):
    """The server could not be reached: it has not received the request."""


class SignInNeeded(Refused):
    """A user has to sign in first: the server has refused the request without executing it."""


class Unauthorized(Exception):
    """The server wants another token."""

    def __init__(self, status: int, challenge: str) -> None:
        super().__init__(f"The server answered {status}.")
        self.status = status
        self.challenge = challenge
        """The header `WWW-Authenticate`."""
