"""What other nodes ask of the agents here: it is done as if the caller were here, and answered."""

from __future__ import annotations

import asyncio
import weakref
from asyncio import Future
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec

from sapwood import tracing
from sapwood.address import Address
from sapwood.errors import SapwoodError, Unavailable, UsageError
from sapwood.kernel.actors.actor import CANCELLED_INSIDE, Actor
from sapwood.kernel.actors.idempotency import keyed
from sapwood.kernel.marshal.agent_class import AgentClass, Method, named, resolve
from sapwood.kernel.marshal.call import Call, Incarnation, current, in_time
from sapwood.kernel.marshal.copier import Copier
from sapwood.kernel.marshal.exceptions import crossing
from sapwood.kernel.marshal.messages import (
    CallbackRequest,
    CallerContext,
    CallRequest,
    address_of,
    caller_of,
    read_call_request,
    read_callback_request,
    read_disconnect_user,
    read_target,
    read_wake_request,
)
from sapwood.kernel.marshal.values import ANYTHING, pack, value_from, value_of
from sapwood.kernel.node.backup import ORDERS, read_backup_request
from sapwood.kernel.node.fork import FORK_ORDERS, NodeOrder
from sapwood.kernel.node.move import MOVE_ORDERS
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.past import PAST_ORDERS
from sapwood.kernel.node.server_move import SERVER_MOVE_ORDERS
from sapwood.kernel.node.tree_placement import TAKE, read_take_request, take
from sapwood.kernel.ports.placement import Moved, NotBegun
from sapwood.kernel.ports.transport import Exchange
from sapwood.kernel.rpc.remote import CALL, CALL_BACK, REACH, SHOW_OUT, STREAM, THERE, FarFunction, FarObject, Peers
from sapwood.kernel.rpc.streams import Channel
from sapwood.kernel.trees.tree import Tree

Act = Callable[["Actor", "CalledMethod", "CallRequest", "Call | None", "float | None", "Exchange"], None]


MOST_RECOGNIZED = 20_000
NOTHING: dict[str, msgspec.Raw] = {}


def _nobody() -> None:
    """Stand for a reference to nothing."""


class CalledMethod:
    """A method that other nodes call."""

    __slots__ = ("actor", "address", "method", "module", "moves", "qualname", "result", "root")

    def __init__(self, address: Address, module: str, qualname: str, method: str, far: Peers) -> None:
        self.address = address
        self.root = address.root
        self.moves = far.moves(self.root)
        self.module = module
        self.qualname = qualname
        self.method = method
        self.result: ResultPacker | None = None
        self.actor: Callable[[], Actor | None] = _nobody
        """The incarnation that was called last, if it is in memory."""

    def awake(self, trees: Mapping[Address, Tree]) -> Actor | None:
        """Return the incarnation that calls can be delivered to now, or `None` if there is none."""
        tree = trees.get(self.root)
        actor = tree.actors.get(self.address) if tree is not None and tree.destroyed is None else None
        if actor is None or not actor.ready:
            return None
        self.actor = weakref.ref(actor)
        return actor


class RpcServer:
    """Answers the other nodes for one node."""

    def __init__(self, node: Node, far: Peers) -> None:
        self._node = node
        self._far = far
        self._tasks: set[asyncio.Task[None]] = set()
        self._called: dict[bytes, CalledMethod] = {}
        """What was called lately, by what it was called by."""
        far.transport.answer(THERE, lambda _, exchange: exchange.end(b""))
        far.transport.answer(REACH, self._reach)
        far.transport.answer(CALL, self._call)
        far.transport.answer(STREAM, self._stream)
        far.transport.answer(CALL_BACK, self._call_back)
        far.transport.answer(SHOW_OUT, self._show_out)
        node.circles.answer(far)
        for verb in ORDERS:
            far.transport.answer(verb, partial(self._copy, verb))
        for verb, answer in {**FORK_ORDERS, **PAST_ORDERS, **MOVE_ORDERS, **SERVER_MOVE_ORDERS, TAKE: _taken}.items():
            far.transport.answer(verb, partial(self._order, answer))

    def _reach(self, message: bytes, exchange: Exchange) -> None:
        sought = read_wake_request(message)
        root = Address.root_of(*sought.path[0][:2])
        if not self._far.directory.is_here(root):
            exchange.fail(Moved(root))
            return

        async def work() -> None:
            path = [
                (self._kind(type_, module, qualname, is_root=not at), name)
                for at, (type_, name, module, qualname) in enumerate(sought.path)
            ]
            await self._node.stub(path, self._caller(sought.cause))
            exchange.end(b"")

        self._spawn(exchange, root, work())

    def _kind(self, type_: str, module: str, qualname: str, *, is_root: bool) -> AgentClass:
        if is_root:
            return resolve(type_, self._node.roots)
        return named(module, qualname) or resolve(type_)

    def _call(self, message: bytes, exchange: Exchange) -> None:
        asked = read_call_request(message)
        # A call made by an agent continues, whatever becomes of that agent.
        self._when_awake(asked, exchange, self._serve, stops=asked.cause is None or not asked.cause.chain)

    def _stream(self, message: bytes, exchange: Exchange) -> None:
        self._when_awake(read_call_request(message), exchange, self._pour, stops=True)

    def _when_awake(self, asked: CallRequest, exchange: Exchange, act: Act, *, stops: bool) -> None:
        """Perform the request in the agent; without a separate task if it is awake."""
        called = self._called.get(asked.target) or self._recognize(asked.target)
        if called.moves and not self._far.directory.is_here(called.root):
            exchange.fail(Moved(called.root))
            return
        actor = called.actor()
        if actor is None or not actor.ready or actor.detached:
            actor = called.awake(self._node.trees)
        if actor is not None:
            try:
                if asked.cause is None:
                    act(actor, called, asked, None, None, exchange)
                else:
                    act(actor, called, asked, self._caller(asked.cause), self._until(asked.cause), exchange)
            except Exception as error:  # noqa: BLE001 - whatever it is, a caller waits for it
                exchange.fail(_told(error, called.address, actor.limits.payload_bytes))
            return
        self._spawn(exchange, called.address, self._awakened(called, asked, exchange, act), stops=stops)

    async def _awakened(self, called: CalledMethod, asked: CallRequest, exchange: Exchange, act: Act) -> None:
        address, caller, until = called.address, self._caller(asked.cause), self._until(asked.cause)
        async with in_time(until, address):
            kind = self._kind(address.type, called.module, called.qualname, is_root=address == called.root)
            actor = await self._node.reach(address, kind, caller)
        act(actor, called, asked, caller, until, exchange)

    def _recognize(self, packed: bytes) -> CalledMethod:
        target = read_target(packed)
        address = address_of(target.steps)
        called = CalledMethod(address, target.module, target.qualname, target.method, self._far)
        if len(self._called) >= MOST_RECOGNIZED:
            self._called.clear()
        self._called[packed] = called
        return called

    def _until(self, cause: CallerContext | None) -> float | None:
        return None if cause is None or cause.seconds is None else self._node.loop.time() + cause.seconds

    def _caller(self, cause: CallerContext | None) -> Call | None:
        if cause is None:
            return None
        live: dict[Address, Incarnation] = {}
        for above in cause.chain:
            if above.is_start:
                # A call that descends from its start must not wait for it.
                address = address_of(above.steps)
                tree = self._node.trees.get(address.root)
                actor = tree.actors.get(address) if tree is not None else None
                if actor is not None and actor.is_starting:
                    live[address] = actor
        caller = caller_of(cause, live)
        if caller is not None:
            caller.deadline = self._until(cause)
        return caller

    def _prepare(
        self, actor: Actor, called: CalledMethod, asked: CallRequest, caller: Call | None, until: float | None
    ) -> tuple[Call, Method]:
        method = actor.kind.method(called.method)
        call = Call(actor, called.method, caller)
        call.deadline = until
        call.key = asked.key
        if asked.cause is not None:
            call.trace = tracing.context_of(asked.cause.trace)
        return call, method

    def _arguments(self, method: Method, asked: CallRequest) -> tuple[list[Any], dict[str, Any]]:
        copier = method.signature.copier
        lent: dict[int | str, Any] = {
            loan.place: (FarFunction if loan.methods is None else FarObject)(self._far, asked.node, loan)
            for loan in asked.loans or ()
        }
        arguments: list[Any] = [
            lent[place] if place in lent else copier(place).unpacked(raw) for place, raw in enumerate(asked.arguments)
        ]
        given = {
            name: lent[name] if name in lent else copier(name).unpacked(raw)
            for name, raw in (asked.named or NOTHING).items()
        }
        return arguments, given

    def _serve(
        self,
        actor: Actor,
        called: CalledMethod,
        asked: CallRequest,
        caller: Call | None,
        until: float | None,
        exchange: Exchange,
    ) -> None:
        call, method = self._prepare(actor, called, asked, caller, until)
        if called.result is None:
            called.result = ResultPacker(method.signature.result)
        if asked.named is None and asked.loans is None:
            arguments, given = method.signature.unparcel(asked.arguments), {}
        else:
            arguments, given = self._arguments(method, asked)
        function, awaits = method.function, method.is_async
        if call.key is None:
            arguments.insert(0, actor.agent)
        else:
            function, arguments = keyed(actor, call, method, arguments, given)
            given, awaits = {}, True
        answered = PendingReply(exchange)
        actor.serve_for(answered, call, function, arguments, given, awaits, called.result)
        if caller is None:  # a call made by an agent continues
            exchange.when_stopped(partial(answered.give_up, actor, call))

    def _pour(
        self,
        actor: Actor,
        called: CalledMethod,
        asked: CallRequest,
        caller: Call | None,
        until: float | None,
        exchange: Exchange,
    ) -> None:
        call, method = self._prepare(actor, called, asked, caller, until)
        arguments, given = self._arguments(method, asked)
        limit, result = actor.limits.payload_bytes, method.signature.result
        channel = SentStream(self._node.loop, exchange)
        channel.start(
            actor, call, method.function(actor.agent, *arguments, **given), lambda item: result.packed(item, limit)
        )
        channel.end.add_done_callback(partial(_answer, exchange))
        exchange.when_stopped(channel.close)

    def _call_back(self, message: bytes, exchange: Exchange) -> None:
        asked = read_callback_request(message)
        self._spawn(exchange, None, self._called_back(asked, exchange))

    async def _called_back(self, asked: CallbackRequest, exchange: Exchange) -> None:
        lent: Any = self._far.lent.get(asked.id)
        if lent is None:
            raise UsageError(
                f"The callback {asked.name!r} was called after the call that it was passed to had finished."
            )
        current.set(self._caller(asked.cause))
        function = lent if asked.method is None else getattr(lent, asked.method)
        arguments = [ANYTHING.unpacked(raw) for raw in asked.arguments]
        given = {name: ANYTHING.unpacked(raw) for name, raw in asked.named.items()}
        exchange.end(pack(value_of(await function(*arguments, **given))))

    def _show_out(self, message: bytes, exchange: Exchange) -> None:
        shown = read_disconnect_user(message)
        count = self._node.sockets.show_out(value_from(shown.user), shown.code, shown.reason)
        exchange.end(str(count).encode())

    def _copy(self, verb: str, message: bytes, exchange: Exchange) -> None:
        async def work() -> None:
            exchange.end(pack(await ORDERS[verb](self._node, read_backup_request(message))))

        self._spawn(exchange, None, work())

    def _order(self, answer: NodeOrder, message: bytes, exchange: Exchange) -> None:
        async def work() -> None:
            exchange.end(await answer(self._node, message))

        self._spawn(exchange, None, work())

    def _spawn(
        self, exchange: Exchange, address: Address | None, work: Coroutine[Any, Any, None], *, stops: bool = True
    ) -> None:
        async def answered() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - whatever it is, a caller waits for it
                exchange.fail(
                    error if address is None else _told(error, address, self._node.settings.limits.payload_bytes)
                )

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled():  # perhaps before its first step
                work.close()
                exchange.fail(Unavailable(CANCELLED_INSIDE))

        task = self._node.loop.create_task(answered(), context=self._node.context.copy())
        self._tasks.add(task)
        task.add_done_callback(ended)
        if stops:
            exchange.when_stopped(task.cancel)


class ResultPacker:
    """Makes of a result what crosses to another process."""

    __slots__ = ("copy",)

    def __init__(self, copier: Copier) -> None:
        self.copy = copier.packed


class PendingReply:
    """A reply that goes to another node as soon as it is known."""

    __slots__ = ("_error", "_exchange", "_is_done", "_then")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._is_done = False
        self._error: BaseException | None = None
        self._then: list[Callable[[Any], object]] | None = None

    def done(self) -> bool:
        return self._is_done

    def set_result(self, result: bytes, /) -> None:
        self._is_done = True
        self._exchange.end(result)
        if self._then is not None:
            self._tell()

    def set_exception(self, exception: BaseException, /) -> None:
        self._is_done = True
        self._error = exception
        self._exchange.fail(_begun(exception))
        if self._then is not None:
            self._tell()

    def give_up(self, actor: Actor, call: Call) -> None:
        """Cancel what runs for it: its result is not needed, and the other node is told when it has ended."""
        if self._is_done:
            return
        self._is_done = True
        if self._then is not None:
            self._tell()
        task = actor.cancel(call)
        if task is None:
            self._gave_up()
        else:
            task.add_done_callback(self._gave_up)

    def _gave_up(self, _: object = None) -> None:
        self._exchange.fail(Unavailable(CANCELLED_INSIDE))

    def exception(self) -> BaseException | None:
        return self._error

    def add_done_callback(self, act: Callable[[Any], object], /) -> None:
        self._then = [*(self._then or ()), act]

    def _tell(self) -> None:
        then, self._then = self._then, None
        for act in then or ():
            act(self)


class SentStream(Channel):
    """A generator whose reader is at another node: what it yields is sent on as fast as that reads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, exchange: Exchange) -> None:
        super().__init__(loop)
        self._exchange = exchange
        self._until_room: Any = None

    async def put(self, item: Any) -> None:
        if self._until_room is not None:
            await self._until_room
        self._until_room = self._exchange.send(item)


async def _taken(node: Node, message: bytes) -> bytes:
    await take(node, read_take_request(message))
    return b""


def _answer(exchange: Exchange, reply: Future[Any]) -> None:
    if reply.cancelled():
        exchange.fail(Unavailable(CANCELLED_INSIDE))
    elif (error := reply.exception()) is not None:
        exchange.fail(_begun(error))
    else:
        exchange.end(reply.result())


def _begun(error: BaseException) -> Exception:
    """Return an error of something that was begun: callers must not take it for `NotBegun`."""
    return error if isinstance(error, Exception) and not isinstance(error, NotBegun) else Unavailable(str(error))


def _told(error: Exception, address: Address, limit: int) -> Exception:
    return error if isinstance(error, SapwoodError) else crossing(error, address.segments, limit)
