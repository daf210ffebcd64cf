"""One agent in memory: its start, the calls that it serves, and its end.

Calls interleave at their awaits, each in a task of its own. When the agent is dropped, they are cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import CancelledError, Future, Task
from collections.abc import Callable, Coroutine, Iterator, Sequence
from threading import get_ident
from typing import Any, Protocol, TypeVar

from sapwood.address import Address, PathSegment
from sapwood.errors import Crashed, MigrationFailed, SapwoodError, TimedOut, Unavailable
from sapwood.kernel.actors.children_table import ChildrenTable
from sapwood.kernel.actors.fork_origin import note_hook, origin_of, waits_for_hook
from sapwood.kernel.actors.incarnation import Incarnation
from sapwood.kernel.actors.node_services import NodeServices, StartCycleCheck
from sapwood.kernel.alarms.tree_index import TreeAlarms
from sapwood.kernel.durability.slices import Slices
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.marshal.call import Call, Reply
from sapwood.kernel.marshal.copier import AS_IS, Copies
from sapwood.kernel.marshal.exceptions import again, crossing, describe, mistake, note_logged
from sapwood.kernel.ports.agent_hooks import AgentHooks
from sapwood.settings import Limits
from sapwood.storage.database import Database
from sapwood.storage.migrations import USER, NewerData
from sapwood.storage.rows import Rows

log = logging.getLogger(__name__)

C = TypeVar("C")

THE_END = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that end the process or the loop; no caller is left to receive them."""
CANCELLED_INSIDE = "A task inside the method was cancelled, and the method did not catch it."


class OffloadPort(Protocol):
    """Runs what must not hold up the loop."""

    async def in_thread(
        self, actor: Actor, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...

    async def in_process(
        self, actor: Actor, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...

    async def read_sql(self, actor: Actor, sql: str, arguments: Sequence[object] | dict[str, object]) -> Rows: ...


class Host(NodeServices, Protocol):
    """What an agent asks of the node it runs on."""

    @property
    def offload(self) -> OffloadPort: ...

    @property
    def circles(self) -> StartCycleCheck: ...

    def stub_of(self, actor: Actor) -> object: ...

    def when_started(self, actor: Actor) -> None:
        """Told when an agent has started, before anything is delivered to it."""
        ...


class Home(Protocol):
    """What an agent asks of the tree it belongs to."""

    slices: Slices
    alarms: TreeAlarms
    root: Database
    """The database of the root."""
    kept_awake: dict[object, Actor]
    """Who asked that the tree stay awake, by what they hold."""
    calls_done: int
    """How many calls have ended in it."""

    @property
    def host(self) -> Host: ...

    def birthplace_of(self, address: Address) -> Address: ...

    def drop(self, actor: Actor, error: SapwoodError) -> None: ...

    def drop_unstarted(self, actor: Actor, error: SapwoodError) -> None: ...

    def resume_deletions(self, actor: Actor) -> None: ...


class Actor(Incarnation):
    """Runs one agent."""

    __slots__ = (
        "__weakref__",
        "_capabilities",
        "_migrated",
        "_start",
        "after_call",
        "agent",
        "asleep",
        "awaited_by",
        "calls",
        "children",
        "created_at",
        "detached",
        "generation",
        "home",
        "host",
        "kind",
        "last_active",
        "last_error",
        "limits",
        "parent",
        "ready",
        "registry",
        "stem",
    )

    def __init__(
        self,
        home: Home,
        address: Address,
        kind: AgentClass,
        *,
        parent: Actor | None,
        stem: str,
        generation: int,
        created_at: float,
        limits: Limits,
        database: Database,
    ) -> None:
        super().__init__(address, database, home.slices, home.host)
        self.home = home
        self.host = home.host
        self.kind = kind
        self.parent = parent
        self.stem = stem
        self.generation = generation
        self.created_at = created_at
        self.limits = limits
        self.registry = ChildrenTable(database, self.host.clock)
        self.children: dict[PathSegment, Actor] = {}
        """The children that are in memory."""
        self.calls: dict[Call, Task[Any]] = {}
        """What runs in it now."""
        self.after_call: list[Callable[[], None]] = []
        """Called when a method has returned; what one raises is what the caller gets."""
        self.detached = False
        """Whether callers can no longer find it: it was dropped, or is about to be because it deletes itself. Another
        actor may have its address."""
        self.asleep = False
        """Whether it ended by going to sleep: then the next call simply wakes it again."""
        self.ready = False
        """Whether calls are delivered: started, not dropped, not held."""
        self.last_active = self.host.loop.time()
        self.last_error: str | None = None
        self._capabilities: dict[Any, Any] = {}
        self._migrated = False
        self._start: Future[None] | None = None
        self.awaited_by: list[Address] = []
        """Agents whose own start waits for the start of this one."""
        self.agent: Any = kind.cls(self)

    def of(self, capability: Callable[[Actor], C]) -> C:
        """Return this agent's own instance of a capability, made when first asked for."""
        found = self._capabilities.get(capability)
        if found is None:
            found = self._capabilities[capability] = capability(self)
        return found

    @property
    def birthplace(self) -> Address:
        """The first address that it had: its ids contain it, and stay the same when its tree is moved."""
        return self.home.birthplace_of(self.address)

    @property
    def hooks(self) -> AgentHooks:
        """What the capabilities of this agent call, where the answer depends on its class."""
        return self.of(self.kind.hooks)

    def found(self, capability: Callable[[Actor], C]) -> C | None:
        """Return this agent's own instance of a capability, if it exists already."""
        return self._capabilities.get(capability)

    def lineage(self) -> Iterator[Actor]:
        """Yield this agent and those above it."""
        one: Actor | None = self
        while one is not None:
            yield one
            one = one.parent

    def user_database(self) -> Database:
        """Return the database for the user's own statements, with the class's migrations applied."""
        self.check_use()
        if not self._migrated:
            if self.kind.migrations or self.database.exists:
                try:
                    self.database.check_known()
                    if self.kind.migrations or self.database.version(USER):
                        self.database.migrate(self.kind.migrations)
                except NewerData as error:
                    owner = self.kind.type if error.owner == USER else error.owner
                    raise NewerData(f"{self.address}: {error}", owner, error.number) from error
                except MigrationFailed as error:
                    raise MigrationFailed(f"{self.address}: {error}") from error
            self._migrated = True
        return self.database

    async def started(self, caller: Call | None) -> bool:
        """Return when calls may be delivered; start the agent if necessary.

        Returns `False` if it went to sleep before that, and has to be woken again.
        """
        if self._start is None:
            self._begin_start(caller)
        if self.ready or (caller is not None and self in caller.starting()):
            return True
        assert self._start is not None
        if caller is not None and not self._start.done():
            await self._wait_in_no_circle(self._start, caller)
        await asyncio.shield(self._start)
        if not self.asleep:
            self.check_live()
        return not self.asleep

    async def _wait_in_no_circle(self, start: Future[None], caller: Call) -> None:
        """Return when the agent has started; raise `StartCycle` if it waits for a start that the caller is part of."""
        waiting = [
            one.address
            for one in caller.starting()
            if one.address != self.address and (not isinstance(one, Actor) or one.is_starting)
        ]
        self.awaited_by += waiting
        try:
            looking = self.host.circles.refuse(self.address, waiting)
            if looking is not None:
                try:
                    await asyncio.wait({looking, start}, return_when=asyncio.FIRST_COMPLETED)
                    if looking.done() and (circle := looking.exception()) is not None and not start.done():
                        raise circle
                finally:
                    looking.cancel()
            await asyncio.shield(start)
        finally:
            for one in waiting:
                self.awaited_by.remove(one)

    def _begin_start(self, caller: Call | None) -> None:
        self._start = self.host.loop.create_future()
        # Perhaps no caller is left to see a failed start; it is in the log and in last_error.
        self._start.add_done_callback(lambda start: start.cancelled() or start.exception())
        try:
            self.host.check_deps(self.kind)
            if self.database.exists:
                self.user_database()
            self.home.resume_deletions(self)
            call = Call(self, "on_start", caller)
            call.is_start = True
        except Exception as error:  # noqa: BLE001 - whatever it is, no caller may wait forever for this start
            self._failed_to_start(error)
            return
        is_new_fork = self.kind.overrides_fork and waits_for_hook(self.database)
        if not (self.kind.overrides_start or is_new_fork):
            self._is_started()
            return
        # A start belongs to the agent, not to the caller that happened to need it first.
        call.deadline = None
        self.spawn(call, self._run_start(call, is_new_fork=is_new_fork))

    async def _run_start(self, call: Call, *, is_new_fork: bool) -> None:
        call.enter()
        try:
            await self.until_leased()
            if is_new_fork:
                await self.agent.on_fork(origin_of(self.database))
                self.check_live()
                note_hook(self.database)
            await self.agent.on_start()
            await self.leave()
        except CancelledError:
            self._failed_to_start(self.dropped or Crashed("on_start was cancelled.", path=self.address.segments))
            raise
        except THE_END:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            self._failed_to_start(error)
        else:
            self._is_started()
        finally:
            self.finished(call)

    def _is_started(self) -> None:
        assert self._start is not None
        if self.dropped is None:
            self.ready = True
            self._start.set_result(None)
            self.host.when_started(self)

    def _failed_to_start(self, error: BaseException) -> None:
        assert self._start is not None
        if self._start.done():
            return
        failure = crossing(error, self.address.segments, self.limits.payload_bytes)
        self._start.set_exception(failure)
        if self.dropped is None:
            self.host.failures.report(
                log,
                logging.WARNING,
                "agent failed to start: %s: %s",
                self.address,
                describe(error),
                error=error,
                about=self.address,
                traceback=mistake(error),
                address=str(self.address),
            )
            note_logged(failure)
            self.home.drop_unstarted(self, failure if isinstance(failure, SapwoodError) else Crashed(str(error)))

    def end(self, error: SapwoodError) -> None:
        """This incarnation has ended; waiters for its start are notified, and its queries are interrupted."""
        self.dropped = error
        self.ready = False
        self.database.stop_readers(again(error))
        if self._start is not None and not self._start.done():
            self._start.set_exception(again(error))

    def spawn(self, call: Call, work: Coroutine[Any, Any, None]) -> Task[None]:
        """Run `work`, which begins by making `call` the current one and ends with `finished`, in a task of its own."""
        host = self.host
        task = self.calls[call] = host.loop.create_task(work, context=host.context.copy())
        return task

    def finished(self, call: Call) -> None:
        if self.calls.pop(call, None) is not None:
            self.home.calls_done += 1
            self.host.calls_done += 1
        if not self.calls:
            self.last_active = self.host.loop.time()

    def cancel(self, call: Call) -> Task[Any] | None:
        """Cancel what runs here as `call`; return its task while it unwinds, None if it has ended."""
        task = self.calls.get(call)
        if task is not None:
            # A task cancelled before its first step never reaches its own end.
            task.add_done_callback(lambda _: self._cancelled(call))
            task.cancel()
        return task

    def _cancelled(self, call: Call) -> None:
        self.finished(call)
        if call.reply is not None:
            self.settle(call.reply)

    def handle(
        self, name: str, function: Callable[..., Any], *args: Any, client: object = None
    ) -> tuple[Call, Future[Any]]:
        """Run a hook or a handler of the agent's own as a call; what it returns stays what it is."""
        call = Call(self, name, None)
        call.client = client
        return call, self.serve(call, function, args, {}, True, AS_IS)

    def serve(
        self,
        call: Call,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        awaits: bool,
        result: Copies,
    ) -> Future[Any]:
        """Run a function for a caller, who waits for the future that comes back."""
        reply: Future[Any] = self.host.loop.create_future()
        self.serve_for(reply, call, function, args, kwargs, awaits, result)
        return reply

    def serve_for(
        self,
        reply: Reply,
        call: Call,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        awaits: bool,
        result: Copies,
    ) -> None:
        """Run a function for a caller, who is told by `reply`."""
        host = self.host
        loop = host.loop
        if self.dropped is not None or get_ident() != host.thread:
            self.check_use()
        if call.deadline is not None and call.deadline <= loop.time():
            raise TimedOut(
                f"The deadline passed before {self.address}.{call.method} started.", path=self.address.segments
            )
        call.reply = reply
        work = self._serve(call, reply, function, args, kwargs, awaits, result)
        self.calls[call] = loop.create_task(work, context=host.context.copy())
        if call.deadline is not None:
            self.watch_deadline(call, call.deadline, reply)

    async def _serve(
        self,
        call: Call,
        reply: Reply,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        awaits: bool,
        result: Copies,
    ) -> None:
        call.enter()
        try:
            if reply.done():
                return  # the caller stopped waiting before it began
            value = failure = None
            try:
                if not self.host.holds_lease():
                    await self.until_leased(call)
                value = function(*args, **kwargs)
                if awaits:
                    value = await value
                for check in self.after_call:
                    check()
                value = result.copy(value, self.limits.payload_bytes)
            except CancelledError:
                if reply.done() or self.dropped is not None:
                    raise
                failure = RuntimeError(CANCELLED_INSIDE)
            except THE_END:
                raise
            except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
                failure = error
            try:
                if (waiting := self.to_answer(call)) is not None:
                    call.is_done = True
                    await waiting
            except CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - what was written is lost, and the gate will not open any more
                failure = failure or error
            if failure is not None:
                self._failed(reply, failure)
            elif not reply.done():
                reply.set_result(value)
        finally:
            self.finished(call)
            self.settle(reply)

    def _failed(self, reply: Reply, failure: BaseException) -> None:
        self.last_error = describe(failure)
        if not reply.done():
            reply.set_exception(crossing(failure, self.address.segments, self.limits.payload_bytes))

    def settle(self, reply: Reply) -> None:
        """End every wait for work that has ended, whatever ended it."""
        if not reply.done():
            reply.set_exception(again(self.dropped) if self.dropped is not None else Unavailable(CANCELLED_INSIDE))
            reply.exception()

    def watch_deadline(self, call: Call, deadline: float, reply: Reply) -> None:
        """Cancel a call that has not answered by then."""

        def expire() -> None:
            if not reply.done():
                text = f"{self.address}.{call.method} did not answer before its deadline."
                reply.set_exception(TimedOut(text, path=self.address.segments))
                self.cancel(call)

        timer = self.host.loop.call_at(deadline, expire)
        reply.add_done_callback(lambda _: timer.cancel())

    async def tell(self, hook: Callable[[Any], Coroutine[Any, Any, None]], news: object) -> None:
        """Call a hook of the agent's own that is only told something: what it raises is logged, and ends nothing."""
        await self.until_leased()
        try:
            await hook(news)
        except CancelledError:
            raise
        except Exception as error:
            self.check_live()
            self.last_error = describe(error)
            where, name = {"address": str(self.address)}, hook.__name__
            log.error("%s of %s failed: %s", name, self.address, self.last_error, extra=where, exc_info=mistake(error))

    @property
    def is_starting(self) -> bool:
        return self._start is not None and not self._start.done()

    @property
    def is_idle(self) -> bool:
        awake_for_nobody = self.ready or self._start is None  # not started: only those below it were needed
        return awake_for_nobody and not self.calls and not self.children
