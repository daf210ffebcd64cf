"""The class users extend. Everything here is a signature, a docstring, and one line that hands on."""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, ParamSpec, cast, overload
from typing import TypeVar as PlainTypeVar

from typing_extensions import TypeVar

from sapwood.address import Address, PathSegment
from sapwood.capabilities.agenda import Agenda
from sapwood.capabilities.child_states import ChildStates
from sapwood.capabilities.children import Children
from sapwood.capabilities.connections import Connection, Connections, Speech
from sapwood.capabilities.family import Family
from sapwood.capabilities.fiber_rows import Fiber
from sapwood.capabilities.fibers import OWNER
from sapwood.capabilities.keep_alive import KeepAlive
from sapwood.capabilities.queue import QueuedCall
from sapwood.capabilities.schedules import Schedule, Schedules
from sapwood.capabilities.state import State
from sapwood.capabilities.steps import StepOptions, Steps
from sapwood.errors import NotFound, UsageError
from sapwood.kernel.actor import Actor
from sapwood.kernel.classes import EXPOSED, AgentClass, check_pool, check_type_id, known, learn
from sapwood.kernel.context import current
from sapwood.kernel.crossing import describe, mistake
from sapwood.kernel.misspelt import misspelt
from sapwood.kernel.namespace import Namespace
from sapwood.namespaces.children import AgentChildren
from sapwood.namespaces.connections import AgentConnections
from sapwood.namespaces.dead_letters import AgentDeadLetters
from sapwood.namespaces.fibers import AgentFibers
from sapwood.namespaces.questions import AgentQuestions
from sapwood.namespaces.queues import AgentQueues
from sapwood.namespaces.runs import AgentRuns
from sapwood.namespaces.schedules import AgentSchedules
from sapwood.namespaces.spending import AgentSpending
from sapwood.runs.clients import RunClients
from sapwood.runs.contract import UNWANTED, Progress, Worker, reason_below
from sapwood.runs.events import Depth, Event
from sapwood.runs.following import Following
from sapwood.runs.from_outside import RunsFromOutside
from sapwood.runs.inputs import InputDetail
from sapwood.runs.method import MethodRuns
from sapwood.runs.method_list import ListedMethods
from sapwood.runs.outcomes import Outcomes
from sapwood.runs.question import Approvers, Question
from sapwood.runs.questions import Questions
from sapwood.runs.registry import RUNS, Run
from sapwood.runs.remote_sessions import RemoteSessions
from sapwood.runs.retention import KEEP_ALL, Retention
from sapwood.runs.retention import check as check_retention
from sapwood.runs.runner import Detached, Runs, Wish
from sapwood.runs.served import Served
from sapwood.runs.streaming import Watchers
from sapwood.runs.sweeping import Sweeper
from sapwood.runs.watching import Watch
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
M = PlainTypeVar("M", bound=Callable[..., Coroutine[Any, Any, Any] | AsyncIterable[Any]])

When = After | At | Every | Cron

HOOKS = frozenset(
    {"on_start", "upgrade_state", "validate_state", "on_state_changed"}
    | {"on_request", "on_connect", "on_message", "on_close", "on_error"}
    | {"on_before_request", "on_before_connect", "on_before_sub_agent", "on_before_watch", "may_answer"}
    | {"connection_tags", "is_readonly", "is_watch_only", "send_protocol_frames"}
    | {"on_fiber_recovered"}
    | {"on_run", "on_run_start", "on_run_finish"}
)
"""What a subclass may override of what `Agent` defines."""
MAY_BE_PLAIN = "_sapwood_may_be_plain"
"""What a method has that need not be `async def`: others await it than those who hold a stub."""
SETTINGS = frozenset(
    {"initial_state", "state_version", "migrations", "limits", "deps"}
    | {"create_from_url", "expose_runs", "send_identity", "input_as_state", "max_concurrent_runs", "run_retention"}
)
"""What a subclass may set."""
SHOWN = frozenset({"subscribe"})
"""The methods of `Agent` that can be called through a stub, beside those of its namespaces."""
RESERVED = frozenset({"files", "memory", "mcp", "history", "webhooks"})
"""Names that a subclass may not define: later versions add namespaces under these names."""


class Agent(Generic[S]):
    """A durable agent: subclass it, and give it async methods.

    Every named instance is one addressable actor with a SQLite database of its own. It
    is started when first needed, sleeps when idle, and survives crashes. Everything it
    writes between two awaits lands together, and nothing leaves it before that is kept.

    Write `Agent[State]` to give it a state; set `initial_state`, `state_version`,
    `migrations` and `limits` as class attributes. Do not write an `__init__`: prepare
    what lives in memory in `on_start`.
    """

    initial_state: S = cast(Any, None)
    """The state of an agent that has not set one yet."""
    state_version: ClassVar[int] = 1
    """Raise it when the shape of the state changes, and write `upgrade_state`."""
    migrations: ClassVar[Sequence[str] | Path] = ()
    """SQL scripts, or the `Path` of a folder of them. Each runs once, in order; never edit one that ran."""
    limits: ClassVar[Limits | None] = None
    """What agents of this class may do at most; limits from above hold as well."""
    create_from_url: ClassVar[bool] = False
    """Whether a URL may make a sub-agent of this class that its parent has not made. Roots always may be."""
    expose_runs: ClassVar[bool] = False
    """Whether other servers may have roots of this class do runs, by their URLs: see `RemoteSubAgent`."""
    send_identity: ClassVar[bool] = True
    """Whether a client is told, when it connects, whom it is connected to."""
    input_as_state: ClassVar[bool] = False
    """Whether the input of its first run becomes its state. An agent that has set a state keeps it."""
    max_concurrent_runs: ClassVar[int | None] = None
    """How many runs it may have given that are not over; None: any number."""
    run_retention: ClassVar[Retention | Mapping[type[Agent[Any]], Retention]] = KEEP_ALL
    """Which finished runs are kept, of all that it gave or by the class that did them; otherwise all are."""

    deps: Any
    """What `App(deps=…)` was given. Annotate it in your class to narrow it; it is checked at the start."""

    schedules = Namespace(AgentSchedules)
    queues = Namespace(AgentQueues)
    dead_letters = Namespace(AgentDeadLetters)
    fibers = Namespace(AgentFibers)
    children = Namespace(AgentChildren)
    runs = Namespace(AgentRuns)
    questions = Namespace(AgentQuestions, crosses=True)
    connections = Namespace(AgentConnections)
    spending = Namespace(AgentSpending, crosses=True)

    def __init__(self, actor: Actor | None = None) -> None:
        if actor is None:
            name = type(self).__name__
            raise UsageError(
                f"An agent is not made by calling its class. Ask for it by name: await app.get_agent({name}, …), or "
                f"await self.sub_agent({name}, …) inside another agent."
            )
        self._actor = actor
        self.deps = actor.host.deps

    _base: ClassVar[type]
    """The framework's own class that a user's class extends."""
    _hooks: ClassVar[frozenset[str]] = HOOKS
    _settings: ClassVar[frozenset[str]] = SETTINGS
    _shows: ClassVar[frozenset[str]] = SHOWN
    """What stubs show of what the framework defines."""
    _speaks: ClassVar[tuple[Callable[[Actor], Speech], ...]] = (
        RunClients,
        Watchers,
        Questions,
        ListedMethods,
        RunsFromOutside,
    )
    """What else it says to its clients, and hears from them."""
    _runs_as: ClassVar[Callable[[Actor], Worker]] = MethodRuns
    """Who does the runs it is given."""
    _has_conversation: ClassVar[bool] = False
    """Whether what becomes of a run can be said to it."""

    @classmethod
    def _check_setup(cls, *, has_users: bool) -> None:
        """Refuse, when an app starts, a class that cannot work in this environment, or in an app that has users."""

    @classmethod
    def _remote_url(cls) -> str | None:
        """Return the URL of the agents on another server that do the runs of this class. `None` means none do."""
        return None

    @classmethod
    def _check_approvers(cls) -> None:
        """Refuse a class, in an app that has users, whose tools require approval and do not say who may give it."""

    @classmethod
    def _approvers_of(cls, tool: str) -> Approvers | None:
        """Return who may approve calls of a tool of this class. `None` means that it does not say."""
        return None

    def _wants(self, work: str) -> bool:
        """Return whether a run it does, a turn or a fiber of its own, is still to go on."""
        if work.startswith(OWNER):
            return self._actor.of(Agenda).fibers.goes_on(work)
        return self._actor.of(Served).worker.wants(work)

    def _has_completed(self, work: str) -> bool:
        """Return whether a run it does, or a turn, has completed. A fiber that completed has released its runs."""
        return not work.startswith(OWNER) and self._actor.of(Served).worker.stands(work) == "completed"

    def _why_not(self, work: str | None) -> str:
        """Return the reason for what is below a run it does, a turn or a fiber of its own, that is not to go on."""
        if work is None or work.startswith(OWNER):
            return UNWANTED
        return reason_below(self._actor.of(Served).worker.why_not(work))

    def _let_go(self, work: str, *, is_done: bool) -> None:
        """A fiber is over, in this slice."""
        if self._actor.database.has(RUNS):
            self._actor.of(Runs).let_go(work, is_done=is_done)

    def _changes_state(self) -> None:
        """The state is about to be replaced, in this slice."""
        self._actor.of(ChildStates).changed()

    def _notified(self, run: Run) -> None:
        """A run is over, or was given up, that joins the conversation."""

    def _gave_up(self, method: str, arguments: Mapping[str, Any], error: str) -> None:
        """A fiber that nobody asks about failed for good."""
        if method == "_sapwood_follow_run":
            self._actor.of(Outcomes).gave_up(arguments["run"], error)
        elif method == "_sapwood_serve_run":
            self._actor.of(Served).ended(arguments["run"], "failed", error=error)

    def __init_subclass__(
        cls,
        hooks: frozenset[str] | None = None,
        settings: frozenset[str] = frozenset(),
        shows: frozenset[str] = frozenset(),
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if hooks is not None:
            # One of the framework's own, to be extended.
            cls._base = cls
            cls._hooks = HOOKS | hooks
            cls._settings = SETTINGS | settings
            cls._shows = SHOWN | shows
            learn(cls, AgentClass(cls, base=Agent, shown=cls._shows, names={}))
            return
        _check_class(cls)
        names: dict[str, Any] = {}
        if "<locals>" in cls.__qualname__:
            # Annotations of a class defined in a function may name its neighbours there.
            names = dict(_definition().f_locals)
        learn(cls, AgentClass(cls, base=cls._base, shown=cls._shows, names=names))

    async def on_start(self) -> None:
        """Called once in every life of the agent, before anything else is delivered to it. Override it."""

    def upgrade_state(self, old: Any, version: int) -> S:
        """Return the state to use for one that an older `state_version` wrote. Override it."""
        raise UsageError(
            f"The state of {self._actor.address} was written by version {version}, and the class is at version "
            f"{self.state_version}. Write upgrade_state(old, version)."
        )

    def validate_state(self, state: S, source: Connection | None) -> None:
        """Raise to refuse a new state. `source` is the client that wants it, None for the agent itself. Override it."""

    async def on_state_changed(self, state: S, source: Connection | None) -> None:
        """Called after the state was replaced; what it raises undoes nothing. Override it."""

    async def on_request(self, request: Request) -> Response:
        """Answer an HTTP request to this agent. Override it; until then every request is not found."""
        raise NotFound("Not Found", path=self._actor.address.segments)

    async def on_connect(self, connection: Connection) -> None:
        """Called when a client has connected, before its first message. Raise to close. Override it."""

    async def on_message(self, connection: Connection, message: str | bytes) -> None:
        """Called with every message of a client's that is not the framework's. Override it."""

    async def on_close(self, connection: Connection, code: int, reason: str) -> None:
        """Called when a client's socket has closed. Override it."""

    async def on_error(self, error: BaseException, connection: Connection) -> None:
        """Called with what `on_message` raised; until overridden it is logged."""
        who = self._actor.address
        log.error("on_message of %s failed: %s", who, describe(error), exc_info=mistake(error))

    async def on_before_request(self, request: Request) -> Request | Response | None:
        """Called before `on_request`: let it through (None), answer it, or put another in its place. Override it."""

    async def on_before_connect(self, request: HTTPConnection) -> HTTPConnection | Response | None:
        """Called before a client connects: let it in (None), or refuse it with a response. Override it."""

    async def on_before_sub_agent(
        self, request: HTTPConnection, child: PathSegment
    ) -> HTTPConnection | Response | None:
        """Called before a client's request or socket goes on to a sub-agent, which is not awake yet.

        Let it through (None), answer it, or put another request in its place. Code that calls
        `sub_agent` does not come by here. Override it.
        """

    async def on_before_watch(self, request: Request) -> Request | Response | None:
        """Called before a client uses `…/events`, `…/questions`, `…/methods`, `…/runs` or `…/get-messages`.

        It follows `on_before_request`. Let the client through (None), or refuse it with a response.
        Below this agent, those URLs show only agents to which the client could go itself. Override it.
        """

    async def may_answer(self, user: Any, question: Question) -> bool | str:
        """Return whether a client may answer a question of this agent, or of one below it.

        Called after the gates and after what the tool says with `approvers`. `user` is what `authenticate` returned.
        `question.path` leads from this agent to the one that asks. Return `False` or a reason to refuse: the question
        stays open. Clients see the questions that they may answer. Override it.
        """
        return True

    def connection_tags(self, connection: Connection) -> Sequence[str]:
        """Return the tags a new connection can be found by, with `connections(tag=…)`. Override it."""
        return ()

    def is_readonly(self, connection: Connection) -> bool:
        """Return whether a new connection may only read the state. Override it."""
        return False

    def is_watch_only(self, connection: Connection) -> bool:
        """Return whether a new connection may neither begin turns, nor answer questions, nor call methods.

        It may not write the state either. `on_message` is still called. Override it.
        """
        return False

    def send_protocol_frames(self, connection: Connection) -> bool:
        """Return whether a new connection is told identity and state. Override it for clients that are not ours."""
        return True

    async def on_fiber_recovered(self, fiber: Fiber) -> None:
        """Called when a fiber was interrupted by the end of the process, before its method is called again.

        To have it be over instead, call `fibers.resolve` or `fibers.cancel`. If this raises or takes
        too long it is tried again later. A function that is no method of this agent cannot be called
        again: go on from `fiber.stash` here. Override it.
        """

    async def on_run(self, input: Any) -> Any:
        """Do what another agent asks with `run_agent`, and return what comes of it. Override it.

        Annotate `input`, and it arrives as that. After a crash it is called again: use steps. An
        async generator streams: yield text, or chunks of an AI SDK stream.
        """
        raise NotImplementedError

    async def on_run_start(self, run: Run) -> None:
        """Called when a run this agent has given begins. Override it."""

    async def on_run_finish(self, run: Run) -> None:
        """Called when a run this agent has given is over, or was given up. Override it."""

    @property
    def name(self) -> str:
        """This agent's own name."""
        return self._actor.address.name

    @property
    def address(self) -> Address:
        """Who this agent is: all steps from its root."""
        return self._actor.address

    def sql(self, query: str, *arguments: Any, **named: Any) -> Rows:
        """Run one statement on this agent's own database, now. The rows come back already read."""
        return self._actor.user_database().run(query, named or arguments)

    def transaction(self) -> AbstractContextManager[None]:
        """Undo what the ``with`` block wrote if it raises. There must be no await in it."""
        return self._actor.user_database().block()

    async def read_sql(self, query: str, *arguments: Any, **named: Any) -> Rows:
        """Run a SELECT that may take long, in a thread. Calls to this agent wait for it; other agents do not."""
        self._actor.user_database()
        return await self._actor.host.offload.read_sql(self._actor, query, named or arguments)

    @property
    def state(self) -> S:
        """The agent's state, as `set_state` left it. Never change it in place."""
        return self._actor.of(State).get()

    def set_state(self, state: S) -> None:
        """Replace the state: it is stored with what else is written before the next await."""
        self._actor.of(State).set(state)

    def broadcast(self, message: object, *, exclude: Iterable[Connection] = ()) -> None:
        """Send a message to every client of this agent: text and bytes as they are, anything else as JSON."""
        self._actor.of(Connections).broadcast(message, exclude)

    def schedule(
        self, when: timedelta | datetime | When, method: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs
    ) -> Schedule:
        """Have a method of this agent called later, even if it sleeps till then or the process dies.

        `when` is a timedelta, a datetime with a time zone, `After`, `At`, `Every` or `Cron`. The
        schedule is stored with what else is written before the next await, the arguments as they
        are now. A method without awaits happens exactly once; one with awaits, at least once.
        """
        return self._actor.of(Schedules).add(when, method, args, kwargs)

    def keep_alive(self) -> KeepAlive:
        """Keep this agent's whole tree in memory until `release()` is called, or the ``with`` block ends."""
        return KeepAlive(self._actor)

    def start_fiber(self, key: str, method: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> Fiber:
        """Start a method of this agent as a fiber of its own; it goes on after a crash until it is over.

        Starting it again under the same key returns the one there is, whatever became of it.
        """
        return self._actor.of(Agenda).fibers.start(key, method, args, kwargs)

    async def step(
        self, name: str | StepOptions, function: Callable[P, Awaitable[R] | R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function once, and return what it returned: now, and whenever this work is begun again.

        In a fiber, or in a method that was scheduled or queued. Give `StepOptions` for
        retries and a timeout.
        """
        return cast(R, await self._actor.of(Steps).run(name, function, args, kwargs))

    async def sleep_until(self, time: datetime) -> None:
        """Sleep, also through restarts: the time given first counts. In a fiber, or where `step` may be used."""
        await self._actor.of(Steps).sleep_until(time)

    def enqueue(self, method: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> QueuedCall:
        """Call a method of this agent once the calls that were queued before it are done.

        The call is stored with everything else that is written before the next await. For a queue of its own, use
        `self.queues[name].add(…)`.
        """
        return self.queues.default.add(method, *args, **kwargs)

    async def checkpoint(self, value: object) -> None:
        """Store the position of the running fiber; durable when this returns.

        After a crash it is in `self.fibers.current.checkpoint`.
        """
        await self._actor.of(Agenda).fibers.checkpoint(value)

    async def flush(self) -> None:
        """Return when everything written so far is durable. Call it before I/O that sapwood does not know of."""
        self._actor.check_use()
        await self._actor.leave()

    async def sub_agent(self, cls: type[A], name: str) -> A:
        """Return the sub-agent of this class and name, started. It is made the first time it is asked for."""
        return cast(A, self._actor.host.stub_of(await self._actor.of(Children).get(cls, name)))

    async def run_agent(
        self,
        cls: type[Agent[Any]],
        input: Any = None,
        *,
        run_id: str | None = None,
        order: int | None = None,
        timeout: float | None = None,
        on_disconnect: Literal["cancel", "continue"] = "cancel",
        display: Mapping[str, Any] | None = None,
    ) -> Run:
        """Run `cls` in a new sub-agent and return the finished `Run`.

        Failures are returned, not raised: check `run.ok`. A run id runs once. Calling again with the same id, also
        after a crash, returns the same run. Without one, a tool call, a fiber or a schedule that is executed again
        gives its runs the same ids.
        """
        wish = Wish(run_id, None, order, 0, timeout, None, on_disconnect, display)
        return await self._actor.of(Runs).run(cls, input, wish)

    async def start_run(
        self,
        cls: type[Agent[Any]],
        input: Any = None,
        *,
        on_finish: Callable[[Run], object] | None = None,
        notify: bool = False,
        max_duration: timedelta | None = timedelta(hours=24),
        idle_timeout: timedelta | None = timedelta(hours=1),
        run_id: str | None = None,
        order: int | None = None,
        timeout: float | None = None,
        display: Mapping[str, Any] | None = None,
    ) -> Run:
        """Start a run in a new sub-agent and return it as soon as the sub-agent has accepted it.

        `on_finish` is a method of this agent that is called with the `Run` when it has ended. With `notify`, the result
        is posted to the conversation of this agent. A run that takes longer than `max_duration`, or makes no progress
        for `idle_timeout`, becomes `interrupted`; `None` means no limit. `await run.result()` waits for the end.
        """
        detached = Detached(on_finish, notify, max_duration, idle_timeout)
        wish = Wish(run_id, None, order, 0, timeout, detached, display=display)
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
        """Tell whoever watches how far the run is that this code belongs to; return whether it belongs to one.

        A `milestone` is kept, and shown to those who come later; the rest passes.
        """
        return self._actor.of(Served).report(Progress(fraction, message, phase, data), milestone)

    async def subscribe(
        self, depth: Depth = "tree", *, after: str | None = None, input: InputDetail = "preview"
    ) -> AsyncGenerator[Event, None]:
        """Yield what happened in this agent and below it, then what happens, each event once.

        `depth` is `self` for what the agent itself does, `children` for the runs it has given too, `tree`
        for everything below it. Pass the `cursor` of the last event as `after` to go on there, also after
        a restart. A reader that stops ends nothing else. With `input="full"`, a start carries the whole
        input of its run instead of a preview.
        """
        async with aclosing(Watch(self._actor, depth, after, input).events()) as events:
            async for event in events:
                yield event

    async def _sapwood_tell_state(self) -> None:
        """Tell the parent the state; the framework's own."""
        await self._actor.of(ChildStates).tell()

    async def _sapwood_follow_run(self, run: str) -> None:
        """Follow a run to its end; the framework's own."""
        await self._actor.of(Following).follow(run)
        await self._actor.of(Sweeper).run_ended()

    async def _sapwood_sweep_runs(self) -> None:
        """Take away the runs that are not to be kept any longer; the framework's own."""
        await self._actor.of(Sweeper).sweep()

    async def _sapwood_serve_run(self, run: str) -> None:
        """Do a run; the framework's own."""
        await cast("MethodRuns", self._actor.of(Served).worker).drive(run)

    async def _sapwood_run_result(self, run: Run) -> Run:
        """Return a run of this agent once it is over; the framework's own."""
        return await self._actor.of(Runs).result(run)

    async def _sapwood_full_input(self, run: Run) -> Any:
        """Return the whole input of a run of this agent; the framework's own."""
        return await self._actor.of(Runs).full_input(run)

    async def _sapwood_send_stop(self, owner: str, session: str, reason: str, until: float) -> None:
        """Ask another server to stop a run; the framework's own."""
        await self._actor.of(RemoteSessions).send_stop(owner, session, reason, until)

    async def parent_agent(self, cls: type[A]) -> A:
        """Return a stub of this agent's parent, which has to be of this class."""
        return cast(A, await self._actor.of(Family).parent(cls))

    async def ancestor(self, cls: type[A]) -> A:
        """Return a stub of the nearest ancestor of this class."""
        return cast(A, await self._actor.of(Family).ancestor(cls))

    async def root_agent(self, cls: type[A]) -> A:
        """Return a stub of the root of this agent's tree, which has to be of this class."""
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
        """Return a stub of any root, or of a descendant of it that exists.

        Write a `sub` of several steps as a tuple, `sub=((Desk, "sport"), (Reporter, "ann"))`: of
        a list, type checkers do not know which class is the last.
        """
        return await self._actor.of(Family).find(cls, name, sub)

    async def destroy(self) -> None:
        """Delete this agent, all below it and all their data. It is gone once this returns; the call may still end."""
        await self._actor.of(Runs).destroy()

    async def in_thread(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run blocking I/O in a thread. What goes in and comes out is copied; the agent itself stays out of it."""
        return cast(R, await self._actor.host.offload.in_thread(function, args, kwargs))

    async def in_process(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run heavy computing in another process. Cancelling kills it. The function has to be importable."""
        return cast(R, await self._actor.host.offload.in_process(function, args, kwargs))


Agent._base = Agent  # pyright: ignore[reportPrivateUsage]


def _check_class(cls: type[Agent[Any]]) -> None:
    check_type_id(cls.__name__)
    # Not by cls._base: a user's class may have hidden it.
    base = next(owner for owner in cls.__mro__ if owner.__dict__.get("_base") is owner)
    hooks: frozenset[str] = base.__dict__["_hooks"]
    settings: frozenset[str] = base.__dict__["_settings"]
    for owner in cls.__mro__[: cls.__mro__.index(base)]:
        asked = misspelt(owner, base, hooks, settings)
        for name, value in owner.__dict__.items():
            if name == "__init__":
                raise UsageError(
                    f"{cls.__name__} defines __init__. An agent is made by the framework: prepare it in on_start()."
                )
            if name in RESERVED or name.startswith("_sapwood_"):
                raise UsageError(f"{cls.__name__}.{name}: this name is reserved for sapwood. Choose another name.")
            if name in ("_actor", "name") or (
                hasattr(base, name) and not name.startswith("__") and name not in hooks | settings
            ):
                raise UsageError(
                    f"{cls.__name__}.{name} would hide what Agent itself has under that name. Choose another name; "
                    f"only {', '.join(sorted(hooks))} are meant to be overridden."
                )
            if inspect.isfunction(value) and not name.startswith("__") and name not in settings:
                _check_method(cls, name, value, hooks | asked.keys())
        # What an agent class above has was asked about when that was made.
        if owner is cls or not issubclass(owner, base):
            for text in asked.values():
                _warn(text)
    if isinstance(getattr(cls, "migrations", ()), str):
        raise UsageError(
            f"{cls.__name__}.migrations is a text. Write a tuple of scripts, with a comma after each, or the Path of a "
            "folder of .sql files."
        )
    check_retention(cls.__name__, getattr(cls, "run_retention", KEEP_ALL))
    limits = getattr(cls, "limits", None)
    if limits is not None and not isinstance(limits, Limits):
        raise UsageError(f"{cls.__name__}.limits is a {type(limits).__name__}. Write limits = Limits(…).")


def _check_method(cls: type, name: str, function: Any, hooks: frozenset[str]) -> None:
    if not inspect.signature(function).parameters:
        raise UsageError(f"{cls.__name__}.{name} has no parameters; a method's first one is self.")
    plain = not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function))
    if name == "on_start" and not inspect.iscoroutinefunction(function):
        raise UsageError(f"{cls.__name__}.on_start has to be `async def`.")
    if plain and name not in hooks and not name.startswith("_") and not getattr(function, MAY_BE_PLAIN, False):
        _warn(
            f"{cls.__name__}.{name} is a plain method. It has to be awaited through a stub, which type checkers "
            f"cannot see: write `async def`, or call it _{name} if it is only for the agent itself."
        )


def _warn(text: str) -> None:
    """Warn about a class where it is written."""
    frame = _definition()
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__", "")
    warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno, module, registry)


def _definition() -> FrameType:
    """Return where the class is written that is being made."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_code.co_name != "__init_subclass__" and frame.f_back is not None:
        frame = frame.f_back
    # Each class that the new one extends may have one of its own.
    while frame.f_code.co_name == "__init_subclass__" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def agent(
    *, type: str | None = None, aliases: Sequence[str] = (), pool: str | None = None
) -> Callable[[type[A]], type[A]]:
    """Say what a class is stored as and which workers run it. It holds for this class, not for those that extend it.

    `type` is a type id of its own, so that it can be renamed; `aliases` are ids it had before. `pool` has its roots,
    with all below them, run only by the workers that were started for that pool, with `sapwood serve --pool`; in one
    process, and for sub-agents, it means nothing.
    """
    if type is not None:
        check_type_id(type)
    if pool is not None:
        check_pool(pool)

    def decorate(cls: Any) -> Any:
        kind = known(cls)
        kind.type = type or kind.type
        kind.aliases = tuple(aliases)
        kind.pool = pool
        return cls

    return decorate


def expose(method: M) -> M:
    """Let remote clients call this method; without it only other agents and the app can."""
    setattr(method, EXPOSED, True)
    return method


def current_agent() -> Agent[Any] | None:
    """Return the agent whose code is running now; None outside of any."""
    call = current.get()
    return None if call is None else cast("Agent[Any]", call.actor.agent)


def current_connection() -> Connection | None:
    """Return the connection whose call or message is being handled now; None if no client asked for it."""
    call = current.get()
    return None if call is None else cast("Connection | None", call.client)
