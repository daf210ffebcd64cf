"""The messages between the node that holds a client's connection and the node that runs its agent."""

from __future__ import annotations

from typing import Any

import msgspec

from sapwood.kernel.marshal.messages import Steps
from sapwood.kernel.marshal.values import Value

CARRY = "carry"
FIGURES = "figures"


class RelayedConnection(msgspec.Struct, array_like=True):
    """A request or a socket, as it is told to the node that runs its root."""

    type: str
    name: str
    rest: str
    scope: dict[str, Any]
    user: Value | None
    """Who it is, as far as `authenticate` or the app around this one was asked."""
    may_move: bool = False
    """Whether another node may run the root while the socket is open."""
    kept: OpenSocket | None = None
    """What is known of a socket that was open already when its root came here."""
    is_authenticated: bool = False
    """Whether `authenticate` has found the user."""


class OpenSocket(msgspec.Struct, array_like=True):
    """An open socket, as one node describes it to another that continues with it."""

    id: str
    steps: Steps
    module: str
    qualname: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    user: Value | None
    tags: list[str]
    note: bytes
    is_readonly: bool
    is_protocol: bool
    sent: int
    taken: int
    """How many of the client's messages its agent got."""
    epoch: int
    """The number of the ownership under which its agent was run; 0 if they are not counted."""
    is_watch_only: bool = False
    shown: dict[str, list[str]] = {}
    runs: list[str] = []


NEAR = "sapwood.near"
"""In the scope of a socket that is held by the node that serves it."""
HERE = "sapwood.here"
"""The root is run here, and the socket is served."""
TAKEN = "sapwood.taken"
"""So many of the client's messages got to the agent."""
MOVED = "sapwood.moved"
"""The root runs on another node now; the data that this node needs to take over the socket."""

read_carried = msgspec.msgpack.Decoder(RelayedConnection).decode
read_message = msgspec.msgpack.Decoder(dict[str, Any]).decode
