"""Ways to break what workers promise on purpose, so that the tests can show that they would notice."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from weakref import WeakSet

from tests.faults import time_mutants

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.actor import Actor
from sapwood.kernel.alarms import Alarms
from sapwood.kernel.answering import Answering, Called, Packing
from sapwood.kernel.context import Call
from sapwood.kernel.copying import Copier
from sapwood.kernel.far import FarLine
from sapwood.kernel.parcels import Asked
from sapwood.kernel.ports import Exchange
from sapwood.runtimes.workers.line import Line
from sapwood.runtimes.workers.link import Link, Talk
from sapwood.runtimes.workers.placement import Part


def replied_first() -> None:
    """A reply to another worker leaves before what it tells of is committed."""

    class Eager(Packing):
        def __init__(self, exchange: Exchange, copier: Copier) -> None:
            def copy(value: Any, limit: int) -> bytes:
                packed = copier.packed(value, limit)
                exchange.end(packed)
                time.sleep(0.05)
                return packed

            self.copy = copy

    serve = Answering._serve

    def serve_eagerly(
        self: Answering,
        actor: Actor,
        called: Called,
        asked: Asked,
        caller: Call | None,
        until: float | None,
        exchange: Exchange,
    ) -> None:
        called.result = Eager(exchange, actor.kind.method(called.method).signature.result)
        try:
            serve(self, actor, called, asked, caller, until, exchange)
        finally:
            called.result = None

    Answering._serve = serve_eagerly


def asked_again() -> None:
    """A call that was under way when its worker died is sent to the next one."""
    call = FarLine.perform

    async def call_again(self: FarLine, *args: Any) -> Any:
        try:
            return await call(self, *args)
        except Unavailable:
            return await call(self, *args)

    FarLine.perform = call_again  # pyright: ignore[reportAttributeAccessIssue]


def alarms_left() -> None:
    """Whoever starts with another number of workers does not look at the alarms of those before."""
    take_over = Alarms.take_over

    def take_nothing(self: Alarms, rows: Iterable[tuple[str, float | None, int]], *, is_whole: bool) -> None:
        take_over(self, [], is_whole=True)

    Alarms.take_over = take_nothing


def two_owners() -> None:
    """Every worker takes every tree for its own."""

    def is_here(self: Part, root: Address) -> bool:
        return True

    Part.is_here = is_here


def frames_lost() -> None:
    """What the other side has no room for is thrown away."""
    send = Talk.send

    def send_if_room(self: Talk, message: bytes) -> Awaitable[None] | None:
        if self._credit > 0:
            send(self, message)
        return None

    Talk.send = send_if_room


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

    async def drained(self: Line, seconds: float) -> None:
        pass

    Line.drained = drained


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
