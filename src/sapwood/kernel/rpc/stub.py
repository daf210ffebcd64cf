"""What callers hold instead of an agent: its public methods, each a call to wherever it lives."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.idempotency import keyed
from sapwood.kernel.marshal.agent_class import AgentClass, Method
from sapwood.kernel.marshal.call import Call, current, in_time
from sapwood.kernel.ports.placement import Forwarded, NotBegun
from sapwood.kernel.rpc.callbacks import lend
from sapwood.kernel.rpc.circuits import Circuits
from sapwood.kernel.rpc.streams import Channel, Stream
from sapwood.randomness import Random


class Finder(Protocol):
    """Finds agents by their address."""

    loop: asyncio.AbstractEventLoop
    circuits: Circuits
    random: Random

    async def reach(self, address: Address, kind: AgentClass, caller: Call | None) -> Actor: ...

    @property
    def far(self) -> Elsewhere | None:
        """The way to the nodes that run other trees, or `None` if there are none."""
        ...


class Elsewhere(Protocol):
    """The way to agents of other processes."""

    async def call_moved(
        self,
        route: LocalRoute,
        target: Address,
        call: Call,
        method: Method,
        arguments: list[Any],
        named: dict[str, Any],
    ) -> Any:
        """Make a call to an agent whose tree was moved to another process."""
        ...


class Route(Protocol):
    """How the calls of a stub get to its agent."""

    address: Address
    kind: AgentClass

    @property
    def circuits(self) -> Circuits:
        """The circuit breakers of the process it begins in."""
        ...

    @property
    def random(self) -> Random:
        """The random numbers of that process."""
        ...

    def call(self, method: Method, key: str | None, /, *args: Any, **kwargs: Any) -> Any: ...

    def stream(self, method: Method, /, *args: Any, **kwargs: Any) -> Any: ...


class Stub:
    """The public methods of one agent, each awaited.

    A stub is an address, not a connection: it stays valid while the agent sleeps, moves
    or restarts. After an abort it raises `Aborted`, after a deletion `NotFound`.
    """

    _line: Route

    def __init__(self, line: Route) -> None:
        self.__dict__["_line"] = line

    def __getattr__(self, name: str) -> Any:
        if name == "_line":  # a stub without one is being made by other code, such as pickle
            raise AttributeError(name)
        found = StubNamespace(self._line, name) if name in self._line.kind.namespaces else _call(self._line, name)
        self.__dict__[name] = found
        return found

    def __dir__(self) -> list[str]:
        kind = self._line.kind
        return sorted([*(name for name in kind.methods if "." not in name), *kind.namespaces])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("Attributes of a stub cannot be set. Call a method of the agent instead.")

    def __repr__(self) -> str:
        return f"<stub {self._line.address}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stub) and other._line.address == self._line.address

    def __hash__(self) -> int:
        return hash(self._line.address)

    def __copy__(self) -> Stub:
        return self

    def __deepcopy__(self, memo: object) -> Stub:
        return self

    def __reduce__(self) -> str:
        raise TypeError(
            "A stub cannot be copied to another process. Pass the agent's class and name, and get the stub there."
        )


class StubNamespace:
    """The methods of one namespace of an agent, each awaited."""

    _line: Route
    _name: str

    def __init__(self, line: Route, name: str) -> None:
        self.__dict__.update(_line=line, _name=name)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__") or name in ("_line", "_name"):
            raise AttributeError(name)
        found = self.__dict__[name] = _call(self._line, f"{self._name}.{name}")
        return found

    def __dir__(self) -> list[str]:
        return sorted(name.partition(".")[2] for name in self._line.kind.namespaces[self._name])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("A stub has no attributes to set; call a method of the agent instead.")

    def __copy__(self) -> StubNamespace:
        return self

    def __deepcopy__(self, memo: object) -> StubNamespace:
        return self

    def __reduce__(self) -> str:
        raise TypeError("A stub stays where it is; pass on the agent's class and name, and get it there.")

    def __repr__(self) -> str:
        return f"<{self._name} of stub {self._line.address}>"


def _call(line: Route, name: str) -> Callable[..., Any]:
    """Return what calls a method of an agent."""
    method = line.kind.method(name)
    # Not a function around it: what a call costs is counted in tenths of a microsecond.
    invoke: Any = partial(line.stream, method) if method.streams else partial(line.call, method, None)
    invoke.__name__ = name
    invoke.__doc__ = method.function.__doc__
    return invoke


class LocalRoute:
    """The way from a stub to its agent."""

    __slots__ = ("_actor", "_finder", "_limit", "address", "kind")

    def __init__(self, finder: Finder, actor: Actor) -> None:
        self.address = actor.address
        self.kind = actor.kind
        self._finder = finder
        self._actor = actor
        self._limit = actor.limits.payload_bytes

    @property
    def actor(self) -> Actor:
        """The incarnation that was called last."""
        return self._actor

    @property
    def circuits(self) -> Circuits:
        return self._finder.circuits

    @property
    def random(self) -> Random:
        return self._finder.random

    @property
    def limit(self) -> int:
        """How many bytes an argument or result may have."""
        return self._limit

    def call(self, method: Method, key: str | None, /, *args: Any, **kwargs: Any) -> Any:
        # Copied now, not when it is awaited: what the caller changes in between must not show.
        call = Call(self._actor, method.name, current.get())
        call.key = key
        arguments, named = method.signature.copy_arguments(args, kwargs, call, self._limit, lend)
        work = self.perform(call, method, arguments, named)
        work.__qualname__ = method.full_name  # what Python says when it was never awaited
        return work

    async def perform(self, call: Call, method: Method, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Have the agent do what it is asked, with arguments that are copied already."""
        call.tighten()
        caller, actor = call.caller, self._actor
        if not actor.ready or (caller is not None and caller.actor is not actor.parent):
            try:
                actor = await self._reach(call)
            except Forwarded as moved:
                target, far = moved.follow(self.address), self._finder.far
                if target is None or far is None:
                    raise
                return await far.call_moved(self, target, call, method, arguments, named)
        call.actor = actor  # it may have been woken again since the call was made
        function, awaits = method.function, method.is_async
        if call.key is None:
            arguments.insert(0, actor.agent)
        else:
            function, arguments = keyed(actor, call, method, arguments, named)
            named, awaits = {}, True
        try:
            return await actor.serve(call, function, arguments, named, awaits, method.signature.result)
        except NotBegun as error:
            begun = Unavailable(str(error))  # of something that it asked for: it itself has begun
            begun.path = error.path or self.address.segments
            raise begun from None
        except Unavailable as error:
            error.path = error.path or self.address.segments
            raise
        except CancelledError:
            # If the caller is no agent, or one above it, the call is cancelled too. Otherwise it continues, and its
            # result is dropped.
            if caller is None or actor.address.is_below(caller.actor.address):
                task = actor.cancel(call)
                if task is not None:
                    await asyncio.wait({task})
            raise
        finally:
            call.ended = True

    async def _reach(self, call: Call) -> Actor:
        caller = call.caller
        if caller is not None:
            caller.actor.check_live()
        await self._wake(call)
        if caller is not None and isinstance(caller.actor, Actor) and caller.actor.home is not self._actor.home:
            # A call that leaves the tree is seen by others, and passes the gate.
            await caller.actor.leave()
            await self._wake(call)  # it may have gone to sleep since
        return self._actor

    async def _wake(self, call: Call) -> None:
        if self._actor.ready:
            return
        try:
            async with in_time(call.deadline, self.address):
                self._actor = await self._finder.reach(self.address, self.kind, call.caller)
        except Unavailable as error:
            error.path = error.path or self.address.segments
            raise

    def stream(self, method: Method, /, *args: Any, **kwargs: Any) -> Any:
        call = Call(self._actor, method.name, current.get())
        arguments, named = method.signature.copy_arguments(args, kwargs, call, self._limit, lend)

        async def begin(channel: Channel) -> None:
            await self.pour(channel, call, method, arguments, named)

        return Stream(Channel(self._finder.loop), begin)

    async def pour(
        self, channel: Channel, call: Call, method: Method, arguments: list[Any], named: dict[str, Any]
    ) -> None:
        """Have the agent fill a channel, with arguments that are copied already."""
        limit, signature = self._limit, method.signature
        call.tighten()
        call.actor = actor = await self._reach(call)
        channel.end.add_done_callback(lambda _: setattr(call, "ended", True))
        channel.start(
            actor,
            call,
            method.function(actor.agent, *arguments, **named),
            lambda item: signature.result.copy(item, limit),
        )
