"""Agents that another node runs: their stubs, and the callbacks that go there with a call.

A call leaves as one message and its result comes back as one; a stream is read as it is filled. Callers notice it only
by the time it takes, and by `Unavailable` if the other node exits before it answers.
"""

from __future__ import annotations

import asyncio
import itertools
from asyncio import AbstractEventLoop, CancelledError, Future, Task
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

import msgspec

from sapwood.address import Address
from sapwood.errors import NoSuchMethod, TimedOut, Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import AgentClass, Method
from sapwood.kernel.marshal.call import Call, current, deadline_of, in_time, until
from sapwood.kernel.marshal.copier import Copier
from sapwood.kernel.marshal.messages import (
    CallbackRef,
    CallbackRequest,
    CallRequest,
    DisconnectUser,
    RemoteIncarnation,
    Steps,
    Target,
    WakeRequest,
    cause_of,
    kind_named,
)
from sapwood.kernel.marshal.signatures import is_callback
from sapwood.kernel.marshal.values import ANYTHING, UNLIMITED, Value, pack, value_from, value_of
from sapwood.kernel.ports.placement import Directory, Forwarded, NotBegun
from sapwood.kernel.ports.shards import shard_of
from sapwood.kernel.ports.transport import Exchange, Transport
from sapwood.kernel.rpc.callbacks import CallbackFunction, CallbackObject, ExportedCallback, refuse
from sapwood.kernel.rpc.circuits import Circuits
from sapwood.kernel.rpc.streams import BUFFER, Stream
from sapwood.kernel.rpc.stub import LocalRoute, Stub
from sapwood.randomness import SYSTEM, Random
from sapwood.settings import Limits

CALL = "call"
STREAM = "stream"
REACH = "reach"
CALL_BACK = "call back"
SHOW_OUT = "show out"
AWAITED = "awaited"
THERE = "there"
PATIENCE = 3.0
"""Seconds that a node is given to say that it is there."""
GRACE = 1.0
"""Seconds after a deadline that the other node, which keeps it, is given to say so."""
FIRST_ID = 60
"""Bits of the number that the first callback is lent by: no two processes lend two by the same."""
NOTHING = msgspec.Raw(b"\xc0")
HOPE = 30.0
"""Seconds that a tree without a node is looked for."""
FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.25

T = TypeVar("T")

_read_value = msgspec.msgpack.Decoder(Value).decode


class Peers:
    """The way to agents of other nodes."""

    def __init__(
        self,
        directory: Directory,
        transport: Transport,
        loop: AbstractEventLoop,
        limits: Limits,
        random: Random = SYSTEM,
    ) -> None:
        self.directory = directory
        self.transport = transport
        self.loop = loop
        self.lent: dict[int, CallbackFunction | CallbackObject] = {}
        """The callbacks that agents of other nodes may call now."""
        self.circuits = Circuits()
        """The circuit breakers of this process."""
        self._limits = limits
        self.random = random
        # A call that another node continues may outlive this process, and call back into its successor.
        self._ids = itertools.count(random.getrandbits(FIRST_ID))

    def moves(self, root: Address) -> bool:
        """Return whether another node may run the tree at any time."""
        return self.directory.fixed_owner(root) is None

    async def stub(self, path: Sequence[tuple[AgentClass, str]], address: Address, caller: Call | None) -> Stub:
        """Return a stub of the agent at the end of this path, started; below the root it has to exist."""
        await self.reach(path, address, caller)
        return Stub(self.line(path, address))

    def line(self, path: Sequence[tuple[AgentClass, str]], address: Address) -> RemoteRoute:
        """Return the way to the agent at the end of this path."""
        limits = self._limits
        for kind, _ in path:
            limits = limits if kind.limits is None else kind.limits.within(limits)
        return RemoteRoute(self, address, path[-1][0], limits.payload_bytes)

    async def reach(self, path: Sequence[tuple[AgentClass, str]], address: Address, caller: Call | None) -> None:
        """Return when the agent at the end of this path has started; below the root it has to exist."""
        deadline = deadline_of(caller)
        async with in_time(deadline, address):
            sought = [(kind.type, name, *kind_named(kind)) for kind, name in path]
            exchange = await self.open(REACH, address, pack(WakeRequest(sought, cause_of(caller, deadline))))
            try:
                await exchange.receive()
            except CancelledError:
                exchange.drop()  # or it would be taken for one that still waits
                raise

    async def open(self, verb: str, address: Address, message: bytes, *, items: int = 0) -> Exchange:
        """Begin an exchange with the node that runs an agent."""
        return await self.transport.open(await self.directory.owner(address.root), verb, message, items=items)

    async def show_out(self, user: object, code: int, reason: str) -> int:
        """Close the sockets of a user at all other nodes; return how many there were."""
        message = pack(DisconnectUser(value_of(user), code, reason))
        found = await asyncio.gather(*(self.ask(node, SHOW_OUT, message) for node in await self.others()))
        return sum(map(int, found))

    async def others(self) -> list[str]:
        """Return all nodes but this one."""
        return [node for node in await self.directory.everybody() if node != self.directory.here]

    async def is_there(self, node: str) -> bool:
        """Return whether a node answers now."""
        try:
            async with asyncio.timeout(PATIENCE):
                await (await self.transport.open(node, THERE, b"")).receive()
        except (Unavailable, TimeoutError):
            return False
        return True

    async def ask_owner(self, root: Address, verb: str, message: bytes) -> bytes:
        """Send the node that runs a tree a request of one message, and return the answer."""

        async def ask() -> bytes:
            return await self.ask(await self.directory.owner(root), verb, message)

        return await self.follow(root, ask)

    async def follow(
        self, root: Address, ask: Callable[[], Coroutine[Any, Any, T]], deadline: float | None = None
    ) -> T:
        """Return the answer of the node that runs a tree; retry while the node that was asked did not begin.

        Until the deadline, or as long as it makes sense to hope.
        """
        pause = FIRST_PAUSE
        end: float | None = None
        while True:
            try:
                return await ask()
            except NotBegun as error:
                now = self.loop.time()
                end = end or (now + HOPE if deadline is None else deadline)
                if not self.moves(root) or (deadline is None and now + pause > end):
                    ended = Unavailable(str(error))
                    ended.path = error.path
                    raise ended from None
                if now + pause > end:
                    raise TimedOut(f"No node ran {root} before the deadline.", path=root.segments) from None
            self.heard_wrong(root)
            await self.directory.until_moved(shard_of(root), pause * (0.5 + self.random.random()))  # not all at once
            pause = min(2 * pause, LONGEST_PAUSE)

    def epoch_of(self, root: Address) -> int:
        """Return the number of this node's ownership of a tree; 0 if they are not counted."""
        epoch = self.directory.epoch_of(shard_of(root))
        return 0 if epoch is None else epoch.number

    def heard_wrong(self, root: Address) -> None:
        """Tell the directory that the node it names for a tree does not run it."""
        self.directory.heard_wrong(shard_of(root))

    async def call_moved(
        self,
        route: LocalRoute,
        target: Address,
        call: Call,
        method: Method,
        arguments: list[Any],
        named: dict[str, Any],
    ) -> Any:
        """Make a call, whose arguments are copied, to an agent whose tree was moved from this process to another."""
        packed, given = method.signature.copy_arguments(
            tuple(arguments), named, call, route.limit, ExportedCallback, Copier.parcel
        )
        return await RemoteRoute(self, target, route.kind, route.limit).perform(call, method, packed, given)

    async def ask(self, node: str, verb: str, message: bytes) -> bytes:
        """Ask a node something that takes one message, and return the answer."""
        exchange = await self.transport.open(node, verb, message)
        try:
            answer = await exchange.receive()
        except CancelledError:
            await exchange.stop()
            raise
        assert answer is not None
        return answer

    def give(self, lending: ExportedCallback) -> int:
        """Let a callback be called from elsewhere until it is taken back."""
        id_ = next(self._ids)
        self.lent[id_] = lending.lent
        return id_

    def take_back(self, loans: Sequence[CallbackRef]) -> None:
        for loan in loans:
            self.lent.pop(loan.id, None)


class RemoteRoute:
    """The line from a stub to an agent of another node."""

    __slots__ = ("_far", "_here", "_next", "_node", "_targets", "_transport", "address", "kind", "limit", "someone")

    def __init__(self, far: Peers, address: Address, kind: AgentClass, limit: int) -> None:
        self.address = address
        self.kind = kind
        self._far = far
        self._here = far.directory.here
        self._node = far.directory.fixed_owner(address.root)
        self._transport = far.transport
        self.limit = limit
        self.someone = RemoteIncarnation(address)
        """Whom it is told to, in the chain of calls."""
        self._targets: dict[str, bytes] = {}
        """Each method that was called, as it is told to the other node."""
        self._next: RemoteRoute | None = None
        """The way to the agent since its tree was moved to another address."""

    @property
    def circuits(self) -> Circuits:
        return self._far.circuits

    @property
    def random(self) -> Random:
        return self._far.random

    def call(self, method: Method, key: str | None, /, *args: Any, **kwargs: Any) -> Any:
        # Packed now, not when it is awaited: what the caller changes in between must not show.
        call = Call(self.someone, method.name, current.get())
        call.key = key
        arguments, named = method.signature.copy_arguments(
            args, kwargs, call, self.limit, ExportedCallback, Copier.parcel
        )
        work = self.perform(call, method, arguments, named)
        work.__qualname__ = method.full_name  # what Python says when it was never awaited
        return work

    async def perform(self, call: Call, method: Method, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Have the agent do what it is asked, with arguments that are packed already."""
        if self._next is not None:
            return await self._next.perform(call, method, arguments, named)
        if until.get() is not None:
            call.tighten()
        loans: list[CallbackRef] = []
        try:
            if call.caller is not None:
                await _leave(call.caller)
            message = self._message(call, method, arguments, named, loans)
            exchange = None if self._node is None else self._transport.open_now(self._node, CALL, message)
            if exchange is None:
                exchange = await self._open(CALL, call, message)
            try:
                if call.deadline is None:
                    answer = await exchange.reply()
                else:
                    answer = await self._answer_by(call.deadline + GRACE, exchange, call)
            except CancelledError:
                # A call made by an agent continues, and its result is dropped: no agent here is above it.
                if call.caller is None:
                    await exchange.stop()
                raise
        except Unavailable as error:
            error.path = error.path or self.address.segments
            raise
        except Forwarded as moved:
            if (target := moved.follow(self.address)) is None:
                raise
            call.ended = False
            self._next = RemoteRoute(self._far, target, self.kind, self.limit)
            return await self._next.perform(call, method, arguments, named)
        finally:
            call.ended = True
            if loans:
                self._far.take_back(loans)
        return method.signature.result.unpacked(answer)

    async def _answer_by(self, when: float, exchange: Exchange, call: Call) -> bytes:
        limit = asyncio.timeout_at(when)
        try:
            async with limit:
                return await exchange.reply()
        except TimeoutError:
            if not limit.expired():  # one of the agent's own
                raise
            exchange.drop()
            text = f"{self.address}.{call.method} did not answer before its deadline."
            raise TimedOut(text, path=self.address.segments) from None

    def _message(
        self, call: Call, method: Method, arguments: list[Any], named: dict[str, Any], loans: list[CallbackRef]
    ) -> bytes:
        """Return a call as it is told to the other node; the callbacks that go with it are lent from now on."""
        if named or ExportedCallback in map(type, arguments):
            arguments = [self._lent(place, value, loans) for place, value in enumerate(arguments)]
            named = {name: self._lent(name, value, loans) for name, value in named.items()}
        return pack(
            CallRequest(
                self._targets.get(method.name) or self._target(method),
                arguments,
                named or None,
                loans or None,
                self._here,
                None
                if call.caller is None and call.deadline is None and call.trace is None
                else cause_of(call.caller, call.deadline),
                call.key,
            )
        )

    def _lent(self, place: int | str, value: Any, loans: list[CallbackRef]) -> Any:
        if type(value) is not ExportedCallback:
            return value
        loans.append(CallbackRef(place, self._far.give(value), value.name, value.methods))
        return NOTHING

    async def _open(self, verb: str, call: Call, message: bytes, *, items: int = 0) -> Exchange:
        if call.deadline is None:
            return await self._opened(verb, call, message, items)
        async with in_time(call.deadline, self.address):
            return await self._opened(verb, call, message, items)

    async def _opened(self, verb: str, call: Call, message: bytes, items: int) -> Exchange:
        node = await self._far.directory.owner(self.address.root)
        if call.caller is not None and isinstance(call.caller.actor, Actor):
            await call.caller.actor.until_leased()  # it may have taken long to find out who runs the agent
        return await self._transport.open(node, verb, message, items=items)

    def _target(self, method: Method) -> bytes:
        steps = cast("Steps", list(self.address.segments))
        target = self._targets[method.name] = pack(Target(steps, *kind_named(self.kind), method.name))
        return target

    def stream(self, method: Method, /, *args: Any, **kwargs: Any) -> Any:
        call = Call(self.someone, method.name, current.get())
        arguments, named = method.signature.copy_arguments(
            args, kwargs, call, self.limit, ExportedCallback, Copier.parcel
        )

        async def begin(channel: FarChannel) -> None:
            await self.pour(channel, call, method, arguments, named)

        return Stream(self.channel(method), begin)

    def channel(self, method: Method) -> FarChannel:
        """Return what a stream of this method is read from."""
        return FarChannel(self._far.loop, method.signature.result)

    async def pour(
        self, channel: FarChannel, call: Call, method: Method, arguments: list[Any], named: dict[str, Any]
    ) -> None:
        """Have the agent fill a channel, with arguments that are packed already."""
        if self._next is not None:
            await self._next.pour(channel, call, method, arguments, named)
            return
        call.tighten()
        loans: list[CallbackRef] = []

        def ended(_: object) -> None:
            call.ended = True
            self._far.take_back(loans)

        channel.end.add_done_callback(ended)
        if call.caller is not None:
            await _leave(call.caller)
        message = self._message(call, method, arguments, named, loans)
        channel.exchange = await self._open(STREAM, call, message, items=BUFFER)


async def _leave(caller: Call) -> None:
    """Return when the caller may be seen by others: it passes the gate."""
    if isinstance(caller.actor, Actor):
        caller.actor.check_live()
        await caller.actor.leave()


class FarChannel:
    """The reading side of a generator that another node runs."""

    def __init__(self, loop: AbstractEventLoop, items: Copier) -> None:
        self.loop = loop
        self.end: Future[object] = loop.create_future()
        self.closed = False
        self.is_being_read = False
        self.exchange: Exchange | None = None
        self._items = items

    async def next(self) -> Any:
        assert self.exchange is not None
        self.is_being_read = True
        try:
            item = await self.exchange.receive()
            if item is not None:
                return self._items.unpacked(item)
        except Exception:
            self._ended()
            raise
        finally:
            self.is_being_read = False
        self._ended()
        raise StopAsyncIteration

    def _ended(self) -> None:
        if not self.end.done():
            self.end.set_result(None)

    def close(self) -> Task[None] | None:
        """Stop the generator; return what is done when it has unwound."""
        was_open, self.closed = not self.closed and not self.end.done(), True
        if self.exchange is None or not was_open:
            self._ended()
            return None
        stopping = self.loop.create_task(self.exchange.stop())
        stopping.add_done_callback(lambda _: self._ended())
        return stopping


class FarFunction(CallbackFunction):
    """Calls a function at the node it was passed from; may itself be passed on."""

    __slots__ = ("_far", "_id", "_method", "_node")

    def __init__(self, far: Peers, node: str, loan: CallbackRef, method: str | None = None) -> None:
        self.name = loan.name if method is None else f"{loan.name}.{method}"
        self._far = far
        self._node = node
        self._id = loan.id
        self._method = method

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        caller = current.get()
        for value in (*args, *kwargs.values()):
            if is_callback(value):
                refuse(value, cast(Any, caller), 0)
        message = pack(
            CallbackRequest(
                self._id,
                self.name,
                self._method,
                [_packed(value) for value in args],
                {name: _packed(value) for name, value in kwargs.items()},
                cause_of(caller, deadline_of(caller)),
            )
        )
        if caller is not None and isinstance(caller.actor, Actor):
            await caller.actor.leave()
        try:
            exchange = await self._far.transport.open(self._node, CALL_BACK, message)
            answer = await exchange.receive()
        except NotBegun as error:
            raise Unavailable(str(error)) from None
        assert answer is not None
        return value_from(_read_value(answer))


def _packed(value: object) -> msgspec.Raw:
    return msgspec.Raw(ANYTHING.packed(value, UNLIMITED))


class FarObject(CallbackObject):
    """Calls the public methods of an object at the node it was passed from; may itself be passed on."""

    __slots__ = ("_far", "_loan", "_node")

    def __init__(self, far: Peers, node: str, loan: CallbackRef) -> None:
        self._far = far
        self._node = node
        self._loan = loan

    def __getattr__(self, name: str) -> FarFunction:
        if name not in dir(self):
            raise NoSuchMethod(f"The callback {self._loan.name} has no public method {name!r}.")
        return FarFunction(self._far, self._node, self._loan, name)

    def __dir__(self) -> list[str]:
        return self._loan.methods or []
