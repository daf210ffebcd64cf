"""The class users extend. Everything here is a signature, a docstring, and one line that hands on."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, ParamSpec, cast, overload
from typing import TypeVar as PlainTypeVar

from typing_extensions import TypeVar

from sapwood.address import Address, PathSegment
from sapwood.agent_checks import HOOKS, SETTINGS, SHOWN, check_class, definition
from sapwood.agent_internals import AgentInternals
from sapwood.capabilities.children import Children
from sapwood.capabilities.connections import Connection, Connections
from sapwood.capabilities.due_work import Agenda
from sapwood.capabilities.fiber_rows import Fiber
from sapwood.capabilities.keep_alive import KeepAlive
from sapwood.capabilities.queue import QueuedCall
from sapwood.capabilities.relatives import Family
from sapwood.capabilities.schedules import Schedule, Schedules
from sapwood.capabilities.state import State
from sapwood.capabilities.steps import StepOptions, Steps
from sapwood.capabilities.studio_tabs import StudioTab
from sapwood.errors import NotFound, UsageError
from sapwood.kernel.actors.fork_origin import ForkOrigin
from sapwood.kernel.marshal.agent_class import AgentClass, learn
from sapwood.kernel.marshal.exceptions import describe, mistake
from sapwood.kernel.marshal.namespace import Namespace
from sapwood.namespaces.children import AgentChildren
from sapwood.namespaces.connections import AgentConnections
from sapwood.namespaces.dead_letters import AgentDeadLetters
from sapwood.namespaces.fibers import AgentFibers
from sapwood.namespaces.files import AgentFiles
from sapwood.namespaces.history import AgentHistory
from sapwood.namespaces.mcp import AgentMcp
from sapwood.namespaces.questions import AgentQuestions
from sapwood.namespaces.queues import AgentQueues
from sapwood.namespaces.runs import AgentRuns
from sapwood.namespaces.schedules import AgentSchedules
from sapwood.namespaces.spending import AgentSpending
from sapwood.periods import LimitWarning
from sapwood.retention import KEEP_ALL, RECORDS, Retention
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.dispatch.run_request import Detached, RunRequest
from sapwood.runs.dispatch.subscription import Subscription
from sapwood.runs.events.events import Depth, Event
from sapwood.runs.execution.contract import Progress
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.tables.inputs import InputDetail
from sapwood.runs.tables.question import Question
from sapwood.runs.tables.runnable import Runnable
from sapwood.runs.tables.runs_table import Run
from sapwood.settings import Limits
from sapwood.storage.rows import Rows
from sapwood.when import After, At, Cron, Every

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import Response

log = logging.getLogger(__name__)

S = TypeVar("S", default=None)
A = PlainTypeVar("A", bound="Agent[Any]")
P = ParamSpec("P")
R = PlainTypeVar("R")
I = PlainTypeVar("I")  # noqa: E741 - input
O = PlainTypeVar("O")  # noqa: E741 - output

When = After | At | Every | Cron


class Agent(AgentInternals, Generic[S]):
    """A durable agent. Subclass it and add async methods.

    Each named instance is one addressable actor with its own SQLite database. It starts on first use, sleeps when
    idle, and survives crashes. All writes between two awaits are committed together. No result or message leaves the
    agent before its writes are durable.

    Write `Agent[State]` to give it a state. Set `initial_state`, `state_version`, `migrations` and `limits` as class
    attributes. Do not define `__init__`: initialize in-memory attributes in `on_start`.
    """

    initial_state: S = cast(Any, None)
    """The state of an agent that has not set one yet."""
    state_version: ClassVar[int] = 1
    """The version of the state's shape. Increase it when the shape changes, and write `upgrade_state`."""
    migrations: ClassVar[Sequence[str] | Path] = ()
    """SQL scripts, or the `Path` of a folder of scripts. Each runs once, in order. Never edit one that has run."""
    limits: ClassVar[Limits | None] = None
    """Limits of agents of this class. The limits of the app and of all ancestors apply as well."""
    create_from_url: ClassVar[bool] = False
    """Whether a request to its URL creates a sub-agent of this class. Requests to the URL of a root always may."""
    expose_runs: ClassVar[bool] = False
    """Whether other servers may start runs in roots of this class, by URL. See `RemoteSubAgent`."""
    send_identity: ClassVar[bool] = True
    """Whether a client receives the class and name of the agent when it connects."""
    input_as_state: ClassVar[bool] = False
    """Whether the input of the first run becomes the state. A state that is already set is kept."""
    max_concurrent_runs: ClassVar[int | None] = None
    """Maximum number of unfinished runs that this agent has started. `None` means no limit."""
    run_retention: ClassVar[Retention | Mapping[type[Agent[Any]], Retention]] = KEEP_ALL
    """Which finished runs to keep: one rule for all, or one by class of the sub-agent. By default, all are kept."""
    record_retention: ClassVar[Retention | None] = RECORDS
    """How long to keep the records of turns, model requests, tool calls, runs and fibers. `None` writes no records."""
    accept_files: ClassVar[Mapping[str, int]] = {}
    """What clients may upload: the maximum size in bytes by media type, such as `{"image/*": 5_000_000}`."""
    studio_tabs: ClassVar[Sequence[StudioTab]] = ()
    """Tabs that agents of this class have in the studio, beside its own."""

    deps: Any
    """The value of `App(deps=…)`. Annotate it in your class to narrow its type; the app checks it at startup."""

    schedules = Namespace(AgentSchedules)
    queues = Namespace(AgentQueues)
    dead_letters = Namespace(AgentDeadLetters)
    fibers = Namespace(AgentFibers)
    children = Namespace(AgentChildren)
    runs = Namespace(AgentRuns)
    questions = Namespace(AgentQuestions, crosses=True, inside=frozenset({"ask"}))
    connections = Namespace(AgentConnections)
    history = Namespace(AgentHistory)
    spending = Namespace(AgentSpending, crosses=True)
    files = Namespace(AgentFiles)
    mcp = Namespace(AgentMcp)

    _base: ClassVar[type]
    """The framework's own class that a user's class extends."""
    _hooks: ClassVar[frozenset[str]] = HOOKS
    _settings: ClassVar[frozenset[str]] = SETTINGS
    _shows: ClassVar[frozenset[str]] = SHOWN
    """What stubs show of what the framework defines."""

    def __init_subclass__(
        cls,
        hooks: frozenset[str] | None = None,
        settings: frozenset[str] = frozenset(),
        shows: frozenset[str] = frozenset(),
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if hooks is not None:
            cls._base = cls  # one of the framework's own, to be extended
            cls._hooks = HOOKS | hooks
            cls._settings = SETTINGS | settings
            cls._shows = SHOWN | shows
            learn(cls, AgentClass(cls, base=Agent, shown=cls._shows, names={}))
            return
        check_class(cls)
        # Annotations of a class defined in a function may name its neighbours there.
        names = dict[str, Any](definition().f_locals) if "<locals>" in cls.__qualname__ else {}
        learn(cls, AgentClass(cls, base=cls._base, shown=cls._shows, names=names))

    async def on_start(self) -> None:
        """Called each time the agent is loaded into memory, before its first call. Override it."""

    async def on_fork(self, source: ForkOrigin) -> None:
        """Called once in each agent of a fork, before anything else. `source` says what was copied. Override it.

        Rewrite what only your code knows, such as ids of other systems.
        """

    def upgrade_state(self, old: Any, version: int) -> S:
        """Convert a state that was stored with an older `state_version`, and return it. Override it."""
        raise UsageError(
            f"The state of {self._actor.address} has state_version {version}, but its class has "
            f"{self.state_version}. Write upgrade_state(old, version)."
        )

    def validate_state(self, state: S, source: Connection | None) -> None:
        """Raise to refuse a new state. `source` is the client that sets it; `None` is the agent itself. Override it."""

    async def on_state_changed(self, state: S, source: Connection | None) -> None:
        """Called after the state was replaced. An exception is logged and does not undo the change. Override it."""

    async def on_request(self, request: Request) -> Response:
        """Answer an HTTP request to this agent. By default, the response is 404. Override it."""
        raise NotFound("Not Found", path=self._actor.address.segments)

    async def on_connect(self, connection: Connection) -> None:
        """Called when a client has connected, before its first message. Raise to close the connection. Override it."""

    async def on_message(self, connection: Connection, message: str | bytes) -> None:
        """Called with each client message that is not a protocol message of sapwood. Override it."""

    async def on_close(self, connection: Connection, code: int, reason: str) -> None:
        """Called when a client's socket has closed. Override it."""

    async def on_error(self, error: BaseException, connection: Connection) -> None:
        """Called with an exception that `on_message` raised. By default, it is logged. Override it."""
        log.error("on_message failed address=%s: %s", self.address, describe(error), exc_info=mistake(error))

    async def on_before_request(self, request: Request) -> Request | Response | None:
        """Called before `on_request`. Return `None` to accept it, a response, or another request. Override it."""

    async def on_before_connect(self, request: HTTPConnection) -> HTTPConnection | Response | None:
        """Called before a client connects. Return `None` to accept it, or a response to refuse it. Override it."""

    async def on_before_sub_agent(
        self, request: HTTPConnection, child: PathSegment
    ) -> HTTPConnection | Response | None:
        """Called before a client's request or socket is routed to a sub-agent. The sub-agent is not awake yet.

        Return `None` to accept it, a response to answer it, or another request to route instead. It is not
        called for code that calls `sub_agent`. Override it.
        """

    async def on_before_watch(self, request: Request) -> Request | Response | None:
        """Called before a client uses `…/events`, `…/questions`, `…/methods`, `…/runs` or `…/get-messages`.

        It is called after `on_before_request`. Return `None` to accept the client, or a response to refuse it.
        Below this agent, these URLs show only the agents that the client itself could reach. Override it.
        """

    async def may_answer(self, user: Any, question: Question) -> bool | str:
        """Return whether a client may answer a question of this agent, or of one below it.

        Called after the gates and the `approvers` of the tool. `user` is the value that `authenticate` returned.
        `question.path` leads from this agent to the one that asks. Return `False` or a reason to refuse: the question
        stays open. Clients see only the questions that they may answer. Override it.
        """
        return True

    def connection_tags(self, connection: Connection) -> Sequence[str]:
        """Return the tags of a new connection, for `self.connections.list(tag=…)`. Override it."""
        return ()

    def is_readonly(self, connection: Connection) -> bool:
        """Return whether a new connection may only read the state. Override it."""
        return False

    def is_watch_only(self, connection: Connection) -> bool:
        """Return whether a new connection may only watch: not start turns, answer questions or call methods.

        It cannot set the state either. `on_message` is still called. Override it.
        """
        return False

    def send_protocol_frames(self, connection: Connection) -> bool:
        """Return whether a new connection receives identity and state. Override it for clients of other frameworks."""
        return True

    async def on_fiber_recovered(self, fiber: Fiber) -> None:
        """Called when the end of the process interrupted a fiber, before the fiber's method is called again.

        To end the fiber instead, call `fibers.resolve` or `fibers.cancel`. If this hook raises or exceeds
        `recovery_timeout`, it is retried later. A function that is not a method of this agent cannot be called
        again: continue from `fiber.checkpoint` here. Override it.
        """

    def on_run(self, input: Any, /) -> Any:
        """Execute a run that another agent started with `run_agent`, and return its output. Override it.

        Write `async def on_run(self, input: Claim) -> Verdict`: the annotations are the types of the input and the
        output, and type checkers know them in `run_agent`. After a crash, this method is called again: use steps. To
        stream, write an async generator that yields text, or chunks of an AI SDK stream.
        """
        raise NotImplementedError

    async def on_run_start(self, run: Run) -> None:
        """Called once when a run that this agent started begins. A crash may lose the call. Override it."""

    async def on_run_finish(self, run: Run) -> None:
        """Called when a run that this agent started has ended or was interrupted, also if it never began. Override it.

        The call is queued in the commit that stores the end, so a crash does not lose it. A hook without awaits takes
        effect exactly once; one with awaits, at least once. If it raises, the call is retried.
        """

    async def on_limit_near(self, warning: LimitWarning) -> None:
        """Called once per period in which a limit reaches `warn_at`; queued, like `on_run_finish`. Override it."""

    @property
    def name(self) -> str:
        """This agent's own name."""
        return self._actor.address.name

    @property
    def address(self) -> Address:
        """The address of this agent: all path segments from the root."""
        return self._actor.address

    def sql(self, query: str, *arguments: Any, **named: Any) -> Rows:
        """Execute one SQL statement on this agent's database, synchronously. All rows are read before it returns."""
        return self._actor.user_database().run(query, named or arguments)

    def transaction(self) -> AbstractContextManager[None]:
        """Roll back the writes of the ``with`` block if it raises. The block must not contain an await."""
        return self._actor.user_database().block()

    async def read_sql(self, query: str, *arguments: Any, **named: Any) -> Rows:
        """Run a long SELECT in a thread, on the data as it was when the query started. Without a timeout.

        It sees every write before the call and none after its start: it may have to wait for an earlier query or a
        backup. The agent answers calls and writes during the query. A write raises `ForbiddenSql`: use `sql`.
        """
        self._actor.user_database()
        return await self._actor.host.offload.read_sql(self._actor, query, named or arguments)

    @property
    def state(self) -> S:
        """The current state. Do not change it in place: use `set_state`."""
        return self._actor.of(State).get()

    def set_state(self, state: S) -> None:
        """Replace the state. It is committed together with all other writes before the next await."""
        self._actor.of(State).set(state)

    def broadcast(self, message: object, *, exclude: Iterable[Connection] = ()) -> None:
        """Send a message to every client of this agent: `str` and `bytes` as they are, anything else as JSON."""
        self._actor.of(Connections).broadcast(message, exclude)

    def schedule(
        self, when: timedelta | datetime | When, method: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs
    ) -> Schedule:
        """Call a method of this agent later. The schedule survives sleep, crashes and restarts.

        `when` is a timedelta, a datetime with a time zone, `After`, `At`, `Every` or `Cron`. The arguments are
        copied now. The schedule is committed together with all other writes before the next await. A method
        without awaits takes effect exactly once; a method with awaits, at least once.
        """
        return self._actor.of(Schedules).add(when, method, args, kwargs)

    def keep_alive(self) -> KeepAlive:
        """Keep this agent's whole tree in memory until `release()` is called or the ``with`` block ends."""
        return KeepAlive(self._actor)

    def start_fiber(self, key: str, method: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> Fiber:
        """Start a method of this agent as a fiber. After a crash, the fiber continues until it has ended.

        If a fiber with this key exists, return it, even if it has ended. `await fiber.result()` waits for its result.
        """
        return self._actor.of(Agenda).fibers.start(key, method, args, kwargs)

    async def step(
        self, name: str | StepOptions, function: Callable[P, Awaitable[R] | R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function once and store its result. When the work is repeated, return the stored result.

        Call it in a fiber, or in a method that was scheduled or queued. Pass `StepOptions` for retries and a timeout.
        """
        return cast(R, await self._actor.of(Steps).run(name, function, args, kwargs))

    async def sleep_until(self, time: datetime) -> None:
        """Sleep until this time, also through restarts. When the work is repeated, the first time given counts.

        Call it in a fiber, or in a method that was scheduled or queued.
        """
        await self._actor.of(Steps).sleep_until(time)

    def enqueue(self, method: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> QueuedCall:
        """Add a call of a method of this agent to the default queue. It runs after the calls before it.

        The call is committed together with all other writes before the next await. For a named queue, use
        `self.queues[name].add(…)`.
        """
        return self.queues.default.add(method, *args, **kwargs)

    async def checkpoint(self, value: object) -> None:
        """Store the position of the running fiber, durably. After a crash, `self.fibers.current.checkpoint` has it."""
        await self._actor.of(Agenda).fibers.checkpoint(value)

    async def flush(self) -> None:
        """Wait until all writes so far are durable, and in a cluster until the node holds its lease.

        Call it before I/O that bypasses sapwood.
        """
        self._actor.check_use()
        await self._actor.leave()

    async def sub_agent(self, cls: type[A], name: str) -> A:
        """Return a stub of the sub-agent of this class and name. The first call creates the sub-agent."""
        return cast(A, self._actor.host.stub_of(await self._actor.of(Children).get(cls, name)))

    async def run_agent(
        self,
        cls: type[Runnable[I, O]],
        input: I = None,  # type: ignore[assignment]
        *,
        run_id: str | None = None,
        order: int | None = None,
        timeout: float | None = None,
        on_disconnect: Literal["cancel", "continue"] = "cancel",
        display: Mapping[str, Any] | None = None,
    ) -> Run[O]:
        """Run `cls` in a new sub-agent and return the finished `Run`.

        Failures are returned, not raised: check `run.ok`. A `run_id` is an idempotency key: calling again with the
        same id, also after a crash, returns the same run. Without one, a tool call, a fiber or a schedule that is
        executed again gives its runs the same ids.
        """
        wish = RunRequest(run_id, None, order, 0, timeout, None, on_disconnect, display)
        return await self._actor.of(Runs).run(cls, input, wish)

    async def start_run(
        self,
        cls: type[Runnable[I, O]],
        input: I = None,  # type: ignore[assignment]
        *,
        on_finish: Callable[[Run[O]], object] | None = None,
        notify: bool = False,
        max_duration: timedelta | None = timedelta(hours=24),
        idle_timeout: timedelta | None = timedelta(hours=1),
        run_id: str | None = None,
        order: int | None = None,
        timeout: float | None = None,
        display: Mapping[str, Any] | None = None,
    ) -> Run[O]:
        """Start a run in a new sub-agent and return it as soon as the sub-agent has accepted it.

        `on_finish` is a method of this agent that is called with the `Run` when it has ended. With `notify`, the result
        is posted to the conversation of this agent. A run that takes longer than `max_duration`, or makes no progress
        for `idle_timeout`, becomes `interrupted`; `None` means no limit. `await run.result()` waits for the end.
        """
        detached = Detached(on_finish, notify, max_duration, idle_timeout)
        wish = RunRequest(run_id, None, order, 0, timeout, detached, display=display)
        return await self._actor.of(Runs).run(cls, input, wish)

    def report_progress(
        self,
        fraction: float | None = None,
        message: str | None = None,
        *,
        phase: str | None = None,
        milestone: str | None = None,
        data: Any = None,
    ) -> bool:
        """Report the progress of the current run to its watchers. Returns `False` if this code is not part of a run.

        A `milestone` is stored, so later watchers receive it too. Other progress is not stored.
        """
        return self._actor.of(RunExecutor).report(Progress(fraction, message, phase, data), milestone)

    async def subscribe(
        self, depth: Depth = "tree", *, after: str | None = None, input: InputDetail = "preview"
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of this agent and everything below it: past events first, then new ones, each once.

        `depth` is `self` for the agent itself, `children` to include the runs that it started, or `tree` for everything
        below it. To resume, also after a restart, pass the `cursor` of the last event as `after`. Stopping cancels
        nothing. With `input="full"`, start events carry the whole input of the run instead of a preview.
        """
        async with aclosing(Subscription(self._actor, depth, after, input).events()) as events:
            async for event in events:
                yield event

    async def parent_agent(self, cls: type[A]) -> A:
        """Return a stub of this agent's parent, which must be of this class."""
        return cast(A, await self._actor.of(Family).parent(cls))

    async def ancestor(self, cls: type[A]) -> A:
        """Return a stub of the nearest ancestor of this class."""
        return cast(A, await self._actor.of(Family).ancestor(cls))

    async def root_agent(self, cls: type[A]) -> A:
        """Return a stub of the root of this agent's tree, which must be of this class."""
        return cast(A, await self._actor.of(Family).root(cls))

    @overload
    async def get_agent(self, cls: type[A], name: str) -> A: ...
    @overload
    async def get_agent(
        self,
        cls: type[Agent[Any]],
        name: str,
        *,
        sub: tuple[*tuple[tuple[type[Agent[Any]], str], ...], tuple[type[A], str]],
    ) -> A: ...
    @overload
    async def get_agent(self, cls: type[Agent[Any]], name: str, *, sub: Sequence[tuple[type[A], str]]) -> A: ...
    async def get_agent(
        self, cls: type[Agent[Any]], name: str, *, sub: Sequence[tuple[type[Agent[Any]], str]] = ()
    ) -> Any:
        """Return a stub of any root or, with `sub`, of an existing descendant of that root.

        Write several segments as a tuple, so that their types are known: `sub=((Desk, "sport"), (Reporter, "ann"))`.
        """
        return await self._actor.of(Family).find(cls, name, sub)

    async def destroy(self) -> None:
        """Delete this agent, everything below it, and all their data. The current call may still finish."""
        await self._actor.of(Runs).destroy()

    async def in_thread(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run blocking I/O in a thread. Arguments and result are copied. The function cannot use the agent."""
        return cast(R, await self._actor.host.offload.in_thread(self._actor, function, args, kwargs))

    async def in_process(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run CPU-bound work in another process. Cancelling kills the process. The function must be importable."""
        return cast(R, await self._actor.host.offload.in_process(self._actor, function, args, kwargs))


Agent._base = Agent  # pyright: ignore[reportPrivateUsage]
