"""Stubs of agents whose tree may be run by another node from one call to the next.

Each call is decided separately: the tree is here, or it is somewhere else. A node that is asked and
does not run it says so before anything has begun; then the directory is asked again. A call
that may have begun is never made twice.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future, Task
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import AgentClass, Method
from sapwood.kernel.marshal.call import Call, current, deadline_of
from sapwood.kernel.marshal.copier import Copier
from sapwood.kernel.ports.placement import Moved, NotBegun
from sapwood.kernel.rpc.callbacks import ExportedCallback, lend
from sapwood.kernel.rpc.circuits import Circuits
from sapwood.kernel.rpc.remote import Peers, RemoteRoute
from sapwood.kernel.rpc.streams import Channel, Readable, Stream
from sapwood.kernel.rpc.stub import Finder, LocalRoute, Stub
from sapwood.randomness import Random


class Here(Finder, Protocol):
    """The node that a stub is held at."""

    async def stub_here(self, path: Sequence[tuple[AgentClass, str]], caller: Call | None) -> Stub: ...

    def awake(self, address: Address) -> Actor | None: ...


async def find(here: Here, far: Peers, path: Sequence[tuple[AgentClass, str]], caller: Call | None) -> Stub:
    """Return a stub of the agent at the end of this path, started wherever it is; below the root it has to exist."""
    (root, name), *below = path
    address = Address.root_of(root.type, name)
    for kind, child in below:
        address = address.child(kind.type, child)

    async def look() -> Stub:
        if far.directory.is_here(address.root):
            return await here.stub_here(path, caller)
        await far.reach(path, address, caller)
        away = far.line(path, address)
        return Stub(ReroutingRoute(here, far, address, path[-1][0], away.limit))

    return await far.follow(address.root, look, deadline_of(caller))


class ReroutingRoute:
    """The line from a stub to an agent that may be here or elsewhere."""

    __slots__ = ("_away", "_far", "_finder", "_is_here", "_limit", "_near", "_root", "address", "kind")

    def __init__(
        self, finder: Here, far: Peers, address: Address, kind: AgentClass, limit: int, near: LocalRoute | None = None
    ) -> None:
        self.address = address
        self.kind = kind
        self._finder = finder
        self._far = far
        self._root = address.root
        self._is_here = far.directory.is_here
        self._limit = limit
        self._near = near
        """The way to it while it is here, or `None` if it was not, or not since anybody called it."""
        self._away: RemoteRoute | None = None

    def _stays(self, caller: Call | None) -> bool:
        """Return whether a call is made here."""
        # While a tree is being closed here, its own agents continue with what they do.
        return self._is_here(self._root) or (
            caller is not None and isinstance(caller.actor, Actor) and caller.actor.address.root == self._root
        )

    def _far_line(self) -> RemoteRoute:
        if self._away is None:
            self._away = RemoteRoute(self._far, self.address, self.kind, self._limit)
        return self._away

    @property
    def circuits(self) -> Circuits:
        return self._far.circuits

    @property
    def random(self) -> Random:
        return self._far.random

    def call(self, method: Method, key: str | None, /, *args: Any, **kwargs: Any) -> Any:
        caller = current.get()
        # An agent that cannot be woken here is called as if on another node: once, then its place is known.
        near = self._near_line(caller)
        if near is not None:
            call = Call(near.actor, method.name, caller)
            call.key = key
            arguments, named = method.signature.copy_arguments(args, kwargs, call, self._limit, lend)
            work = self._call_here(near, call, method, arguments, named)
        else:
            line = self._far_line()
            call = Call(line.someone, method.name, caller)
            call.key = key
            arguments, named = method.signature.copy_arguments(
                args, kwargs, call, self._limit, ExportedCallback, Copier.parcel
            )
            work = self._call_away(line, call, method, arguments, named)
        work.__qualname__ = method.full_name  # what Python says when it was never awaited
        return work

    async def _call_here(
        self, near: LocalRoute, call: Call, method: Method, arguments: list[Any], named: dict[str, Any]
    ) -> Any:
        if self._stays(call.caller):
            try:
                return await near.perform(call, method, arguments, named)
            except Moved:
                pass
        # It went away since the call was made; what was copied for it is packed.
        line = self._far_line()
        arguments, named = self._packed(call, method, arguments, named)
        return await self._call_away(line, call, method, arguments, named)

    async def _call_away(
        self, line: RemoteRoute, call: Call, method: Method, arguments: list[Any], named: dict[str, Any]
    ) -> Any:
        async def ask() -> Any:
            call.ended = False
            return await line.perform(call, method, arguments, named)

        call.tighten()
        return await self._far.follow(self._root, ask, call.deadline)

    def _near_line(self, caller: Call | None) -> LocalRoute | None:
        """Return the way to the agent if a call of this caller is made here, and it was awake here once."""
        if not self._stays(caller):
            return None
        if self._near is None and (actor := self._finder.awake(self.address)) is not None:
            self._near = LocalRoute(self._finder, actor)
        return self._near

    def _packed(
        self, call: Call, method: Method, arguments: list[Any], named: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        return method.signature.copy_arguments(
            tuple(arguments), named, call, self._limit, ExportedCallback, Copier.parcel
        )

    def stream(self, method: Method, /, *args: Any, **kwargs: Any) -> Any:
        caller = current.get()
        line = self._far_line()
        near = self._near_line(caller)
        if near is not None:
            call = Call(near.actor, method.name, caller)
            arguments, named = method.signature.copy_arguments(args, kwargs, call, self._limit, lend)
        else:
            call = Call(line.someone, method.name, caller)
            arguments, named = method.signature.copy_arguments(
                args, kwargs, call, self._limit, ExportedCallback, Copier.parcel
            )

        async def open_() -> Readable:
            nonlocal near, arguments, named
            call.ended = False
            if near is not None:
                if self._stays(call.caller):
                    channel = Channel(self._far.loop)
                    try:
                        await near.pour(channel, call, method, arguments, named)
                    except Moved:
                        pass
                    else:
                        return channel
                near = None
                arguments, named = self._packed(call, method, arguments, named)
            opened = line.channel(method)
            await line.pour(opened, call, method, arguments, named)
            return opened

        async def begin(channel: MovingChannel) -> None:
            call.tighten()
            channel.begin(open_, call.deadline)

        return Stream(MovingChannel(self._far, self._root), begin)


class MovingChannel:
    """The reading side of a generator wherever it runs; until its first item came, it may start again elsewhere."""

    def __init__(self, far: Peers, root: Address) -> None:
        self.loop: AbstractEventLoop = far.loop
        self.end: Future[object] = far.loop.create_future()
        self.closed = False
        self.is_being_read = False
        self._far = far
        self._root = root
        self._open: Callable[[], Coroutine[Any, Any, Readable]] | None = None
        self._deadline: float | None = None
        self._source: Readable | None = None

    def begin(self, open_: Callable[[], Coroutine[Any, Any, Readable]], deadline: float | None) -> None:
        self._open, self._deadline = open_, deadline

    async def next(self) -> Any:
        self.is_being_read = True
        try:
            if self._open is not None:
                return await self._far.follow(self._root, self._first, self._deadline)
            assert self._source is not None
            return await self._source.next()
        except BaseException:
            self._ended()
            raise
        finally:
            self.is_being_read = False

    async def _first(self) -> Any:
        assert self._open is not None
        self._source = await self._open()
        try:
            item = await self._source.next()
        except NotBegun as error:
            if isinstance(self._source, Channel):
                self._open = None  # it runs here: of something that it asked for
                raise Unavailable(str(error)) from None
            self._source = None
            raise
        except BaseException:
            self._open = None
            raise
        self._open = None
        return item

    def _ended(self) -> None:
        if not self.end.done():
            self.end.set_result(None)

    def close(self) -> Task[None] | None:
        """Stop the generator; return what is done when it has unwound."""
        self.closed = True
        self._open = None
        stopping = None if self._source is None else self._source.close()
        self._ended()
        return stopping
