"""A call as it travels to another node: what is asked, by whom, until when; and what comes back.

Arguments travel packed, one by one, and are unpacked by the callee's annotations, as they are
where caller and callee share a process. An error keeps its type where the other node
knows it, and its text everywhere.
"""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec

from sapwood import tracing
from sapwood.address import Address, PathSegment
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.marshal.call import Call, Incarnation, id_of
from sapwood.kernel.marshal.values import Value

Steps = list[tuple[str, str]]


class OuterCall(msgspec.Struct, array_like=True):
    """One of the calls that led to this one."""

    steps: Steps
    method: str
    is_start: bool
    stem: str
    """The name of its agent's file."""
    key: str | None = None
    """Its idempotency key."""
    user: str | None = None
    """The id of the user that it is made for."""
    birthplace: Steps | None = None
    """The first address of its agent, if it has another one now."""


class CallerContext(msgspec.Struct, array_like=True):
    """Who asks, and until when."""

    chain: list[OuterCall]
    """Oldest first."""
    seconds: float | None
    """How much time is left."""
    trace: str | None


class CallbackRef(msgspec.Struct, array_like=True):
    """A callback among the arguments."""

    place: int | str
    id: int
    name: str
    methods: list[str] | None
    """What can be called of an object, or `None` if it is a function."""


class Target(msgspec.Struct, array_like=True):
    """The method of an agent that is called."""

    steps: Steps
    module: str
    qualname: str
    """Which class the caller means by the last step."""
    method: str


class CallRequest(msgspec.Struct, array_like=True):
    """A call, or a stream to be begun."""

    target: bytes
    """Packed separately: frequent callees are recognized by it."""
    arguments: list[msgspec.Raw]
    named: dict[str, msgspec.Raw] | None
    loans: list[CallbackRef] | None
    node: str
    """Where the callbacks are."""
    cause: CallerContext | None
    key: str | None = None
    """The idempotency key of the call."""


class WakeRequest(msgspec.Struct, array_like=True):
    """An agent to be woken."""

    path: list[tuple[str, str, str, str]]
    """Type, name, and the module and the name of the class, of each step."""
    cause: CallerContext | None


class CallbackRequest(msgspec.Struct, array_like=True):
    """A callback that is to be called."""

    id: int
    name: str
    method: str | None
    """Which one of an object's."""
    arguments: list[msgspec.Raw]
    named: dict[str, msgspec.Raw]
    cause: CallerContext | None


class DisconnectUser(msgspec.Struct, array_like=True):
    """A user whose sockets are to be closed."""

    user: Value
    code: int
    reason: str


read_target = msgspec.msgpack.Decoder(Target).decode
read_call_request = msgspec.msgpack.Decoder(CallRequest).decode
read_wake_request = msgspec.msgpack.Decoder(WakeRequest).decode
read_callback_request = msgspec.msgpack.Decoder(CallbackRequest).decode
read_disconnect_user = msgspec.msgpack.Decoder(DisconnectUser).decode


class RemoteIncarnation:
    """Stands for an agent of another node in the chain of calls."""

    __slots__ = ("address", "agent", "birthplace", "stem")

    def __init__(self, address: Address, stem: str = "", birthplace: Address | None = None) -> None:
        self.address = address
        self.birthplace = birthplace or address
        self.stem = stem
        self.agent = None

    def check_live(self) -> None:
        """Whether it lives is not known here."""


def cause_of(caller: Call | None, deadline: float | None) -> CallerContext | None:
    """Return what the other node has to know of the caller, or `None` if there is nothing."""
    trace = tracing.text()
    if caller is None and deadline is None and trace is None:
        return None
    chain: list[OuterCall] = []
    one = caller
    while one is not None:
        agent = one.actor
        steps, user = cast("Steps", list(agent.address.segments)), one.user or id_of(getattr(one.client, "user", None))
        first = agent.birthplace
        born = None if first == agent.address else cast("Steps", list(first.segments))
        chain.append(OuterCall(steps, one.method, one.is_start, agent.stem, one.key, user, born))
        one = one.caller
    chain.reverse()
    left = None if deadline is None else max(deadline - asyncio.get_running_loop().time(), 0.0)
    return CallerContext(chain, left, trace)


def address_of(steps: Steps) -> Address:
    return Address(tuple(PathSegment(*step) for step in steps))


def caller_of(cause: CallerContext, live: dict[Address, Incarnation]) -> Call | None:
    """Return the caller, as calls made here know their callers; `live` are those of them that run here."""
    call: Call | None = None
    for above in cause.chain:
        address = address_of(above.steps)
        first = None if above.birthplace is None else address_of(above.birthplace)
        call = Call(live.get(address) or RemoteIncarnation(address, above.stem, first), above.method, call)
        call.is_start = above.is_start
        call.key = above.key
        call.user = above.user
    return call


def kind_named(kind: AgentClass) -> tuple[str, str]:
    return kind.cls.__module__, kind.cls.__qualname__
