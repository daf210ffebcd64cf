"""Ways to break what workers promise on purpose, so that the tests can show that they would notice."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from weakref import WeakSet

from tests.faults import time_mutants

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.alarms.node_index import NodeAlarms
from sapwood.kernel.marshal.call import Call
from sapwood.kernel.marshal.copier import Copier
from sapwood.kernel.marshal.messages import CallRequest
from sapwood.kernel.node.rpc_server import CalledMethod, ResultPacker, RpcServer
from sapwood.kernel.ports.transport import Exchange
from sapwood.kernel.rpc.remote import RemoteRoute
from sapwood.runtimes.workers.line import SupervisorLine
from sapwood.runtimes.workers.link import Link, LinkExchange
from sapwood.runtimes.workers.placement import WorkerPart


def replied_first() -> None:
    """A reply to another worker leaves before what it tells of is committed."""

    class Eager(ResultPacker):
        def __init__(self, exchange: Exchange, copier: Copier) -> None:
            def copy(value: Any, limit: int) -> bytes:
                packed = copier.packed(value, limit)
                exchange.end(packed)
                time.sleep(0.05)
                return packed

            self.copy = copy

    serve = RpcServer._serve

    def serve_eagerly(
        self: RpcServer,
        actor: Actor,
        called: CalledMethod,
        asked: CallRequest,
        caller: Call | None,
        until: float | None,
        exchange: Exchange,
    ) -> None:
        called.result = Eager(exchange, actor.kind.method(called.method).signature.result)
        try:
            serve(self, actor, called, asked, caller, until, exchange)
        finally:
            called.result = None

    RpcServer._serve = serve_eagerly


def asked_again() -> None:
    """A call that was under way when its worker died is sent to the next one."""
    call = RemoteRoute.perform

    async def call_again(self: RemoteRoute, *args: Any) -> Any:
        try:
            return await call(self, *args)
        except Unavailable:
            return await call(self, *args)

    RemoteRoute.perform = call_again  # pyright: ignore[reportAttributeAccessIssue]


def alarms_left() -> None:
    """Whoever starts with another number of workers does not look at the alarms of those before."""
    take_over = NodeAlarms.take_over

    def take_nothing(self: NodeAlarms, rows: Iterable[tuple[str, float | None, int]], *, is_whole: bool) -> None:
        take_over(self, [], is_whole=True)

    NodeAlarms.take_over = take_nothing


def two_owners() -> None:
    """Every worker takes every tree for its own."""

    def is_here(self: WorkerPart, root: Address) -> bool:
        return True

    WorkerPart.is_here = is_here


def frames_lost() -> None:
    """What the other side has no room for is thrown away."""
    send = LinkExchange.send

    def send_if_room(self: LinkExchange, message: bytes) -> Awaitable[None] | None:
        if self._credit > 0:
            send(self, message)
        return None

    LinkExchange.send = send_if_room


def all_for_one() -> None:
    """Whoever loses one of the others talks with none of them any more."""
    links: WeakSet[Link] = WeakSet()
    made, lost = Link.connection_made, Link.connection_lost

    def connection_made(self: Link, transport: Any) -> None:
        links.add(self)
        made(self, transport)

    def connection_lost(self: Link, exc: Exception | None) -> None:
        lost(self, exc)
        for other in list(links):
            if not other.is_lost:
                other.cut()

    Link.connection_made, Link.connection_lost = connection_made, connection_lost


def drained_alone() -> None:
    """A worker that is to stop does not wait for those whose clients still ask it."""

    async def drained(self: SupervisorLine, seconds: float) -> None:
        pass

    SupervisorLine.drained = drained


MUTANTS: dict[str, Callable[[], None]] = {
    "replied-first": replied_first,
    "asked-again": asked_again,
    "alarms-left": alarms_left,
    "two-owners": two_owners,
    "frames-lost": frames_lost,
    "all-for-one": all_for_one,
    "drained-alone": drained_alone,
    "early": time_mutants.too_early,
    "steps-again": time_mutants.no_steps,
}


def apply(name: str | None) -> None:
    if name:
        MUTANTS[name]()
